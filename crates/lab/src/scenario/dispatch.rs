//! Scenarios of one machine whose dispatcher assigns requests to core speeds:
//! `[dispatch]` and `[[dispatcher]]` instead of tiers and policies.

use super::choice::{Described, Labelled};
use super::file::{RunSection, label_and_name};
use super::frame::{Contents, Frame};
use super::quantity::{Answers, Quantity, Response, percent, quantity, responses};
use super::run::RunError;
use super::{Choice, InvalidKey, Outcome};
use crate::bounds::Amount;
use crate::cells::Sample;
use crate::progress::{Progress, parts};
use lull_control::dispatcher::{DispatcherError, Ladder};
use lull_control::{Objective, PolicyError, WrittenObjective};
use lull_measure::{Latency, Nanos, Percentile};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use lull_sim::dispatch::{self, DispatchModel, DispatchSimulation};
use serde::Deserialize;

/// Default number of requests in the profile that dispatchers are built from: as in EETL
/// (Haque et al., MICRO 2017), section 4.3.
const PROFILE: usize = 8000;
/// Default warm-up: ours. Controllers of
/// dispatchers settle within some thousand requests.
const WARMUP: Nanos = Nanos::from_secs(300);
/// The name of the requests in figures.
const REQUESTS: &str = "requests";

/// A scenario of dispatched requests as it is written, before it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchFile {
    title: String,
    #[serde(default)]
    run: RunSection,
    objective: WrittenObjective,
    /// Requests in the profile.
    profile: Option<usize>,
    dispatch: DispatchModel,
    #[serde(default)]
    dispatcher: Vec<toml::Table>,
}

/// A checked scenario of dispatched requests.
#[derive(Debug, Clone)]
pub struct DispatchScenario {
    pub(super) frame: Frame<DispatchVariant, DispatchFigure>,
    model: DispatchModel,
    ladder: Ladder,
    objective: (Percentile, Nanos),
    profile: Vec<Nanos>,
}

/// One dispatcher of the comparison.
#[derive(Debug, Clone)]
pub(super) struct DispatchVariant {
    label: String,
    dispatcher: String,
    config: toml::Table,
    key: String,
}

/// A figure of a machine with a dispatcher.
#[derive(Debug, Clone, Copy)]
pub(super) enum DispatchFigure {
    Response(Response),
    Power,
    EnergyPerRequest,
    Moves,
    Abandoned,
    /// Utilisation of a core type.
    Utilisation(usize),
}

