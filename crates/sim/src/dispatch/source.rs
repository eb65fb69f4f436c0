//! The arrival process: Poisson arrivals, each with its work.

use super::model::{DispatchModel, RateStep, WorkDraw};
use crate::model::ModelError;
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_measure::Nanos;
use rand_distr::{Distribution as _, Exp1};

/// Arrivals and their work, without end.
pub(super) struct Source {
    arrivals: Stream,
    works: Stream,
    work: WorkDraw,
    load: Vec<RateStep>,
    next_ns: u64,
    phase: usize,
    /// Arrivals left at the present rate.
    left: u64,
}

impl Source {
    /// The source of a checked model.
    pub(super) fn new(model: &DispatchModel, streams: Replication) -> Self {
        let mut source = Self {
            arrivals: streams.stream(StreamPurpose::Arrivals, 0),
            works: streams.stream(StreamPurpose::Work, 0),
            work: model.work.draw(),
            next_ns: 0,
            phase: 0,
            left: model.load[0].requests.unwrap_or(u64::MAX),
            load: model.load.clone(),
        };
        source.next_ns = source.gap_ns();
        source
    }

    fn gap_ns(&mut self) -> u64 {
        let unit: f64 = Exp1.sample(&mut self.arrivals);
        (unit * 1e9 / self.load[self.phase].rate_per_s) as u64
    }
}

impl Iterator for Source {
    type Item = (u64, f64);

    fn next(&mut self) -> Option<(u64, f64)> {
        let due_ns = self.next_ns;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.phase + 1 < self.load.len() {
            self.phase += 1;
            self.left = self.load[self.phase].requests.unwrap_or(u64::MAX);
        }
        self.next_ns += self.gap_ns().max(1);
        Some((due_ns, self.work.sample(&mut self.works)))
    }
}

impl DispatchModel {
    /// Returns arrival and work of the first requests of a replication, so that another
    /// plant can run the same requests.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn requests(
        &self,
        requests: usize,
        replication: Replication,
    ) -> Result<Vec<(Nanos, Nanos)>, ModelError> {
        self.check()?;
        let source = Source::new(self, replication);
        let each = |(due_ns, work_ns): (u64, f64)| (Nanos(due_ns), Nanos(work_ns as u64));
        Ok(source.take(requests).map(each).collect())
    }
}
