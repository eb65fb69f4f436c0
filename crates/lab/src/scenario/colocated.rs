//! Scenarios of one machine that apps share: `[node]` instead of tiers.
//!
//! A policy needs the ideal latency of each latency-critical app and the progress of
//! best-effort work alone. The simulator measures them where the scenario does not state them.

use super::choice::Labelled;
use super::file::{PolicySection, RunSection};
use super::frame::{Contents, Frame};
use super::quantity::{Answers, Quantity, Response, percent, quantity, responses};
use super::run::RunError;
use super::{Choice, Outcome, Wrong};
use crate::cells::Sample;
use crate::colocation::{PlayError, Played, Scene, Span, Steering};
use crate::policy_source::PolicySource;
use crate::progress::Progress;
use crate::report::number_text;
use lull_control::{AppSpec, Class, PolicyError, RosterEvent, WrittenObjective};
use lull_measure::{Hertz, Nanos};
use lull_sim::node::{
    Activity, Cache, Memory, MemoryUse, NodeApp, NodeModel, NodeScheduler, NodeSimulation, Presence,
};
use lull_sim::stats::Failure;
use serde::Deserialize;

/// Warm-up and counted time of a run of an app alone, to measure its ideal or its progress.
const ALONE: Nanos = Nanos::from_secs(20);
/// Default warm-up: ours.
const WARMUP: Nanos = Nanos::from_secs(20);

/// A scenario of a node as it is written, before it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColocatedFile {
    title: String,
    #[serde(default)]
    run: RunSection,
    node: NodeSection,
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
    #[serde(default)]
    scheduler: NodeScheduler,
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

/// A checked scenario of a node.
#[derive(Debug, Clone)]
pub struct Colocated {
    pub(super) frame: Frame<NodeVariant, NodeFigure>,
    scene: Scene,
}

/// One policy of the comparison.
#[derive(Debug, Clone)]
pub(super) struct NodeVariant {
    label: String,
    steering: Steering,
    key: String,
}

/// A figure of a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum NodeFigure {
    Response(usize, Response),
    Progress(usize),
    /// Requests that an app left unanswered when it left.
    Lost(usize),
    System,
    Critical,
    BestEffort,
    Violating,
    Utilisation,
}

impl Colocated {
    /// The machine and the apps.
    pub(crate) fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Seed of all random numbers.
    pub(crate) fn seed(&self) -> u64 {
        self.frame.seed
    }

    /// The machine and the apps, without policies.
    pub(crate) fn into_scene(self) -> Scene {
        self.scene
    }

    /// Checks a scenario and measures alone what it leaves out.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(file: ColocatedFile, choice: &Choice) -> Result<Self, Wrong> {
        let model = file.model();
        model.check().map_err(|error| {
            let of_app = error.key.starts_with("app[");
            let key = if of_app {
                error.key.replace("presence.", "")
            } else {
                format!("node.{}", error.key)
            };
            Wrong::at(key, error.problem.to_string())
        })?;
        let seed = choice.seed.unwrap_or(file.run.seed);
        let mut notices = Vec::new();
        let mut apps = Vec::new();
        for (at, app) in file.app.iter().enumerate() {
            apps.push(app.spec(&format!("app[{at}]"), &model, seed, &mut notices)?);
        }
        let contents = Contents {
            title: file.title,
            notices,
            variants: variants(&file.policy, choice)?,
            figures: figures(&apps, &model),
        };
        let frame = Frame::new(contents, &file.run, choice, WARMUP)?;
        check_presence(&model, &frame)?;
        let scenario = Self { frame, scene: Scene { model, apps } };
        let mut all = scenario.frame.contents.variants.iter();
        all.try_for_each(|variant| scenario.check_policy(variant))?;
        Ok(scenario)
    }

    /// Builds the policy once, so that a bad key is reported before anything runs.
    fn check_policy(&self, variant: &NodeVariant) -> Result<(), Wrong> {
        let at = |key: &str| variant.key_of(key);
        let started = self.scene.start(&variant.steering, self.frame.seed, 0);
        started.map(drop).map_err(|error| match error {
            PlayError::Policy(PolicyError::Config { key, message }) => Wrong::at(at(&key), message),
            PlayError::Policy(other) => Wrong::at(at("name"), other.to_string()),
            PlayError::Scene(failure) => Wrong::at("node", failure.to_string()),
        })
    }

    /// Runs all policies on the same replications. The result is the same to
    /// the last bit on any number of threads.
    ///
    /// # Errors
    /// The first simulation that fails.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        let Frame { seed, warmup, length, .. } = self.frame;
        let span = Span { warmup, length, seed };
        let name = |app: usize| (self.scene.apps[app].name.as_str(), true);
        let apps: Vec<_> = self.critical().map(name).collect();
        self.frame.run(&apps, progress, |variant, replication| {
            let played = self.scene.play(&variant.steering, span, replication, progress);
            played.map(|played| self.sample(&played))
        })
    }

    fn sample(&self, played: &Played) -> Sample {
        let requests = self.critical().map(|app| {
            let answered = played.answers[app].count();
            (answered.saturating_add_signed(played.left[app]), played.left[app])
        });
        let values = self.frame.figures().map(|what| self.value(what, played));
        Sample { values: values.collect(), requests: requests.collect() }
    }

    /// The latency-critical apps by number.
    fn critical(&self) -> impl Iterator<Item = usize> + '_ {
        let apps = self.scene.apps.iter().enumerate();
        apps.filter(|(_, app)| app.is_latency_critical()).map(|(at, _)| at)
    }

    fn value(&self, what: NodeFigure, played: &Played) -> f64 {
        let part = |part: Option<f64>| part.unwrap_or(f64::NAN);
        match what {
            NodeFigure::Response(app, response) => {
                let latency = &played.answers[app];
                response.value(Answers {
                    span: played.present[app],
                    count: latency.count(),
                    mean_ms: latency.mean().map_or(f64::NAN, Nanos::as_millis_f64),
                    latency,
                })
            }
            NodeFigure::Progress(app) => {
                let solo = self.scene.apps[app].solo_per_s.unwrap_or(f64::NAN);
                percent(played.work_per_s[app], solo)
            }
            NodeFigure::Lost(app) => percent(played.lost[app], 1.0),
            NodeFigure::System => played.entropy.system,
            NodeFigure::Critical => part(played.entropy.lc),
            NodeFigure::BestEffort => part(played.entropy.be),
            NodeFigure::Violating => percent(played.violations(), played.epochs.len() as f64),
            NodeFigure::Utilisation => 100.0 * played.utilisation,
        }
    }
}