impl DispatchScenario {
    /// Checks a scenario.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(file: DispatchFile, choice: &Choice) -> Result<Self, InvalidKey> {
        let Objective::Tail { percentile, bound } = file.objective.0 else {
            return Err(InvalidKey::at("objective", "is not a latency: write { p99 = \"200ms\" }"));
        };
        let wrong = |error| InvalidKey::in_section("dispatch", &error);
        let ladder = file.dispatch.ladder().map_err(wrong)?;
        let contents = Contents {
            title: file.title,
            notices: overload(&file.dispatch, &ladder),
            variants: variants(&file.dispatcher, choice)?,
            figures: figures((percentile, bound), &file.dispatch, &ladder),
        };
        let frame = Frame::new(contents, &file.run, choice, WARMUP)?;
        check_amount(&file.dispatch, &ladder, frame.warmup.saturating_add(frame.length))?;
        let profile = file.dispatch.profile(file.profile.unwrap_or(PROFILE), frame.seed);
        let scenario = Self {
            frame,
            profile: profile.map_err(wrong)?,
            objective: (percentile, bound),
            model: file.dispatch,
            ladder,
        };
        for variant in &scenario.frame.contents.variants {
            scenario.build(variant).map_err(|error| variant.wrong(error))?;
        }
        Ok(scenario)
    }

    fn build(
        &self,
        variant: &DispatchVariant,
    ) -> Result<Box<dyn lull_control::dispatcher::Dispatcher>, DispatcherError> {
        let (percentile, target) = self.objective;
        let site = Site { ladder: &self.ladder, percentile, target, profile: &self.profile };
        DISPATCHERS.build(&variant.dispatcher, &variant.config, &site)
    }

    /// Runs all dispatchers on the same replications. The result is the same to
    /// the last bit on any number of threads.
    ///
    /// # Errors
    /// The first simulation that fails.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        self.frame.run(&[(REQUESTS, true)], progress, |variant, replication| {
            self.replicate(variant, replication, progress)
        })
    }

    fn replicate(
        &self,
        variant: &DispatchVariant,
        replication: u64,
        progress: &Progress<'_>,
    ) -> Result<Sample, String> {
        let dispatcher = self.build(variant).map_err(|error| error.to_string())?;
        let node = DispatchSimulation::new(&self.model, dispatcher, self.frame.seed, replication);
        let mut node = node.map_err(|error| error.to_string())?;
        let Frame { warmup, length, .. } = self.frame;
        run(&mut node, Nanos::ZERO, warmup, progress)?;
        node.forget();
        let before = node.in_system() as i64;
        run(&mut node, warmup, length, progress)?;
        let left = node.in_system() as i64 - before;
        let outcome = node.outcome();
        let mut latency = Latency::default();
        outcome.latencies_ns.iter().for_each(|each| latency.record(Nanos(*each)));
        let ended = outcome.latencies_ns.len() as u64 + outcome.abandoned;
        let values = self.frame.figures().map(|what| self.value(what, &outcome, &latency));
        let requests = vec![(ended.saturating_add_signed(left), left)];
        Ok(Sample { values: values.collect(), requests })
    }

    fn value(
        &self,
        what: DispatchFigure,
        outcome: &dispatch::DispatchTotals,
        latency: &Latency,
    ) -> f64 {
        let (span_s, count) = (outcome.span.as_secs_f64(), outcome.latencies_ns.len() as f64);
        match what {
            DispatchFigure::Response(response) => response.value(Answers {
                span: outcome.span,
                count: outcome.latencies_ns.len() as u64,
                mean_ms: outcome.mean().map_or(f64::NAN, Nanos::as_millis_f64),
                latency,
            }),
            DispatchFigure::Power => outcome.energy.0 / span_s,
            DispatchFigure::EnergyPerRequest => {
                1e3 * outcome.energy_per_request().unwrap_or(f64::NAN)
            }
            DispatchFigure::Moves => outcome.moves as f64 / count,
            DispatchFigure::Abandoned => {
                percent(outcome.abandoned as f64, count + outcome.abandoned as f64)
            }
            DispatchFigure::Utilisation(kind) => {
                percent(outcome.busy_s[kind], span_s * self.ladder.cores(kind) as f64)
            }
        }
    }
}

/// Runs for a span from an instant, in parts between which the caller may stop it. Their number
/// changes no result.
fn run(
    node: &mut DispatchSimulation,
    from: Nanos,
    span: Nanos,
    progress: &Progress<'_>,
) -> Result<(), String> {
    for until in parts(from, span) {
        progress.check().map_err(|failure| failure.to_string())?;
        node.run_until(until);
    }
    Ok(())
}

impl Labelled for DispatchVariant {
    fn described(&self) -> Described<'_> {
        Described { label: &self.label, name: &self.dispatcher, key: &self.key, epoch: None }
    }
}

impl DispatchVariant {
    fn wrong(&self, error: DispatcherError) -> InvalidKey {
        match error {
            DispatcherError::Config(error) => self.policy_error(error),
            DispatcherError::Unreachable { .. } => InvalidKey::at("objective", error.to_string()),
            DispatcherError::Profile { .. } => InvalidKey::at("profile", error.to_string()),
            other => InvalidKey::at(self.key_of("name"), other.to_string()),
        }
    }
}

