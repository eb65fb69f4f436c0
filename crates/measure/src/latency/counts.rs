//! Many latencies: an HDR histogram that also counts by bucket.

use super::{LONGEST_NS, SHORTEST_NS, SIGNIFICANT_DIGITS};
use crate::Nanos;
use hdrhistogram::Histogram;

/// The histogram's first bucket ends here (2048 counts of 64 ns each, from the
/// bounds above); each further one is twice as long as the one before.
const FIRST_BUCKET_BITS: u32 = 17;
pub(super) const BUCKETS: usize = (LONGEST_NS.ilog2() - FIRST_BUCKET_BITS) as usize + 2;

/// Requests of a bucket up to which each is searched for, instead of reading its thousand counts.
const SEARCHED_MAX: u64 = 4;

/// A histogram of 200 kB.
#[derive(Clone)]
pub(super) struct Counts {
    pub(super) histogram: Histogram<u64>,
    /// Requests by bucket, so that a quantile need not add up 200 kB of counts:
    /// every policy asks for tails in every epoch.
    pub(super) by_bucket: [u64; BUCKETS],
}

/// The bucket that a latency is counted in.
const fn bucket_of(latency_ns: u64) -> usize {
    let clamped = if latency_ns > LONGEST_NS { LONGEST_NS } else { latency_ns };
    // The lowest bit set makes everything in the first bucket count as its last value.
    ((clamped >> (FIRST_BUCKET_BITS - 1)) | 1).ilog2() as usize
}

/// Where a bucket begins and ends (exclusive), in nanoseconds.
pub(super) const fn bounds_of(bucket: usize) -> (u64, u64) {
    let end = 1 << (FIRST_BUCKET_BITS as usize + bucket);
    if bucket == 0 { (0, end) } else { (end / 2, end) }
}

impl Default for Counts {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, SIGNIFICANT_DIGITS);
        let histogram = histogram.expect("the constant bounds are legal");
        Self { histogram, by_bucket: [0; BUCKETS] }
    }
}

impl Counts {
    #[inline]
    pub(super) fn record(&mut self, latency: Nanos) {
        self.histogram.saturating_record(latency.0.max(SHORTEST_NS));
        let bucket = &mut self.by_bucket[bucket_of(latency.0)];
        *bucket = bucket.saturating_add(1);
    }

    /// Adds `count` requests of one latency; `count` is not zero.
    pub(super) fn record_many(&mut self, latency: Nanos, count: u64) {
        self.histogram.saturating_record_n(latency.0.max(SHORTEST_NS), count);
        let bucket = &mut self.by_bucket[bucket_of(latency.0)];
        *bucket = bucket.saturating_add(count);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        // Both have the same bounds by construction, so this cannot fail.
        self.histogram.add(&other.histogram).expect("equal bounds");
        for (ours, theirs) in self.by_bucket.iter_mut().zip(other.by_bucket) {
            *ours = ours.saturating_add(theirs);
        }
    }

    /// Forgets all requests, keeping the memory.
    pub(super) fn clear(&mut self) {
        self.histogram.reset();
        self.by_bucket = [0; BUCKETS];
    }

    /// The latency of this rank (from 1) among all.
    pub(super) fn ranked(&self, rank: u64) -> Option<Nanos> {
        let mut left = rank;
        for (bucket, count) in self.by_bucket.iter().enumerate() {
            if left <= *count {
                return Some(self.ranked_in(bucket, left));
            }
            left -= count;
        }
        None
    }

    /// The latency of this rank (from 1) among those of one bucket, which has as many.
    fn ranked_in(&self, bucket: usize, mut rank: u64) -> Nanos {
        let (mut low, mut high) = bounds_of(bucket);
        while self.histogram.lowest_equivalent(high - 1) > low {
            let middle = low + (high - low) / 2;
            let below = self.histogram.count_between(low, middle - 1);
            if rank <= below {
                high = middle;
            } else {
                rank -= below;
                low = middle;
            }
        }
        Nanos(self.histogram.highest_equivalent(low))
    }

    /// The histogram's own mean, to the bit, without a look at the counts of empty buckets.
    pub(super) fn mean_ns(&self) -> f64 {
        let (all, mut mean) = (self.histogram.len() as f64, 0.0);
        let mut add = |value, here: u64| {
            mean += self.histogram.median_equivalent(value) as f64 * here as f64 / all;
        };
        for (bucket, count) in self.by_bucket.iter().enumerate() {
            if *count <= SEARCHED_MAX {
                self.look_up(bucket, *count, &mut add);
            } else {
                self.scan(bucket, *count, &mut add);
            }
        }
        mean
    }

    /// Calls `add` with each latency of a bucket and its count, in order, by searching for each.
    fn look_up(&self, bucket: usize, count: u64, add: &mut impl FnMut(u64, u64)) {
        let mut found = 0;
        while found < count {
            let value = self.ranked_in(bucket, found + 1).0;
            let here = self.histogram.count_at(value).max(1);
            add(value, here);
            found += here;
        }
    }

    /// The same by reading all counts of the bucket.
    fn scan(&self, bucket: usize, count: u64, add: &mut impl FnMut(u64, u64)) {
        let (mut left, (mut value, end)) = (count, bounds_of(bucket));
        while left > 0 && value < end {
            let here = self.histogram.count_at(value);
            if here > 0 {
                add(value, here);
                left = left.saturating_sub(here);
            }
            value = self.histogram.next_non_equivalent(value);
        }
    }

    /// Takes a histogram with our bounds as it is: copying it would take ten times as long.
    pub(super) fn from_histogram(histogram: Histogram<u64>) -> Self {
        let mut by_bucket = [0; BUCKETS];
        let used = bucket_of(histogram.max()) + 1;
        for (bucket, count) in by_bucket.iter_mut().enumerate().take(used) {
            let (begin, end) = bounds_of(bucket);
            *count = histogram.count_between(begin, end - 1);
        }
        Self { histogram, by_bucket }
    }
}
