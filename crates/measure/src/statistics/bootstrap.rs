//! The studentised bootstrap of a mean.
//!
//! Each resample gives the error of its mean in units of *its own* standard error, and the
//! quantiles of these, which are as skewed as the data, replace those of Student's t (Efron
//! 1981; Hall, The Annals of Statistics 16, 1988).

use super::distributions::student_t_quantile;
use super::estimate::Spread;
use rand::{Rng, RngExt};

const RESAMPLES: usize = 2000;
/// With fewer values resamples hardly differ, and only Student's interval is used.
const VALUES_MIN: usize = 6;

/// Returns the interval, at confidence `1 - level`, of the mean of independent values: at
/// each end the wider of the studentised bootstrap's and Student's. `None` with fewer than
/// two values.
///
/// With few skewed values the bootstrap's interval is too short on the side where the data is
/// dense, which is why Student's is the least.
pub fn studentised_interval(
    values: &[f64],
    level: f64,
    rng: &mut (impl Rng + ?Sized),
) -> Option<[f64; 2]> {
    let spread = Spread::from_values(values)?;
    let error = spread.error?;
    let t = student_t_quantile(1.0 - level / 2.0, values.len() - 1);
    let [low, high] = match values.len() {
        0..VALUES_MIN => [-t, t],
        _ => resampled_t(values, spread.mean, level, rng),
    };
    Some([spread.mean - high.max(t) * error, spread.mean - low.min(-t) * error])
}

/// Returns the quantiles, for both ends of an interval, of the error of a resample's mean in
/// units of its own standard error.
///
/// If one outlier causes almost all of the spread, resamples without it have a standard error
/// near 0, and the ratio is unbounded. It is therefore limited to Student's quantile for two
/// values, which is the largest.
fn resampled_t(values: &[f64], mean: f64, level: f64, rng: &mut (impl Rng + ?Sized)) -> [f64; 2] {
    let most = student_t_quantile(1.0 - level / 2.0, 1);
    let mut resample = vec![0.0; values.len()];
    let mut draw = || {
        resample.fill_with(|| values[rng.random_range(0..values.len())]);
        let drawn = Spread::from_values(&resample)?;
        let error = drawn.error.filter(|error| *error > 0.0)?;
        Some(((drawn.mean - mean) / error).clamp(-most, most))
    };
    let mut all: Vec<f64> = (0..RESAMPLES).filter_map(|_| draw()).collect();
    all.sort_by(f64::total_cmp);
    let beyond = (level / 2.0 * all.len() as f64) as usize;
    match all.len().checked_sub(1 + beyond) {
        Some(last) => [all[beyond], all[last]],
        // All values are equal.
        None => [0.0, 0.0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    fn interval(values: &[f64]) -> Option<[f64; 2]> {
        studentised_interval(values, 0.05, &mut Xoshiro256PlusPlus::seed_from_u64(1))
    }

    #[test]
    fn few_values_have_students_interval() {
        let [low, high] = interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((low - 1.0368).abs() < 1e-4 && (high - 4.9632).abs() < 1e-4, "{low} {high}");
        assert_eq!((interval(&[]), interval(&[1.0])), (None, None));
        assert_eq!(interval(&[2.0; 9]), Some([2.0, 2.0]));
    }

    #[test]
    fn skewed_values_have_a_longer_arm_on_their_long_side() {
        let [low, high] = interval(&[1.0, 1.1, 1.2, 1.0, 1.3, 1.1, 1.2, 4.0]).unwrap();
        let mean = 11.9 / 8.0;
        assert!(high - mean > 1.5 * (mean - low), "{low} {high}");
    }
}
