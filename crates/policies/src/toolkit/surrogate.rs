//! A Gaussian process: a surrogate model of a function that is expensive to measure.
//!
//! The kernel is Matérn with ν = 5/2, with one length scale for all inputs or one for each;
//! the prior mean is constant, and observations carry noise. Given length scales and noise,
//! mean and output scale have closed forms. Length scale and noise are the pair of a grid of
//! 20 with the largest marginal likelihood (Rasmussen and Williams, "Gaussian Processes for
//! Machine Learning", sections 2.2, 4.2.1 and 5.4.1): unlike gradient descent, a grid cannot
//! diverge and always takes the same time. Length scales for each input are then improved one
//! at a time under a lognormal prior, because with few observations the likelihood alone
//! prefers extremes.
//!
//! `nalgebra` does the linear algebra; docs/decisions.md explains why no Gaussian-process
//! crate is used.

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use statrs::distribution::{Continuous, ContinuousCDF, Normal};

/// Noise variances in the grid, as shares of the output scale (CLITE learns its jitter; the
/// range is ours).
const NOISES: [f64; 4] = [1e-6, 1e-4, 1e-2, 1e-1];
/// Length scales in the grid, as multiples of the mean distance of the inputs.
const LENGTHS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

/// Factors by which the length scale of one input is varied (ours).
const FACTORS: [f64; 4] = [0.4, 0.7, 1.5, 3.0];
/// The largest number of rounds over all inputs.
const CLIMBS: usize = 4;
/// Standard deviation of the logarithm of a length scale around the common one (ours).
const PRIOR_STD_DEV: f64 = 1.0;

/// A fitted process.
#[derive(Debug, Clone)]
pub(crate) struct GaussianProcess {
    /// The observed inputs, divided by the length scales.
    inputs: Vec<Vec<f64>>,
    lengths: Vec<f64>,
    noise: f64,
    mean: f64,
    scale: f64,
    factor: Cholesky<f64, Dyn>,
    /// K^-1 (y - mean).
    weights: DVector<f64>,
    log_likelihood: f64,
}

/// The posterior of the function at one point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Posterior {
    pub(crate) mean: f64,
    /// Standard deviation of the function itself, without observation noise.
    pub(crate) std_dev: f64,
}

