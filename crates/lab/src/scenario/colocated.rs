//! Scenarios of one machine that apps share: `[node]` instead of tiers, or the config of an
//! agent with a simulated machine under it.
//!
//! A policy needs the ideal latency of each latency-critical app and the progress of
//! best-effort work alone. The simulator measures them where the scenario does not state them.

mod check;
mod written;

pub(super) use check::{check_amount, check_presence};
pub use written::ColocatedFile;

use super::check::check_epoch;
use super::choice::{Described, Labelled};
use super::file::{NODE_WARMUP, PolicySection, RunSection, epoch_of};
use super::frame::{Contents, Frame};
use super::quantity::{Answers, Quantity, Response, percent, quantity, responses};
use super::run::RunError;
use super::{Choice, InvalidKey, Outcome};
use crate::bounds::BACKLOG_MAX;
use crate::cells::Sample;
use crate::colocation::{
    ConnectionGroup, GateKeepers, PlayError, Played, RequestDispatcher, Scene, Span, Steering,
};
use crate::policy_source::PolicySource;
use crate::progress::Progress;
use crate::report::number_text;
use check::check_no_calls;
use lull_control::{AppSpec, EpochRule, PolicyError, Rules};
use lull_measure::Nanos;
use lull_sim::Replication;
use lull_sim::machine::{
    Activity, Controllers, GateModel, MachineApp, MachineModel, MachineSimulation, Presence,
};
use lull_sim::stats::Failure;

/// Warm-up and counted time of a run of an app alone, to measure its ideal or its progress.
const ALONE: Nanos = Nanos::from_secs(20);

/// A machine that apps share, the apps, and the policies to compare, in whatever file they are
/// written.
#[derive(Debug, Clone)]
pub struct NodeScene {
    /// The title of the result.
    pub title: String,
    /// How long and how often.
    pub run: RunSection,
    /// The machine and its apps.
    pub model: MachineModel,
    /// The apps that policies watch: the first ones of the model, in its order.
    pub apps: Vec<AppSpec>,
    /// The rules that apply under every policy.
    pub rules: Rules,
    /// The policies to compare, each a table of its own keys and the policy's.
    pub policies: Vec<toml::Table>,
    /// The epoch of policies that state none; that of each policy if there is none here.
    pub epoch: Option<EpochRule>,
    /// The admission controllers of policies that name none.
    pub admission: GateKeepers,
    /// Connections that have figures of their own.
    pub groups: Vec<ConnectionGroup>,
    /// No policy's own epoch is shorter.
    pub shortest_epoch: Nanos,
    /// Notices about how far the figures are valid.
    pub notices: Vec<String>,
}

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
    /// Response of a group of connections.
    Group(usize, Response),
    Progress(usize),
    /// Requests that an app left unanswered when it left, or that were abandoned.
    Lost(usize),
    System,
    Critical,
    BestEffort,
    Violating,
    Utilisation,
    Power,
}

impl NodeScene {
    /// The epoch of a policy: the given one, else that of the scene, else its own.
    fn epoch_of(
        &self,
        given: Option<EpochRule>,
        policy: &PolicySource,
        config: &toml::Table,
        first: Option<&EpochRule>,
    ) -> EpochRule {
        let given = given.or_else(|| self.epoch.clone());
        let is_own = given.is_none();
        match epoch_of(given, policy, config, first) {
            EpochRule::Fixed(epoch) if is_own => epoch.max(self.shortest_epoch).into(),
            other => other,
        }
    }
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

