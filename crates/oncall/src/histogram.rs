//! A histogram of latencies in buckets of fixed relative width, each an atomic counter.
//!
//! There are sixteen buckets an octave from 1.024 us to 69 s, one below and one above. A
//! bucket is at most 6.7 % wide, and its middle is off by at most 3.2 %. Each connection has
//! a histogram, for objectives of connections, and 10,000 HDR histograms of 200 kB would not
//! fit a page; an app's latency is the sum of its connections'.

use crate::sync::{AtomicU32, Ordering};

/// Lowest value that has a bucket of its own: 2^10 ns.
const LOW_BIT: u32 = 10;
/// Values from 2^36 ns on share the last bucket.
const HIGH_BIT: u32 = 36;
const PER_OCTAVE_BITS: u32 = 4;
const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;
/// Number of buckets.
pub const BUCKETS: usize = (HIGH_BIT - LOW_BIT) as usize * PER_OCTAVE + 2;

/// Counts by bucket. Each wraps at 2^32, so that readers take differences.
#[derive(Debug)]
#[repr(transparent)]
pub struct Histogram([AtomicU32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Histogram {
    /// Counts one value in nanoseconds. Any number of threads may count at once.
    #[inline]
    pub fn add(&self, value_ns: u64) {
        self.0[bucket_of(value_ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one value as the only thread that does so. It avoids a locked instruction,
    /// which waits for memory that is not cached: a sixth of the cost of tracking a query.
    #[inline]
    pub fn add_alone(&self, value_ns: u64) {
        let count = &self.0[bucket_of(value_ns)];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Reads the counts, by bucket.
    pub fn counts(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(|count| count.load(Ordering::Relaxed))
    }

    /// Reads the count of one bucket; 0 beyond the last.
    pub fn count(&self, bucket: usize) -> u32 {
        self.0.get(bucket).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Sets all counts to 0, for a new connection.
    pub fn clear(&self) {
        for count in self.0.iter().filter(|count| count.load(Ordering::Relaxed) > 0) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns the bucket of a value in nanoseconds.
#[inline]
pub const fn bucket_of(value_ns: u64) -> usize {
    if value_ns < 1 << LOW_BIT {
        return 0;
    }
    let octave = 63 - value_ns.leading_zeros();
    if octave >= HIGH_BIT {
        return BUCKETS - 1;
    }
    let within = (value_ns >> (octave - PER_OCTAVE_BITS)) as usize & (PER_OCTAVE - 1);
    1 + (octave - LOW_BIT) as usize * PER_OCTAVE + within
}

/// Returns the lowest value of a bucket in nanoseconds. For the bucket past the last it is
/// 2^36 ns, from which values share the last bucket.
pub const fn low_ns(bucket: usize) -> u64 {
    if bucket == 0 {
        return 0;
    }
    let at = bucket - 1;
    let (octave, within) = (at / PER_OCTAVE, at % PER_OCTAVE);
    if octave >= (HIGH_BIT - LOW_BIT) as usize {
        return 1 << HIGH_BIT;
    }
    let step = LOW_BIT - PER_OCTAVE_BITS + octave as u32;
    ((PER_OCTAVE + within) as u64) << step
}

/// Returns the value that represents a bucket in nanoseconds: its middle.
pub const fn middle_ns(bucket: usize) -> u64 {
    u64::midpoint(low_ns(bucket), low_ns(bucket + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_buckets_begin_and_end_at_their_limits() {
        assert_eq!((bucket_of(0), bucket_of(1023), bucket_of(1024)), (0, 0, 1));
        assert_eq!(bucket_of((1 << HIGH_BIT) - 1), BUCKETS - 2);
        assert_eq!((bucket_of(1 << HIGH_BIT), bucket_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn a_minute_and_three_seconds_have_buckets_of_their_own() {
        let [three, minute] = [3_000_000_000, 60_000_000_000].map(|at| middle_ns(bucket_of(at)));
        assert!(three.abs_diff(3_000_000_000) < 100_000_000, "{three}");
        assert!(minute.abs_diff(60_000_000_000) < 2_000_000_000, "{minute}");
    }

    #[test]
    fn a_count_is_found_where_it_was_added_and_cleared() {
        let histogram = Histogram::default();
        histogram.add(5_000);
        histogram.add(5_000);
        let sum: u32 = histogram.counts().sum();
        assert_eq!((sum, histogram.counts().nth(bucket_of(5_000))), (2, Some(2)));
        histogram.clear();
        assert_eq!(histogram.counts().sum::<u32>(), 0);
    }

    proptest! {
        #[test]
        fn a_value_lies_within_its_bucket_and_near_its_middle(value_ns in 1024u64..1 << HIGH_BIT) {
            let bucket = bucket_of(value_ns);
            prop_assert!(low_ns(bucket) <= value_ns && value_ns < low_ns(bucket + 1));
            let off = middle_ns(bucket).abs_diff(value_ns) as f64 / value_ns as f64;
            prop_assert!(off <= 1.0 / 31.0, "{off}");
        }

        #[test]
        fn buckets_are_in_order(one: u64, other: u64) {
            let (low, high) = (one.min(other), one.max(other));
            prop_assert!(bucket_of(low) <= bucket_of(high) && bucket_of(high) < BUCKETS);
        }
    }
}