impl GaussianProcess {
    /// Fits the process with the largest marginal likelihood. Returns `None` with fewer than
    /// two observations, or if an output is not finite.
    pub(crate) fn fit(inputs: &[Vec<f64>], outputs: &[f64]) -> Option<Self> {
        if inputs.len() < 2 || outputs.iter().any(|output| !output.is_finite()) {
            return None;
        }
        let distances = DMatrix::from_fn(inputs.len(), inputs.len(), |row, column| {
            distance(&inputs[row], &inputs[column])
        });
        let pairs = (inputs.len() * (inputs.len() - 1)) as f64;
        let typical = (distances.sum() / pairs).max(1e-9);
        let outputs = DVector::from_column_slice(outputs);
        let grid = LENGTHS.iter().flat_map(|length| NOISES.map(|noise| (length * typical, noise)));
        let fitted = grid.filter_map(|(length, noise)| {
            let kernel = distances.map(|distance| matern(distance / length));
            let lengths = vec![length; inputs[0].len()];
            let scaled = inputs.iter().map(|input| divided(input, &lengths)).collect();
            Self::condition(scaled, &outputs, kernel, lengths, noise)
        });
        fitted.max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood))
    }

    /// Fits a process with one length scale for each input, with a prior around a common one.
    /// Returns `None` as [`Self::fit`] does.
    pub(crate) fn fit_each(inputs: &[Vec<f64>], outputs: &[f64]) -> Option<Self> {
        let mut best = Self::fit(inputs, outputs)?;
        let common = best.lengths.clone();
        let outputs = DVector::from_column_slice(outputs);
        let prior = |lengths: &[f64]| {
            let pairs = lengths.iter().zip(&common);
            -0.5 * pairs.map(|(a, b)| ((a / b).ln() / PRIOR_STD_DEV).powi(2)).sum::<f64>()
        };
        for _ in 0..CLIMBS {
            let before = best.log_likelihood + prior(&best.lengths);
            for input in 0..common.len() {
                for factor in FACTORS {
                    let mut lengths = best.lengths.clone();
                    lengths[input] *= factor;
                    let Some(other) = Self::with_lengths(inputs, &outputs, lengths, best.noise)
                    else {
                        continue;
                    };
                    let value = |it: &Self| it.log_likelihood + prior(&it.lengths);
                    if value(&other) > value(&best) {
                        best = other;
                    }
                }
            }
            for noise in NOISES {
                let other = Self::with_lengths(inputs, &outputs, best.lengths.clone(), noise);
                best = other.filter(|it| it.log_likelihood > best.log_likelihood).unwrap_or(best);
            }
            if best.log_likelihood + prior(&best.lengths) <= before {
                break;
            }
        }
        Some(best)
    }

    /// Returns the process with further noise for each observation, given as variances; length
    /// scales and common noise stay. Returns `None` as [`Self::fit`] does.
    pub(crate) fn with_extra_noise(&self, outputs: &[f64], extra: &[f64]) -> Option<Self> {
        let outputs = DVector::from_column_slice(outputs);
        let mut kernel = DMatrix::from_fn(self.inputs.len(), self.inputs.len(), |row, column| {
            matern(distance(&self.inputs[row], &self.inputs[column]))
        });
        for (at, variance) in extra.iter().enumerate() {
            kernel[(at, at)] += variance / self.scale;
        }
        let (inputs, lengths) = (self.inputs.clone(), self.lengths.clone());
        Self::condition(inputs, &outputs, kernel, lengths, self.noise)
    }

    fn with_lengths(
        inputs: &[Vec<f64>],
        outputs: &DVector<f64>,
        lengths: Vec<f64>,
        noise: f64,
    ) -> Option<Self> {
        let scaled: Vec<_> = inputs.iter().map(|input| divided(input, &lengths)).collect();
        let kernel = DMatrix::from_fn(scaled.len(), scaled.len(), |row, column| {
            matern(distance(&scaled[row], &scaled[column]))
        });
        Self::condition(scaled, outputs, kernel, lengths, noise)
    }

    /// Conditions the process on observations whose inputs are divided by the length scales.
    fn condition(
        inputs: Vec<Vec<f64>>,
        outputs: &DVector<f64>,
        mut kernel: DMatrix<f64>,
        lengths: Vec<f64>,
        noise: f64,
    ) -> Option<Self> {
        let count = outputs.len() as f64;
        for diagonal in 0..outputs.len() {
            kernel[(diagonal, diagonal)] += noise;
        }
        let factor = Cholesky::new(kernel)?;
        let ones = DVector::from_element(outputs.len(), 1.0);
        let whitened_ones = factor.solve(&ones);
        let mean = whitened_ones.dot(outputs) / whitened_ones.sum();
        let residual = outputs.add_scalar(-mean);
        let weights = factor.solve(&residual);
        // Equal outputs have no scale; a tiny one keeps the logarithm finite.
        let scale = (residual.dot(&weights) / count).max(1e-12);
        let log_determinant: f64 =
            factor.l_dirty().diagonal().iter().map(|entry| 2.0 * entry.ln()).sum();
        let log_likelihood = -0.5 * (count * scale.ln() + log_determinant);
        Some(Self { inputs, lengths, noise, mean, scale, factor, weights, log_likelihood })
    }

    /// Returns the posterior at a point.
    pub(crate) fn posterior(&self, point: &[f64]) -> Posterior {
        let mut kernel = DVector::zeros(self.inputs.len());
        self.posterior_into(point, &mut kernel)
    }

    /// Returns the posteriors at many points, with one allocation for all.
    pub(crate) fn posteriors<'a>(&self, points: impl Iterator<Item = &'a [f64]>) -> Vec<Posterior> {
        let mut kernel = DVector::zeros(self.inputs.len());
        points.map(|point| self.posterior_into(point, &mut kernel)).collect()
    }

    fn posterior_into(&self, point: &[f64], kernel: &mut DVector<f64>) -> Posterior {
        for (entry, input) in kernel.iter_mut().zip(&self.inputs) {
            let pairs = input.iter().zip(point).zip(&self.lengths);
            let square: f64 = pairs.map(|((a, b), length)| (a - b / length).powi(2)).sum();
            *entry = matern(square.sqrt());
        }
        let mean = self.mean + kernel.dot(&self.weights);
        // L is lower triangular and positive on its diagonal, so this cannot fail.
        self.factor.l_dirty().solve_lower_triangular_mut(kernel);
        let variance = self.scale * (1.0 - kernel.norm_squared()).max(0.0);
        Posterior { mean, std_dev: variance.sqrt() }
    }

    /// Returns the standard deviation of the observation noise.
    pub(crate) fn noise_std_dev(&self) -> f64 {
        (self.scale * self.noise).sqrt()
    }
}

