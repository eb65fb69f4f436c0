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
use rand::RngExt;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Fewest pairs that can be significant: with 5, the chance of equal signs is 1/16.
pub const PAIRS_MIN: usize = 6;
/// Probability of claiming a difference without any effect.
const LEVEL: f64 = 0.05;
const RESAMPLES: usize = 2000;
/// Up to this number of pairs all sign changes are enumerated; beyond, they are sampled.
const EXACT_PAIRS: usize = 11;
const SIGN_DRAWS: usize = 1000;
/// Chance with which "so many more pairs" would show a difference as large as measured.
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
    /// Pairs in which both halves had a value.
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
    let chances = chances(figures, rng);
    let one = |(values, chance): (&Vec<Option<f64>>, f64)| {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        let spread = Spread::from_values(&known)?;
        let interval = interval(&known, spread, rng);
        let excludes_zero = interval.is_some_and(|[low, high]| low > 0.0 || high < 0.0);
        let shown = chance <= LEVEL && excludes_zero && known.len() >= PAIRS_MIN;
        let more_pairs = if shown { None } else { more(&known, spread, figures.len()) };
        let (mean, pairs) = (spread.mean, known.len());
        Some(Difference { mean, interval, pairs, chance, shown, more_pairs })
    };
    figures.iter().zip(chances).map(one).collect()
}

/// Mean and standard error.
#[derive(Debug, Clone, Copy)]
struct Spread {
    mean: f64,
    /// `None` for fewer than two values.
    error: Option<f64>,
}

impl Spread {
    fn from_values(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
        Some(Self { mean, error })
    }

    /// Returns |t|: the distance of the mean from 0 in standard errors.
    fn t(self) -> f64 {
        match self.error {
            Some(error) if error > 0.0 => (self.mean / error).abs(),
            Some(_) if self.mean != 0.0 => f64::INFINITY,
            _ => 0.0,
        }
    }
}

/// Returns the interval of a mean: at each end the wider of the studentised bootstrap's and
/// Student's. With few skewed values the bootstrap's interval is too short on the side where
/// the data is dense. With fewer than [`PAIRS_MIN`] values its resamples hardly differ, and
/// only Student's interval is used.
fn interval(values: &[f64], spread: Spread, rng: &mut Rng) -> Option<[f64; 2]> {
    let error = spread.error?;
    let t = students_t(values.len() - 1);
    let [low, high] = match values.len() {
        0..PAIRS_MIN => [-t, t],
        _ => resampled_t(values, spread.mean, rng),
    };
    Some([spread.mean - high.max(t) * error, spread.mean - low.min(-t) * error])
}

/// Returns the quantiles, for both ends of an interval, of the error of a resample's mean in
/// units of its own standard error.
///
/// If one outlier causes almost all of the spread, resamples without it have a standard error
/// near 0, and the ratio is unbounded. It is therefore limited to Student's quantile for two
/// values, which is the largest.
fn resampled_t(values: &[f64], mean: f64, rng: &mut Rng) -> [f64; 2] {
    let most = students_t(1);
    let mut resample = vec![0.0; values.len()];
    let mut off = |rng: &mut Rng| {
        resample.fill_with(|| values[rng.random_range(0..values.len())]);
        let drawn = Spread::from_values(&resample)?;
        let error = drawn.error.filter(|error| *error > 0.0)?;
        Some(((drawn.mean - mean) / error).clamp(-most, most))
    };
    let mut all: Vec<f64> = (0..RESAMPLES).filter_map(|_| off(rng)).collect();
    all.sort_by(f64::total_cmp);
    let beyond = (LEVEL / 2.0 * all.len() as f64) as usize;
    match all.len().checked_sub(1 + beyond) {
        Some(last) => [all[beyond], all[last]],
        // All values are equal.
        None => [0.0, 0.0],
    }
}

/// Returns the quantile of Student's t at the upper end of an interval.
fn students_t(freedom: usize) -> f64 {
    let t = StudentsT::new(0.0, 1.0, freedom as f64);
    t.map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - LEVEL / 2.0))
}

/// Returns for each figure the share of sign changes whose largest t is at least its own.
fn chances(figures: &[Vec<Option<f64>>], rng: &mut Rng) -> Vec<f64> {
    let pairs = figures.iter().map(Vec::len).max().unwrap_or(0);
    let t_of = |values: &[Option<f64>], signs: &[f64]| {
        let flipped = values.iter().zip(signs).filter_map(|(value, sign)| Some((*value)? * sign));
        Spread::from_values(&flipped.collect::<Vec<_>>()).map_or(0.0, Spread::t)
    };
    let as_measured = vec![1.0; pairs];
    let own: Vec<f64> = figures.iter().map(|values| t_of(values, &as_measured)).collect();
    let exact = pairs <= EXACT_PAIRS;
    let draws = if exact { 1 << pairs } else { SIGN_DRAWS };
    let mut reached = vec![0usize; figures.len()];
    for draw in 0..draws {
        let minus = |pair: usize, rng: &mut Rng| match exact {
            true => draw >> pair & 1 == 1,
            false => rng.random_bool(0.5),
        };
        let signs: Vec<f64> =
            (0..pairs).map(|pair| if minus(pair, rng) { -1.0 } else { 1.0 }).collect();
        let largest = figures.iter().map(|values| t_of(values, &signs)).fold(0.0, f64::max);
        for (count, own) in reached.iter_mut().zip(&own) {
            // Sums in another order may differ in the last digit.
            *count += usize::from(largest >= own * (1.0 - 1e-9));
        }
    }
    // The measured signs count as one of the draws.
    let (extra, all) = if exact { (0, draws) } else { (1, draws + 1) };
    reached.iter().map(|count| (count + extra) as f64 / all as f64).collect()
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
    let normal = Normal::standard();
    let asked = normal.inverse_cdf(1.0 - LEVEL / 2.0 / figures.max(1) as f64);
    let wanted = ((asked + normal.inverse_cdf(POWER)) * deviation / spread.mean).powi(2).ceil();
    let more = (wanted - have).max(1.0);
    (more <= MORE_MAX).then(|| least.max(more as u64))
}

#[cfg(test)]
mod tests;
