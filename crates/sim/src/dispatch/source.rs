//! The arrival process: Poisson arrivals, each with its work.

use super::model::{DispatchModel, DispatchModelError, RateStep, WorkDraw};
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_measure::Nanos;
use rand_distr::{Distribution as _, Exp1};

/// Arrivals and their work.
pub(super) struct Source {
    arrivals: Stream,
    works: Stream,
    work: WorkDraw,
    pub(super) next_ns: u64,
    phase: usize,
    /// Arrivals left at the present rate.
    left: u64,
    next_id: u64,
}

impl Source {
    pub(super) fn new(model: &DispatchModel, streams: Replication) -> Self {
        let first = model.load[0];
        let mut source = Self {
            arrivals: streams.stream(StreamPurpose::Arrivals, 0),
            works: streams.stream(StreamPurpose::Work, 0),
            work: model.work.draw(),
            next_ns: 0,
            phase: 0,
            left: first.requests.unwrap_or(u64::MAX),
            next_id: 0,
        };
        source.next_ns = source.gap_ns(first.rate_per_s);
        source
    }

    fn gap_ns(&mut self, rate_per_s: f64) -> u64 {
        let unit: f64 = Exp1.sample(&mut self.arrivals);
        (unit * 1e9 / rate_per_s) as u64
    }

    /// Returns the arriving request's number and work, and sets the next arrival.
    pub(super) fn draw(&mut self, load: &[RateStep]) -> (u64, f64) {
        let id = self.next_id;
        self.next_id += 1;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.phase + 1 < load.len() {
            self.phase += 1;
            self.left = load[self.phase].requests.unwrap_or(u64::MAX);
        }
        self.next_ns += self.gap_ns(load[self.phase].rate_per_s).max(1);
        (id, self.work.sample(&mut self.works))
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
    ) -> Result<Vec<(Nanos, Nanos)>, DispatchModelError> {
        self.check()?;
        let mut source = Source::new(self, replication);
        let mut next = || {
            let arrival = Nanos(source.next_ns);
            (arrival, Nanos(source.draw(&self.load).1 as u64))
        };
        Ok((0..requests).map(|_| next()).collect())
    }
}
