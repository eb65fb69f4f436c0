//! The cost of a decision: every policy of the registry, on the same history.

use super::stats::{BoxedContender, Summary, interleave_all, ns_each};
use super::{Bench, Context, report::Report};
use anyhow::Result;
use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{AppId, AppSpec, Capability, Machine, Observation, Plant, Policy, Rng};
use lull_measure::{Nanos, Percentile};
use lull_policies::{Entry, POLICIES, PolicyKind};

use rand::SeedableRng;
use std::cell::RefCell;
use std::hint::black_box;

pub(super) const BENCH: Bench = Bench {
    name: "policies",
    about: "One decision for 6 apps: every policy of the registry on the same observations",
    run,
};

/// How often a group of policies runs in turn, and how often each decides on the
/// whole history in its turn.
#[derive(Debug, Clone, Copy)]
struct Turns {
    rounds: usize,
    passes: usize,
}

const RULES: Turns = Turns { rounds: 21, passes: 20 };
/// A search decides a thousand times slower than a rule: one pass shows it well.
const SEARCHES: Turns = Turns { rounds: 5, passes: 1 };
const EPOCHS: usize = 100;
const EPOCH: Nanos = Nanos::from_millis(500);
const CORES: u16 = 8;
/// The bound on a decision's cost in microseconds, by the first word of the contender.
const MAX_US: [(&str, f64); 5] =
    [("arq", 10.0), ("parties", 20.0), ("heracles", 20.0), ("tide", 20.0), ("clite", 50_000.0)];
/// ARQ where the shared region has no equal standing: its other configuration.
const ARQ_VARIANT: &str = "priority = \"latency-critical\"";

/// A policy that decides on a history repeatedly.
struct Contender<'h> {
    name: String,
    searches: bool,
    policy: Box<dyn Policy>,
    rng: Rng,
    time: Nanos,
    /// Shared, for an observation has 200 kB of latencies an app.
    history: &'h RefCell<Vec<Observation>>,
}

fn run(_: &Context) -> Result<Report> {
    let (machine, history) = (machine(), RefCell::new(history()?));
    let all = contenders(&machine, &history)?;
    let (searches, rules): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|contender| contender.searches);
    let searching = searches.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut report = Report::default();
    for (group, turns) in [(rules, RULES), (searches, SEARCHES)] {
        measure(group, turns, &mut report)?;
    }
    report.note(format!(
        "CPU time, {} rounds in turn of {} decisions each; of those that search ({}) {} of \
         {EPOCHS}. {CORES} cores and three latency-critical and three best-effort apps in \
         memory; every app's load swings, so that objectives are met and missed in turn; a \
         window has 1000 latencies.",
        RULES.rounds,
        RULES.passes * EPOCHS,
        searching,
        SEARCHES.rounds,
    ));
    Ok(report)
}

/// Runs a group in turn and adds a row for each.
fn measure(mut group: Vec<Contender<'_>>, turns: Turns, report: &mut Report) -> Result<()> {
    let names: Vec<String> = group.iter().map(|contender| contender.name.clone()).collect();
    let boxed = group.iter_mut().map(|contender| {
        Box::new(move || Ok(contender.decide_us(turns.passes))) as BoxedContender<'_>
    });
    let costs = interleave_all(turns.rounds, &mut boxed.collect::<Vec<_>>())?;
    for (name, costs) in names.iter().zip(&costs) {
        let cost = Summary::new(costs.iter().copied());
        match max_us(name) {
            Some(max_us) => report.bounded(name, cost, "us", 0.0..=max_us),
            None => report.reported(name, cost, "us"),
        }
    }
    Ok(())
}

/// Returns the bound on a contender's cost, if one was set.
fn max_us(name: &str) -> Option<f64> {
    MAX_US.iter().find(|(bounded, _)| name.starts_with(bounded)).map(|(_, max_us)| *max_us)
}

fn contenders<'h>(
    machine: &Machine,
    history: &'h RefCell<Vec<Observation>>,
) -> Result<Vec<Contender<'h>>> {
    let specs: Vec<AppSpec> = apps().into_iter().map(|app| app.spec).collect();
    let mut configs: Vec<(String, &'static Entry<PolicyKind>, &str)> =
        POLICIES.iter().map(|entry| (entry.name.to_owned(), entry, "")).collect();
    configs.push((format!("arq, {ARQ_VARIANT}"), POLICIES.find("arq")?, ARQ_VARIANT));
    let build = |(name, entry, config): (String, &Entry<PolicyKind>, &str)| {
        let policy = entry.build(&config.parse()?, machine, &specs)?;
        let searches = entry.kind.search.is_some();
        let rng = Rng::seed_from_u64(1);
        Ok(Contender { name, searches, policy, rng, time: Nanos::ZERO, history })
    };
    configs.into_iter().map(build).collect()
}

