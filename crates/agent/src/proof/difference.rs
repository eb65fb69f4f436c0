//! What pairs of blocks say of a difference: its interval, and whether there is one.
//!
//! A value is on minus off within one pair, so that drift common to both
//! halves cancels; pairs are the blocks that are drawn again. The interval is
//! the studentised bootstrap's (Efron 1981; Hall, The Annals of Statistics 16,
//! 1988): each resample says how many of *its own* standard errors its mean is
//! off, and the quantiles of that, which are as skewed as the data, take the
//! place of Student's. Tails of latency are skewed, and intervals of mere
//! percentiles held the truth of such data 87 to 93 times in 100. The price is
//! a long interval where one pair is far off: then the data says little.
//! Whether a difference is *claimed* is decided by another question: a proof has a dozen
//! figures, and of a dozen 95 % intervals around nothing every other dozen has
//! one that excludes zero. Order within a pair was drawn by lot, so that under
//! no effect every pair might as well have come out with the other sign; a
//! figure counts as different if its t exceeds the largest t of *all* figures
//! in 95 % of such sign changes (Westfall and Young 1993).

use lull_control::Rng;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Fewest pairs that can show anything: with 5, the chance of equal signs is 1/16.
pub const PAIRS_MIN: usize = 6;
/// Chance at which anything is claimed where there is nothing.
const LEVEL: f64 = 0.05;
const RESAMPLES: usize = 2000;
/// All sign changes are looked at up to so many pairs.
const EXACT_PAIRS: usize = 11;
const SIGN_DRAWS: usize = 1000;
/// Chance with which "so many more pairs" would show a difference as large as measured.
const POWER: f64 = 0.8;
/// More pairs than this are no answer.
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
        let spread = Spread::of(&known)?;
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
    fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
        Some(Self { mean, error })
    }

    /// |t|: how many standard errors the mean is from nothing.
    fn t(self) -> f64 {
        match self.error {
            Some(error) if error > 0.0 => (self.mean / error).abs(),
            Some(_) if self.mean != 0.0 => f64::INFINITY,
            _ => 0.0,
        }
    }
}

/// The interval of a mean: at each end the further of the studentised
/// bootstrap's and Student's. Of few skewed values the bootstrap alone is short
/// on the side where the data is dense; of fewer than [`PAIRS_MIN`] its
/// resamples hardly differ, and it is not asked.
fn interval(values: &[f64], spread: Spread, rng: &mut Rng) -> Option<[f64; 2]> {
    let error = spread.error?;
    let t = students_t(values.len() - 1);
    let [low, high] = match values.len() {
        0..PAIRS_MIN => [-t, t],
        _ => resampled_t(values, spread.mean, rng),
    };
    Some([spread.mean - high.max(t) * error, spread.mean - low.min(-t) * error])
}

/// The quantiles, at both ends of an interval, of how many of its own standard
/// errors the mean of a resample is off.
///
/// Where almost all of the spread is one pair's, resamples without it have
/// next to no error of their own, and the quantile no bound; it ends where
/// Student's does that knows least, of two values.
fn resampled_t(values: &[f64], mean: f64, rng: &mut Rng) -> [f64; 2] {
    let most = students_t(1);
    let mut resample = vec![0.0; values.len()];
    let mut off = |rng: &mut Rng| {
        resample.fill_with(|| values[rng.random_range(0..values.len())]);
        let drawn = Spread::of(&resample)?;
        let error = drawn.error.filter(|error| *error > 0.0)?;
        Some(((drawn.mean - mean) / error).clamp(-most, most))
    };
    let mut all: Vec<f64> = (0..RESAMPLES).filter_map(|_| off(rng)).collect();
    all.sort_by(f64::total_cmp);
    let beyond = (LEVEL / 2.0 * all.len() as f64) as usize;
    match all.len().checked_sub(1 + beyond) {
        Some(last) => [all[beyond], all[last]],
        // Nothing has varied.
        None => [0.0, 0.0],
    }
}

/// Student's t at an end of an interval.
fn students_t(freedom: usize) -> f64 {
    let t = StudentsT::new(0.0, 1.0, freedom as f64);
    t.map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - LEVEL / 2.0))
}

/// For each figure, the share of sign changes whose largest t is at least its own.
fn chances(figures: &[Vec<Option<f64>>], rng: &mut Rng) -> Vec<f64> {
    let pairs = figures.iter().map(Vec::len).max().unwrap_or(0);
    let t_of = |values: &[Option<f64>], signs: &[f64]| {
        let flipped = values.iter().zip(signs).filter_map(|(value, sign)| Some((*value)? * sign));
        Spread::of(&flipped.collect::<Vec<_>>()).map_or(0.0, Spread::t)
    };
    let as_it_came = vec![1.0; pairs];
    let own: Vec<f64> = figures.iter().map(|values| t_of(values, &as_it_came)).collect();
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
            // Sums in another order differ in the last digit.
            *count += usize::from(largest >= own * (1.0 - 1e-9));
        }
    }
    // What came is one of the draws.
    let (extra, all) = if exact { (0, draws) } else { (1, draws + 1) };
    reached.iter().map(|count| (count + extra) as f64 / all as f64).collect()
}

/// Pairs beyond these with which so large a difference would show with a chance of
/// [`POWER`], each of the figures being asked at its part of [`LEVEL`].
fn more(values: &[f64], spread: Spread, figures: usize) -> Option<u64> {
    let have = values.len() as f64;
    let least = PAIRS_MIN.saturating_sub(values.len()) as u64;
    let deviation = spread.error? * have.sqrt();
    if deviation == 0.0 {
        // Nothing has varied: either it is nothing, or there are too few pairs yet.
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
