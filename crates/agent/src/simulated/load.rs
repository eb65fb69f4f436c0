//! The load of clients: rates over time for the simulator.

use lull_measure::Nanos;
use lull_sim::machine::LoadStep;
use lull_workload::arrivals::{Process, Rate, Schedule};
use std::path::Path;

/// Most steps of a rate in one replication.
const STEPS_MAX: usize = 1_000_000;
/// Parts of a stretch whose rate changes evenly.
const RAMP_PARTS: u32 = 16;

/// The load of clients that do not wait for answers.
#[derive(Debug, Default)]
pub(super) struct OpenLoad {
    /// Their rate over time; none of clients that wait.
    pub(super) steps: Vec<LoadStep>,
    /// How the gaps vary.
    pub(super) arrivals: Process,
}

/// Returns the steps of a rate from 0 to `end`; a trace is searched from `base`.
///
/// # Errors
/// The fault of the rate.
pub(super) fn steps(rate: &Rate, base: &Path, end: Nanos) -> Result<Vec<LoadStep>, String> {
    let rate = match rate {
        Rate::Trace { file, steps } => Rate::Trace { file: base.join(file), steps: *steps },
        other => other.clone(),
    };
    let schedule = rate.schedule().map_err(|error| error.to_string())?;
    unrolled(&schedule, end)
}

/// Returns the parts of a schedule, repeated if they end before `end`.
fn unrolled(schedule: &Schedule, end: Nanos) -> Result<Vec<LoadStep>, String> {
    let (end_s, mut from_s) = (end.as_secs_f64(), 0.0);
    let mut all: Vec<LoadStep> = Vec::new();
    while from_s < end_s {
        for (length_s, [from, to]) in schedule.stretches() {
            let parts = if from == to { 1 } else { RAMP_PARTS };
            for part in 0..parts {
                let share = (f64::from(part) + 0.5) / f64::from(parts);
                let begin_s = from_s + finite(length_s) * f64::from(part) / f64::from(parts);
                push(&mut all, Nanos::from_secs_f64(begin_s), from + (to - from) * share);
            }
            from_s += length_s;
            if from_s >= end_s {
                break;
            }
        }
        if all.len() > STEPS_MAX {
            return Err(format!(
                "changes more than {STEPS_MAX} times in a replication: run shorter, or make its \
                 cycle longer"
            ));
        }
    }
    Ok(all)
}

/// A stretch without end is one step.
fn finite(length_s: f64) -> f64 {
    if length_s.is_finite() { length_s } else { 0.0 }
}

/// Adds a step; of two at one instant the later holds.
fn push(all: &mut Vec<LoadStep>, from: Nanos, rate_per_s: f64) {
    if all.last().is_some_and(|last| last.from == from) {
        all.pop();
    }
    all.push(LoadStep { from, rate_per_s });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unrolled_steps(rate: &str, end_s: u64) -> Vec<(f64, f64)> {
        let steps = steps(&rate.parse().unwrap(), Path::new("."), Nanos::from_secs(end_s)).unwrap();
        steps.iter().map(|step| (step.from.as_secs_f64(), step.rate_per_s)).collect()
    }

    #[test]
    fn bursts_are_unrolled_to_the_end_of_the_run_and_a_constant_is_one_step() {
        assert_eq!(unrolled_steps("250/s", 60), [(0.0, 250.0)]);
        let bursts = unrolled_steps("burst:300,100,2s", 4);
        assert_eq!(bursts, [(0.0, 300.0), (1.0, 100.0), (2.0, 300.0), (3.0, 100.0)]);
    }

    #[test]
    fn a_trace_beside_the_file_keeps_its_times_and_its_last_rate() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "time_s,rate_per_s\n0,10\n5,30\n").unwrap();
        let steps = steps(&"trace:t.csv".parse().unwrap(), folder.path(), Nanos::from_secs(60));
        let steps: Vec<_> =
            steps.unwrap().iter().map(|step| (step.from.as_secs_f64(), step.rate_per_s)).collect();
        assert_eq!(steps, [(0.0, 10.0), (5.0, 30.0)]);
    }

    #[test]
    fn a_cycle_too_short_for_the_run_is_refused() {
        let rate = "burst:300,100,2us".parse().unwrap();
        let error = steps(&rate, Path::new("."), Nanos::from_secs(60)).unwrap_err();
        assert!(error.contains("run shorter"), "{error}");
    }
}
