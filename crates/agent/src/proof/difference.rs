//! Paired differences: confidence intervals and a test of significance.
//!
//! A value is on minus off within one pair, so that drift common to both
//! halves cancels. The bootstrap resamples whole pairs. The interval is that of the
//! studentised bootstrap (Efron 1981; Hall, The Annals of Statistics 16, 1988): each resample
//! gives the error of its mean in units of *its own* standard error, and the quantiles of
//! these, which are as skewed as the data, replace those of Student's t. Tail latencies are
//! skewed: 95 % intervals of the percentile bootstrap covered the true mean of such data in
//! only 87 to 93 of 100 cases. The studentised interval is long if one pair is an outlier.
//!
//! Whether a difference is *claimed* is decided by a separate test, because a comparison has
//! about a dozen figures: of a dozen 95 % intervals without any effect, about every second
//! dozen has one that excludes zero. The order within each pair is random, so that without an
//! effect both signs of each difference are equally likely. A figure is significant if its t
//! exceeds the largest t of *all* figures in 95 % of the sign changes (Westfall and Young 1993).

use lull_control::Rng;
use lull_measure::statistics::{Spread, joint_chances, normal_quantile, studentised_interval};
use serde::{Deserialize, Serialize};

/// Fewest pairs that can be significant: with 5, the chance of equal signs is 1/16.
pub const PAIRS_MIN: usize = 6;
/// Probability of claiming a difference without any effect.
const LEVEL: f64 = 0.05;
/// Probability with which the stated number of further pairs would show a difference as large as
/// measured.
const POWER: f64 = 0.8;
/// Largest number of further pairs that is reported.
const MORE_MAX: f64 = 10_000.0;

/// One figure's difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Mean of on minus off.
    pub mean: f64,
    /// Ends of the 95 % interval; `None` with fewer than two pairs.
    pub interval: Option<[f64; 2]>,
    /// Pairs of which both halves have a value.
    pub pairs: usize,
    /// Chance of a t as large among all figures if the policy changed nothing.
    pub chance: f64,
    /// Whether the data shows a difference.
    pub shown: bool,
    /// Pairs beyond these after which a difference as large as measured would
    /// probably show; `None` where it is shown, or where no sensible number would do.
    pub more_pairs: Option<u64>,
}

/// The differences of several figures of the same pairs, by figure and pair.
pub(super) fn differences(figures: &[Vec<Option<f64>>], rng: &mut Rng) -> Vec<Option<Difference>> {
    let chances = joint_chances(figures, rng);
    let one = |(values, chance): (&Vec<Option<f64>>, f64)| {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let spread = Spread::from_values(&known)?;
        let interval = studentised_interval(&known, LEVEL, rng);
        let excludes_zero = interval.is_some_and(|[low, high]| low > 0.0 || high < 0.0);
        let shown = chance <= LEVEL && excludes_zero && known.len() >= PAIRS_MIN;
        let more_pairs = if shown { None } else { more(&known, spread, figures.len()) };
        let (mean, pairs) = (spread.mean, known.len());
        Some(Difference { mean, interval, pairs, chance, shown, more_pairs })
    };
    figures.iter().zip(chances).map(one).collect()
}

/// Returns the number of further pairs with which a difference of this size would be
/// significant with probability [`POWER`], each figure being tested at its part of [`LEVEL`].
fn more(values: &[f64], spread: Spread, figures: usize) -> Option<u64> {
    let have = values.len() as f64;
    let least = PAIRS_MIN.saturating_sub(values.len()) as u64;
    let deviation = spread.error? * have.sqrt();
    if deviation == 0.0 {
        // All values are equal: there is no difference, or there are too few pairs yet.
        return (spread.mean != 0.0).then_some(least);
    }
    let critical = normal_quantile(1.0 - LEVEL / 2.0 / figures.max(1) as f64);
    let wanted = ((critical + normal_quantile(POWER)) * deviation / spread.mean).powi(2).ceil();
    let more = (wanted - have).max(1.0);
    (more <= MORE_MAX).then(|| least.max(more as u64))
}

#[cfg(test)]
mod tests;
