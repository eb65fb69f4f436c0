//! Ideal batching: how long a core can sleep if queries come in batches
//! (REEF, Li et al. 2025, section 3.2, equations 1 to 3).
//!
//! ```text
//! (1) idle of one gap       max(gap - overhead, 0)
//! (2) C6 opportunity(T)     sum of idle intervals longer than T / total time
//! (3) idle after a batch    N gap - N processing - scheduling - wake-up
//! ```
//!
//! Equation (2) is printed with a sum of idle intervals over M cores in the
//! denominator and the processing time divided by M beside it, which mixes a
//! sum with a mean. [`c6_opportunity`] takes both as sums, so that it is the
//! share of core time that can be slept.
//!
//! The paper argues by Jensen's inequality that evenly spaced arrivals are
//! best. In general they are not: the gain of a gap jumps at T plus the
//! overhead and is neither convex nor concave. With exponential gaps of 500 us
//! mean, evenly spaced ones gain nothing and random ones 184 us each, as a
//! test below shows. Batches of [`smallest_batch`] or more queries do make every
//! gap long enough.

use crate::Nanos;

/// Break-even T of C6 on REEF's machines (figure 2, Xeon E5-2650 v4). Used where T
/// has not been measured; `lull calibrate idle` measures it.
pub const C6_BREAK_EVEN: Nanos = Nanos::from_millis(1);

/// The cost of a query to its core, besides the gap that it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overhead {
    /// Processing of one query.
    pub processing: Nanos,
    /// Scheduling, once a batch.
    pub scheduling: Nanos,
    /// Leaving the idle state, once a batch.
    pub wakeup: Nanos,
}

impl Overhead {
    /// All of it for one query on its own.
    pub fn total(self) -> Nanos {
        self.processing + self.scheduling + self.wakeup
    }
}

/// Equation (1): idle time of a gap between two arrivals.
pub fn idle(gap: Nanos, overhead: Overhead) -> Nanos {
    gap.saturating_sub(overhead.total())
}

/// Equation (3): idle time after a batch of this many queries at this mean gap;
/// zero where the core is not done by the next batch.
pub fn batch_idle(queries: u64, gap: Nanos, overhead: Overhead) -> Nanos {
    let busy = overhead.processing * queries + overhead.scheduling + overhead.wakeup;
    (gap * queries).saturating_sub(busy)
}

/// The fewest queries a batch with which its idle time exceeds `threshold`;
/// `None` where the core is overloaded.
pub fn smallest_batch(threshold: Nanos, gap: Nanos, overhead: Overhead) -> Option<u64> {
    let gained = gap.0.checked_sub(overhead.processing.0).filter(|gained| *gained > 0)?;
    Some((threshold + overhead.scheduling + overhead.wakeup).0 / gained + 1)
}

