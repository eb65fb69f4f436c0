//! Request latencies of which only the bucket is known.
//!
//! A service that reports a histogram says how many requests took between two times, not how
//! long each took. [`Buckets`] keeps those counts, so that a percentile comes with the range
//! in which it certainly lies ([`Buckets::quantile_range`]); [`Buckets::to_latency`] spreads the
//! requests evenly over their buckets, as `histogram_quantile` of Prometheus assumes them.

use crate::{Latency, Nanos, Percentile};
use std::collections::BTreeMap;

/// Most buckets that differ; beyond it they become wider.
const BUCKETS_MAX: usize = 4_096;
/// Most times over which the requests of one bucket are spread.
const SPREAD_MAX: u64 = 32;
/// Where a bucket without an upper bound ends: no latency is longer.
const ENDLESS: Nanos = Nanos(u64::MAX);

/// Numbers of requests by the bucket that they were counted in: above its lower bound, up to and
/// including its upper bound. Buckets may overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets {
    counts: BTreeMap<(Nanos, Nanos), u64>,
}

/// The range in which a percentile lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantileRange {
    /// The lower bound of the latency.
    pub low: Nanos,
    /// The upper bound of the latency; `None` if it lies beyond the last bound.
    pub high: Option<Nanos>,
}

impl QuantileRange {
    /// How far two values in the range can lie apart; `None` if it has no end.
    pub fn width(self) -> Option<Nanos> {
        self.high.map(|high| high.saturating_sub(self.low))
    }
}

impl Buckets {
    /// Adds `count` requests above `low` and up to `high`; `None` if the bucket has no end.
    pub fn add(&mut self, low: Nanos, high: Option<Nanos>, count: u64) {
        if count == 0 {
            return;
        }
        let high = high.map_or(ENDLESS, |high| high.max(low));
        self.add_between((low, high), count);
        if self.counts.len() > BUCKETS_MAX {
            self.widen();
        }
    }

