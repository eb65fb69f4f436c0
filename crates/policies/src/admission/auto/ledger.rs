//! The cost of trying settings so far, and its bound.
//!
//! The loss of a block is the throughput that it lacks against the reference, or against what the
//! objectives leave of it for a shorter tail, in seconds of that throughput. Losses are summed for
//! each setting, so that noise cancels; a setting that gained in all counts as zero, and pays for
//! no other.

use super::Setting;
use lull_measure::Nanos;
use std::collections::VecDeque;

/// The largest share of any span of this length that may be lost.
const SHARE: f64 = 0.005;
const SPAN: Nanos = Nanos::from_secs(600);

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

    /// Returns whether there is enough left to begin a survey: half of it.
    pub(super) fn allows_survey(&self, now: Nanos) -> bool {
        self.allows_survey_after(now, Nanos::ZERO)
    }

    /// Returns whether enough would be left to begin a survey after this loss.
    pub(super) fn allows_survey_after(&self, now: Nanos, loss: Nanos) -> bool {
        self.left_s(now) - loss.as_secs_f64() >= 0.5 * SHARE * SPAN.as_secs_f64()
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
        SHARE * SPAN.as_secs_f64() - lost
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
}