    /// Checks a scenario and measures the values that it leaves out, each app alone.
    ///
    /// Errors name the keys of a scenario with `[node]`: `node.cores`, `app[0].activity`,
    /// `policy[0].name`.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(scene: NodeScene, choice: &Choice) -> Result<Self, InvalidKey> {
        // Its errors come after those of the machine and the apps.
        let chosen = variants(&scene, choice);
        let NodeScene { title, run, model, mut apps, rules, mut notices, groups, .. } = scene;
        model.check().map_err(|error| {
            let of_app = error.key.starts_with("app[");
            let key = if of_app {
                error.key.replace("presence.", "")
            } else {
                format!("node.{}", error.key)
            };
            InvalidKey::at(key, error.problem.to_string())
        })?;
        check_no_calls(&model)?;
        let seed = choice.seed.unwrap_or(run.seed);
        check_amount(&model, run.node_span())?;
        for (at, spec) in apps.iter_mut().enumerate() {
            complete(spec, &format!("app[{at}]"), &model, seed, &mut notices)?;
        }
        let mut figures = figures(&apps, &model);
        figures.extend(group_figures(&groups));
        let contents = Contents { title, notices, variants: chosen?, figures };
        let frame = Frame::new(contents, &run, choice, NODE_WARMUP)?;
        check_presence(&model, frame.warmup, frame.length)?;
        let scenario = Self { frame, scene: Scene { model, apps, rules, groups } };
        for variant in &scenario.frame.contents.variants {
            scenario.check_policy(variant)?;
            scenario.check_epoch(variant)?;
        }
        Ok(scenario)
    }

    /// Builds the policy once, so that a bad key is reported before anything runs.
    fn check_policy(&self, variant: &NodeVariant) -> Result<(), InvalidKey> {
        let started = self.scene.start(&variant.steering, self.frame.seed, 0);
        started.map(drop).map_err(|error| match error {
            PlayError::Policy(error) => variant.policy_error(error),
            PlayError::Scene(Failure::Limits(error)) => {
                InvalidKey::at(format!("limits.{}", error.key), error.message)
            }
            PlayError::Scene(failure) => InvalidKey::at("node", failure.to_string()),
        })
    }

    fn check_epoch(&self, variant: &NodeVariant) -> Result<(), InvalidKey> {
        let Frame { warmup, length, .. } = self.frame;
        let span = warmup.saturating_add(length);
        check_epoch(&variant.steering.epoch, span, length, "run.length")
            .map_err(|wrong| InvalidKey::at(variant.key_of(&wrong.key), wrong.message))
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
                response.value(Answers::new(&played.answers[app], played.present[app]))
            }
            NodeFigure::Group(group, response) => {
                response.value(Answers::new(&played.groups[group], self.frame.length))
            }
            NodeFigure::Progress(app) => {
                let solo = self.scene.apps[app].solo_per_s.unwrap_or(f64::NAN);
                percent(played.work_per_s[app], solo)
            }
            NodeFigure::Lost(app) => percent(played.lost[app], 1.0),
            NodeFigure::System => played.entropy.system,
            NodeFigure::Critical => part(played.entropy.lc),
            NodeFigure::BestEffort => part(played.entropy.be),
            NodeFigure::Violating => percent(played.missed, 1.0),
            NodeFigure::Utilisation => 100.0 * played.utilisation,
            NodeFigure::Power => played.power.map_or(f64::NAN, |power| power.0),
        }
    }
}

/// Completes the description of an app: checks it, and measures its ideal latency or its
/// progress alone where the scenario does not state it.
pub(super) fn complete(
    spec: &mut AppSpec,
    key: &str,
    model: &MachineModel,
    seed: u64,
    notices: &mut Vec<String>,
) -> Result<(), InvalidKey> {
    let wrong = |error: lull_control::AppError| {
        InvalidKey::at(format!("{key}.{}", error.key), error.message)
    };
    spec.check().map_err(wrong)?;
    let app = model.app.iter().find(|app| app.name == spec.name);
    if spec.is_latency_critical() && !app.is_some_and(MachineApp::serves) {
        let message = "is not `requests`: nothing is answered, so there is no latency; write \
                       class = \"best-effort\", or what its requests are";
        return Err(InvalidKey::at(format!("{key}.activity"), message));
    }
    let is_called = app.is_some_and(|app| matches!(app.activity, Activity::Called));
    if is_called && !spec.is_latency_critical() && spec.solo_per_s.is_none() {
        let message = "must be given, because progress alone cannot be measured: without calls of \
                       a tier the app does nothing; write solo = 0.8 (seconds of work a second)";
        return Err(InvalidKey::at(format!("{key}.solo"), message));
    }
    measure_alone(spec, model, seed, notices)
        .map_err(|failure| InvalidKey::at(key, failure.to_string()))?;
    spec.check().map_err(wrong)
}