    fn add_between(&mut self, bounds: (Nanos, Nanos), count: u64) {
        let sum = self.counts.entry(bounds).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Rounds all bounds outwards to powers of two, of which there are few. Every range that is
    /// derived from the buckets stays true.
    fn widen(&mut self) {
        for ((low, high), count) in std::mem::take(&mut self.counts) {
            let below = low.0.checked_ilog2().map_or(0, |bits| 1 << bits);
            let above = high.0.checked_next_power_of_two().unwrap_or(ENDLESS.0);
            self.add_between((Nanos(below), Nanos(above)), count);
        }
    }

    /// Adds all requests of another set.
    pub fn merge(&mut self, other: &Self) {
        for (low, high, count) in other.iter() {
            self.add(low, high, count);
        }
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Number of buckets that hold requests.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Lower bound, upper bound and count of each bucket, by lower bound.
    pub fn iter(&self) -> impl Iterator<Item = (Nanos, Option<Nanos>, u64)> + '_ {
        let end = |high: Nanos| (high < ENDLESS).then_some(high);
        self.counts.iter().map(move |((low, high), count)| (*low, end(*high), *count))
    }

    /// Returns the range in which the latency lies that `at` percent of the requests do not
    /// exceed; `None` without requests. Its ends are the percentiles that result if every request
    /// took as little, and as much, as its bucket allows.
    pub fn quantile_range(&self, at: Percentile) -> Option<QuantileRange> {
        let rank = ((at.fraction() * self.count() as f64).ceil() as u64).max(1);
        let ranked = |mut bounds: Vec<(Nanos, u64)>| {
            bounds.sort_unstable();
            let mut left = rank;
            let found = bounds.iter().find(|(_, count)| {
                let is_here = left <= *count;
                left = left.saturating_sub(*count);
                is_here
            });
            found.or(bounds.last()).map(|(bound, _)| *bound)
        };
        let low = ranked(self.counts.iter().map(|((low, _), count)| (*low, *count)).collect())?;
        let high = ranked(self.counts.iter().map(|((_, high), count)| (*high, *count)).collect())?;
        Some(QuantileRange { low, high: (high < ENDLESS).then_some(high) })
    }

    /// Spreads the requests of each bucket evenly over it. Those of a bucket without an end count
    /// as its lower bound, the least that they can have taken.
    pub fn to_latency(&self) -> Latency {
        let mut latency = Latency::default();
        for (low, high, count) in self.iter() {
            let Some(high) = high else {
                latency.record_many(low, count);
                continue;
            };
            let parts = count.min(SPREAD_MAX);
            let width = high.saturating_sub(low).0 as f64;
            for part in 0..parts {
                // The first parts take the rest of the division.
                let here = count / parts + u64::from(part < count % parts);
                let at = width * (part as f64 + 0.5) / parts as f64;
                latency.record_many(low.saturating_add(Nanos(at as u64)), here);
            }
        }
        latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(count: u64) -> Nanos {
        Nanos::from_millis(count)
    }

    #[test]
    fn a_percentile_comes_with_the_bucket_that_it_lies_in() {
        let mut buckets = Buckets::default();
        buckets.add(Nanos::ZERO, Some(millis(5)), 90);
        buckets.add(millis(5), Some(millis(10)), 9);
        buckets.add(millis(10), None, 1);
        let range = |at| buckets.quantile_range(at).unwrap();
        assert_eq!(range(Percentile::P50).width(), Some(millis(5)));
        let p95 = range(Percentile::P95);
        assert_eq!((p95.low, p95.high), (millis(5), Some(millis(10))));
        let p999 = range(Percentile::P999);
        assert_eq!((p999.low, p999.width()), (millis(10), None));
        assert_eq!(buckets.to_latency().max().map(|it| it.0 / 100_000), Some(100));
        assert_eq!(Buckets::default().quantile_range(Percentile::P95), None);
    }

    #[test]
    fn more_buckets_than_are_kept_become_wider_and_lose_no_request() {
        let mut buckets = Buckets::default();
        for at in 0..10_000_u64 {
            buckets.add(Nanos(at * 1_000), Some(Nanos(at * 1_000 + 999)), 1);
        }
        assert!(buckets.len() <= BUCKETS_MAX);
        assert_eq!(buckets.count(), 10_000);
        let p50 = buckets.quantile_range(Percentile::P50).unwrap();
        assert!(p50.low <= millis(5) && p50.high.unwrap() >= millis(5), "{p50:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_true_percentile_lies_in_the_range_whatever_the_buckets(
            latencies in prop::collection::vec(1u64..10_000_000_000, 1..200),
            widths in prop::collection::vec(1u64..1_000_000_000, 1..6),
            percent in 1.0f64..99.9,
        ) {
            let mut buckets = Buckets::default();
            // Each request is counted by a reporter with buckets of its own width.
            for (latency, width) in latencies.iter().zip(widths.iter().cycle()) {
                let low = (latency - 1) / width * width;
                buckets.add(Nanos(low), Some(Nanos(low + width)), 1);
            }
            let at = Percentile::new(percent).unwrap();
            let mut sorted = latencies.clone();
            sorted.sort_unstable();
            let rank = ((at.fraction() * sorted.len() as f64).ceil() as usize).max(1);
            let truth = Nanos(sorted[rank - 1]);
            let range = buckets.quantile_range(at).unwrap();
            prop_assert!(range.low <= truth && truth <= range.high.unwrap(), "{truth} {range:?}");
            buckets.widen();
            let wide = buckets.quantile_range(at).unwrap();
            prop_assert!(wide.low <= range.low && range.high <= wide.high, "{wide:?} {range:?}");
            prop_assert_eq!(buckets.to_latency().count(), latencies.len() as u64);
        }

        #[test]
        fn the_interpolated_percentile_lies_in_the_range(
            counts in prop::collection::vec(0u64..5_000, 1..30),
            percent in 1.0f64..99.9,
        ) {
            let mut buckets = Buckets::default();
            for (at, count) in (1..).zip(&counts) {
                buckets.add(millis(at * 3), Some(millis(at * 3 + 3)), *count);
            }
            let at = Percentile::new(percent).unwrap();
            let Some(range) = buckets.quantile_range(at) else { return Ok(()) };
            let tail = buckets.to_latency().quantile(at).unwrap();
            // A histogram keeps three digits.
            let slack = Nanos(tail.0 / 1_000);
            prop_assert!(range.low <= tail + slack, "{tail} {range:?}");
            prop_assert!(tail <= range.high.unwrap() + slack, "{tail} {range:?}");
        }
    }
}
