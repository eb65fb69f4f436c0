//! The evidence of blocks on one setting beside the reference.
//!
//! A coin chooses each block, so that noise is as likely to favour either. Every statement holds at
//! all looks together, with the error probability that it is given ([`SwitchTest`]). For ranks and
//! means, each block of the setting is compared with the reference's blocks next to it, and
//! logarithms of these ratios are clipped at a factor of two.

use super::covariate::Covariate;
use lull_measure::statistics::{Block, Side, Spread, SwitchTest, switch_lower, switch_upper};
use std::f64::consts::LN_2;

/// Largest logarithm of a ratio that counts.
const CLIP: f64 = LN_2;
/// The same where settings are ranked, which decides nothing else.
const CLIP_OF_RANK: f64 = 2.3;
/// Prior standard deviation of the logarithm of a ratio, which counts as one observation: two
/// ratios may agree by chance.
const SCATTER: f64 = 0.25;
/// Standard errors below the wanted gain at which a setting is not tried any further.
const DOUBT: f64 = 2.0;

/// The logarithms of one figure by block, with a test on each side of a limit of its ratio.
#[derive(Debug, Clone)]
pub(super) struct Ratios {
    blocks: Vec<Block>,
    covariate: Covariate,
    above: SwitchTest,
    below: SwitchTest,
}

impl Ratios {
    /// A ratio that is to be shown above `floor` or below `ceiling`.
    pub(super) fn new(floor: f64, ceiling: f64) -> Self {
        Self {
            blocks: Vec::new(),
            covariate: Covariate::default(),
            above: SwitchTest::new(floor.ln(), Side::Above, CLIP),
            below: SwitchTest::new(ceiling.ln(), Side::Below, CLIP),
        }
    }

    /// Takes a block, without what the logarithm of a covariate explains of it, if that is known.
    pub(super) fn push(&mut self, block: Block, covariate: Option<f64>) {
        let Block { is_treated, outcome, .. } = block;
        let outcome =
            covariate.map_or(outcome, |value| self.covariate.adjust(is_treated, value, outcome));
        let block = Block { outcome, ..block };
        self.blocks.push(block);
        self.above.push(block);
        self.below.push(block);
    }

    /// Returns the logarithms of ratios by which settings are ranked, one a block of the setting
    /// that has a block of the reference before or after it.
    pub(super) fn ranked(&self) -> Vec<f64> {
        self.logs(CLIP_OF_RANK)
    }

    fn logs(&self, clip: f64) -> Vec<f64> {
        let is_reference = |block: &&Block| !block.is_treated;
        let beside = |at: usize| {
            let before = self.blocks[..at].iter().rev().find(is_reference);
            let after = self.blocks[at..].iter().find(is_reference);
            match (before, after) {
                (Some(before), Some(after)) => Some(0.5 * (before.outcome + after.outcome)),
                (one, other) => one.or(other).map(|block| block.outcome),
            }
        };
        let treated = self.blocks.iter().enumerate().filter(|(_, block)| block.is_treated);
        treated
            .filter_map(|(at, block)| Some((block.outcome - beside(at)?).clamp(-clip, clip)))
            .collect()
    }

    /// Returns the geometric mean; 1 without ratios.
    pub(super) fn mean(&self) -> f64 {
        Spread::from_values(&self.logs(CLIP)).map_or(1.0, |spread| spread.mean.exp())
    }

    /// Returns the evidence that the ratio is above a floor, as the logarithm of a capital.
    pub(super) fn log_capital_above(&self, floor: f64) -> f64 {
        let mut test = SwitchTest::new(floor.ln(), Side::Above, CLIP);
        self.blocks.iter().for_each(|block| test.push(*block));
        test.log_capital()
    }

    /// Returns whether the ratio is shown to be above its floor.
    pub(super) fn is_above(&self, alpha: f64) -> bool {
        self.above.is_shown(alpha)
    }

    /// Returns whether one of these ratios is shown to be above its floor, where each alone has the
    /// error probability `alpha`.
    ///
    /// Without a gain in any of them the mean of their capitals is one at most, as each capital
    /// is. So their sum errs no more than a test of each does, and is as quick as the quickest.
    pub(super) fn is_any_above(all: &[&Self], alpha: f64) -> bool {
        let logs = || all.iter().map(|ratios| ratios.above.log_capital());
        let most = logs().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logs().map(|log| (log - most).exp()).sum();
        most + sum.ln() >= -alpha.ln()
    }

    /// Returns whether the ratio is shown to be below its ceiling.
    pub(super) fn is_below(&self, alpha: f64) -> bool {
        self.below.is_shown(alpha)
    }

    /// Returns whether the ratio is probably below `wanted`, after two blocks at least. This ends
    /// the trial of a setting; it never closes a gate.
    pub(super) fn is_unlikely(&self, wanted: f64) -> bool {
        let logs = self.logs(CLIP);
        let Some(Spread { mean, .. }) = Spread::from_values(&logs) else { return false };
        logs.len() > 1 && mean + DOUBT * standard_error(&logs, mean) < wanted.ln()
    }

