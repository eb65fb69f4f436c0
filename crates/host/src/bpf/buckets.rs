//! Histograms of times, which programs in the kernel fill and this process reads.
//!
//! Eight buckets an octave: up to 1024 ns a bucket is 64 ns wide, beyond that at most an
//! eighth of its lower end. Each bucket keeps the number of its times and their sum, so
//! that sums over whole buckets are exact; only the bucket that a threshold divides is not
//! known to the nanosecond.
//!
//! Layout and bucket numbers are shared with `crates/host/bpf/histogram.h`: change both
//! together. `tests.rs` compares the two on the running kernel.

use lull_measure::Nanos;

/// Buckets of a histogram.
pub(super) const BUCKETS: usize = 256;
/// Words of a histogram: count and sum of each bucket.
pub(super) const WORDS: usize = 2 * BUCKETS;
/// Times differ in units of 64 ns.
const UNIT_BITS: u32 = 6;
/// Units from which on all times are alike: about 18 minutes.
const MOST_BITS: u32 = 34;
/// Buckets of an octave, and of the first two.
const PER_OCTAVE: u64 = 8;
/// Halvings that bring any time below 16 units, in the order tried.
const HALVINGS: [u8; 5] = [16, 8, 4, 2, 1];

/// The bucket of a time: the units are halved until they are below 16, which
/// leaves their first four binary digits; each halving is eight buckets on.
pub(super) fn bucket(time: Nanos) -> usize {
    let mut units = (time.0 >> UNIT_BITS).min((1 << MOST_BITS) - 1);
    let mut halved = 0;
    for by in HALVINGS {
        if units >> by >= PER_OCTAVE {
            units >>= by;
            halved += u64::from(by);
        }
    }
    (PER_OCTAVE * halved + units) as usize
}

/// The shortest time of a bucket; of the bucket after the last, the time from which on all
/// times are alike.
pub(super) fn begin(bucket: usize) -> Nanos {
    let index = bucket as u64;
    let halved = (index / PER_OCTAVE).saturating_sub(1);
    Nanos((index - PER_OCTAVE * halved) << halved << UNIT_BITS)
}

/// Times, counted in buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Times in each bucket.
    counts: Box<[u64; BUCKETS]>,
    /// Their sum in nanoseconds.
    sums_ns: Box<[u64; BUCKETS]>,
}

/// Time beyond a threshold, as far as a histogram determines it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeBeyond {
    /// The estimate.
    pub time: Nanos,
    /// The largest error of the estimate, to either side.
    pub error: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), sums_ns: Box::new([0; BUCKETS]) }
    }
}

impl Histogram {
    /// Reads what programs have counted so far, word by word.
    pub(super) fn read(word: impl Fn(usize) -> u64) -> Self {
        let mut all = Self::default();
        for bucket in 0..BUCKETS {
            all.counts[bucket] = word(2 * bucket);
            all.sums_ns[bucket] = word(2 * bucket + 1);
        }
        all
    }