impl Contender<'_> {
    /// Microseconds of a core for each decision.
    fn decide_us(&mut self, passes: usize) -> f64 {
        let mut history = self.history.borrow_mut();
        let decide = || {
            for _ in 0..passes {
                for seen in history.iter_mut() {
                    // Time advances from pass to pass, or rules that wait would act once only.
                    self.time += seen.epoch;
                    seen.time = self.time;
                    drop(black_box(self.policy.decide(seen, &mut self.rng)));
                }
            }
        };
        ns_each(passes * EPOCHS, decide) / 1e3
    }
}

/// A machine that has everything that policies ask for.
fn machine() -> Machine {
    let machine = MemoryPlant::new(CORES, Vec::new()).machine().clone();
    let all = Capability::ALL.into_iter();
    let capabilities =
        all.fold(machine.capabilities, |all, one| all.with_capability(one, "benchmark"));
    Machine { capabilities, ..machine }
}

fn apps() -> Vec<MemoryApp> {
    let critical = |name: &str| MemoryApp {
        spec: AppSpec {
            ideal: Some(Nanos::from_millis(3)),
            threads: Some(4),
            ..AppSpec::latency_critical(name, Percentile::P95, Nanos::from_millis(8))
        },
        demand_cores: 1.0,
        service: Nanos::from_millis(1),
        threads: 4,
    };
    let effort = |name: &str| MemoryApp {
        spec: AppSpec { solo_per_s: Some(8.0), ..AppSpec::best_effort(name) },
        demand_cores: 0.0,
        service: Nanos::ZERO,
        threads: 8,
    };
    vec![
        critical("one"),
        critical("two"),
        critical("three"),
        effort("four"),
        effort("five"),
        effort("six"),
    ]
}

/// Returns the observations of a plant whose loads swing, each with a period of its own.
fn history() -> Result<Vec<Observation>> {
    let mut plant = MemoryPlant::new(CORES, apps());
    let mut history = Vec::new();
    for epoch in 0..EPOCHS {
        for (app, period) in [(0, 16), (1, 22), (2, 30)] {
            // Six apps share eight cores: 1.3 cores are all that one gets.
            let part = (epoch % period) as f64 / period as f64;
            plant.set_demand(AppId(app), 0.4 + 0.9 * part);
        }
        let mut seen = plant.observe(EPOCH)?;
        for (number, core) in seen.cores.iter_mut().enumerate() {
            core.utilisation = Ok(((epoch + number) % 10) as f64 / 10.0);
        }
        history.push(seen);
    }
    Ok(history)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_meets_and_misses_every_objective() {
        let (history, apps) = (history().unwrap(), apps());
        for (id, app) in apps.iter().enumerate().take(3) {
            let (percentile, bound) = app.spec.tail().unwrap();
            let met = |seen: &&Observation| {
                seen.apps[id].latency.as_ref().unwrap().tail(percentile).unwrap() <= bound
            };
            let met = history.iter().filter(met).count();
            assert!((10..90).contains(&met), "app {id} meets its objective in {met} of 100 epochs");
        }
    }

    #[test]
    fn every_policy_of_the_registry_is_measured_and_arq_does_something() {
        let (machine, history) = (machine(), RefCell::new(history().unwrap()));
        let mut all = contenders(&machine, &history).unwrap();
        assert_eq!(all.len(), POLICIES.iter().count() + 1);
        for (name, _) in MAX_US {
            assert!(POLICIES.find(name).is_ok(), "{name} is not a policy of the registry");
        }
        let history = history.borrow();
        for contender in all.iter_mut().filter(|contender| contender.name.starts_with("arq")) {
            let decide = |seen| contender.policy.decide(seen, &mut contender.rng);
            let mut plans = history.iter().map(decide);
            let first = plans.next().unwrap();
            assert!(plans.any(|plan| plan != first), "{} never moves a region", contender.name);
        }
    }
}
