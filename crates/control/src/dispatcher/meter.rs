//! The measurements of a plant for its dispatcher.

use super::{DispatchObservation, MeasurementPeriod, MeasurementRule, Window};
use lull_measure::Nanos;

/// Measures latency and load, and says when the dispatcher is to see them.
#[derive(Debug, Clone)]
pub struct Meter {
    rule: MeasurementRule,
    window: Window,
    /// Answers in the current period.
    since: u32,
    next: Nanos,
}

impl Meter {
    /// Creates a meter at time 0, without measurements.
    pub fn new(rule: MeasurementRule) -> Self {
        let next = match rule.every {
            MeasurementPeriod::Answers(_) => Nanos::MAX,
            MeasurementPeriod::Time(period) => period.max(Nanos(1)),
        };
        Self { rule, window: Window::new(rule.window), since: 0, next }
    }

    /// When the next measurement is due by time; [`Nanos::MAX`] where answers are counted.
    pub const fn next(&self) -> Nanos {
        self.next
    }

    /// Takes note of an arrival.
    pub fn arrived(&mut self, now: Nanos) {
        self.window.arrived(now);
    }

    /// Notes an answer. Returns whether that ends the period.
    pub fn answered(&mut self, latency: Nanos) -> bool {
        self.window.answered(latency);
        self.since += 1;
        matches!(self.rule.every, MeasurementPeriod::Answers(every) if self.since >= every)
    }

    /// Ends the period and returns its measurements, with this many requests in the system.
    pub fn read(&mut self, now: Nanos, active: usize) -> DispatchObservation {
        self.since = 0;
        if let MeasurementPeriod::Time(period) = self.rule.every {
            self.next = Nanos(self.next.0.saturating_add(period.0.max(1)));
        }
        DispatchObservation {
            now,
            tail: self.window.tail(self.rule.percentile),
            samples: self.window.samples(),
            late: self.rule.bound.and_then(|bound| self.window.late(bound)),
            rate_per_s: self.window.rate_per_s(),
            active,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Percentile;

    fn meter(every: MeasurementPeriod) -> Meter {
        Meter::new(MeasurementRule { every, window: 10, percentile: Percentile::P50, bound: None })
    }

    #[test]
    fn a_beat_of_answers_ends_with_its_last_one() {
        let mut meter = meter(MeasurementPeriod::Answers(2));
        assert_eq!(meter.next(), Nanos::MAX);
        assert!(!meter.answered(Nanos(5)) && meter.answered(Nanos(5)));
        assert_eq!(meter.read(Nanos(9), 1).samples, 2);
        assert!(!meter.answered(Nanos(5)), "it counts from zero");
    }

    #[test]
    fn a_beat_of_time_is_due_again_a_period_later() {
        let mut meter = meter(MeasurementPeriod::Time(Nanos(100)));
        assert_eq!(meter.next(), Nanos(100));
        assert!(!meter.answered(Nanos(5)));
        meter.read(Nanos(130), 0);
        assert_eq!(meter.next(), Nanos(200));
    }
}
