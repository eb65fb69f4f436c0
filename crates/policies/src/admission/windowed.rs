//! The shared parts of the limiters of RPC servers: samples, and the gate that they set.
//!
//! Such a limiter rejects requests above its limit and measures a request from its admission to
//! its answer. This gate delays transactions instead, and a latency that it reports includes
//! the wait. A [`Sample`] recovers the time in service by Little's law: where more transactions
//! are in the system than the limit admits, each of the `limit` slots is busy, so that one
//! transaction holds a slot for `limit / throughput`; otherwise none waits, and the latency is
//! the time in service. In the window after a limit fell, transactions of the former limit are
//! answered too, so that the time in service comes out too low.
//!
//! Whether a limit is used is decided by the mean number in service, where the originals take
//! that of one request or the peak of a window.

use crate::config::{positive_time, within};
use lull_control::PolicyError;
use lull_control::admission::{Admission, Allowance, GateObservation, Pace, RoundLimits};
use lull_measure::Nanos;

/// The fewest answers of a sample window; a window with fewer continues (the concurrency-limits
/// library drops it, if it has fewer than ten).
const ANSWERS: u64 = 11;
/// The largest limit that a gate keeps.
pub(super) const LIMIT_MAX: u32 = 256;

/// The means of one sample window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// When the window ended.
    pub(super) now: Nanos,
    /// Answers per second.
    pub(super) per_s: f64,
    /// Time from admission to answer, in seconds.
    pub(super) service_s: f64,
    /// Time at the gate, in seconds.
    pub(super) wait_s: f64,
    /// Transactions that were admitted and not answered.
    pub(super) in_service: f64,
    /// Whether transactions waited for a slot.
    pub(super) is_full: bool,
    /// Answers in the window.
    pub(super) answers: u64,
}

/// A limit that is updated once a sample window.
pub(super) trait Limiter: Send {
    /// Returns the limit from now on, at least 1.
    fn update(&mut self, sample: Sample) -> f64;
}

/// A limiter at the gate.
pub(super) struct Windowed<L> {
    limiter: L,
    limit: f64,
    window: Nanos,
    look: Nanos,
    begun: Option<Nanos>,
    answers: u64,
    latency_s: f64,
}

impl<L: Limiter> Windowed<L> {
    /// Creates the gate of a limiter that starts with `limit`.
    pub(super) fn new(limiter: L, limit: u32, window: Nanos, look: Nanos) -> Self {
        let limit = f64::from(limit);
        Self { limiter, limit, window, look, begun: None, answers: 0, latency_s: 0.0 }
    }

    fn cap(&self) -> u32 {
        (self.limit as u32).clamp(1, LIMIT_MAX)
    }

    /// Adds the answers; returns the sample once the window is over.
    fn note(&mut self, seen: &GateObservation<'_>) -> Option<Sample> {
        let Some(begun) = self.begun else {
            self.begun = Some(seen.now);
            return None;
        };
        for one in seen.answered {
            self.answers += u64::from(one.queries);
            self.latency_s += one.latency.as_secs_f64() * f64::from(one.queries);
        }
        let took = seen.now.saturating_sub(begun);
        if took < self.window || self.answers < ANSWERS || self.latency_s <= 0.0 {
            return None;
        }
        let (answers, cap) = (self.answers, f64::from(self.cap()));
        let (per_s, mean_s) =
            (answers as f64 / took.as_secs_f64(), self.latency_s / answers as f64);
        let service_s = mean_s.min(cap / per_s);
        (self.begun, self.answers, self.latency_s) = (Some(seen.now), 0, 0.0);
        Some(Sample {
            now: seen.now,
            per_s,
            service_s,
            wait_s: mean_s - service_s,
            in_service: per_s * service_s,
            is_full: per_s * mean_s >= cap,
            answers,
        })
    }
}

impl<L: Limiter> Admission for Windowed<L> {
    fn decide(&mut self, seen: &GateObservation<'_>, admission: &mut RoundLimits) {
        if let Some(sample) = self.note(seen) {
            self.limit = self.limiter.update(sample).max(1.0);
        }
        admission.allow.fill(Allowance::turns_of(1));
        admission.cap = self.cap();
        admission.pace = Pace::Flow { again: self.look };
    }
}

/// The keys that every such limiter has.
pub(super) struct Range {
    pub(super) initial: u32,
    pub(super) least: u32,
    pub(super) most: u32,
    pub(super) window: Nanos,
    pub(super) look: Nanos,
}

impl Range {
    /// Refuses limits that no gate keeps, and times of nothing.
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        positive_time("window", self.window)?;
        positive_time("look", self.look)?;
        within("most", f64::from(self.most), 1.0..=f64::from(LIMIT_MAX))?;
        within("least", f64::from(self.least), 1.0..=f64::from(self.most))?;
        within("initial", f64::from(self.initial), f64::from(self.least)..=f64::from(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Bench;
    use super::*;

    /// Keeps its limit, and the last sample.
    struct Probe(Option<Sample>);

    impl Limiter for Probe {
        fn update(&mut self, sample: Sample) -> f64 {
            self.0 = Some(sample);
            10.0
        }
    }

    /// The sample of a second with a limit of 10, this throughput and this latency.
    fn sample(per_s: f64, latency_ms: u64) -> Option<Sample> {
        let mut bench = Bench::best_effort(4);
        let mut gate = Windowed::new(Probe(None), 10, Nanos::from_secs(1), Nanos::from_millis(100));
        let mut limits = RoundLimits::open(4);
        bench.latency = Nanos::from_millis(latency_ms);
        for _ in 0..12 {
            gate.decide(&bench.seen(), &mut limits);
            bench.pass(Nanos::from_millis(100), per_s);
        }
        assert_eq!((limits.cap, limits.pace), (10, Pace::Flow { again: Nanos::from_millis(100) }));
        gate.limiter.0
    }

    #[test]
    fn the_wait_at_the_gate_is_separate_from_the_time_in_service() {
        // 1000/s of 50 ms each are 50 in the system, of which 10 have a slot for 10 ms.
        let full = sample(1000.0, 50).unwrap();
        assert!((full.service_s - 0.01).abs() < 1e-4 && (full.wait_s - 0.04).abs() < 1e-4);
        assert!(full.is_full && (full.in_service - 10.0).abs() < 0.1, "{full:?}");
        let free = sample(100.0, 50).unwrap();
        assert!((free.service_s - 0.05).abs() < 1e-4 && free.wait_s < 1e-9);
        assert!(!free.is_full && (free.in_service - 5.0).abs() < 0.1, "{free:?}");
    }

    #[test]
    fn a_window_with_few_answers_goes_on() {
        assert!(sample(4.0, 50).is_none());
    }
}
