//! The interface of dispatchers, which decide on which core type one request runs.
//!
//! A [`Policy`](crate::Policy) sets the knobs of the machine every epoch. A
//! [`Dispatcher`] decides for single requests: where a request starts, and at which
//! age the dispatcher decides on it again. In the source (EETL, MICRO-50) every
//! request is checked each millisecond. What a dispatcher sees changes only at
//! arrivals, departures and the ages that it named, so a plant calls it at exactly
//! those moments, which is both exact and cheaper than ticks:
//!
//! - a request arrives, or waits while a core is free;
//! - a running request reaches the age its last [`Answer`] named;
//! - something arrived or left, and [`Dispatcher::decision_scope`] covers the request.
//!
//! Once per period of its [`MeasurementRule`] the dispatcher receives the measured latency and load
//! ([`DispatchObservation`]), from which its controller moves the thresholds.

mod error;
mod ladder;
mod meter;
mod window;

pub use error::DispatcherError;
pub use ladder::{CoreSpeed, Ladder, LadderError, Supply};
pub use meter::Meter;
pub use window::Window;

use lull_measure::{Nanos, Percentile};

/// A request for which the dispatcher chooses a core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DispatchRequest<'a> {
    /// Time since its arrival, waiting included.
    pub age: Nanos,
    /// Work done so far, as time on the slowest type.
    pub done: Nanos,
    /// Index into [`Ladder::types`] of where it runs; `None` while it waits.
    pub on: Option<usize>,
    /// Requests in the system that are older.
    pub older: usize,
    /// Requests in the system, this one included.
    pub active: usize,
    /// Its work as time on the slowest type, where the plant knows the future.
    pub work: Option<Nanos>,
    /// Idle cores of each type; under [`Supply::Any`] the same number for all.
    pub free: &'a [u32],
}

/// Where a request is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreChoice {
    /// Where it is; a request without a core waits.
    Stay,
    /// Run on a core of this type. Without a free core of it the request stays.
    On(usize),
}

/// A dispatcher's decision on one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Where it is to run.
    pub place: CoreChoice,
    /// The age at which the dispatcher decides again; with `None` or a past age it
    /// does not decide again because of the age.
    pub again: Option<Nanos>,
}

/// The running requests on which the dispatcher decides again after an arrival or a
/// departure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionScope {
    /// No arrivals and departures: decisions follow from each request's age alone.
    Ages,
    /// The given number of oldest requests in the system.
    Oldest(usize),
    /// All running requests.
    All,
}

/// How often a dispatcher receives measurements, and of what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasurementRule {
    /// The period between two measurements.
    pub every: MeasurementPeriod,
    /// Answers that the tail is taken over, and arrivals for the rate.
    pub window: usize,
    /// The percentile.
    pub percentile: Percentile,
    /// The latency beyond which answers are counted as late; `None`: not counted.
    pub bound: Option<Nanos>,
}

/// The period between two measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasurementPeriod {
    /// This many answers.
    Answers(u32),
    /// A period of this length.
    Time(Nanos),
}

/// The measurements that a dispatcher receives after each period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DispatchObservation {
    /// Time since the start.
    pub now: Nanos,
    /// Measured tail latency; `None` before the first answer.
    pub tail: Option<Nanos>,
    /// Answers that the tail is taken over.
    pub samples: usize,
    /// Share of them beyond [`MeasurementRule::bound`]; `None` without a bound or an answer.
    pub late: Option<f64>,
    /// Arrivals per second; `None` before the second arrival.
    pub rate_per_s: Option<f64>,
    /// Requests in the system.
    pub active: usize,
}

/// Decides on which core speed each request runs: pure, with state.
///
/// It uses no clock, no I/O and no randomness: time is in its observation.
pub trait Dispatcher: Send {
    /// Where this request is to run now.
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer;

    /// Returns the running requests that arrivals and departures concern.
    fn decision_scope(&self) -> DecisionScope {
        DecisionScope::Ages
    }

    /// How often [`Dispatcher::adjust`] is called; `None`: never.
    fn measurement_rule(&self) -> Option<MeasurementRule> {
        None
    }

    /// Takes note of measurements.
    fn adjust(&mut self, _: &DispatchObservation) {}

    /// Returns whether waiting requests start strictly in order of arrival. If not, the
    /// dispatcher decides on every waiting request whenever a core is free.
    fn first_come(&self) -> bool {
        true
    }

    /// The ages at which requests move up, by type from the second, for
    /// records and figures; empty where there are none.
    fn thresholds(&self) -> &[Nanos] {
        &[]
    }
}

impl DispatchRequest<'_> {
    /// Whether it could run on this type now: it is there, a core is free, or
    /// its own core can change its speed.
    pub fn can(&self, kind: usize, ladder: &Ladder) -> bool {
        self.on == Some(kind) || self.free[kind] > 0 || (self.on.is_some() && ladder.scales())
    }
}

impl Answer {
    /// Stay, and decide again at an age.
    pub const fn stay(again: Option<Nanos>) -> Self {
        Self { place: CoreChoice::Stay, again }
    }

    /// Run on a type, and decide again at an age.
    pub const fn on(kind: usize, again: Option<Nanos>) -> Self {
        Self { place: CoreChoice::On(kind), again }
    }
}

/// How many answers a percentile needs before it is worth acting on: enough
/// that five lie beyond it (500 for the p99, the paper's epoch, section 5.4).
/// With fewer its relative error exceeds that of the load's own noise.
pub fn samples_needed(percentile: Percentile) -> usize {
    // Rounded first, for 1 - 0.99 is not 0.01.
    (5.0 / (1.0 - percentile.fraction())).round().max(1.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_needs_answers_beyond_it() {
        assert_eq!(samples_needed(Percentile::P99), 500);
        assert_eq!(samples_needed(Percentile::P95), 100);
        assert_eq!(samples_needed(Percentile::P999), 5000);
    }

    #[test]
    fn a_core_that_scales_needs_no_free_core_to_be_fast() {
        let types = || {
            let one = |name: &str, speed, watts| CoreSpeed::new(name, speed, watts);
            vec![one("slow", 1.0, 1.7), one("fast", 2.0, 6.8)]
        };
        let any = Ladder::new(types(), Supply::Any(1)).unwrap();
        let fixed = Ladder::new(types(), Supply::Fixed(vec![1, 1])).unwrap();
        let request = DispatchRequest {
            age: Nanos(1),
            done: Nanos(1),
            on: Some(0),
            older: 0,
            active: 1,
            work: None,
            free: &[0, 0],
        };
        assert!(request.can(1, &any) && !request.can(1, &fixed) && request.can(0, &fixed));
        assert!(!DispatchRequest { on: None, ..request }.can(1, &any));
    }
}
