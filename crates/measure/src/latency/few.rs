//! A few latencies: a sorted list, which gives what the histogram would give.
//!
//! A histogram takes 200 kB, and to look a quantile up in it reads a thousand of its counts. An
//! epoch has often only some dozens of requests, and every app has a set for each epoch.

use super::counts::{BUCKETS, Counts, bounds_of};
use super::{LONGEST_NS, SHORTEST_NS, SIGNIFICANT_DIGITS};
use crate::Nanos;
use hdrhistogram::Histogram;
use std::sync::LazyLock;

/// Requests that a list may have.
pub(super) const FEW_MAX: usize = 64;

/// A histogram with our unit and digits that counts nothing: it says which latencies it would not
/// tell apart. Its own longest latency does not matter for that.
static RULER: LazyLock<Histogram<u64>> = LazyLock::new(|| {
    Histogram::new_with_bounds(SHORTEST_NS, 2 * SHORTEST_NS, SIGNIFICANT_DIGITS)
        .expect("the constant bounds are legal")
});

/// Up to [`FEW_MAX`] latencies, ascending, each the lowest that the histogram would not tell from
/// it.
#[derive(Clone, Default)]
pub(super) struct Few(Vec<u64>);

impl Few {
    #[inline]
    pub(super) fn record(&mut self, latency: Nanos) {
        // The histogram has counts up to here, and takes all beyond for its longest.
        let known = if latency.0 < bounds_of(BUCKETS - 1).1 { latency.0 } else { LONGEST_NS };
        let value = RULER.lowest_equivalent(known.max(SHORTEST_NS));
        let at = self.0.partition_point(|other| *other <= value);
        self.0.insert(at, value);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Whether as many requests more still are few.
    #[inline]
    pub(super) fn has_room(&self, count: u64) -> bool {
        count <= (FEW_MAX - self.0.len()) as u64
    }

    /// The latency of this rank (from 1).
    pub(super) fn ranked(&self, rank: u64) -> Option<Nanos> {
        let at = usize::try_from(rank).ok()?.checked_sub(1)?;
        self.0.get(at).map(|value| Nanos(RULER.highest_equivalent(*value)))
    }

    pub(super) fn max(&self) -> Option<Nanos> {
        self.ranked(self.count())
    }

    /// The mean of a histogram of these, to the bit; the list is not empty.
    pub(super) fn mean_ns(&self) -> f64 {
        let all = self.0.len() as f64;
        let parts = self
            .runs()
            .map(|(value, here)| RULER.median_equivalent(value) as f64 * here as f64 / all);
        parts.fold(0.0, |sum, part| sum + part)
    }

    pub(super) fn count_above(&self, bound: Nanos) -> u64 {
        (self.0.len() - self.0.partition_point(|value| *value <= bound.0)) as u64
    }

    /// Latencies with their counts, ascending; each is the highest of its kind.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        self.runs().map(|(value, here)| (Nanos(RULER.highest_equivalent(value)), here))
    }

    /// Each latency with its count, ascending.
    fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.chunk_by(u64::eq).map(|run| (run[0], run.len() as u64))
    }

    /// Adds all to a histogram.
    pub(super) fn add_to(&self, counts: &mut Counts) {
        self.0.iter().for_each(|value| counts.record(Nanos(*value)));
    }
}