/// Returns the expected improvement over `best` by more than `margin` (Mockus; CLITE's ζ).
pub(crate) fn expected_improvement(posterior: Posterior, best: f64, margin: f64) -> f64 {
    let gain = posterior.mean - best - margin;
    if posterior.std_dev <= 0.0 {
        return 0.0;
    }
    let normal = Normal::standard();
    let z = gain / posterior.std_dev;
    (gain * normal.cdf(z) + posterior.std_dev * normal.pdf(z)).max(0.0)
}

/// Returns the logarithm of the expected improvement *below* the incumbent `best` (Ament et
/// al., "Unexpected Improvements to Expected Improvement", NeurIPS 2023). It still has a slope
/// where the improvement itself rounds to zero.
pub(crate) fn log_expected_improvement(posterior: Posterior, best: f64) -> f64 {
    if posterior.std_dev <= 0.0 {
        return f64::NEG_INFINITY;
    }
    let z = (best - posterior.mean) / posterior.std_dev;
    posterior.std_dev.ln() + log_improvement(z)
}

/// Returns ln(φ(z) + z Φ(z)), by its series where the difference would cancel.
fn log_improvement(z: f64) -> f64 {
    let normal = Normal::standard();
    if z > -5.0 {
        return (normal.pdf(z) + z * normal.cdf(z)).max(f64::MIN_POSITIVE).ln();
    }
    let square = 1.0 / (z * z);
    let series = 1.0 - square * (3.0 - square * (15.0 - 105.0 * square));
    normal.ln_pdf(z) + square.ln() + series.max(0.1).ln()
}

/// Returns the probability that the function is below a bound.
pub(crate) fn probability_below(posterior: Posterior, bound: f64) -> f64 {
    if posterior.std_dev <= 0.0 {
        return if posterior.mean <= bound { 1.0 } else { 0.0 };
    }
    Normal::standard().cdf((bound - posterior.mean) / posterior.std_dev)
}

/// Returns the Matérn kernel with ν = 5/2 at a distance in length scales (Rasmussen and
/// Williams, equation 4.17).
fn matern(distance: f64) -> f64 {
    let x = 5f64.sqrt() * distance;
    (1.0 + x + x * x / 3.0) * (-x).exp()
}