/// Equation (2) in one unit: the share of core time in idle intervals longer
/// than `threshold`, from all idle intervals of all cores and the summed busy
/// time of all cores; `None` if no time passed.
pub fn c6_opportunity(
    intervals: impl IntoIterator<Item = Nanos>,
    busy: Nanos,
    threshold: Nanos,
) -> Option<f64> {
    let (mut long_s, mut idle_s) = (0.0, 0.0);
    for interval in intervals {
        idle_s += interval.as_secs_f64();
        if interval > threshold {
            long_s += interval.as_secs_f64();
        }
    }
    let total_s: f64 = idle_s + busy.as_secs_f64();
    (total_s > 0.0).then(|| long_s / total_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: Nanos = Nanos::from_micros(1000);
    const GAP: Nanos = Nanos::from_micros(500);

    fn overhead() -> Overhead {
        Overhead {
            processing: Nanos::from_micros(100),
            scheduling: Nanos::from_micros(5),
            wakeup: Nanos::from_micros(89),
        }
    }

    #[test]
    fn batches_of_one_to_five_give_the_worked_idle_times() {
        let after: Vec<_> = (1..=5).map(|n| batch_idle(n, GAP, overhead()).0 / 1000).collect();
        assert_eq!(after, [306, 706, 1106, 1506, 1906]);
        assert_eq!(smallest_batch(T, GAP, overhead()), Some(3));
        assert_eq!(idle(GAP, overhead()), batch_idle(1, GAP, overhead()));
    }

    #[test]
    fn an_overloaded_core_has_no_batch_and_no_idle_time() {
        let slow = Overhead { processing: GAP, ..overhead() };
        assert_eq!(smallest_batch(T, GAP, slow), None);
        assert_eq!(batch_idle(100, GAP, slow), Nanos::ZERO);
        assert_eq!(idle(Nanos::from_micros(50), overhead()), Nanos::ZERO);
    }

    #[test]
    fn opportunity_is_all_where_nothing_runs_and_none_where_no_gap_is_longer() {
        let long = [Nanos::from_micros(1500); 4];
        assert_eq!(c6_opportunity(long, Nanos::ZERO, T), Some(1.0));
        assert_eq!(c6_opportunity([T; 4], Nanos::ZERO, T), Some(0.0), "strictly longer");
        assert_eq!(c6_opportunity([], Nanos::ZERO, T), None);
    }

    #[test]
    fn busy_time_counts_of_all_cores() {
        // 2 cores, 3 ms idle in long gaps, 3 ms busy: half.
        let idle = [Nanos::from_micros(1500); 2];
        assert_eq!(c6_opportunity(idle, Nanos::from_millis(3), T), Some(0.5));
    }

    #[test]
    fn even_spacing_is_not_best_when_gaps_are_short() {
        // Exponential gaps at their mid-points of equal probability; overhead 50 us.
        let count = 200_000;
        let overhead = Overhead {
            processing: Nanos::from_micros(50),
            scheduling: Nanos::ZERO,
            wakeup: Nanos::ZERO,
        };
        let gained = |mean_us: f64| {
            let gap = |i: u32| -((f64::from(i) + 0.5) / f64::from(count)).ln() * mean_us / 1e6;
            let gains = (0..count).map(|i| idle(Nanos::from_secs_f64(gap(i)), overhead));
            let long: f64 = gains.filter(|idle| *idle > T).map(Nanos::as_micros_f64).sum();
            long / f64::from(count)
        };
        // (T + mean) e^-((T + overhead)/mean), against 0 if evenly spaced.
        assert!((gained(500.0) - 183.7).abs() < 0.5, "{}", gained(500.0));
        // And the other way round for long gaps: 1774.7 against 1950.
        assert!((gained(2000.0) - 1774.7).abs() < 1.0, "{}", gained(2000.0));
    }

    proptest! {
        #[test]
        fn the_smallest_batch_is_enough_and_one_less_is_not(
            gap_us in 2u64..5000,
            processing_us in 1u64..5000,
            switch_us in 0u64..200,
            threshold_us in 0u64..5000,
        ) {
            let gap = Nanos::from_micros(gap_us);
            let threshold = Nanos::from_micros(threshold_us);
            let overhead = Overhead {
                processing: Nanos::from_micros(processing_us),
                scheduling: Nanos::from_micros(switch_us),
                wakeup: Nanos::ZERO,
            };
            let fewest = smallest_batch(threshold, gap, overhead);
            prop_assert_eq!(fewest.is_none(), processing_us >= gap_us);
            if let Some(fewest) = fewest {
                prop_assert!(batch_idle(fewest, gap, overhead) > threshold);
                prop_assert!(batch_idle(fewest - 1, gap, overhead) <= threshold);
            }
        }

        #[test]
        fn batching_never_lowers_what_can_be_slept_once_batches_are_large_enough(
            gaps_us in prop::collection::vec(60u64..3000, 60),
            processing_us in 1u64..50,
        ) {
            // The same arrivals, queries held back until the last of their batch has come.
            let slept_us = |batch: usize| -> u64 {
                let busy_us = processing_us * batch as u64;
                let sums = gaps_us.chunks_exact(batch).map(|gaps| gaps.iter().sum::<u64>());
                sums.map(|sum| sum - busy_us).filter(|idle| *idle > 1000).sum()
            };
            let all_us = gaps_us.iter().sum::<u64>() - 60 * processing_us;
            for batch in [1, 2, 3, 5, 10, 20, 30] {
                prop_assert!(slept_us(batch) <= all_us);
            }
            if all_us > 1000 {
                prop_assert_eq!(slept_us(60), all_us, "one batch sleeps all that can be slept");
            }
        }
    }
}
