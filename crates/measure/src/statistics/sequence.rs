//! Confidence sequences: bounds on a mean that may be looked at after every value.
//!
//! With an interval for a fixed number of values, looking until it excludes zero finds a
//! difference where there is none sooner or later. A confidence sequence contains the mean at
//! *all* times together with probability `1 - alpha`.
//!
//! The values need not be independent or alike, but their conditional mean, given those
//! before, must be the mean that is estimated. Autocorrelated noise breaks that: see
//! `coverage.rs`. For pairs in random order use [`super::SignTest`].

use super::bisect;

/// Returns how far the sum of centred sub-Gaussian values may stray upwards at the time when
/// their variances sum to `variance_sum`: beyond this at any time with probability `alpha` at
/// most. The boundary is the tightest near `tightest_at`, in the same unit.
///
/// Source: the one-sided normal mixture of Howard, Ramdas, McAuliffe and Sekhon (The Annals of
/// Statistics 49, 2021), proposition 6, in closed form: the tail bound
/// `1 - Phi(x) <= exp(-x^2 / 2) / 2` gives a boundary that is slightly too wide.
pub fn normal_mixture_boundary(variance_sum: f64, tightest_at: f64, alpha: f64) -> f64 {
    // Section 3.5 of the paper: the width at v is least for this, one-sided with 2 alpha.
    let log = -(2.0 * alpha).min(1.0).ln();
    let rho = tightest_at / (2.0 * log + (1.0 + 2.0 * log).ln()).max(1.0);
    let root = ((variance_sum + rho) / rho).sqrt();
    (2.0 * (variance_sum + rho) * (0.5 * (root / alpha + 1.0)).ln()).sqrt()
}

/// The same with a boundary that grows as the law of the iterated logarithm, so that it is
/// tighter for very long runs and needs no `tightest_at`. `variance_sum` is at least 1 in the
/// unit of the values; below, the boundary at 1 holds.
///
/// Source: the same paper, equation 10 (`1.7 sqrt(v (log log 2v + 0.72 log(5.2 / alpha)))`).
pub fn stitched_boundary(variance_sum: f64, alpha: f64) -> f64 {
    let v = variance_sum.max(1.0);
    1.7 * (v * ((2.0 * v).ln().ln() + 0.72 * (5.2 / alpha).ln())).sqrt()
}

/// The estimates of mean and variance of values in [0, 1] before the next one, each with one value
/// of prior weight at 1/2 and 1/4.
#[derive(Debug, Clone, Copy)]
struct Running {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Running {
    const fn new() -> Self {
        Self { count: 0.0, sum: 0.5, squares: 0.25 }
    }

    fn mean(&self) -> f64 {
        self.sum / (self.count + 1.0)
    }

    fn variance(&self) -> f64 {
        self.squares / (self.count + 1.0)
    }

    fn push(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += (value - self.mean()).powi(2);
    }

    /// The predictable rate of the next bet (Waudby-Smith and Ramdas 2023, equation 15).
    fn rate(&self, alpha: f64) -> f64 {
        let next = self.count + 1.0;
        (2.0 * (2.0 / alpha).ln() / (self.variance() * next * (1.0 + next).ln())).sqrt()
    }
}

/// The predictable plug-in empirical-Bernstein sequence for values in [0, 1].
///
/// Its width adapts to the variance, and it costs a constant amount of work a value. Source:
/// Waudby-Smith and Ramdas (Journal of the Royal Statistical Society B 86, 2024; preprint
/// 2020), theorem 2.
#[derive(Debug, Clone)]
pub struct EmpiricalBernstein {
    alpha: f64,
    running: Running,
    /// Sums of rates, of rates times values, and of the variance terms.
    rates: f64,
    weighted: f64,
    penalty: f64,
}

impl EmpiricalBernstein {
    /// Starts a sequence whose intervals miss the mean at any time with probability `alpha`.
    pub const fn new(alpha: f64) -> Self {
        Self { alpha, running: Running::new(), rates: 0.0, weighted: 0.0, penalty: 0.0 }
    }

    /// Takes the next value; beyond [0, 1] it counts as the nearest end.
    pub fn push(&mut self, value: f64) {
        const RATE_MAX: f64 = 0.5;
        let value = value.clamp(0.0, 1.0);
        let rate = self.running.rate(self.alpha).min(RATE_MAX);
        self.rates += rate;
        self.weighted += rate * value;
        let variance = 4.0 * (value - self.running.mean()).powi(2);
        self.penalty += variance * (-(-rate).ln_1p() - rate) / 4.0;
        self.running.push(value);
    }