    /// Returns the times that were added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut new = self.clone();
        for bucket in 0..BUCKETS {
            new.counts[bucket] = self.counts[bucket].saturating_sub(before.counts[bucket]);
            new.sums_ns[bucket] = self.sums_ns[bucket].saturating_sub(before.sums_ns[bucket]);
        }
        new
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for bucket in 0..BUCKETS {
            self.counts[bucket] += other.counts[bucket];
            self.sums_ns[bucket] += other.sums_ns[bucket];
        }
    }

    /// Adds one time.
    pub fn add(&mut self, time: Nanos) {
        self.counts[bucket(time)] += 1;
        self.sums_ns[bucket(time)] += time.0;
    }

    /// The number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The mean of each bucket that is not empty, and the number of its times.
    pub fn means(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        let both = self.counts.iter().zip(self.sums_ns.iter());
        both.filter(|(count, _)| **count > 0).map(|(count, sum)| (Nanos(sum / count), *count))
    }

    /// Their sum.
    pub fn total(&self) -> Nanos {
        Nanos(self.sums_ns.iter().sum())
    }

    /// Estimates the sum of the times longer than `threshold`. Buckets on one side of it
    /// are exact; times of the bucket that it divides may lie on either side.
    pub fn beyond(&self, threshold: Nanos) -> TimeBeyond {
        let cut = bucket(threshold);
        let above = Nanos(self.sums_ns[cut + 1..].iter().sum());
        // The last bucket has no upper end: all of it is beyond its lower end.
        let (low, high) = (begin(cut), begin(cut + 1));
        let share = high.saturating_sub(threshold).0 as f64 / (high - low).0 as f64;
        let cut_sum = Nanos(self.sums_ns[cut]);
        let estimate = cut_sum.scale(share);
        TimeBeyond { time: above + estimate, error: estimate.max(cut_sum - estimate) }
    }

    /// The time that a share in [0, 1] of all times does not exceed, to an eighth: the mean
    /// of its bucket. `None` if there are no times.
    pub fn quantile(&self, share: f64) -> Option<Nanos> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(Nanos(self.sums_ns[found] / self.counts[found].max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap_or_overlap() {
        for index in 0..BUCKETS {
            let (low, high) = (begin(index), begin(index + 1));
            assert_eq!(bucket(low), index, "{low:?}");
            assert_eq!(bucket(Nanos(high.0 - 1)), index, "{high:?}");
        }
        assert_eq!(bucket(Nanos(u64::MAX)), BUCKETS - 1);
        assert_eq!(begin(BUCKETS), Nanos(1 << 40));
    }

    #[test]
    fn a_bucket_is_at_most_an_eighth_wide() {
        for index in 16..BUCKETS {
            let (low, high) = (begin(index), begin(index + 1));
            assert!((high - low).0 * 8 <= low.0, "{index}");
        }
    }

    #[test]
    fn time_beyond_a_threshold_is_within_the_reported_error() {
        let times: Vec<_> = (1..2000_u64).map(|step| Nanos(step * step * 7)).collect();
        let mut all = Histogram::default();
        times.iter().for_each(|time| all.add(*time));
        for threshold in [0, 63, 1000, 50_000, 1_000_000, 27_000_000, 1 << 41].map(Nanos) {
            let exact: Nanos = times.iter().copied().filter(|time| *time > threshold).sum();
            let TimeBeyond { time, error } = all.beyond(threshold);
            let off = time.max(exact) - time.min(exact);
            assert!(off <= error, "{threshold:?}: {exact:?}, {time:?} off by {error:?}");
            assert!(error.0 as f64 <= 0.15 * all.total().0 as f64, "{threshold:?}: {error:?}");
        }
    }

    #[test]
    fn quantiles_are_right_to_an_eighth() {
        let mut all = Histogram::default();
        assert_eq!(all.quantile(0.5), None);
        (1..=1000_u64).for_each(|step| all.add(Nanos(step * 1000)));
        for (share, exact) in [(0.5, 500_000.0), (0.95, 950_000.0), (0.99, 990_000.0)] {
            let found = all.quantile(share).unwrap().0 as f64;
            assert!((found / exact - 1.0).abs() <= 0.125, "{share}: {found}");
        }
        assert_eq!((all.count(), all.total()), (1000, Nanos(500_500_000)));
    }

    #[test]
    fn times_since_are_the_difference() {
        let mut before = Histogram::default();
        before.add(Nanos(100));
        let mut now = before.clone();
        now.add(Nanos(70_000));
        let new = now.since(&before);
        assert_eq!((new.count(), new.total()), (1, Nanos(70_000)));
        assert_eq!(now.means().collect::<Vec<_>>(), [(Nanos(100), 1), (Nanos(70_000), 1)]);
        let mut both = new.clone();
        both.merge(&before);
        assert_eq!(both, now);
    }
}
