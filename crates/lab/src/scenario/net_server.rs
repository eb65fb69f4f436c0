//! Scenarios of one server behind a network card: `[server]`, with policies over its interrupt
//! delay and its frequencies.
//!
//! The load is that of the model, or a day: the hours of a trace, each as long as `hour` and
//! scaled so that the busiest has `peak-per-s`. Policies see epochs, as on a live server, so
//! that `bayop` searches when the load changes and uses again what it has found.

use super::check::check_epoch;
use super::choice::{Described, Labelled};
use super::file::{PolicySection, RunSection};
use super::frame::{Contents, Frame};
use super::quantity::{Answers, Quantity, Response, percent, quantity, responses};
use super::run::RunError;
use super::{Choice, InvalidKey, Outcome};
use crate::bounds::Amount;
use crate::cells::Sample;
use crate::policy_source::PolicySource;
use crate::progress::Progress;
use lull_control::{
    AppSpec, Objective, Observation, Plant, PlantError, Policy, PolicyError, Reason, Rng,
    WrittenObjective,
};
use lull_measure::{Latency, Nanos, Percentile};
use lull_sim::machine::LoadStep;
use lull_sim::netserver::{MachinePlant, NetServerModel, Traffic};
use lull_workload::arrivals::{Steps, parse_trace};
use rand::SeedableRng;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Default warm-up: ours. The model's queues settle within some thousand requests.
const WARMUP: Nanos = Nanos::from_millis(50);
/// Hours of a day.
const HOURS: u32 = 24;

/// A scenario of a network server as it is written, before it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetServerFile {
    title: String,
    #[serde(default)]
    run: RunSection,
    objective: WrittenObjective,
    server: NetServerModel,
    day: Option<DaySection>,
    /// Time between two decisions of a policy.
    #[serde(default = "epoch")]
    epoch: Nanos,
    #[serde(default)]
    policy: Vec<toml::Table>,
}

/// `[day]`: the load of the server, hour by hour.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DaySection {
    /// A CSV file of rates.
    trace: PathBuf,
    /// Requests per second of the busiest hour.
    peak_per_s: f64,
    /// The simulated length of an hour.
    hour: Nanos,
}

const fn epoch() -> Nanos {
    Nanos::from_millis(5)
}

/// A checked scenario of a network server.
#[derive(Debug, Clone)]
pub struct NetServerScenario {
    pub(super) frame: Frame<NetServerVariant, NetServerFigure>,
    model: NetServerModel,
    app: AppSpec,
    objective: (Percentile, Nanos),
    epoch: Nanos,
    /// The time after which the objective is judged again: an hour of the day.
    hour: Option<Nanos>,
}

/// One policy of the comparison.
#[derive(Debug, Clone)]
pub(super) struct NetServerVariant {
    label: String,
    policy: PolicySource,
    config: toml::Table,
    epoch: Nanos,
    key: String,
}

/// A figure of a network server.
#[derive(Debug, Clone, Copy)]
pub(super) enum NetServerFigure {
    Response(Response),
    Power,
    EnergyPerRequest,
    Interrupts,
    MissedHours,
    HeldMissedHours,
    Searching,
}

