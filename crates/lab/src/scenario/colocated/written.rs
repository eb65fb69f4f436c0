//! A scenario with `[node]` as it is written.

use super::NodeScene;
use crate::scenario::file::RunSection;
use crate::trial::rules;
use lull_control::{AppSpec, Class, WrittenObjective};
use lull_measure::{Hertz, Nanos};
use lull_sim::idle::{IdleRule, IdleState};
use lull_sim::machine::{
    Activity, Cache, Card, CoreTypes, DispatchPart, GateModel, LinuxScheduler, MachineApp,
    MachineModel, Memory, MemoryUse, Power, Presence, Scaling,
};
use serde::Deserialize;

/// A scenario of a node as it is written, before it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColocatedFile {
    title: String,
    #[serde(default)]
    run: RunSection,
    node: Box<NodeSection>,
    app: Vec<NodeAppSection>,
    #[serde(default)]
    policy: Vec<toml::Table>,
}

/// `[node]`: the machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeSection {
    cores: u16,
    frequency: Hertz,
    #[serde(rename = "core-types")]
    core_types: Option<CoreTypes>,
    #[serde(default)]
    interference: f64,
    scaling: Option<Scaling>,
    #[serde(default)]
    idle: Vec<IdleState>,
    #[serde(default)]
    idle_rule: IdleRule,
    power: Option<Power>,
    card: Option<Card>,
    gate: Option<GateModel>,
    dispatch: Option<DispatchPart>,
    #[serde(default)]
    scheduler: LinuxScheduler,
    cache: Option<Cache>,
    memory: Option<Memory>,
    refresh: Option<Nanos>,
}

/// `[[app]]`: its work in the simulator, and its description for policies.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeAppSection {
    name: String,
    threads: u32,
    activity: Activity,
    #[serde(default)]
    memory: MemoryUse,
    ipc: Option<f64>,
    class: Class,
    #[serde(default)]
    objectives: Vec<WrittenObjective>,
    ideal: Option<Nanos>,
    max_load: Option<f64>,
    solo: Option<f64>,
    #[serde(default)]
    arrives: Times,
    #[serde(default)]
    leaves: Times,
    #[serde(default)]
    restarts: Times,
}

/// One time or several.
#[derive(Debug, Clone, Default)]
struct Times(Vec<Nanos>);

impl From<ColocatedFile> for NodeScene {
    fn from(file: ColocatedFile) -> Self {
        Self {
            model: file.model(),
            apps: file.app.iter().map(NodeAppSection::spec).collect(),
            title: file.title,
            run: file.run,
            rules: rules(),
            policies: file.policy,
            epoch: None,
            shortest_epoch: Nanos::ZERO,
            notices: Vec::new(),
        }
    }
}

impl ColocatedFile {
    fn model(&self) -> MachineModel {
        let app = |app: &NodeAppSection| MachineApp {
            name: app.name.clone(),
            threads: app.threads,
            activity: app.activity.clone(),
            memory: app.memory,
            ipc: app.ipc.unwrap_or(1.0),
            presence: Presence {
                arrives: app.arrives.0.clone(),
                leaves: app.leaves.0.clone(),
                restarts: app.restarts.0.clone(),
            },
        };
        MachineModel {
            core_types: self.node.core_types.clone(),
            interference: self.node.interference,
            dispatch: self.node.dispatch.clone(),
            scaling: self.node.scaling,
            idle: self.node.idle.clone(),
            idle_rule: self.node.idle_rule,
            power: self.node.power,
            card: self.node.card.clone(),
            gate: self.node.gate.clone(),
            scheduler: self.node.scheduler,
            cache: self.node.cache,
            memory: self.node.memory,
            refresh: self.node.refresh.unwrap_or(lull_sim::machine::REFRESH),
            app: self.app.iter().map(app).collect(),
            ..MachineModel::plain(&self.title, self.node.cores, self.node.frequency)
        }
    }
}

impl NodeAppSection {
    /// The description of the app for policies.
    fn spec(&self) -> AppSpec {
        AppSpec {
            name: self.name.clone(),
            class: self.class,
            objectives: self.objectives.iter().map(|written| written.0).collect(),
            threads: Some(self.threads),
            ideal: self.ideal,
            max_load_per_s: self.max_load,
            solo_per_s: self.solo,
        }
    }
}

impl<'de> Deserialize<'de> for Times {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = Times;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a time such as \"20s\", or a list of times")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Times, E> {
                text.parse().map(|time| Times(vec![time])).map_err(E::custom)
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, list: A) -> Result<Times, A::Error> {
                Deserialize::deserialize(serde::de::value::SeqAccessDeserializer::new(list))
                    .map(Times)
            }
        }
        from.deserialize_any(Either)
    }
}
