//! Counting latencies in the hot loop.
//!
//! A [`Latency`] costs some 65 instructions a request, a sixth of everything
//! an M/M/1 customer costs. A tally has the same buckets, so that turning it
//! into a `Latency` gives bit for bit what recording one by one would have.

use lull_measure::{Latency, Nanos};

/// Binary logarithm of the finest step (64 ns, from the shortest latency of 100 ns).
const UNIT_BITS: u32 = 6;
/// Binary logarithm of the steps per bucket (2048 for three digits).
const STEP_BITS: u32 = 11;
/// Latencies beyond the last bucket, the one of 1000 s, count as 1000 s.
const LAST_NS: u64 = (1 << 40) - 1;
const LONGEST_NS: u64 = 1_000_000_000_000;

/// Counts of latencies by HDR bucket.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    counts: Vec<u64>,
}

impl Tally {
    /// No latencies.
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; index_of(LAST_NS) + 1] }
    }

    /// Counts one latency.
    #[inline(always)]
    pub(crate) fn record(&mut self, latency_ns: u64) {
        let counted = if latency_ns > LAST_NS { LONGEST_NS } else { latency_ns };
        self.counts[index_of(counted)] += 1;
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.counts.fill(0);
    }

    /// The latencies as a set.
    pub(crate) fn to_latency(&self) -> Latency {
        let mut set = Latency::default();
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            set.record_many(Nanos(value_of(index)), *count);
        }
        set
    }
}

/// Where a latency is counted.
#[inline(always)]
fn index_of(latency_ns: u64) -> usize {
    let least = (1 << (UNIT_BITS + STEP_BITS)) - 1;
    let bucket = u64::BITS - UNIT_BITS - STEP_BITS - (latency_ns | least).leading_zeros();
    let step = latency_ns >> (bucket + UNIT_BITS);
    ((bucket as usize) << (STEP_BITS - 1)) + step as usize
}

/// The lowest latency counted there.
fn value_of(index: usize) -> u64 {
    let half = 1 << (STEP_BITS - 1);
    let bucket = (index / half).saturating_sub(1);
    ((index - bucket * half) as u64) << (bucket as u32 + UNIT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_tally_is_the_latency_set_of_the_same_requests(
            latencies in prop::collection::vec((0u64..1 << 41, 0u32..41), 1..100),
        ) {
            let latencies = latencies.into_iter().map(|(value, shift)| value >> shift);
            let (mut tally, mut set) = (Tally::new(), Latency::default());
            for value in latencies {
                tally.record(value);
                set.record(Nanos(value));
            }
            prop_assert_eq!(
                tally.to_latency().buckets().collect::<Vec<_>>(),
                set.buckets().collect::<Vec<_>>()
            );
        }
    }
}
