//! How long transactions take under one setting, from those that were admitted under it.
//!
//! A block is not much longer than its transactions: when it ends some are unfinished, and at its
//! beginning those of the setting before still end. The product-limit estimate (Kaplan and Meier
//! 1958) uses each transaction for the ages at which it was watched: from its age when the block
//! began to count to its end, or to its age when the block ended. An unfinished transaction
//! that is older than a bound so counts as late, and a younger one neither way.

use lull_measure::{Nanos, Percentile};
use std::collections::BTreeMap;

/// Buckets an octave of age: a latency is at most 1.1 % off.
const AN_OCTAVE: f64 = 32.0;

/// The ages at which transactions were watched, by bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Survival {
    /// Transactions that were watched from this age on.
    entered: BTreeMap<u16, u64>,
    /// Transactions that were watched up to this age, and those of them that ended at it.
    left: BTreeMap<u16, (u64, u64)>,
}

fn bucket(age: Nanos) -> u16 {
    ((age.0.max(1) as f64).log2() * AN_OCTAVE) as u16
}

impl Survival {
    /// Adds transactions that ended at an age, and were watched from the age `since` on.
    pub(super) fn add_ended(&mut self, since: Nanos, age: Nanos, count: u64) {
        self.add(since, age, count, count);
    }

    /// Adds a transaction of this age that has not ended, and was watched from the age `since` on.
    pub(super) fn add_unfinished(&mut self, since: Nanos, age: Nanos) {
        self.add(since, age, 1, 0);
    }

    fn add(&mut self, since: Nanos, age: Nanos, count: u64, ended: u64) {
        *self.entered.entry(bucket(since.min(age))).or_default() += count;
        let left = self.left.entry(bucket(age)).or_default();
        *left = (left.0 + count, left.1 + ended);
    }

    /// Returns whether no transaction was watched.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Iterates over the buckets in which transactions left, with the share that takes longer.
    fn steps(&self) -> impl Iterator<Item = (u16, f64)> + '_ {
        let mut entered = self.entered.iter().peekable();
        let (mut watched, mut share) = (0, 1.0);
        self.left.iter().map(move |(&bucket, &(left, ended))| {
            while let Some((_, count)) = entered.next_if(|(at, _)| **at <= bucket) {
                watched += count;
            }
            share *= 1.0 - ended as f64 / watched as f64;
            watched -= left;
            (bucket, share)
        })
    }

    /// Returns the share of transactions that take longer than `bound`; 0 without any.
    ///
    /// If none was watched for this long, it is the share that takes longer than all that ended.
    pub(super) fn late(&self, bound: Nanos) -> f64 {
        let last = bucket(bound);
        let within = self.steps().take_while(|(bucket, _)| *bucket <= last);
        within.last().map_or(if self.is_empty() { 0.0 } else { 1.0 }, |(_, share)| share)
    }

    /// Returns the latency that a share of `at` does not exceed, or the longest age that was
    /// watched if more take longer; `None` without transactions.
    pub(super) fn quantile(&self, at: Percentile) -> Option<Nanos> {
        let longer = 1.0 - at.fraction() + 1e-9;
        let reaches = self.steps().find(|(_, share)| *share <= longer);
        let bucket = reaches.map(|(bucket, _)| bucket).or(self.left.keys().last().copied())?;
        Some(Nanos(((f64::from(bucket) + 0.5) / AN_OCTAVE).exp2() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn is_near(one: Nanos, other: Nanos) -> bool {
        (one.as_secs_f64() / other.as_secs_f64()).ln().abs() < 0.03
    }

    #[test]
    fn a_tail_that_was_watched_to_its_end_is_that_of_the_latencies() {
        let mut all = Survival::default();
        assert!(all.is_empty() && all.quantile(Percentile::P99).is_none());
        assert_eq!(all.late(ms(1)), 0.0);
        (1..=1000).for_each(|latency| all.add_ended(Nanos::ZERO, ms(latency), 1));
        assert!(is_near(all.quantile(Percentile::P99).unwrap(), ms(990)));
        assert!((all.late(ms(900)) - 0.1).abs() < 0.02, "{}", all.late(ms(900)));
        assert_eq!((all.late(Nanos(1)), all.late(ms(2000))), (1.0, 0.0));
    }

    #[test]
    fn an_unfinished_transaction_is_late_once_it_is_over_the_bound_and_counts_neither_way_before() {
        let mut all = Survival::default();
        all.add_ended(Nanos::ZERO, ms(10), 90);
        (0..10).for_each(|_| all.add_unfinished(Nanos::ZERO, ms(200)));
        assert!((all.late(ms(100)) - 0.1).abs() < 1e-9);
        assert!(is_near(all.quantile(Percentile::P99).unwrap(), ms(200)), "the longest age");
        let mut young = Survival::default();
        young.add_ended(Nanos::ZERO, ms(10), 90);
        (0..10).for_each(|_| young.add_unfinished(Nanos::ZERO, ms(5)));
        assert_eq!(young.late(ms(100)), 0.0);
    }

    #[test]
    fn a_transaction_counts_only_for_the_ages_at_which_it_was_watched() {
        // Half end at 10 ms. Those that are watched from 50 ms on say nothing of it.
        let mut all = Survival::default();
        all.add_ended(Nanos::ZERO, ms(10), 50);
        all.add_ended(Nanos::ZERO, ms(100), 50);
        let before = all.late(ms(20));
        all.add_ended(ms(50), ms(100), 500);
        assert!((before - 0.5).abs() < 1e-9 && (all.late(ms(20)) - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn shares_fall_with_the_bound_and_stay_shares(
            all in prop::collection::vec((0u64..3000, 1u64..3000, any::<bool>()), 1..200),
        ) {
            let mut survival = Survival::default();
            for (since, age, has_ended) in all {
                match has_ended {
                    true => survival.add_ended(ms(since), ms(age), 1),
                    false => survival.add_unfinished(ms(since), ms(age)),
                }
            }
            let shares: Vec<f64> = (0..12).map(|octave| survival.late(ms(1 << octave))).collect();
            prop_assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
            prop_assert!(shares.windows(2).all(|two| two[0] >= two[1]), "{shares:?}");
            prop_assert!(survival.quantile(Percentile::P99).is_some());
        }
    }
}