/// Measures the ideal latency or the progress alone where the scenario does not state it.
fn measure_alone(
    spec: &mut AppSpec,
    model: &MachineModel,
    seed: u64,
    notices: &mut Vec<String>,
) -> Result<(), Failure> {
    let name = &spec.name;
    let objective = spec.tail().filter(|_| spec.is_latency_critical());
    let known = if objective.is_some() { spec.ideal.is_some() } else { spec.solo_per_s.is_some() };
    if known {
        return Ok(());
    }
    let mut alone = model.clone();
    let of_app = model.app.iter().filter(|app| app.name == *name);
    let client = of_app.filter_map(MachineApp::client).next().map(str::to_owned);
    alone.app.retain(|app| app.name == *name || Some(&app.name) == client.as_ref());
    alone.app.iter_mut().for_each(|app| app.presence = Presence::default());
    let number = alone.app_named(name).unwrap_or_default();
    let connects = alone.connected().next().is_some();
    let has_app = |gate: &GateModel| alone.behind(gate).next().is_some();
    let mut gates: Vec<_> = alone.gate.iter().filter(|gate| has_app(gate)).cloned().collect();
    gates.iter_mut().for_each(|gate| gate.client_class.retain(|class| class.app == *name));
    alone.gate = gates;
    alone.dispatch = None;
    let open = GateKeepers::default().build(&alone, &[], seed);
    let open = open.map_err(|error| Failure::Setup(error.to_string()))?;
    let controllers = Controllers { admission: open, ..Controllers::default() };
    let streams = Replication { seed, number: 0 };
    let mut node = MachineSimulation::behind(&alone, controllers, streams)?;
    run_alone(&mut node, number, ALONE)?;
    node.forget();
    run_alone(&mut node, number, ALONE.saturating_add(ALONE))?;
    let totals = &node.totals().apps[number];
    let Some((percentile, bound)) = objective else {
        let (solo, unit) = match connects {
            true => (totals.answered as f64 / ALONE.as_secs_f64(), "queries"),
            false => (totals.work_per_s, "seconds of work"),
        };
        let pace = number_text(solo);
        notices
            .push(format!("`{name}` does {pace} {unit} a second alone (measured; `solo` sets it)"));
        spec.solo_per_s = Some(solo);
        return Ok(());
    };
    // Without an answer there is no ideal; policies then use the best latency they observe.
    let Some(ideal) = totals.latency.quantile(percentile) else { return Ok(()) };
    // An admission controller may keep a bound that an open gate misses.
    if connects && ideal > bound {
        notices.push(format!(
            "`{name}` alone has a {percentile} of {ideal} with an open gate, above its bound of \
             {bound}: policies take the best latency that they observe for its ideal (`ideal` \
             sets it)"
        ));
        return Ok(());
    }
    notices.push(format!(
        "`{name}` alone has a {percentile} of {ideal} under a bound of {bound} (measured; `ideal` \
         sets it)"
    ));
    spec.ideal = Some(ideal);
    Ok(())
}

/// Runs an app alone until `end`, unless more of its requests wait than memory holds.
fn run_alone(node: &mut MachineSimulation, app: usize, end: Nanos) -> Result<(), Failure> {
    while node.now() < end {
        node.run_until(end.min(node.now().saturating_add(Nanos::from_millis(100))));
        let waiting = node.outstanding(app);
        if f64::from(waiting) > BACKLOG_MAX {
            return Err(Failure::Setup(format!(
                "{waiting} of its requests were unanswered at {} alone, more than the \
                 {BACKLOG_MAX:.0e} that are kept: send less",
                node.now()
            )));
        }
    }
    Ok(())
}

