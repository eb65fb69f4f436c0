//! Figs. 9 and 10 with the policy itself: `bayop` observes a simulated server epoch by epoch, as
//! it observes a live one. It searches when the load has changed, holds what it has found, and
//! uses a setting again at a load that it has searched before.

use super::SEED_FILE;
use super::hourly::rates_of_day;
use super::system::{OBJECTIVES, Objective, app, scenario};
use crate::prelude::*;
use lull_control::{Observation, Plant, Reason, Rng};
use lull_measure::{Latency, Nanos, Percentile};
use lull_policies::POLICIES;
use lull_sim::machine::LoadStep;
use lull_sim::netserver::{NetServerModel, Traffic};
use lull_sim::stats::Failure;
use rand::SeedableRng;
use rayon::prelude::*;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "bayop-policy",
    paper: "Dong et al. 2026, Figs. 9 and 10",
    seed_file: SEED_FILE,
    summary: "24 hours of memcached under the policy `bayop`: searches when the load changes, \
              and settings that are kept",
    run,
};

const EPOCH: Nanos = Nanos::from_millis(5);
const WARMUP: Nanos = Nanos::from_millis(50);
/// Rate of the busiest hour, per second.
const PEAK_PER_S: f64 = 750e3;
/// The compared policies, Linux by itself first.
const POLICIES_OF_DAY: [&str; 2] = ["linux-default", "bayop"];

/// A day in simulated time, and the keys of a search that fits into its hours.
#[derive(Debug, Clone, Copy)]
struct Pace {
    peak_per_s: f64,
    hour: Nanos,
    keys: &'static str,
}

/// Thirty trials of the paper's two knobs take 3.2 of the 8 seconds of an hour.
const WHOLE: Pace = Pace {
    peak_per_s: PEAK_PER_S,
    hour: Nanos::from_secs(8),
    keys: "knobs = [\"coalescing\", \"frequency\"]\nsettle = \"5ms\"\nwindow = \"100ms\"\n\
           load_change = 0.05\nfinal_floor = 0.99",
};
const SHORT: Pace = Pace {
    peak_per_s: 150e3,
    hour: Nanos::from_millis(300),
    keys: "knobs = [\"coalescing\", \"frequency\"]\nsettle = \"5ms\"\nwindow = \"20ms\"\n\
           trials = 4\nload_change = 0.25",
};

/// The observations of an hour.
#[derive(Debug, Clone, Default)]
struct HourSeen {
    latency: Latency,
    /// Latencies outside the trials of a search.
    held: Latency,
    searching: Nanos,
    joules: f64,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (scenario, choices) = scenario();
    let (model, objective) = (scenario.linux(), OBJECTIVES[0]);
    let pace = setup.either(WHOLE, SHORT);
    setup.progress.expect((POLICIES_OF_DAY.len() * 24) as u64);
    let days: Result<Vec<Vec<HourSeen>>, LabError> = POLICIES_OF_DAY
        .par_iter()
        .map(|policy| play(setup, &model, objective, policy, pace))
        .collect();
    let days = days?;
    let mut report = EXPERIMENT.report("CCDS 2026, Figs. 9 and 10: the policy over a day", setup);
    report.choices = choices;
    report.choices.push(format!(
        "traces/synthetic-day.csv, scaled to {} K requests/s at most, an hour in {}; the policy \
         with {}",
        pace.peak_per_s / 1e3,
        pace.hour,
        pace.keys.replace('\n', ", ")
    ));
    report.rows = rows(objective, &days[0], &days[1], pace);
    Ok(report)
}