impl ColocatedFile {
    fn model(&self) -> NodeModel {
        let app = |app: &NodeAppSection| NodeApp {
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
        NodeModel {
            name: self.title.clone(),
            cores: self.node.cores,
            frequency: self.node.frequency,
            scheduler: self.node.scheduler,
            cache: self.node.cache,
            memory: self.node.memory,
            refresh: self.node.refresh.unwrap_or(lull_sim::node::REFRESH),
            app: self.app.iter().map(app).collect(),
        }
    }
}

impl NodeAppSection {
    /// The description of the app for policies.
    fn spec(
        &self,
        key: &str,
        model: &NodeModel,
        seed: u64,
        notices: &mut Vec<String>,
    ) -> Result<AppSpec, Wrong> {
        let mut spec = AppSpec {
            name: self.name.clone(),
            class: self.class,
            objectives: self.objectives.iter().map(|written| written.0).collect(),
            threads: Some(self.threads),
            ideal: self.ideal,
            max_load_per_s: self.max_load,
            solo_per_s: self.solo,
        };
        let wrong = |error: lull_control::AppError| {
            Wrong::at(format!("{key}.{}", error.key), error.message)
        };
        spec.check().map_err(wrong)?;
        let serves = matches!(self.activity, Activity::Requests { .. });
        if spec.is_latency_critical() && !serves {
            let message = "is not `requests`: nothing is answered, so there is no latency; write \
                           class = \"best-effort\", or what its requests are";
            return Err(Wrong::at(format!("{key}.activity"), message));
        }
        self.measure_alone(&mut spec, model, seed, notices)
            .map_err(|failure| Wrong::at(key, failure.to_string()))?;
        spec.check().map_err(wrong)?;
        Ok(spec)
    }