/// The dispatchers of the file, or those that the command line names.
fn variants(tables: &[toml::Table], choice: &Choice) -> Result<Vec<DispatchVariant>, InvalidKey> {
    let mut written = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let key = format!("dispatcher[{at}]");
        let (mut config, missing) = (table.clone(), "has no name: write name = \"eetl\"");
        let (label, dispatcher) = label_and_name(&mut config, &key, missing)?;
        let wrong = |error: PolicyError| InvalidKey::at(format!("{key}.name"), error.to_string());
        DISPATCHERS.find(&dispatcher).map_err(wrong)?;
        let label = label.unwrap_or_else(|| dispatcher.clone());
        written.push(DispatchVariant { label, dispatcher, config, key });
    }
    if written.is_empty() && choice.policies.is_empty() {
        let message = "there is none: write [[dispatcher]] with name = \"eetl\", or give --policy";
        return Err(InvalidKey::at("dispatcher", message));
    }
    choice.choose(written, |name| {
        let dispatcher = DISPATCHERS.find(name).map_err(|error| error.to_string())?.name.to_owned();
        let key = "--policy".to_owned();
        Ok(DispatchVariant { label: name.to_owned(), dispatcher, config: toml::Table::new(), key })
    })
}

/// All figures: the requests, energy, moves, and each core type.
fn figures(
    objective: (Percentile, Nanos),
    model: &DispatchModel,
    ladder: &Ladder,
) -> Vec<(Quantity, DispatchFigure)> {
    let of_requests = responses(REQUESTS, Some(objective)).into_iter();
    let mut all: Vec<_> = of_requests
        .map(|(quantity, response)| (quantity, DispatchFigure::Response(response)))
        .collect();
    let mut add = |kind, of, words, unit, what| all.push((quantity(kind, of, words, unit), what));
    add("power", None, "power", "W", DispatchFigure::Power);
    add("energy-per-request", None, "energy per request", "mJ", DispatchFigure::EnergyPerRequest);
    add("moves", None, "moves per request", "1", DispatchFigure::Moves);
    if model.abandon.is_some() {
        add("abandoned", None, "taken off unanswered", "%", DispatchFigure::Abandoned);
    }
    for (kind, of) in ladder.types().iter().enumerate() {
        let words = if ladder.scales() { "time at this level" } else { "utilisation" };
        add("utilisation", Some(of.name.as_str()), words, "%", DispatchFigure::Utilisation(kind));
    }
    all
}

/// Rejects a replication with too many requests, or with too many waiting ones.
fn check_amount(model: &DispatchModel, ladder: &Ladder, span: Nanos) -> Result<(), InvalidKey> {
    let capacity_per_s = dispatch::top_speeds(ladder) / model.work.mean().as_secs_f64();
    for (at, step) in model.load.iter().enumerate() {
        let rate_per_s = step.rate_per_s;
        let takes = step
            .requests
            .map_or(span, |requests| Nanos::from_secs_f64(requests as f64 / rate_per_s).min(span));
        let amount = Amount { rate_per_s, capacity_per_s, span: takes };
        let wrong = |why| InvalidKey::at(format!("dispatch.load[{at}].rate_per_s"), why);
        amount.check().map_err(wrong)?;
    }
    Ok(())
}

/// Notices about a load that exceeds the capacity of the cores.
fn overload(model: &DispatchModel, ladder: &Ladder) -> Vec<String> {
    let capacity = dispatch::top_speeds(ladder);
    let last = model.load.last().map_or(0.0, |rate| rate.rate_per_s);
    let load = last * model.work.mean().as_secs_f64() / capacity;
    let unstable = load >= 1.0;
    let words = || {
        format!(
            "unstable: the requests ask for {load:.3} times what all cores can do at full speed, \
             so that they pile up until the run ends; response times depend on its length"
        )
    };
    unstable.then(words).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_replication_under_way_ends_when_it_is_stopped() {
        let text = include_str!("../../../../examples/sim/eetl-amp.toml");
        let file = toml::from_str(text).unwrap();
        let scenario = DispatchScenario::new(file, &Choice::default()).unwrap();
        let variant = &scenario.frame.contents.variants[0];
        let stop = AtomicBool::new(true);
        let stopped = Progress::silent().until(&stop);
        let error = scenario.replicate(variant, 0, &stopped).unwrap_err();
        assert!(error.contains("stopped"), "{error}");
    }
}