impl NetServerScenario {
    /// Checks a scenario; `base` is the directory of its trace.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(file: NetServerFile, base: &Path, choice: &Choice) -> Result<Self, InvalidKey> {
        let Objective::Tail { percentile, bound } = file.objective.0 else {
            return Err(InvalidKey::at("objective", "is not a latency: write { p99 = \"500us\" }"));
        };
        if file.epoch == Nanos::ZERO {
            return Err(InvalidKey::at("epoch", "is 0: write a time such as \"5ms\""));
        }
        let (mut model, mut run) = (file.server, file.run);
        if let Some(day) = &file.day {
            let length = day.apply(base, &mut model, run.warmup.given().unwrap_or(WARMUP))?;
            run.length = length;
        }
        model.check().map_err(|error| InvalidKey::in_section("server", &error))?;
        check_amount(&model, &run)?;
        let contents = Contents {
            title: file.title,
            notices: Vec::new(),
            variants: variants(&file.policy, file.epoch, choice)?,
            figures: figures(&model.app.name, (percentile, bound), file.day.is_some()),
        };
        let scenario = Self {
            frame: Frame::new(contents, &run, choice, WARMUP)?,
            app: AppSpec::latency_critical(&model.app.name, percentile, bound),
            model,
            objective: (percentile, bound),
            epoch: file.epoch,
            hour: file.day.map(|day| day.hour),
        };
        scenario.check_epoch()?;
        for variant in &scenario.frame.contents.variants {
            scenario.set_up(variant, 0)?;
        }
        Ok(scenario)
    }

    fn check_epoch(&self) -> Result<(), InvalidKey> {
        let Frame { warmup, length, .. } = self.frame;
        let (counted, key) = self.hour.map_or((length, "run.length"), |hour| (hour, "day.hour"));
        check_epoch(&self.epoch.into(), warmup.saturating_add(length), counted, key)
    }

    /// A replication that has not begun.
    fn set_up(
        &self,
        variant: &NetServerVariant,
        replication: u64,
    ) -> Result<Replication, InvalidKey> {
        let seed = self.frame.seed;
        let plant = self.model.plant(&self.app, seed, replication);
        let plant = plant.map_err(|error| InvalidKey::at("server", error.to_string()))?;
        let built = variant.policy.build(&variant.config, plant.machine(), plant.apps());
        let policy = built.map_err(|error| variant.policy_error(error))?;
        let rng = Rng::seed_from_u64(seed ^ replication.rotate_left(32));
        Ok(Replication { plant, policy, rng, seen: Vec::new() })
    }

    /// Runs all policies on the same replications. The result is the same to the last bit on
    /// any number of threads.
    ///
    /// # Errors
    /// The first simulation that fails.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        self.frame.run(&[(self.app.name.as_str(), true)], progress, |variant, replication| {
            self.replicate(variant, replication, progress)
        })
    }

    fn replicate(
        &self,
        variant: &NetServerVariant,
        replication: u64,
        progress: &Progress<'_>,
    ) -> Result<Sample, InvalidKey> {
        let mut run = self.set_up(variant, replication)?;
        let failed = |error: PlantError| InvalidKey::at("server", error.to_string());
        let Frame { warmup, length, .. } = self.frame;
        run.pass(warmup, self.epoch, None, progress).map_err(failed)?;
        run.pass(length, self.epoch, self.hour, progress).map_err(failed)?;
        let whole = run.seen.iter().fold(Span::default(), Span::and);
        let values = self.frame.figures().map(|what| self.value(what, &whole, &run.seen));
        let left = whole.offered.round() as i64 - whole.latency.count().cast_signed();
        let requests = vec![(whole.offered.round() as u64, left)];
        Ok(Sample { values: values.collect(), requests })
    }

    fn value(&self, what: NetServerFigure, whole: &Span, hours: &[Span]) -> f64 {
        let seconds = whole.time.as_secs_f64();
        let missed = |hours: &mut dyn Iterator<Item = &Latency>| {
            let (percentile, bound) = self.objective;
            hours.filter(|it| it.quantile(percentile).is_some_and(|tail| tail > bound)).count()
        };
        match what {
            NetServerFigure::Response(response) => response.value(Answers {
                span: whole.time,
                count: whole.latency.count(),
                mean_ms: whole.latency.mean().map_or(f64::NAN, Nanos::as_millis_f64),
                latency: &whole.latency,
            }),
            NetServerFigure::Power => whole.joules / seconds,
            NetServerFigure::EnergyPerRequest => 1e3 * whole.joules / whole.latency.count() as f64,
            NetServerFigure::Interrupts => whole.interrupts / seconds,
            NetServerFigure::MissedHours => missed(&mut hours.iter().map(|it| &it.latency)) as f64,
            NetServerFigure::HeldMissedHours => missed(&mut hours.iter().map(|it| &it.held)) as f64,
            NetServerFigure::Searching => percent(whole.searching.as_secs_f64(), seconds),
        }
    }
}

