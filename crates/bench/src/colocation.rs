//! The cost of the co-location experiments of Ah-Q (Liu et al. 2024).
//!
//! They run in this process, with the lab's own lengths, so that the figures are
//! those of `lull lab run`. Runs of an experiment are counted by its own progress.

use super::process::own_cpu_s;
use super::stats::{Summary, interleave};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, ensure};
use lull_lab::experiment::Setup;
use lull_lab::progress::Progress;
use lull_lab::registry::find;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub(super) const BENCH: Bench = Bench {
    name: "colocation",
    about: "The lab's co-location experiments: 250 s of the fluctuating scenario, and all of \
            `ahq-load`",
    run,
};

const ROUNDS: usize = 3;
/// One core's time for 250 simulated seconds, policy and all.
const SCENARIO_MAX_S: f64 = 5.0;
/// Every policy, both halves, three seeds, on all cores of the machine.
const LOAD_MAX_S: f64 = 600.0;

/// The cost of an experiment.
#[derive(Debug, Clone, Copy)]
struct Cost {
    wall_s: f64,
    /// CPU time of all threads.
    cpu_s: f64,
    /// Simulations of it.
    runs: u64,
}

fn run(_: &Context) -> Result<Report> {
    let mut report = Report::default();
    let mut seed = 0;
    let [scenario_s] = interleave(
        ROUNDS,
        &mut [&mut || {
            seed += 1;
            let cost = cost("ahq-fluctuating", true, seed)?;
            Ok(cost.cpu_s / cost.runs as f64)
        }],
    )?;
    let what = "250 s of the fluctuating scenario";
    report.bounded(what, Summary::new(scenario_s), "s", 0.0..=SCENARIO_MAX_S);
    let load = cost("ahq-load", false, 1)?;
    report.bounded("all of ahq-load", Summary::new([load.wall_s]), "s", 0.0..=LOAD_MAX_S);
    report.reported("its CPU time", Summary::new([load.cpu_s]), "s");
    report.note(format!(
        "The scenario: ten cores, three latency-critical apps and Stream; CPU time of a whole \
         `ahq-fluctuating` over its number of runs, a few seeds of every strategy, so the mean \
         over strategies; {ROUNDS} rounds with other seeds. ahq-load: {} runs of 180 s, once, on \
         all cores, by the wall clock.",
        load.runs
    ));
    Ok(report)
}

/// Runs an experiment.
fn cost(name: &str, quick: bool, seed: u64) -> Result<Cost> {
    let runs = AtomicU64::new(0);
    let setup = Setup {
        seed,
        quick,
        progress: Progress::new(|done, _| runs.store(done, Ordering::Relaxed)),
        ..Setup::new("benchmark")
    };
    let experiment = find(name)?;
    let (started, cpu_before_s) = (Instant::now(), own_cpu_s());
    let report = experiment.run(&setup).with_context(|| format!("{name} does not run"))?;
    let (wall_s, cpu_s) = (started.elapsed().as_secs_f64(), own_cpu_s() - cpu_before_s);
    drop(setup);
    let runs = runs.into_inner();
    ensure!(!report.rows.is_empty() && runs > 0, "{name} measured nothing");
    Ok(Cost { wall_s, cpu_s, runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "slow: 16 runs of 250 simulated seconds"]
    fn the_cost_of_an_experiment_is_that_of_all_its_runs() {
        let cost = cost("ahq-fluctuating", true, 1).unwrap();
        assert!(cost.runs >= 2 && cost.cpu_s > 0.0 && cost.wall_s > 0.0, "{cost:?}");
    }

    #[test]
    fn an_unknown_experiment_is_refused() {
        assert!(cost("no-such", true, 1).unwrap_err().to_string().contains("no-such"));
    }
}