/// Runs a day under a policy.
fn play(
    setup: &Setup<'_>,
    model: &NetServerModel,
    objective: Objective,
    name: &str,
    pace: Pace,
) -> Result<Vec<HourSeen>, LabError> {
    let mut model = model.clone();
    let rates = rates_of_day(pace.peak_per_s);
    let begin = |hour: usize| WARMUP + pace.hour.scale(hour as f64);
    if let Traffic::Open { load, .. } = &mut model.traffic {
        let step = |(hour, rate_per_s): (usize, &f64)| LoadStep {
            from: if hour == 0 { Nanos::ZERO } else { begin(hour) },
            rate_per_s: *rate_per_s,
        };
        *load = rates.iter().enumerate().map(step).collect();
    }
    let mut plant = model.plant(&app(&model, objective), setup.seed, 0)?;
    let keys = if name == "bayop" { pace.keys } else { "" };
    let keys: toml::Table = keys.parse().expect("a test reads the keys");
    let built = POLICIES.build(name, &keys, plant.machine(), plant.apps());
    let mut policy = built.map_err(|error| Failure::Setup(error.to_string()))?;
    let mut rng = Rng::seed_from_u64(setup.seed);
    let mut hours = vec![HourSeen::default(); rates.len()];
    let (mut now, mut is_searching) = (Nanos::ZERO, false);
    while now < begin(rates.len()) {
        setup.progress.check()?;
        let seen = plant.observe(EPOCH).map_err(|error| Failure::Setup(error.to_string()))?;
        let hour = (now.0.saturating_sub(WARMUP.0) / pace.hour.0) as usize;
        if now >= WARMUP {
            hours[hour].add(&seen, is_searching);
        }
        now += EPOCH;
        if now == begin(hour + 1) {
            setup.progress.step();
        }
        let plan = policy.decide(&seen, &mut rng);
        is_searching = plan.steps().any(|step| matches!(step.reason, Reason::Trial { .. }));
        let wanted: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
        let _ = plant.apply(&wanted);
    }
    Ok(hours)
}

impl HourSeen {
    fn add(&mut self, seen: &Observation, is_searching: bool) {
        if let Some(Ok(latency)) = seen.apps.first().map(|app| &app.latency) {
            self.latency.merge(&latency.window);
            if !is_searching {
                self.held.merge(&latency.window);
            }
        }
        if is_searching {
            self.searching += seen.epoch;
        }
        self.joules += seen.energy.as_ref().map_or(0.0, |it| it.energy.0);
    }
}

fn rows(objective: Objective, linux: &[HourSeen], ours: &[HourSeen], pace: Pace) -> Vec<Row> {
    let percentile = Percentile::new(objective.percentile).unwrap_or(Percentile::P99);
    let is_over = |latency: &Latency| {
        let tail = latency.quantile(percentile);
        tail.is_some_and(|tail| tail.as_micros_f64() > objective.bound_us)
    };
    let missed = |hours: &[HourSeen]| hours.iter().filter(|it| is_over(&it.latency)).count() as f64;
    let held = ours.iter().filter(|it| is_over(&it.held)).count() as f64;
    let joules = |hours: &[HourSeen]| hours.iter().map(|it| it.joules).sum::<f64>();
    let searching: f64 = ours.iter().map(|it| it.searching.as_secs_f64()).sum();
    let whole = pace.hour.as_secs_f64() * ours.len() as f64;
    let name = |what: &str| format!("{objective}: {what}");
    let why = "for comparison; no figure is printed";
    let reported = |what: &str, unit: &'static str, value: f64| {
        Row::reported(name(what), unit, Printed::Nothing, value, why)
    };
    let what = name("hours that the policy misses outside its trials");
    vec![
        Row::compared(what, "1", "none", held, AtMost(0.0))
            .because("a new load is noticed at the end of a window of the old setting"),
        reported("hours that the policy misses with its trials", "1", missed(ours)),
        reported("hours that Linux misses", "1", missed(linux)),
        reported("time in trials", "%", 100.0 * searching / whole),
        reported("energy of the day, the policy's over Linux's", "1", joules(ours) / joules(linux)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_day_under_the_policy_ends_when_it_is_stopped() {
        let stop = AtomicBool::new(true);
        let mut setup = Setup { quick: true, ..Setup::new("test") };
        setup.progress = Progress::silent().until(&stop);
        let ended = run(&setup).map(|_| ());
        assert!(matches!(ended, Err(LabError::Simulation(Failure::Cancelled))), "{ended:?}");
    }

    #[test]
    fn the_keys_of_both_paces_are_those_of_the_policy() {
        let (scenario, _) = scenario();
        let model = scenario.linux();
        let plant = model.plant(&app(&model, OBJECTIVES[0]), 1, 0).unwrap();
        for pace in [WHOLE, SHORT] {
            let keys: toml::Table = pace.keys.parse().unwrap();
            let built = POLICIES.build("bayop", &keys, plant.machine(), plant.apps());
            assert!(built.is_ok(), "{:?}", built.err());
            assert_eq!(pace.hour.0 % EPOCH.0, 0, "whole epochs");
        }
    }
}
