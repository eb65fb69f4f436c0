//! Totals of a dispatched machine.

use crate::machine::MeasurementRecord;
use lull_measure::{Joules, Nanos, Percentile};

/// Totals of one run after its warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchTotals {
    /// Simulated time that was counted.
    pub span: Nanos,
    /// Energy in it, static part included.
    pub energy: Joules,
    /// Latencies of the answers, in order of their ends, in nanoseconds.
    pub latencies_ns: Vec<u64>,
    /// Migrations between core types, or changes of a core's level under a request.
    pub moves: u64,
    /// Requests abandoned because they reached the age `abandon`.
    pub abandoned: u64,
    /// Events of the whole run.
    pub events: u64,
    /// Calls of the dispatcher.
    pub decisions: u64,
    /// Core time in each type, in seconds.
    pub busy_s: Vec<f64>,
    /// The observations that the dispatcher received, and its thresholds after each.
    pub measurements: Vec<MeasurementRecord>,
}

impl DispatchTotals {
    /// Energy a request, in joules; `None` without answers.
    pub fn energy_per_request(&self) -> Option<f64> {
        let answers = self.latencies_ns.len();
        (answers > 0).then(|| self.energy.0 / answers as f64)
    }

    /// A percentile of the latency; `None` without answers.
    pub fn tail(&self, percentile: Percentile) -> Option<Nanos> {
        let mut sorted = self.latencies_ns.clone();
        let count = sorted.len();
        // The subtraction corrects products such as 0.99 * 2000 = 1980.0000000000002.
        let rank = (percentile.fraction() * count as f64 - 1e-9).ceil().max(1.0) as usize;
        (count > 0).then(|| Nanos(*sorted.select_nth_unstable(rank - 1).1))
    }

    /// Mean latency; `None` without answers.
    pub fn mean(&self) -> Option<Nanos> {
        let count = self.latencies_ns.len() as u64;
        self.latencies_ns.iter().sum::<u64>().checked_div(count).map(Nanos)
    }
}
