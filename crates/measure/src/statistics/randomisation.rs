//! Randomisation inference for pairs of blocks whose order was drawn at random.
//!
//! If a setting changes nothing, each difference within a pair has either sign with the same
//! probability, because the order decided which block got which setting. The test compares
//! the measured mean with those of other draws of the signs. It needs no model of the noise:
//! drift, bursts and autocorrelation do not harm it (Fisher, The Design of Experiments, 1935;
//! Imbens and Rubin, Causal Inference, 2015, chapter 5). It does not help against carry-over
//! from one block to the next; a wash-out must prevent that.

use super::estimate::Spread;
use rand::{Rng, RngExt};

/// Up to this number of pairs all sign changes are enumerated; beyond, they are drawn.
const EXACT_PAIRS: usize = 11;
const SIGN_DRAWS: usize = 1000;

/// Returns the probability, without any effect, of a mean difference at least as far above
/// zero as that of these pairs (one-sided). 1 without pairs.
pub fn sign_flip_chance(differences: &[f64], rng: &mut (impl Rng + ?Sized)) -> f64 {
    let means = flipped_means(differences, rng);
    // The flipped mean is at least the measured one if the flipped values sum to at most zero.
    let reached = means.iter().filter(|mean| **mean <= 0.0).count();
    (reached + 1) as f64 / (means.len() + 1) as f64
}

/// Returns for each sign change but the one that flips nothing the mean of the flipped values.
fn flipped_means(differences: &[f64], rng: &mut (impl Rng + ?Sized)) -> Vec<f64> {
    let pairs = differences.len();
    let is_exact = pairs <= EXACT_PAIRS;
    let draws = if is_exact { (1usize << pairs) - 1 } else { SIGN_DRAWS };
    let mean = |draw: usize| {
        let mut is_flipped = |pair: usize| match is_exact {
            true => draw >> pair & 1 == 1,
            false => rng.random_bool(0.5),
        };
        let flipped = differences.iter().enumerate().filter(|(pair, _)| is_flipped(*pair));
        let (sum, count) =
            flipped.fold((0.0, 0.0), |(sum, count), (_, one)| (sum + one, count + 1.0));
        // A draw that flips nothing counts against the effect.
        if count > 0.0 { sum / count } else { f64::NEG_INFINITY }
    };
    (1..=draws).map(mean).collect()
}

/// Returns for each of several figures of the same pairs the probability, without any effect,
/// that the largest |t| of *all* figures is at least its own.
///
/// Several figures may be claimed at once: without any effect, one is claimed below the chance
/// `alpha` in a share `alpha` of cases (Westfall and Young, Resampling-Based Multiple Testing,
/// 1993). Figures are by figure and pair; a pair without a value of a figure is left out of it.
pub fn joint_chances(figures: &[Vec<Option<f64>>], rng: &mut (impl Rng + ?Sized)) -> Vec<f64> {
    let pairs = figures.iter().map(Vec::len).max().unwrap_or(0);
    let t_of = |values: &[Option<f64>], signs: &[f64]| {
        let flipped = values.iter().zip(signs).filter_map(|(value, sign)| Some((*value)? * sign));
        Spread::from_values(&flipped.collect::<Vec<_>>()).map_or(0.0, Spread::t)
    };
    let as_measured = vec![1.0; pairs];
    let own: Vec<f64> = figures.iter().map(|values| t_of(values, &as_measured)).collect();
    let is_exact = pairs <= EXACT_PAIRS;
    let draws = if is_exact { 1 << pairs } else { SIGN_DRAWS };
    let mut reached = vec![0usize; figures.len()];
    for draw in 0..draws {
        let mut is_flipped = |pair: usize| match is_exact {
            true => draw >> pair & 1 == 1,
            false => rng.random_bool(0.5),
        };
        let signs: Vec<f64> =
            (0..pairs).map(|pair| if is_flipped(pair) { -1.0 } else { 1.0 }).collect();
        let largest = figures.iter().map(|values| t_of(values, &signs)).fold(0.0, f64::max);
        for (count, own) in reached.iter_mut().zip(&own) {
            // Sums in another order may differ in the last digit.
            *count += usize::from(largest >= own * (1.0 - 1e-9));
        }
    }
    // The measured signs count as one of the draws.
    let (extra, all) = if is_exact { (0, draws) } else { (1, draws + 1) };
    reached.iter().map(|count| (count + extra) as f64 / all as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    fn rng() -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(1)
    }

    /// Darwin's Zea mays: crossed less self-fertilised plants, in eighths of an inch.
    const DARWIN: [f64; 15] =
        [49., -67., 8., 16., 6., 23., 28., 41., 14., 29., 56., 24., 75., 60., -48.];

    #[test]
    fn darwins_plants_have_fishers_probability() {
        // Fisher 1935, section 21: of 32,768 arrangements 863 reach the sum of 314, one-sided.
        let chance = sign_flip_chance(&DARWIN, &mut rng());
        let fisher = 863.0 / 32_768.0;
        // 1000 draws: three standard deviations are .015.
        assert!((chance - fisher).abs() < 0.015, "{chance}");
    }

    #[test]
    fn a_few_pairs_are_enumerated_exactly() {
        // Five differences above zero: only one arrangement of 32 is as far.
        let clear = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(sign_flip_chance(&clear, &mut rng()), 1.0 / 32.0);
        assert_eq!(sign_flip_chance(&[], &mut rng()), 1.0);
    }

    #[test]
    fn of_several_figures_each_is_compared_with_the_largest() {
        let clear = [5.0, 5.1, 4.9, 5.2, 4.8, 5.0, 5.1].map(Some).to_vec();
        let noise = [1.0, -1.1, 0.9, -1.0, 1.2, -0.8, 0.1].map(Some).to_vec();
        let alone = joint_chances(std::slice::from_ref(&clear), &mut rng());
        assert_eq!(alone, [2.0 / 128.0], "both signs reach |t|");
        let both = joint_chances(&[clear, noise], &mut rng());
        assert!(both[0] <= 2.0 / 128.0 + 1e-12 && both[1] > 0.5, "{both:?}");
    }
}
