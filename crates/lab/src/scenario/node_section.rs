//! A machine and its apps as they are written: `[node]` and `[[app]]` of a scenario of one
//! machine, and `[host.NAME]` of machines under tiers.

use lull_control::{AppSpec, Class, WrittenObjective};
use lull_measure::{Hertz, Nanos};
use lull_sim::hosts::Host;
use lull_sim::idle::{IdleRule, IdleState};
use lull_sim::machine::{
    Activity, Cache, Card, CoreTypes, DispatchPart, DutyCycle, GateModel, LinuxScheduler,
    MachineApp, MachineModel, Memory, MemoryUse, Power, Presence, Scaling, gates,
};
use serde::Deserialize;

/// `[host.NAME]`: machines under tiers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostSection {
    node: Box<NodeSection>,
    app: Vec<NodeAppSection>,
}

/// `[node]`: the machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeSection {
    cores: u16,
    frequency: Hertz,
    #[serde(rename = "core-types")]
    core_types: Option<CoreTypes>,
    #[serde(default)]
    interference: f64,
    scaling: Option<Scaling>,
    #[serde(rename = "duty-cycle")]
    duty_cycle: Option<DutyCycle>,
    #[serde(default)]
    idle: Vec<IdleState>,
    #[serde(default)]
    idle_rule: IdleRule,
    power: Option<Power>,
    card: Option<Card>,
    #[serde(default, deserialize_with = "gates")]
    gate: Vec<GateModel>,
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
pub(super) struct NodeAppSection {
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

impl HostSection {
    /// The machine of this name, and its apps as policies see them.
    pub(super) fn host(&self, name: &str) -> Host {
        Host {
            model: self.node.model(name, &self.app),
            apps: self.app.iter().map(NodeAppSection::spec).collect(),
        }
    }
}

impl NodeSection {
    /// The machine of this name with these apps.
    pub(super) fn model(&self, name: &str, apps: &[NodeAppSection]) -> MachineModel {
        MachineModel {
            core_types: self.core_types.clone(),
            interference: self.interference,
            dispatch: self.dispatch.clone(),
            scaling: self.scaling.clone(),
            duty_cycle: self.duty_cycle.clone(),
            idle: self.idle.clone(),
            idle_rule: self.idle_rule,
            power: self.power,
            card: self.card.clone(),
            gate: self.gate.clone(),
            scheduler: self.scheduler,
            cache: self.cache,
            memory: self.memory,
            refresh: self.refresh.unwrap_or(lull_sim::machine::REFRESH),
            app: apps.iter().map(NodeAppSection::model).collect(),
            ..MachineModel::plain(name, self.cores, self.frequency)
        }
    }
}

impl NodeAppSection {
    fn model(&self) -> MachineApp {
        MachineApp {
            name: self.name.clone(),
            threads: self.threads,
            activity: self.activity.clone(),
            memory: self.memory,
            ipc: self.ipc.unwrap_or(1.0),
            presence: Presence {
                arrives: self.arrives.0.clone(),
                leaves: self.leaves.0.clone(),
                restarts: self.restarts.0.clone(),
            },
        }
    }

    /// The description of the app for policies.
    pub(super) fn spec(&self) -> AppSpec {
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
