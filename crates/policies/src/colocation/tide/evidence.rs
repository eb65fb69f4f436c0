//! Measurements since the level and the loads last changed.
//!
//! One period of a lightly loaded app has about a hundred requests, so its p95 has an error of
//! about a quarter. Over several periods at one level and load the mean tail is known better, and
//! the mean of the upper ends of the periods' intervals shows how far chance alone raises a tail.

use super::reading::Reading;
use lull_control::AppId;

/// Periods from which on their spread says something (ours).
pub(super) const ENOUGH: u32 = 4;

/// Periods that the past weighs at most (ours).
const MEMORY: u32 = 10;

/// Periods at one level and load.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    sums: Vec<Sum>,
}

/// Sums over the periods in which an app was at work.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    value: f64,
    squares: f64,
    high: f64,
    periods: u32,
}

/// The app with the worst ratio of tail to bound over all these periods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pooled {
    pub(super) app: AppId,
    /// Mean tail over bound.
    pub(super) value: f64,
    /// How high chance carries a period's tail over bound: the mean upper end
    /// of its interval, or two deviations of the periods seen if that is more,
    /// since queues make neighbours in time alike and intervals of order
    /// statistics too narrow.
    pub(super) high: f64,
    pub(super) periods: u32,
}

impl Sum {
    /// Keeps the weight of the past at that of a few periods.
    fn forget_the_old(&mut self) {
        if self.periods == MEMORY {
            let kept = f64::from(MEMORY - 1) / f64::from(MEMORY);
            self.value *= kept;
            self.squares *= kept;
            self.high *= kept;
            self.periods -= 1;
        }
    }
}

impl Evidence {
    /// Creates the evidence without any reading.
    pub(super) fn new(apps: usize) -> Self {
        Self { sums: vec![Sum::default(); apps] }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.sums.fill(Sum::default());
    }

    /// Adds a period.
    pub(super) fn note(&mut self, all: &[Reading]) {
        for one in all {
            let sum = &mut self.sums[one.app.index()];
            sum.forget_the_old();
            sum.value += one.tail.value;
            sum.squares += one.tail.value.powi(2);
            sum.high += one.tail.high;
            sum.periods += 1;
        }
    }

    /// Mean tail over bound by app.
    pub(super) fn values(&self) -> Vec<(AppId, f64)> {
        let each = (0u16..).map(AppId).zip(&self.sums).filter(|(_, sum)| sum.periods > 1);
        each.map(|(app, sum)| (app, sum.value / f64::from(sum.periods))).collect()
    }

    /// The worst of all apps; `None` before anything was seen.
    pub(super) fn worst(&self) -> Option<Pooled> {
        let pooled = |(app, sum): (u16, &Sum)| {
            let periods = f64::from(sum.periods);
            let value = sum.value / periods;
            let spread = (sum.squares / periods - value * value).max(0.0).sqrt();
            let seen = if sum.periods >= ENOUGH { value + 2.0 * spread } else { value };
            let high = (sum.high / periods).max(seen);
            (sum.periods > 0).then_some(Pooled {
                app: AppId(app),
                value,
                high,
                periods: sum.periods,
            })
        };
        let all = (0u16..).zip(&self.sums).filter_map(pooled);
        all.max_by(|a, b| a.high.total_cmp(&b.high))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::Bounded;
    use super::*;

    fn note(evidence: &mut Evidence, value: f64) {
        let tail = Bounded { low: value - 0.2, value, high: value + 0.2 };
        evidence.note(&[Reading { app: AppId(0), tail }]);
    }

    #[test]
    fn periods_are_pooled_until_all_is_forgotten() {
        let mut evidence = Evidence::new(1);
        assert_eq!(evidence.worst(), None);
        for value in [0.6, 0.8, 0.7] {
            note(&mut evidence, value);
        }
        let pooled = evidence.worst().unwrap();
        assert!((pooled.value - 0.7).abs() < 1e-12 && (pooled.high - 0.9).abs() < 1e-12);
        assert_eq!(pooled.periods, 3);
        evidence.clear();
        assert_eq!(evidence.worst(), None);
    }

    #[test]
    fn periods_that_differ_by_more_than_their_intervals_say_so() {
        let mut evidence = Evidence::new(1);
        for value in [0.3, 0.9, 0.3] {
            note(&mut evidence, value);
        }
        assert!((evidence.worst().unwrap().high - 0.7).abs() < 1e-12, "three are too few");
        note(&mut evidence, 0.9);
        // Mean 0.6, deviation 0.3.
        assert!((evidence.worst().unwrap().high - 1.2).abs() < 1e-12);
    }

    #[test]
    fn the_past_fades() {
        let mut evidence = Evidence::new(1);
        (0..100).for_each(|_| note(&mut evidence, 0.5));
        (0..20).for_each(|_| note(&mut evidence, 1.0));
        let pooled = evidence.worst().unwrap();
        assert!(pooled.value > 0.9 && pooled.periods == MEMORY, "{pooled:?}");
    }
}
