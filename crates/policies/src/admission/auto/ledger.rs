//! The cost of trying settings so far, and its bound.
//!
//! The loss of a block is the throughput that it lacks against the reference, or against what the
//! objectives leave of it for a shorter tail, in seconds of that throughput. Losses are summed for
//! each setting, so that noise cancels; a setting that gained in all counts as zero, and pays for
//! no other.

use super::Setting;
use lull_measure::Nanos;
use std::collections::VecDeque;

/// The span over which losses are summed.
const SPAN: Nanos = Nanos::from_secs(600);
/// The most that may be lost in it: half a percent.
const MOST_S: f64 = 3.0;
/// What must be left to begin a survey.
const SURVEY_S: f64 = 0.5 * MOST_S;
/// A loss that counts as none where a block may be long.
const SLIGHT_S: f64 = 0.1 * MOST_S;

/// The losses of the last ten minutes.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// When each block ended, its setting, and its loss in seconds, which may be negative.
    blocks: VecDeque<(Nanos, Setting, f64)>,
}

impl Ledger {
    /// Enters a block.
    pub(super) fn note(&mut self, now: Nanos, setting: Setting, loss_s: f64) {
        debug_assert!(loss_s.is_finite(), "{loss_s} s with {}", setting.describe());
        while self.blocks.front().is_some_and(|(at, ..)| now.saturating_sub(*at) > SPAN) {
            self.blocks.pop_front();
        }
        self.blocks.push_back((now, setting, loss_s));
    }

    /// Returns whether there is enough left to begin a survey.
    pub(super) fn allows_survey(&self, now: Nanos) -> bool {
        self.left_s(now) >= SURVEY_S
    }

    /// Returns whether an open block of this length may begin beside a limit: a survey may begin
    /// even if the block loses its length. A longer block than that allows ends when the ledger is
    /// empty, and may begin once almost nothing was lost.
    pub(super) fn allows_open_block(&self, now: Nanos, length: Nanos) -> bool {
        let lost_s = length.as_secs_f64().min(MOST_S - SURVEY_S - SLIGHT_S);
        self.left_s(now) - lost_s >= SURVEY_S
    }

    /// Returns how many seconds more may be lost; below zero if too much was.
    pub(super) fn left_s(&self, now: Nanos) -> f64 {
        let mut sums: Vec<(Setting, f64)> = Vec::new();
        let recent = |(at, ..): &&(Nanos, Setting, f64)| now.saturating_sub(*at) <= SPAN;
        for (_, setting, loss_s) in self.blocks.iter().filter(recent) {
            match sums.iter_mut().find(|(known, _)| known == setting) {
                Some((_, sum)) => *sum += loss_s,
                None => sums.push((*setting, *loss_s)),
            }
        }
        let lost: f64 = sums.iter().map(|(_, sum)| sum.max(0.0)).sum();
        MOST_S - lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn cap(cap: u32) -> Setting {
        Setting::Flow { cap, batch: 1 }
    }

    #[test]
    fn gains_pay_for_losses_of_the_same_setting_only_and_all_is_forgotten_in_time() {
        let mut ledger = Ledger::default();
        let at = Nanos::from_secs;
        assert_eq!(ledger.left_s(at(0)), 3.0);
        ledger.note(at(1), cap(8), 2.0);
        ledger.note(at(2), cap(8), -0.5);
        ledger.note(at(3), cap(64), -9.0);
        assert_eq!((ledger.left_s(at(4)), ledger.allows_survey(at(4))), (1.5, true));
        ledger.note(at(5), cap(16), 2.0);
        assert_eq!((ledger.left_s(at(6)), ledger.allows_survey(at(6))), (-0.5, false), "empty");
        assert_eq!(ledger.left_s(at(602)), 1.0, "the loss of 2 s is older than ten minutes");
        assert_eq!(ledger.left_s(at(700)), 3.0);
    }

    #[test]
    fn a_long_open_block_waits_until_almost_nothing_was_lost() {
        let mut ledger = Ledger::default();
        let at = Nanos::from_secs;
        ledger.note(at(0), cap(8), 0.5);
        let allowed =
            |now, length_ms| ledger.allows_open_block(at(now), Nanos::from_millis(length_ms));
        assert_eq!([1000, 1100, 5000].map(|length| allowed(1, length)), [true, false, false]);
        assert_eq!([1000, 1100, 5000].map(|length| allowed(601, length)), [true; 3]);
    }
}