fn divided(input: &[f64], lengths: &[f64]) -> Vec<f64> {
    input.iter().zip(lengths).map(|(value, length)| value / length).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Rng;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};

    fn line(count: usize) -> Vec<Vec<f64>> {
        (0..count).map(|at| vec![at as f64 / (count - 1) as f64]).collect()
    }

    #[test]
    fn the_kernel_has_the_values_of_its_closed_form() {
        // (1 + sqrt5 d + 5/3 d^2) exp(-sqrt5 d) at 0, 1 and 2.
        for (distance, value) in [(0.0, 1.0), (1.0, 0.523_994), (2.0, 0.138_660)] {
            assert!((matern(distance) - value).abs() < 1e-6, "{distance}: {}", matern(distance));
        }
    }

    #[test]
    fn with_two_points_the_posterior_is_that_of_the_formula() {
        // By hand for k(d) = 0.5240 between two points, noise 1e-2, at the first of them.
        let inputs = [vec![0.0], vec![1.0]];
        let outputs = DVector::from_column_slice(&[0.0, 1.0]);
        let kernel = DMatrix::from_fn(2, 2, |a, b| matern((a as f64 - b as f64).abs()));
        let inputs = inputs.to_vec();
        let fitted = GaussianProcess::condition(inputs, &outputs, kernel, vec![1.0], 1e-2).unwrap();
        let k = matern(1.0);
        let (weight, scale) = (0.5 / (1.01 - k), 0.25 / (1.01 - k));
        assert!((fitted.mean - 0.5).abs() < 1e-12);
        assert!((fitted.scale - scale).abs() < 1e-12);
        let posterior = fitted.posterior(&[0.0]);
        assert!((posterior.mean - (0.5 - weight * (1.0 - k))).abs() < 1e-9, "{posterior:?}");
        let determinant = 1.01 * 1.01 - k * k;
        let explained = (1.01 - 2.0 * k * k + 1.01 * k * k) / determinant;
        let deviation = (scale * (1.0 - explained)).sqrt();
        assert!((posterior.std_dev - deviation).abs() < 1e-9, "{posterior:?} {deviation}");
    }

    #[test]
    fn a_smooth_function_is_learnt_and_its_gaps_are_known_as_such() {
        let f = |x: f64| (6.0 * x).sin();
        let inputs: Vec<_> = line(21).into_iter().filter(|x| x[0] < 0.4 || x[0] > 0.6).collect();
        let outputs: Vec<_> = inputs.iter().map(|x| f(x[0])).collect();
        let fitted = GaussianProcess::fit(&inputs, &outputs).unwrap();
        let near = fitted.posterior(&[0.23]);
        assert!((near.mean - f(0.23)).abs() < 0.01, "{near:?}");
        let far = fitted.posterior(&[0.5]);
        assert!(far.std_dev > 5.0 * near.std_dev, "{near:?} {far:?}");
        assert!((far.mean - f(0.5)).abs() < 3.0 * far.std_dev, "{far:?}");
    }

    #[test]
    fn noise_is_taken_for_noise() {
        let mut rng = Rng::seed_from_u64(7);
        let inputs = line(60);
        let noisy = |x: &Vec<f64>| 3.0 * x[0] + 0.2 * (rng.random::<f64>() - 0.5);
        let outputs: Vec<_> = inputs.iter().map(noisy).collect();
        let fitted = GaussianProcess::fit(&inputs, &outputs).unwrap();
        // Uniform on ±0.1: deviation 0.058; the grid has one step a decade.
        assert!((0.02..0.2).contains(&fitted.noise_std_dev()), "{}", fitted.noise_std_dev());
        assert!((fitted.posterior(&[0.5]).mean - 1.5).abs() < 0.05);
    }

    #[test]
    fn improvement_has_its_closed_form_and_none_where_nothing_is_unknown() {
        // With mean = best and deviation 1 it is pdf(0).
        let posterior = Posterior { mean: 1.0, std_dev: 1.0 };
        assert!((expected_improvement(posterior, 1.0, 0.0) - 0.398_942).abs() < 1e-6);
        let known = Posterior { mean: 5.0, std_dev: 0.0 };
        assert_eq!(expected_improvement(known, 1.0, 0.0), 0.0);
        let hopeless = Posterior { mean: -50.0, std_dev: 1.0 };
        assert!(expected_improvement(hopeless, 1.0, 0.01) < 1e-12);
    }

    #[test]
    fn an_input_that_does_not_matter_gets_a_long_length() {
        let mut rng = Rng::seed_from_u64(3);
        let inputs: Vec<Vec<f64>> =
            (0..30).map(|_| vec![rng.random::<f64>(), rng.random::<f64>()]).collect();
        let outputs: Vec<_> = inputs.iter().map(|x| (6.0 * x[0]).sin()).collect();
        let fitted = GaussianProcess::fit_each(&inputs, &outputs).unwrap();
        assert!(fitted.lengths[1] > 3.0 * fitted.lengths[0], "{:?}", fitted.lengths);
        let common = GaussianProcess::fit(&inputs, &outputs).unwrap();
        let error = |model: &GaussianProcess| {
            let at = |step: usize| vec![step as f64 / 20.0, 0.5];
            let off = |step| (model.posterior(&at(step)).mean - (6.0 * at(step)[0]).sin()).abs();
            (1..20).map(off).sum::<f64>()
        };
        assert!(error(&fitted) < error(&common), "{} {}", error(&fitted), error(&common));
    }

    #[test]
    fn many_points_are_believed_what_each_is() {
        let inputs = line(9);
        let outputs: Vec<_> = inputs.iter().map(|x| x[0] * x[0]).collect();
        let fitted = GaussianProcess::fit_each(&inputs, &outputs).unwrap();
        let points = line(33);
        let all = fitted.posteriors(points.iter().map(Vec::as_slice));
        for (point, posterior) in points.iter().zip(all) {
            assert_eq!(fitted.posterior(point), posterior);
        }
    }

    #[test]
    fn the_logarithm_of_improvement_is_smooth_where_the_improvement_vanishes() {
        // By quadrature in high precision: ln(pdf(z) + z cdf(z)).
        for (z, value) in [(0.0, -0.918_939), (-3.0, -7.869_6), (-10.0, -55.553_1)] {
            assert!((log_improvement(z) - value).abs() < 2e-3, "{z}: {}", log_improvement(z));
        }
        let near = log_improvement(-5.0 + 1e-9) - log_improvement(-5.0 - 1e-9);
        assert!(near.abs() < 5e-3, "{near}");
        let slope = log_improvement(-30.0) - log_improvement(-30.1);
        assert!(slope > 2.0 && log_improvement(-1e4).is_finite());
    }

    #[test]
    fn a_bound_far_above_is_surely_kept() {
        let posterior = Posterior { mean: 1.0, std_dev: 0.1 };
        assert!(probability_below(posterior, 2.0) > 0.999);
        assert!((probability_below(posterior, 1.0) - 0.5).abs() < 1e-12);
        assert_eq!(probability_below(Posterior { std_dev: 0.0, ..posterior }, 0.9), 0.0);
    }

    #[test]
    fn equal_outputs_and_repeated_inputs_are_no_trouble_and_nan_is_refused() {
        let same = vec![vec![0.5, 0.5]; 5];
        let fitted = GaussianProcess::fit(&same, &[1.0; 5]).unwrap();
        assert!((fitted.posterior(&[0.5, 0.5]).mean - 1.0).abs() < 1e-9);
        assert!(GaussianProcess::fit(&same, &[1.0, f64::NAN, 1.0, 1.0, 1.0]).is_none());
        assert!(GaussianProcess::fit(&same[..1], &[1.0]).is_none());
    }

    proptest! {
        #[test]
        fn posteriors_are_finite_for_any_observations(
            outputs in prop::collection::vec(0.0f64..1.0, 2..30),
            at in prop::collection::vec(0.0f64..1.0, 3),
        ) {
            let mut rng = Rng::seed_from_u64(outputs.len() as u64);
            let inputs: Vec<Vec<f64>> =
                outputs.iter().map(|_| (0..3).map(|_| rng.random::<f64>()).collect()).collect();
            let posterior = GaussianProcess::fit(&inputs, &outputs).unwrap().posterior(&at);
            prop_assert!(posterior.mean.is_finite() && posterior.std_dev >= 0.0, "{posterior:?}");
            prop_assert!(expected_improvement(posterior, 0.5, 0.01) >= 0.0);
        }
    }
}
