//! What pairs of blocks show of one setting beside the reference.
//!
//! Blocks are in random order within a round, so that noise is as likely to favour either. Every
//! statement holds at all looks together, with the error probability that it is given
//! ([`SignTest`]). Logarithms of ratios are clipped at a factor of two.

use super::window::Look;
use lull_measure::statistics::{Side, SignTest, Spread, sign_lower, sign_upper};
use std::f64::consts::LN_2;

/// Largest logarithm of a ratio that counts.
const CLIP: f64 = LN_2;
/// The same where settings are ranked, which decides nothing else.
const CLIP_OF_RANK: f64 = 2.3;
/// Prior standard deviation of the logarithm of a ratio, which counts as one observation: two
/// ratios may agree by chance.
const SCATTER: f64 = 0.25;
/// Standard errors below what is wanted at which a setting is not tried any further.
const DOUBT: f64 = 2.0;

/// The setting's block and the reference's block of the same round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) tried: Look,
    pub(super) reference: Look,
}

/// The logarithms of one ratio, with a test on each side of a limit.
#[derive(Debug, Clone)]
pub(super) struct Ratios {
    logs: Vec<f64>,
    ranked: Vec<f64>,
    above: SignTest,
    below: SignTest,
}

impl Ratios {
    /// A ratio that is to be shown above `floor` or below `ceiling`.
    pub(super) fn new(floor: f64, ceiling: f64) -> Self {
        Self {
            logs: Vec::new(),
            ranked: Vec::new(),
            above: SignTest::new(floor.ln(), Side::Above, CLIP),
            below: SignTest::new(ceiling.ln(), Side::Below, CLIP),
        }
    }

    pub(super) fn push(&mut self, ratio: f64) {
        let log = ratio.ln().clamp(-CLIP, CLIP);
        self.logs.push(log);
        self.ranked.push(ratio.ln().clamp(-CLIP_OF_RANK, CLIP_OF_RANK));
        self.above.push(log);
        self.below.push(log);
    }

    /// Returns the logarithms by which settings are ranked, one a pair.
    pub(super) fn ranked(&self) -> &[f64] {
        &self.ranked
    }

    /// Returns the geometric mean; 1 without ratios.
    pub(super) fn mean(&self) -> f64 {
        Spread::from_values(&self.logs).map_or(1.0, |spread| spread.mean.exp())
    }

    /// Returns whether the ratio is shown to be above its floor.
    pub(super) fn is_above(&self, alpha: f64) -> bool {
        self.above.is_shown(alpha)
    }

    /// Returns whether the ratio is shown to be below its ceiling.
    pub(super) fn is_below(&self, alpha: f64) -> bool {
        self.below.is_shown(alpha)
    }

    /// Returns whether the ratio is probably below `wanted`. This ends the trial of a setting; it
    /// never closes a gate.
    pub(super) fn is_unlikely(&self, wanted: f64) -> bool {
        let Some(Spread { mean, .. }) = Spread::from_values(&self.logs) else { return false };
        mean + DOUBT * standard_error(&self.logs, mean) < wanted.ln()
    }

    /// Returns the interval at this error probability for each end, as ratios.
    pub(super) fn interval(&self, alpha: f64) -> [f64; 2] {
        let ends = [sign_lower(&self.logs, alpha, CLIP), sign_upper(&self.logs, alpha, CLIP)];
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

    fn ratios(values: &[f64]) -> Ratios {
        let mut ratios = Ratios::new(1.0, 1.03);
        values.iter().for_each(|value| ratios.push(*value));
        ratios
    }

    #[test]
    fn a_large_gain_needs_as_many_pairs_as_coins_would_fall_alike() {
        assert!(!ratios(&[2.0; 9]).is_above(0.001), "2^9 is 512");
        assert!(ratios(&[2.0; 12]).is_above(0.001));
        assert!(!ratios(&[2.0; 12]).is_below(0.5));
        assert!(!ratios(&[2.0, 0.5].repeat(30)).is_above(0.05));
    }

    #[test]
    fn one_ratio_far_off_counts_as_a_factor_of_two() {
        let mut clipped = ratios(&[1.2; 3]);
        clipped.push(1000.0);
        assert!((clipped.mean() - ((3.0 * 1.2_f64.ln() + LN_2) / 4.0).exp()).abs() < 1e-9);
        assert_eq!(ratios(&[]).mean(), 1.0);
    }

    #[test]
    fn a_setting_is_given_up_when_it_is_unlikely_to_be_worth_it() {
        assert!(!ratios(&[0.9]).is_unlikely(1.03), "one pair says little");
        assert!(ratios(&[0.5]).is_unlikely(1.03));
        assert!(ratios(&[0.9; 8]).is_unlikely(1.03));
        assert!(!ratios(&[0.9, 1.3, 0.8, 1.2]).is_unlikely(1.03));
        assert!(is_behind(&[0.0, 0.1, 0.0], &[0.5, 0.6, 0.5]));
        assert!(!is_behind(&[0.0], &[0.5]) && !is_behind(&[0.0, 0.1], &[0.1, 0.0]));
    }
}