/// All figures: app by app, then entropy with its parts, then the machine.
fn figures(specs: &[AppSpec], model: &MachineModel) -> Vec<(Quantity, NodeFigure)> {
    let mut all = Vec::new();
    for (at, spec) in specs.iter().enumerate() {
        if spec.is_latency_critical() {
            let of_app = responses(&spec.name, spec.tail()).into_iter();
            all.extend(
                of_app.map(|(quantity, response)| (quantity, NodeFigure::Response(at, response))),
            );
            let part = model.dispatch.as_ref().filter(|part| part.app == spec.name);
            let abandons = part.is_some_and(|part| part.abandon.is_some());
            if abandons || model.app[at].presence != Presence::default() {
                let words = "requests lost or abandoned";
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
        add("violating", "half-seconds with a missed objective", "%", NodeFigure::Violating);
    }
    if !specs.iter().all(AppSpec::is_latency_critical) {
        add("be-entropy", "E_BE", "1", NodeFigure::BestEffort);
    }
    add("utilisation", "utilisation", "%", NodeFigure::Utilisation);
    if model.power.is_some() {
        add("power", "power", "W", NodeFigure::Power);
    }
    all
}

/// The figures of each group of connections.
fn group_figures(groups: &[ConnectionGroup]) -> Vec<(Quantity, NodeFigure)> {
    let of_group = |(number, group): (usize, &ConnectionGroup)| {
        let all = responses(&group.name, group.tail).into_iter();
        all.map(move |(quantity, response)| (quantity, NodeFigure::Group(number, response)))
    };
    groups.iter().enumerate().flat_map(of_group).collect()
}

/// The policies of the file, or those that the command line names.
fn variants(scene: &NodeScene, choice: &Choice) -> Result<Vec<NodeVariant>, InvalidKey> {
    let mut written: Vec<NodeVariant> = Vec::new();
    for (at, table) in scene.policies.iter().enumerate() {
        let key = format!("policy[{at}]");
        let mut table = table.clone();
        let admission = table.remove("admission").map(GateKeepers::read).transpose();
        let admission = admission.map_err(|why| InvalidKey::at(format!("{key}.admission"), why))?;
        let dispatcher = table.remove("dispatcher").map(RequestDispatcher::read).transpose();
        let dispatcher =
            dispatcher.map_err(|why| InvalidKey::at(format!("{key}.dispatcher"), why))?;
        let section = PolicySection::read(table, &key)?;
        if section.tiers.is_some() {
            let message = "a node has no tiers: leave the key out";
            return Err(InvalidKey::at(format!("{key}.tiers"), message));
        }
        let PolicySection { name, label, epoch, config, .. } = section;
        let wrong = |error: PolicyError| InvalidKey::at(format!("{key}.name"), error.to_string());
        let policy = PolicySource::registered(&name).map_err(wrong)?;
        let epoch = scene.epoch_of(epoch, &policy, &config, None);
        written.push(NodeVariant {
            label: label.unwrap_or(name),
            steering: Steering {
                policy,
                config,
                epoch,
                admission: admission.unwrap_or_else(|| scene.admission.clone()),
                dispatcher,
            },
            key,
        });
    }
    let first = written.first().map(|first| first.steering.epoch.clone());
    let named = |name: &str| {
        let (policy, config) = (choice.source(name)?, toml::Table::new());
        let epoch = scene.epoch_of(None, &policy, &config, first.as_ref());
        let (admission, dispatcher) = (scene.admission.clone(), None);
        let steering = Steering { policy, config, epoch, admission, dispatcher };
        Ok(NodeVariant { label: name.to_owned(), steering, key: "--policy".to_owned() })
    };
    choice.choose(written, named)
}

impl Labelled for NodeVariant {
    fn described(&self) -> Described<'_> {
        let name = self.steering.policy.name();
        let epoch = Some(self.steering.epoch.clone());
        Described { label: &self.label, name, key: &self.key, epoch }
    }
}