    /// Returns the interval at present, within [0, 1].
    pub fn interval(&self) -> [f64; 2] {
        if self.rates == 0.0 {
            return [0.0, 1.0];
        }
        let centre = self.weighted / self.rates;
        let half_width = ((2.0 / self.alpha).ln() + self.penalty) / self.rates;
        [(centre - half_width).max(0.0), (centre + half_width).min(1.0)]
    }
}

/// The betting sequence for the mean of values in [0, 1]: the tightest one for few values.
///
/// Source: Waudby-Smith and Ramdas, the paper of [`EmpiricalBernstein`], section 4, with the
/// predictable plug-in rates of its equation 26 and half of `alpha` for each end.
#[derive(Debug, Clone)]
pub struct Betting {
    alpha: f64,
    running: Running,
    /// Each value with the rate of its bet.
    bets: Vec<(f64, f64)>,
}

impl Betting {
    /// Starts a sequence whose intervals miss the mean at any time with probability `alpha`.
    pub const fn new(alpha: f64) -> Self {
        Self { alpha, running: Running::new(), bets: Vec::new() }
    }

    /// Takes the next value; beyond [0, 1] it counts as the nearest end.
    pub fn push(&mut self, value: f64) {
        let value = value.clamp(0.0, 1.0);
        self.bets.push((value, self.running.rate(self.alpha)));
        self.running.push(value);
    }

    /// Returns the interval at present, within [0, 1].
    pub fn interval(&self) -> [f64; 2] {
        let low = self.end(|value| value);
        let high = 1.0 - self.end(|value| 1.0 - value);
        // The two ends can cross if the values do not meet the assumptions.
        [low.min(high), high.max(low)]
    }

    /// The least mean at which the capital of bets on larger values stays below `2 / alpha`.
    /// The capital falls with the mean, because each of its factors does.
    fn end(&self, mirrored: impl Fn(f64) -> f64) -> f64 {
        /// Largest share of the capital that is at stake.
        const STAKE: f64 = 0.5;
        let limit = (2.0 / self.alpha).ln();
        let is_excluded = |mean: f64| {
            let factor = |(value, rate): &(f64, f64)| {
                (rate.min(STAKE / mean) * (mirrored(*value) - mean)).ln_1p()
            };
            self.bets.iter().map(factor).sum::<f64>() >= limit
        };
        let [low, _] = bisect([0.0, 1.0], 40, is_excluded);
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use statrs::distribution::{ContinuousCDF, Normal};

    #[test]
    fn the_stitched_boundary_is_the_printed_one() {
        // Howard et al. 2021, equation 2: 1.7 sqrt((log log 2t + 0.72 log(10.4 / alpha)) / t)
        // for both sides of a mean. At t = 500 and alpha = .05: .1781.
        let mean = stitched_boundary(500.0, 0.025) / 500.0;
        let log: f64 = 1000_f64.ln().ln() + 0.72 * (10.4_f64 / 0.05).ln();
        assert!((mean - 1.7 * (log / 500.0).sqrt()).abs() < 1e-12, "{mean}");
        assert!((mean - 0.182).abs() < 1e-3, "{mean}");
        assert_eq!(stitched_boundary(0.2, 0.05), stitched_boundary(1.0, 0.05));
    }

    #[test]
    fn the_mixture_boundary_is_just_above_the_exact_one() {
        // The exact boundary solves 2 sqrt(rho / (v + rho)) exp(x^2 / 2) Phi(x) = 1 / alpha.
        let (alpha, v) = (0.01_f64, 100.0);
        let log = -(2.0 * alpha).ln();
        let rho = v / (2.0 * log + (1.0 + 2.0 * log).ln());
        let mixture = |sum: f64| {
            let x = sum / (v + rho).sqrt();
            2.0 * (rho / (v + rho)).sqrt() * (x * x / 2.0).exp() * Normal::standard().cdf(x)
        };
        let boundary = normal_mixture_boundary(v, v, alpha);
        assert!(mixture(boundary) >= 1.0 / alpha, "{boundary}");
        assert!(mixture(0.99 * boundary) < 1.0 / alpha, "{boundary}");
        // Wider than the bound of a fixed number of values, 2.326 sd, and by less than half.
        assert!((1.0..1.5).contains(&(boundary / 23.26)), "{boundary}");
    }

    #[test]
    fn bounded_sequences_close_on_the_mean_and_betting_is_the_tighter() {
        let (mut bernstein, mut betting) = (EmpiricalBernstein::new(0.05), Betting::new(0.05));
        assert_eq!((bernstein.interval(), betting.interval()), ([0.0, 1.0], [0.0, 1.0]));
        for value in 0..400 {
            let value = if value % 4 == 0 { 0.5 } else { 0.3 };
            bernstein.push(value);
            betting.push(value);
        }
        let [low, high] = bernstein.interval();
        let [inner_low, inner_high] = betting.interval();
        assert!(low < 0.35 && 0.35 < high && high - low < 0.15, "{low} {high}");
        assert!(inner_low < 0.35 && 0.35 < inner_high, "{inner_low} {inner_high}");
        assert!(inner_high - inner_low < high - low, "{inner_low} {inner_high}");
    }

    #[test]
    fn values_beyond_the_ends_count_as_the_ends() {
        let (mut beyond, mut at) = (Betting::new(0.05), Betting::new(0.05));
        for _ in 0..50 {
            beyond.push(7.0);
            at.push(1.0);
        }
        assert_eq!(beyond.interval(), at.interval());
        assert!(at.interval()[0] > 0.8 && at.interval()[1] == 1.0, "{:?}", at.interval());
    }
}
