//! The sign test of randomised pairs that may be looked at after every pair.
//!
//! If a setting shifts every difference within a pair by `shift`, the difference less the
//! shift has either sign with the same probability, given its size, because the order within
//! the pair was drawn. A gambler who wins the share `tanh(rate (d - shift))` of the capital with
//! each pair then gains nothing in the mean, and by Ville's inequality the capital exceeds
//! `1 / alpha` *at any time* with probability `alpha` at most. The shift is rejected when it
//! does. The capital is the mean over several rates, because the best one depends on the
//! unknown effect and scatter.
//!
//! One pair at most doubles the capital, so `log2(1 / alpha)` pairs are the least.
//!
//! Source: the sub-psi process of symmetric increments in Howard, Ramdas, McAuliffe and Sekhon
//! 2020 (Time-uniform Chernoff bounds, Lemma 3(d)), after de la Peña 1999, with
//! `2 / (1 + exp(-2x)) = 1 + tanh(x)` in place of `exp(x - x^2 / 2)`, which it exceeds.

/// Rates of the bets, as powers of two over the scale.
const RATES: i32 = 6;

/// The shifts that are to be rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The effect is shown to be above the shift.
    Above,
    /// The effect is shown to be below the shift.
    Below,
}

/// A test whether the effect lies on one side of a shift.
#[derive(Debug, Clone)]
pub struct SignTest {
    shift: f64,
    side: Side,
    scale: f64,
    /// Logarithm of the capital of each rate.
    log_capitals: [f64; RATES as usize],
}

impl SignTest {
    /// Creates the test. `scale` is the largest difference that matters, in their unit: the
    /// bound at which they are clipped. It affects the power, not the error probability.
    pub fn new(shift: f64, side: Side, scale: f64) -> Self {
        debug_assert!(scale > 0.0, "{scale}");
        Self { shift, side, scale, log_capitals: [0.0; RATES as usize] }
    }

    /// Takes the next difference.
    pub fn push(&mut self, difference: f64) {
        let sign = if self.side == Side::Above { 1.0 } else { -1.0 };
        let beyond = sign * (difference - self.shift) / self.scale;
        for (power, capital) in (0..RATES).zip(&mut self.log_capitals) {
            *capital += log_stake(f64::from(power).exp2() * beyond);
        }
    }

    /// Returns the logarithm of the capital.
    pub fn log_capital(&self) -> f64 {
        log_mean_capital(&self.log_capitals)
    }

    /// Returns whether the effect is shown to be on this side of the shift, with an error
    /// probability of at most `alpha` over all looks.
    pub fn is_shown(&self, alpha: f64) -> bool {
        self.log_capital() >= -alpha.ln()
    }
}

/// Returns the logarithm of the mean of capitals, of which these are the logarithms.
pub(super) fn log_mean_capital(log_capitals: &[f64]) -> f64 {
    let most = log_capitals.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = log_capitals.iter().map(|one| (one - most).exp()).sum();
    most + (sum / log_capitals.len() as f64).ln()
}

/// Returns `ln(1 + tanh(bet))`, without overflow.
pub(super) fn log_stake(bet: f64) -> f64 {
    let exponent = -2.0 * bet;
    std::f64::consts::LN_2 - exponent.max(0.0) - (-exponent.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capital_is_fair_exactly() {
        // All 2^8 sign changes of eight sizes: the mean capital is 1.
        let sizes = [0.1, 0.3, 0.05, 0.7, 0.2, 0.4, 0.01, 0.5];
        let capital = |signs: u32| {
            let mut test = SignTest::new(0.0, Side::Above, 0.7);
            for (pair, size) in sizes.iter().enumerate() {
                test.push(if signs >> pair & 1 == 1 { -size } else { *size });
            }
            test.log_capital().exp()
        };
        let mean = (0..256).map(capital).sum::<f64>() / 256.0;
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn one_pair_at_most_doubles_the_capital() {
        // At 1 %, seven pairs are the least: 2^7 = 128.
        let is_shown = |pairs: usize| {
            let mut test = SignTest::new(0.0, Side::Above, 0.7);
            (0..pairs).for_each(|_| test.push(0.6));
            test.is_shown(0.01)
        };
        assert!(!is_shown(6) && is_shown(12));
    }

    #[test]
    fn large_differences_do_not_overflow() {
        let mut test = SignTest::new(0.0, Side::Below, 1e-3);
        (0..50).for_each(|_| test.push(1e6));
        assert!(test.log_capital() < -1e6 && !test.is_shown(0.5));
        (0..20).for_each(|_| test.push(-1e9));
        assert!(test.log_capital().is_finite());
    }
}
