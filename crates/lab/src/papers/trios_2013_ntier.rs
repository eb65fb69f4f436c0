//! Wang and others, Impact of DVFS on n-Tier Application Performance, TRIOS 2013.

pub(crate) mod adaptive;
pub(crate) mod burst;
pub(crate) mod error;
pub(crate) mod goodput;
pub mod live;
pub(crate) mod period;
pub(crate) mod table2;
pub(crate) mod table3;

mod adaptive_trace;
mod alternation;
mod paper;
mod system;

/// File name of the paper's text among our sources.
const SEED_FILE: &str = "003_c9e6482762f8ab94.txt";

use crate::experiment::Setup;
use crate::progress::Progress;
use lull_sim::Totals;
use lull_sim::stats::Failure;
use system::{Clock, DVFS_TIERS, NTier, trial};

/// Latencies of these experiments, by name: steady and bursty clients, with
/// and without DVFS.
pub(crate) fn latency_records(setup: &Setup<'_>) -> Result<Vec<(String, Totals)>, Failure> {
    let bursts = NTier::bursts(lull_measure::Nanos::from_secs(2));
    let systems = [
        ("8,000 clients", NTier::table2(8000)),
        ("14,000 clients", NTier::table2(14_000)),
        ("bursts of 2 s", bursts),
    ];
    let mut records = Vec::new();
    for (name, system) in systems {
        let model = system.model();
        for (clock_name, clock) in [("full speed", Clock::FullSpeed), ("DVFS", Clock::FITTED)] {
            let trial = trial(&model, clock, &DVFS_TIERS, setup.seed, setup.either(60, 10));
            records.push((
                format!("n-tier, {name}, {clock_name}"),
                trial.follow(0, &Progress::silent(), |_| {})?,
            ));
        }
    }
    Ok(records)
}
