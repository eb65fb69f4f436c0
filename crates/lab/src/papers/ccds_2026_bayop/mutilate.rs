//! Percentiles as the load generator mutilate computes them.
//!
//! The paper's latencies are mutilate's, whose histogram has a bin for each
//! power of 1.1 microseconds and takes latencies to be spread evenly in a bin
//! (its source, `LogHistogramSampler.h`): 500 us lies in the bin from 490.4 to
//! 539.4. This module computes how much a percentile deviates because of the bins.

use lull_measure::{Latency, Nanos};

/// Ratio of the edges of a bin.
const BASE: f64 = 1.1;
/// Number of bins; longer latencies are in the last.
const BINS: i32 = 200;

/// A percentile of latencies, in microseconds, as mutilate would print it;
/// `None` without a latency.
pub(super) fn percentile_us(latency: &Latency, percent: f64) -> Option<f64> {
    let all = latency.count();
    let target = all as f64 * percent / 100.0;
    let edge_us = |bin: i32| BASE.powi(bin);
    let below = |bin: i32| match bin {
        0 => 0,
        BINS => all,
        _ => all - latency.count_above(Nanos::from_secs_f64(edge_us(bin) / 1e6)),
    };
    let bin = (0..BINS).find(|bin| below(bin + 1) as f64 > target || below(bin + 1) == all)?;
    let (before, within) = (below(bin), below(bin + 1) - below(bin));
    let part = (target - before as f64) / within.max(1) as f64;
    (all > 0).then(|| edge_us(bin) + part.clamp(0.0, 1.0) * (edge_us(bin + 1) - edge_us(bin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(from_us: u64, to_us: u64) -> Latency {
        let mut latency = Latency::default();
        (from_us..to_us).for_each(|us| latency.record_many(Nanos::from_micros(us), 1));
        latency
    }

    #[test]
    fn what_is_spread_evenly_is_as_it_is_and_one_value_is_anywhere_in_its_bin() {
        // Up to the edge of a bin: 1.1^73.
        let even = percentile_us(&spread(1, 1051), 99.0).unwrap();
        assert!((even / 1039.5 - 1.0).abs() < 0.01, "{even}");
        let mut same = Latency::default();
        same.record_many(Nanos::from_micros(500), 1000);
        let printed = [1.0, 50.0, 99.0].map(|at| percentile_us(&same, at).unwrap());
        // The bin of 500 us: 1.1^65 to 1.1^66.
        assert!(printed.iter().all(|us| (490.3..539.5).contains(us)), "{printed:?}");
        assert!(printed[2] > 530.0, "{printed:?}");
        assert_eq!(percentile_us(&Latency::default(), 99.0), None);
    }
}
