//! A period that follows the rhythm of the load's bursts.
//!
//! A controller whose period comes near the burst cycle of its load works
//! against it: it has just slowed down when the next burst arrives (Wang et
//! al., TRIOS'13, sections 4 and 5). The paper's remedy is equations 1 and 2:
//! predict the next burst interval as the mean of the last `k`, and take the
//! `n`-th part of it as the period, within bounds.
//!
//! ```text
//! B' = mean of the last k intervals        T = clamp(B'/n, shortest, longest)
//! ```
//!
//! The paper gives n = 10 and the bounds 50 and 500 ms, but not k; 5 is ours
//! (1 to 20 made no difference to throughput in a prototype). The paper does not
//! define what follows when bursts cease. Here the longest period holds once ten
//! times the longest period has passed without a burst. When the next burst arrives,
//! the silence counts as an interval like any other, as in equation 1. Ignoring it
//! makes the period short after every pause: simulated at 8,000 clients this costs
//! 6 % of power instead of 4 (k = 10), and the paper claims the same power as without
//! the rule.

use lull_measure::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Equations 1 and 2 with their constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RhythmRule {
    /// How many past burst intervals are averaged (k); at least 1.
    #[schemars(extend("x-unit" = "bursts"))]
    pub intervals: usize,
    /// Number of periods in a burst interval (n); above 0.
    #[schemars(extend("x-unit" = "periods"))]
    pub per_burst: f64,
    /// Shortest period (T_lb).
    pub shortest: Nanos,
    /// Longest period (T_ub), and the one without bursts.
    pub longest: Nanos,
}

impl Default for RhythmRule {
    /// The paper's: n = 10, 50 to 500 ms; k = 5.
    fn default() -> Self {
        Self {
            intervals: 5,
            per_burst: 10.0,
            shortest: Nanos::from_millis(50),
            longest: Nanos::from_millis(500),
        }
    }
}

/// Why a rule makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RhythmError {
    /// The key at fault.
    pub key: &'static str,
    /// The error and the correction.
    pub message: String,
}

impl RhythmRule {
    /// Checks the rule's constants.
    ///
    /// # Errors
    /// If `intervals` or `shortest` is zero, `per_burst` is not above zero,
    /// or the bounds are upside down.
    pub fn check(&self) -> Result<(), RhythmError> {
        let fail = |key, message| Err(RhythmError { key, message });
        if self.intervals == 0 {
            return fail("intervals", "`intervals` is 0: average at least 1".to_owned());
        }
        if !(self.per_burst > 0.0 && self.per_burst.is_finite()) {
            let message = format!("`per_burst` is {}: write a number above 0", self.per_burst);
            return fail("per_burst", message);
        }
        if self.shortest == Nanos::ZERO {
            return fail("shortest", "`shortest` is zero: write a time such as 50ms".to_owned());
        }
        if self.shortest > self.longest {
            let message =
                format!("`shortest` {} is above `longest` {}", self.shortest, self.longest);
            return fail("shortest", message);
        }
        Ok(())
    }
}

/// The rhythm of bursts so far.
#[derive(Debug, Clone)]
pub struct Rhythm {
    rule: RhythmRule,
    last: Option<Nanos>,
    intervals: VecDeque<Nanos>,
}

impl Rhythm {
    /// No burst yet.
    pub fn new(rule: RhythmRule) -> Self {
        Self { rule, last: None, intervals: VecDeque::new() }
    }

    /// Takes note of a burst.
    pub fn burst(&mut self, at: Nanos) {
        if let Some(last) = self.last.replace(at) {
            self.intervals.push_back(at.saturating_sub(last));
            while self.intervals.len() > self.rule.intervals {
                self.intervals.pop_front();
            }
        }
    }

    /// The period that suits the rhythm now.
    pub fn period(&self, now: Nanos) -> Nanos {
        let RhythmRule { per_burst, shortest, longest, .. } = self.rule;
        match self.interval().filter(|_| !self.is_quiet(now)) {
            Some(interval) => interval.scale(1.0 / per_burst).clamp(shortest, longest),
            None => longest,
        }
    }

    /// The expected interval between bursts (equation 1); `None` without two bursts.
    pub fn interval(&self) -> Option<Nanos> {
        let count = self.intervals.len() as u64;
        (count > 0).then(|| self.intervals.iter().copied().sum::<Nanos>() / count)
    }

    fn is_quiet(&self, now: Nanos) -> bool {
        let quiet = self.rule.longest.0.saturating_mul(10);
        self.last.is_some_and(|last| now.saturating_sub(last).0 > quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn after(bursts_ms: &[u64]) -> Rhythm {
        let mut rhythm = Rhythm::new(RhythmRule::default());
        for at in bursts_ms {
            rhythm.burst(ms(*at));
        }
        rhythm
    }

    #[test]
    fn the_period_is_a_tenth_of_the_mean_interval_within_bounds() {
        assert_eq!(after(&[0, 2_000, 4_000]).period(ms(4_000)), ms(200));
        assert_eq!(after(&[0, 1_000, 4_000]).period(ms(4_000)), ms(200));
        assert_eq!(after(&[0, 100, 200]).period(ms(200)), ms(50));
        assert_eq!(after(&[0, 4_999]).period(ms(5_000)), Nanos(499_900_000));
    }

    #[test]
    fn one_burst_is_no_rhythm() {
        assert_eq!(after(&[100]).period(ms(150)), ms(500));
    }

    #[test]
    fn only_the_last_few_intervals_count() {
        let slow_then_fast = [0, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000];
        assert_eq!(after(&slow_then_fast).interval(), Some(ms(1_000)));
    }

    #[test]
    fn silence_means_the_longest_period_and_then_is_one_interval_of_many() {
        let mut rhythm = after(&[0, 1_000, 2_000]);
        assert_eq!(rhythm.period(ms(7_000)), ms(100));
        assert_eq!(rhythm.period(ms(7_001)), ms(500));
        rhythm.burst(ms(60_000));
        assert_eq!(rhythm.interval(), Some(ms(20_000)));
        assert_eq!(rhythm.period(ms(60_000)), ms(500));
        for at in [61_000, 62_000, 63_000, 64_000, 65_000] {
            rhythm.burst(ms(at));
        }
        assert_eq!(rhythm.period(ms(65_000)), ms(100));
    }

    #[test]
    fn a_senseless_rule_is_refused_with_its_key() {
        let key = |change: fn(&mut RhythmRule)| {
            let mut rule = RhythmRule::default();
            change(&mut rule);
            rule.check().unwrap_err().key
        };
        assert_eq!(key(|rule| rule.intervals = 0), "intervals");
        assert_eq!(key(|rule| rule.per_burst = f64::NAN), "per_burst");
        assert_eq!(key(|rule| rule.shortest = Nanos::ZERO), "shortest");
        assert_eq!(key(|rule| rule.longest = Nanos::from_millis(1)), "shortest");
        assert_eq!(RhythmRule::default().check(), Ok(()));
    }

    proptest! {
        #[test]
        fn the_period_never_leaves_its_bounds(gaps in prop::collection::vec(0u64..1 << 34, 0..40)) {
            let mut rhythm = Rhythm::new(RhythmRule::default());
            let mut now = Nanos::ZERO;
            for gap in gaps {
                now += Nanos(gap);
                rhythm.burst(now);
                prop_assert!((ms(50)..=ms(500)).contains(&rhythm.period(now)));
            }
        }
    }
}
