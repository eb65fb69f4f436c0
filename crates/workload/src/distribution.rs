//! Heavy-tailed distributions of key sizes, value sizes and gaps.

use rand::distr::{Distribution, OpenClosed01};
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

/// The generalised Pareto distribution.
///
/// Survival `(1 + k (x - loc)/scale)^(-1/k)`; exponential where the shape `k` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GeneralisedPareto {
    /// The least value.
    pub loc: f64,
    /// Scale, above 0.
    pub scale: f64,
    /// Shape `k`; the mean exists below 1, the variance below 1/2.
    pub shape: f64,
}

impl GeneralisedPareto {
    /// `loc + scale/(1 - k)`; infinite from shape 1 on.
    pub fn mean(&self) -> f64 {
        if self.shape < 1.0 { self.loc + self.scale / (1.0 - self.shape) } else { f64::INFINITY }
    }

    /// The value that a share `at` of the draws does not exceed.
    pub fn quantile(&self, at: f64) -> f64 {
        self.at_survival(1.0 - at)
    }

    fn at_survival(&self, survival: f64) -> f64 {
        let log = -survival.ln();
        // (u^-k - 1)/k, written so that it keeps its digits as k goes to 0.
        let standard =
            if self.shape == 0.0 { log } else { (self.shape * log).exp_m1() / self.shape };
        self.loc + self.scale * standard
    }
}

impl Distribution<f64> for GeneralisedPareto {
    fn sample<R: Rng + ?Sized>(&self, rng: &mut R) -> f64 {
        self.at_survival(rng.sample(OpenClosed01))
    }
}

/// The generalised extreme value distribution.
///
/// Cumulative `exp(-(1 + k (x - loc)/scale)^(-1/k))`; Gumbel where the shape `k` is 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GeneralisedExtremeValue {
    /// Location; the value that `1/e` of the draws stay below.
    pub loc: f64,
    /// Scale, above 0.
    pub scale: f64,
    /// Shape `k`.
    pub shape: f64,
}

impl GeneralisedExtremeValue {
    /// The value that a share `at` of the draws does not exceed.
    pub fn quantile(&self, at: f64) -> f64 {
        let log = -(-at.ln()).ln();
        let standard =
            if self.shape == 0.0 { log } else { (self.shape * log).exp_m1() / self.shape };
        self.loc + self.scale * standard
    }
}

impl Distribution<f64> for GeneralisedExtremeValue {
    fn sample<R: Rng + ?Sized>(&self, rng: &mut R) -> f64 {
        // At exactly 1 the quantile is infinite; callers round into a range of sizes anyway.
        self.quantile(rng.sample(OpenClosed01))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{kolmogorov_distance, rng};

    const DRAWS: usize = 20_000;
    /// The distance that a right sampler exceeds once in a million tries.
    const SUSPICIOUS: f64 = 2.7 / 141.42;

    #[test]
    fn pareto_draws_follow_the_printed_survival() {
        for shape in [-0.3, 0.0, 0.154_971, 0.348_238, 0.9] {
            let law = GeneralisedPareto { loc: 15.0, scale: 214.476, shape };
            let cumulative = |x: f64| {
                let z = (x - law.loc) / law.scale;
                if shape == 0.0 {
                    1.0 - (-z).exp()
                } else {
                    1.0 - (1.0 + shape * z).powf(-1.0 / shape)
                }
            };
            let draws = rng(1).sample_iter(law).take(DRAWS).collect();
            let distance = kolmogorov_distance(draws, cumulative);
            assert!(distance < SUSPICIOUS, "shape {shape}: {distance}");
        }
    }

    #[test]
    fn extreme_values_follow_the_printed_cumulative() {
        for shape in [-0.2, 0.0, 0.078_688] {
            let law = GeneralisedExtremeValue { loc: 30.7984, scale: 8.204_49, shape };
            let cumulative = |x: f64| {
                let z = (x - law.loc) / law.scale;
                let tail =
                    if shape == 0.0 { (-z).exp() } else { (1.0 + shape * z).powf(-1.0 / shape) };
                (-tail).exp()
            };
            let draws = rng(2).sample_iter(law).take(DRAWS).collect();
            let distance = kolmogorov_distance(draws, cumulative);
            assert!(distance < SUSPICIOUS, "shape {shape}: {distance}");
        }
    }

    #[test]
    fn the_mean_is_that_of_the_draws() {
        let law = GeneralisedPareto { loc: 2.0, scale: 3.0, shape: 0.2 };
        let mean = rng(3).sample_iter(law).take(200_000).sum::<f64>() / 200_000.0;
        assert!((mean / law.mean() - 1.0).abs() < 0.01, "{mean} {}", law.mean());
    }
}