/// The observations of the server in a span of time.
#[derive(Debug, Clone, Default)]
struct Span {
    time: Nanos,
    latency: Latency,
    /// Latencies outside the trials of a search.
    held: Latency,
    /// Time in trials of a search.
    searching: Nanos,
    joules: f64,
    offered: f64,
    interrupts: f64,
}

impl Span {
    fn add(&mut self, seen: &Observation, is_searching: bool) {
        let seconds = seen.epoch.as_secs_f64();
        self.time += seen.epoch;
        if let Some(Ok(latency)) = seen.apps.first().map(|app| &app.latency) {
            self.latency.merge(&latency.window);
            if !is_searching {
                self.held.merge(&latency.window);
            }
            self.offered += latency.offered_per_s * seconds;
        }
        if is_searching {
            self.searching += seen.epoch;
        }
        self.joules += seen.energy.as_ref().map_or(0.0, |it| it.energy.0);
        self.interrupts += seen.interrupts_per_s.as_ref().map_or(0.0, |per_s| per_s * seconds);
    }

    fn and(mut self, other: &Self) -> Self {
        self.time += other.time;
        self.latency.merge(&other.latency);
        self.held.merge(&other.held);
        self.searching += other.searching;
        self.joules += other.joules;
        self.offered += other.offered;
        self.interrupts += other.interrupts;
        self
    }
}

/// One replication under way.
struct Replication {
    plant: MachinePlant,
    policy: Box<dyn Policy>,
    rng: Rng,
    /// The observations, hour by hour; one span without a day.
    seen: Vec<Span>,
}

impl Replication {
    /// Runs whole epochs, each with a decision at its end, and counts the observations by hour.
    fn pass(
        &mut self,
        time: Nanos,
        epoch: Nanos,
        hour: Option<Nanos>,
        progress: &Progress<'_>,
    ) -> Result<(), PlantError> {
        self.seen = vec![Span::default()];
        let mut is_searching = false;
        for _ in 0..time.0.div_ceil(epoch.0) {
            progress.check().map_err(|_| PlantError::Stopped)?;
            let seen = self.plant.observe(epoch)?;
            let full = |span: &Span| hour.is_some_and(|hour| span.time >= hour);
            if self.seen.last().is_some_and(full) {
                self.seen.push(Span::default());
            }
            if let Some(span) = self.seen.last_mut() {
                span.add(&seen, is_searching);
            }
            let plan = self.policy.decide(&seen, &mut self.rng);
            is_searching = plan.steps().any(|step| matches!(step.reason, Reason::Trial { .. }));
            let wanted: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
            let _ = self.plant.apply(&wanted);
        }
        Ok(())
    }
}

/// Rejects a replication of too many requests, or of too many that wait.
fn check_amount(model: &NetServerModel, run: &RunSection) -> Result<(), InvalidKey> {
    let Traffic::Open { load, .. } = &model.traffic else { return Ok(()) };
    let end = run.warmup.given().unwrap_or(WARMUP).saturating_add(run.length);
    let ends = load.iter().skip(1).map(|step| step.from).chain([end]);
    for (at, (step, until)) in load.iter().zip(ends).enumerate() {
        let span = Nanos(until.min(end).0.saturating_sub(step.from.0));
        let wrong = |why| InvalidKey::at(format!("server.traffic.open.load[{at}].rate-per-s"), why);
        Amount::at_server(model, step.rate_per_s, span).check().map_err(wrong)?;
    }
    Ok(())
}