    /// Measures the ideal latency or the progress alone where the scenario does not state it.
    fn measure_alone(
        &self,
        spec: &mut AppSpec,
        model: &NodeModel,
        seed: u64,
        notices: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let objective = spec.tail().filter(|_| spec.is_latency_critical());
        let known =
            if objective.is_some() { spec.ideal.is_some() } else { spec.solo_per_s.is_some() };
        if known {
            return Ok(());
        }
        let mut alone = model.clone();
        alone.app.retain(|app| app.name == self.name);
        alone.app.iter_mut().for_each(|app| app.presence = Presence::default());
        let mut node = NodeSimulation::new(&alone, seed, 0)?;
        node.run_until(ALONE);
        node.forget();
        node.run_until(ALONE.saturating_add(ALONE));
        let totals = &node.totals().apps[0];
        let Some((percentile, bound)) = objective else {
            spec.solo_per_s = Some(totals.work_per_s);
            let pace = number_text(totals.work_per_s);
            notices.push(format!(
                "`{}` does {pace} seconds of work a second alone (measured; `solo` sets it)",
                self.name
            ));
            return Ok(());
        };
        // Without an answer there is no ideal; policies then use the best latency they observe.
        if let Some(ideal) = totals.latency.quantile(percentile) {
            spec.ideal = Some(ideal);
            notices.push(format!(
                "`{}` alone has a {percentile} of {ideal} under a bound of {bound} (measured; \
                 `ideal` sets it)",
                self.name
            ));
        }
        Ok(())
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

/// Refuses changes after the end of a replication, which would never happen, and apps that are
/// absent for all of the counted time, which would have no figures.
fn check_presence(model: &NodeModel, frame: &Frame<NodeVariant, NodeFigure>) -> Result<(), Wrong> {
    let end = frame.warmup.saturating_add(frame.length);
    for (at, app) in model.app.iter().enumerate() {
        let changes = app.presence.changes();
        if let Some((time, _, key)) = changes.iter().find(|(time, ..)| *time >= end) {
            let message = format!(
                "{time} is not before the end of a replication, which is at {end} (warm-up and \
                 length)"
            );
            return Err(Wrong::at(format!("app[{at}].{key}"), message));
        }
        let counted = |(time, ..): &&(Nanos, RosterEvent, &str)| *time <= frame.warmup;
        let before = changes.iter().rfind(counted).map(|(_, event, _)| *event);
        let is_present =
            before.map_or(app.presence.begins_present(), |event| event != RosterEvent::Departed);
        let later = &changes[changes.iter().filter(counted).count()..];
        if !is_present && later.is_empty() {
            let message = format!("the app is absent after the warm-up of {}", frame.warmup);
            return Err(Wrong::at(format!("app[{at}].leaves"), message));
        }
    }
    Ok(())
}

/// All figures: app by app, then entropy with its parts, then the machine.
fn figures(specs: &[AppSpec], model: &NodeModel) -> Vec<(Quantity, NodeFigure)> {
    let mut all = Vec::new();
    for (at, spec) in specs.iter().enumerate() {
        if spec.is_latency_critical() {
            let of_app = responses(&spec.name, spec.tail()).into_iter();
            all.extend(
                of_app.map(|(quantity, response)| (quantity, NodeFigure::Response(at, response))),
            );
            if model.app[at].presence != Presence::default() {
                let words = "requests lost as it left";
                all.push((quantity("lost", Some(&spec.name), words, "%"), NodeFigure::Lost(at)));
            }
        } else {
            let words = "progress, of that alone";
            all.push((
                quantity("progress", Some(&spec.name), words, "%"),
                NodeFigure::Progress(at),
            ));
        }
    }
    let mut add = |kind, words, unit, what| all.push((quantity(kind, None, words, unit), what));
    add("entropy", "E_S", "1", NodeFigure::System);
    if specs.iter().any(AppSpec::is_latency_critical) {
        add("lc-entropy", "E_LC", "1", NodeFigure::Critical);
        add("violating", "epochs with a missed objective", "%", NodeFigure::Violating);
    }
    if !specs.iter().all(AppSpec::is_latency_critical) {
        add("be-entropy", "E_BE", "1", NodeFigure::BestEffort);
    }
    add("utilisation", "utilisation", "%", NodeFigure::Utilisation);
    all
}

/// The policies of the file, or those that the command line names.
fn variants(tables: &[toml::Table], choice: &Choice) -> Result<Vec<NodeVariant>, Wrong> {
    let mut written: Vec<NodeVariant> = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let key = format!("policy[{at}]");
        let section = PolicySection::read(table.clone(), &key)?;
        if section.tiers.is_some() {
            let message = "a node has no tiers: leave the key out";
            return Err(Wrong::at(format!("{key}.tiers"), message));
        }
        let PolicySection { name, label, epoch, config, .. } = section;
        let wrong = |error: PolicyError| Wrong::at(format!("{key}.name"), error.to_string());
        let policy = PolicySource::registered(&name).map_err(wrong)?;
        written.push(NodeVariant {
            label: label.unwrap_or(name),
            steering: Steering { policy, config, epoch },
            key,
        });
    }
    let epoch = written.first().map(|first| first.steering.epoch.clone());
    let like_first = |name: &str| {
        let steering = Steering {
            policy: choice.source(name)?,
            config: toml::Table::new(),
            epoch: epoch.clone().unwrap_or_else(|| super::file::EPOCH.into()),
        };
        Ok(NodeVariant { label: name.to_owned(), steering, key: "--policy".to_owned() })
    };
    choice.choose(written, like_first)
}

impl Labelled for NodeVariant {
    fn label(&self) -> &str {
        &self.label
    }

    fn name(&self) -> &str {
        self.steering.policy.name()
    }

    fn key(&self) -> &str {
        &self.key
    }
}