    /// Returns the interval at this error probability for each end, as ratios.
    pub(super) fn interval(&self, alpha: f64) -> [f64; 2] {
        let ends = [switch_lower, switch_upper].map(|end| end(&self.blocks, alpha, CLIP));
        ends.map(f64::exp)
    }
}

fn standard_error(logs: &[f64], mean: f64) -> f64 {
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    (squares + SCATTER * SCATTER).sqrt() / logs.len() as f64
}

/// Returns whether the values of one setting are probably below those of another in the same
/// rounds, of which the last is the last of both.
pub(super) fn is_behind(own: &[f64], best: &[f64]) -> bool {
    let lacking: Vec<f64> = own.iter().rev().zip(best.iter().rev()).map(|(a, b)| b - a).collect();
    let Some(Spread { mean, .. }) = Spread::from_values(&lacking) else { return false };
    lacking.len() > 1 && mean > DOUBT * standard_error(&lacking, mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(is_treated: bool, outcome: f64) -> Block {
        Block { is_treated, is_drawn: true, follows_treated: false, outcome }
    }

    /// Blocks of a reference, each followed by one of a setting with this ratio.
    fn ratios(values: &[f64]) -> Ratios {
        let mut ratios = Ratios::new(1.0, 1.03);
        for value in values {
            for (is_treated, outcome) in [(false, 0.0), (true, value.ln())] {
                ratios.push(block(is_treated, outcome), None);
            }
        }
        ratios
    }

    #[test]
    fn a_large_gain_needs_as_many_blocks_as_coins_would_fall_alike() {
        assert!(!ratios(&[2.0; 5]).is_above(0.001), "2^9 is 512, and the first says nothing");
        assert!(ratios(&[2.0; 7]).is_above(0.001));
        assert!(!ratios(&[2.0; 12]).is_below(0.5));
        assert!(!ratios(&[2.0, 0.5].repeat(30)).is_above(0.05));
    }

    #[test]
    fn two_figures_that_gain_alike_need_half_the_evidence_of_each() {
        let [gains, alike] = [&[2.0; 7], &[1.0; 7]].map(|values| ratios(values));
        let alpha = (-gains.above.log_capital()).exp();
        assert!(Ratios::is_any_above(&[&gains, &alike], 1.01 * alpha));
        assert!(!Ratios::is_any_above(&[&gains, &alike], 0.5 * alpha));
        assert!(Ratios::is_any_above(&[&gains, &gains], 0.51 * alpha));
        assert!(!Ratios::is_any_above(&[&gains, &gains], 0.49 * alpha));
    }

    #[test]
    fn bets_stay_fair_where_what_a_covariate_explains_is_subtracted() {
        // All 2^9 tosses of a setting that changes nothing.
        let capital = |tosses: u32| {
            let mut ratios = Ratios::new(1.0, 1.03);
            for at in 0..9u32 {
                let load = f64::from(at * 7 % 5) / 10.0;
                let outcome = 1.3 * load + 0.1 * f64::from(at % 3);
                ratios.push(block(tosses >> at & 1 == 1, outcome), Some(load));
            }
            ratios.above.log_capital().exp()
        };
        let mean = (0..512).map(capital).sum::<f64>() / 512.0;
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn one_ratio_far_off_counts_as_a_factor_of_two() {
        let clipped = ratios(&[1.2, 1.2, 1.2, 1000.0]);
        assert!((clipped.mean() - ((3.0 * 1.2_f64.ln() + LN_2) / 4.0).exp()).abs() < 1e-9);
        assert_eq!(ratios(&[]).mean(), 1.0);
    }

    #[test]
    fn a_block_is_compared_with_the_references_next_to_it() {
        let mut ratios = Ratios::new(1.0, 1.03);
        for (is_treated, outcome) in [(true, 0.1), (false, 0.0), (true, 0.3), (false, 0.2)] {
            ratios.push(block(is_treated, outcome), None);
        }
        let logs = ratios.ranked();
        assert!((logs[0] - 0.1).abs() < 1e-12 && (logs[1] - 0.2).abs() < 1e-12, "{logs:?}");
    }

    #[test]
    fn a_setting_is_given_up_when_it_is_unlikely_to_be_worth_it() {
        assert!(!ratios(&[0.9]).is_unlikely(1.03), "one pair says little");
        assert!(!ratios(&[0.5]).is_unlikely(1.03), "the first block may have the queue of others");
        assert!(ratios(&[0.5; 2]).is_unlikely(1.03));
        assert!(ratios(&[0.9; 8]).is_unlikely(1.03));
        assert!(!ratios(&[0.9, 1.3, 0.8, 1.2]).is_unlikely(1.03));
        assert!(is_behind(&[0.0, 0.1, 0.0], &[0.5, 0.6, 0.5]));
        assert!(!is_behind(&[0.0], &[0.5]) && !is_behind(&[0.0, 0.1], &[0.1, 0.0]));
    }
}
