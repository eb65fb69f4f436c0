//! Concurrency limits and rests that are worth trying.

use super::aim::Aim;
use super::{Config, Workers};
use lull_measure::Nanos;
use lull_measure::ideal_batch::C6_BREAK_EVEN;
use std::ops::RangeInclusive;

/// Limits that a survey begins with.
const LADDER: usize = 4;
/// Ratio of two neighbours at least.
const STEP_MIN: f64 = 1.5;
/// A limit binds if it is below this share of the transactions that are under way, by Little's
/// law: how many there are varies round the mean.
const BINDING: f64 = 0.8;

/// Where the first limit of a survey of long blocks lies between the mildest and the harshest, by
/// ratio: servers that contend are best with few more than keep their cores busy.
const FIRST: f64 = 2.0 / 3.0;

/// A rest costs up to D in latency: no longer one is tried than this share of the bound.
const SHARE_OF_BOUND: f64 = 0.8;

/// Returns those of a survey whose blocks are long: one, or, once that was of no use, those without
/// the mildest and the harshest. The one is at least twice the cores, or in the middle.
pub(super) fn first(cores: u32, mut caps: Vec<u32>, was_tried: bool) -> Vec<u32> {
    match (caps.as_slice(), was_tried) {
        (&[mildest, .., harshest], false) => {
            let (mildest, harshest) = (f64::from(mildest), f64::from(harshest));
            let at = |share: f64| mildest * (harshest / mildest).powf(share);
            vec![at(FIRST).max(at(0.5).min(2.0 * f64::from(cores))).round() as u32]
        }
        (all, true) if all.len() == LADDER => {
            caps.pop();
            caps.remove(0);
            caps
        }
        _ => caps,
    }
}

/// Returns the limits to try, from the mildest to the harshest: spread evenly by ratio between
/// those that can bind and the half of the cores, within `allowed`. Empty if none can bind.
pub(super) fn caps(cores: u32, under_way: f64, allowed: &RangeInclusive<u32>) -> Vec<u32> {
    let low = (*allowed.start()).max(cores / 2);
    let high = (*allowed.end()).min((BINDING * under_way) as u32);
    if high < low {
        return Vec::new();
    }
    let ratio = f64::from(high) / f64::from(low);
    let count = (1 + (ratio.ln() / STEP_MIN.ln()) as usize).min(LADDER);
    let last = (count - 1).max(1) as f64;
    let cap = |step: usize| (f64::from(high) * ratio.powf(-(step as f64) / last)).round() as u32;
    (0..count).map(cap).collect()
}

/// Returns the limits beside one, by a factor of 1.5 each way, as far as they are allowed.
pub(super) fn neighbours(cap: u32, allowed: &RangeInclusive<u32>) -> Vec<u32> {
    let within = |cap: f64| (cap.round() as u32).clamp(*allowed.start(), *allowed.end());
    let both = [f64::from(cap) * STEP_MIN, f64::from(cap) / STEP_MIN].map(within);
    both.into_iter().filter(|other| *other != cap).collect()
}

/// Returns the rests to try; empty if workers cannot rest, or no bound says for how long.
pub(super) fn pauses(config: &Config, aim: &Aim, workers: Workers) -> Vec<Nanos> {
    let Some(bound_s) = aim.objective().bound_s.filter(|_| workers.may_rest()) else {
        return Vec::new();
    };
    let most = config.most_pause.min(Nanos::from_secs_f64(bound_s).scale(SHARE_OF_BOUND));
    let twice = std::iter::successors(Some(C6_BREAK_EVEN), |pause| Some(*pause * 2));
    twice.take_while(|pause| *pause <= most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_follow_the_cores_and_how_many_are_under_way() {
        let allowed = 8..=256;
        assert_eq!(caps(2, 512.0, &allowed), [256, 81, 25, 8]);
        assert_eq!(caps(2, 64.0, &allowed), [51, 28, 15, 8]);
        assert_eq!(caps(96, 400.0, &allowed), [256, 147, 84, 48], "below and above the cores");
        assert_eq!(caps(2, 12.0, &allowed), [9]);
        assert!(caps(2, 8.0, &allowed).is_empty(), "none can bind");
        assert!(caps(96, 50.0, &allowed).is_empty(), "there is a core for each");
        assert!(caps(2, 0.0, &allowed).is_empty());
    }

    #[test]
    fn neighbours_are_within_what_is_allowed() {
        assert_eq!(neighbours(30, &(8..=256)), [45, 20]);
        assert_eq!(neighbours(8, &(8..=256)), [12]);
        assert_eq!(neighbours(200, &(8..=256)), [256, 133]);
    }

    #[test]
    fn a_survey_of_long_blocks_begins_with_few_more_than_keep_the_cores_busy() {
        assert_eq!(first(2, vec![256, 81, 25, 8], false), [25]);
        assert_eq!(first(2, vec![256, 81, 25, 8], true), [81, 25]);
        assert_eq!(first(96, vec![256, 147, 84, 48], false), [111], "the middle");
        assert_eq!(first(24, vec![256, 92, 33, 12], false), [48], "twice the cores");
        assert_eq!(first(2, vec![18, 8], true), [18, 8]);
        assert_eq!((first(2, vec![9], false), first(2, vec![], true)), (vec![9], vec![]));
    }

    proptest! {
        #[test]
        fn every_limit_can_bind_and_no_two_are_alike(
            cores in 1u32..256,
            under_way in 0.0f64..5000.0,
        ) {
            let all = caps(cores, under_way, &(4..=1024));
            prop_assert!(all.len() <= LADDER);
            prop_assert!(all.windows(2).all(|two| two[0] > two[1]), "{all:?}");
            prop_assert!(all.iter().all(|cap| f64::from(*cap) <= under_way), "{all:?}");
            prop_assert!(all.iter().all(|cap| (4..=1024).contains(cap)), "{all:?}");
        }
    }
}