impl DaySection {
    /// Gives the model the day's load after a warm-up at the load of the first hour; returns
    /// the length of the day.
    fn apply(
        &self,
        base: &Path,
        model: &mut NetServerModel,
        warmup: Nanos,
    ) -> Result<Nanos, InvalidKey> {
        if self.hour == Nanos::ZERO {
            return Err(InvalidKey::at("day.hour", "is 0: write a time such as \"2s\""));
        }
        if !(self.peak_per_s > 0.0 && self.peak_per_s <= 1e9) {
            return Err(InvalidKey::at("day.peak-per-s", "write requests per second above 0"));
        }
        let Traffic::Open { load, .. } = &mut model.traffic else {
            return Err(InvalidKey::at("server.traffic", "a day needs [server.traffic.open]"));
        };
        let path = base.join(&self.trace);
        let wrong = |error: String| InvalidKey::at("day.trace", error);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))?;
        let trace = parse_trace(&text, &path, Steps::Hold).map_err(|it| wrong(it.to_string()))?;
        let rates: Vec<f64> =
            (0..HOURS).map(|hour| trace.rate_at(3600.0 * f64::from(hour))).collect();
        let most = rates.iter().copied().fold(0.0, f64::max);
        if !(most.is_finite() && rates.iter().all(|rate| *rate > 0.0)) {
            return Err(wrong(format!("{}: every hour needs a rate above 0", path.display())));
        }
        let step = |(hour, rate): (usize, &f64)| LoadStep {
            from: if hour == 0 { Nanos::ZERO } else { warmup + self.hour.scale(hour as f64) },
            rate_per_s: rate / most * self.peak_per_s,
        };
        *load = rates.iter().enumerate().map(step).collect();
        Ok(self.hour.scale(f64::from(HOURS)))
    }
}

impl Labelled for NetServerVariant {
    fn described(&self) -> Described<'_> {
        let name = self.policy.name();
        let epoch = Some(self.epoch.into());
        Described { label: &self.label, name, key: &self.key, epoch }
    }
}

/// The policies of the file, or those that the command line names.
fn variants(
    tables: &[toml::Table],
    epoch: Nanos,
    choice: &Choice,
) -> Result<Vec<NetServerVariant>, InvalidKey> {
    let mut written = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let key = format!("policy[{at}]");
        for (name, why) in
            [("tiers", "a server has no tiers"), ("epoch", "`epoch` is a key of the file")]
        {
            if table.contains_key(name) {
                return Err(InvalidKey::at(
                    format!("{key}.{name}"),
                    format!("{why}: leave the key out"),
                ));
            }
        }
        let PolicySection { name, label, config, .. } = PolicySection::read(table.clone(), &key)?;
        let wrong = |error: PolicyError| InvalidKey::at(format!("{key}.name"), error.to_string());
        let policy = PolicySource::registered(&name).map_err(wrong)?;
        let label = label.unwrap_or(name);
        written.push(NetServerVariant { label, policy, config, epoch, key });
    }
    choice.choose(written, |name| {
        let policy = choice.source(name)?;
        let (config, key) = (toml::Table::new(), "--policy".to_owned());
        Ok(NetServerVariant { label: name.to_owned(), policy, config, epoch, key })
    })
}

/// All figures: the requests, energy, and the hours of a day.
fn figures(
    app: &str,
    objective: (Percentile, Nanos),
    has_hours: bool,
) -> Vec<(Quantity, NetServerFigure)> {
    let of_requests = responses(app, Some(objective)).into_iter();
    let mut all: Vec<_> = of_requests
        .map(|(quantity, response)| (quantity, NetServerFigure::Response(response)))
        .collect();
    let mut add = |kind, words, unit, what| all.push((quantity(kind, None, words, unit), what));
    add("power", "power", "W", NetServerFigure::Power);
    add("energy-per-request", "energy per request", "mJ", NetServerFigure::EnergyPerRequest);
    add("interrupts", "interrupts", "1/s", NetServerFigure::Interrupts);
    add("searching", "time in trials of a search", "%", NetServerFigure::Searching);
    if has_hours {
        add("missed-hours", "hours that miss the objective", "1", NetServerFigure::MissedHours);
        let words = "hours that miss it outside trials";
        add("held-missed-hours", words, "1", NetServerFigure::HeldMissedHours);
    }
    all
}
