//! The Monte-Carlo estimate of an Asian option's price.

use super::AsianCall;
use crate::Generator;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

/// A price and how far it may be off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Discounted mean payoff.
    pub price: f64,
    /// Its standard error.
    pub standard_error: f64,
}

/// Path steps between two calls of `go_on`: about a millisecond.
const STEPS_A_LOOK: u32 = 65_536;

/// Prices an option. Calls `go_on` about every millisecond and returns `None` once it
/// returns `false`.
///
/// The spot itself is not part of the mean: with one step the option is a
/// European call.
pub fn estimate(call: &AsianCall, mut go_on: impl FnMut() -> bool) -> Option<Estimate> {
    let mut walk = Walk::new(call);
    let (mut sum, mut sum_of_squares) = (0.0, 0.0);
    let paths_a_look = (STEPS_A_LOOK / call.steps).max(1);
    for path in 0..call.paths {
        if path % paths_a_look == 0 && !go_on() {
            return None;
        }
        let payoff = (walk.mean(call) - call.strike).max(0.0);
        sum += payoff;
        sum_of_squares += payoff * payoff;
    }
    let count = f64::from(call.paths);
    let mean = sum / count;
    let variance = ((sum_of_squares - sum * mean) / (count - 1.0)).max(0.0);
    let discount = (-call.rate * call.years).exp();
    Some(Estimate { price: discount * mean, standard_error: discount * (variance / count).sqrt() })
}

/// A geometric Brownian motion in even steps.
pub(crate) struct Walk {
    rng: Generator,
    drift: f64,
    diffusion: f64,
}

impl Walk {
    pub(crate) fn new(call: &AsianCall) -> Self {
        let step = call.years / f64::from(call.steps);
        Self {
            rng: Generator::seed_from_u64(call.seed),
            drift: (call.rate - call.dividend - call.volatility * call.volatility / 2.0) * step,
            diffusion: call.volatility * step.sqrt(),
        }
    }

    /// The arithmetic mean along one new path.
    pub(crate) fn mean(&mut self, call: &AsianCall) -> f64 {
        let (mut price, mut sum) = (call.spot, 0.0);
        for _ in 0..call.steps {
            let normal: f64 = self.rng.sample(StandardNormal);
            price *= (self.drift + self.diffusion * normal).exp();
            sum += price;
        }
        sum / f64::from(call.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use statrs::distribution::{ContinuousCDF, Normal};

    const CALL: AsianCall = AsianCall {
        spot: 100.0,
        strike: 100.0,
        rate: 0.05,
        dividend: 0.02,
        volatility: 0.2,
        years: 1.0,
        steps: 1,
        paths: 100_000,
        seed: 1,
    };

    fn price(call: &AsianCall) -> Estimate {
        estimate(call, || true).unwrap()
    }

    fn black_scholes(call: &AsianCall) -> f64 {
        let normal = Normal::standard();
        let spread = call.volatility * call.years.sqrt();
        let growth = call.rate - call.dividend + call.volatility * call.volatility / 2.0;
        let d1 = ((call.spot / call.strike).ln() + growth * call.years) / spread;
        call.spot * (-call.dividend * call.years).exp() * normal.cdf(d1)
            - call.strike * (-call.rate * call.years).exp() * normal.cdf(d1 - spread)
    }

    #[test]
    fn with_one_step_it_is_a_european_call_and_agrees_with_black_scholes() {
        for strike in [80.0, 100.0, 120.0] {
            let call = AsianCall { strike, ..CALL };
            let (got, wanted) = (price(&call), black_scholes(&call));
            let deviations = (got.price - wanted).abs() / got.standard_error;
            assert!(deviations < 4.0, "strike {strike}: {got:?}, wanted {wanted}");
        }
    }

    #[test]
    fn without_strike_it_is_the_discounted_mean_of_forwards() {
        let call = AsianCall { strike: 0.0, steps: 12, ..CALL };
        let forwards = (1..=12)
            .map(|month| call.spot * ((call.rate - call.dividend) * f64::from(month) / 12.0).exp());
        let wanted = (-call.rate).exp() * forwards.sum::<f64>() / 12.0;
        let got = price(&call);
        assert!((got.price - wanted).abs() < 4.0 * got.standard_error, "{got:?} {wanted}");
    }

    #[test]
    fn without_volatility_there_is_nothing_to_estimate() {
        let call = AsianCall { volatility: 0.0, steps: 4, strike: 90.0, paths: 100, ..CALL };
        let mean =
            (1..=4).map(|quarter| 100.0 * (0.03 * f64::from(quarter) / 4.0).exp()).sum::<f64>()
                / 4.0;
        let got = price(&call);
        assert!((got.price - (-0.05_f64).exp() * (mean - 90.0)).abs() < 1e-9, "{got:?}");
        assert!(got.standard_error < 1e-6);
    }

    #[test]
    fn an_asian_call_is_worth_less_than_the_european_one() {
        let asian = price(&AsianCall { steps: 252, paths: 4_000, ..CALL });
        assert!(asian.price + 4.0 * asian.standard_error < black_scholes(&CALL));
    }

    #[test]
    fn a_request_can_be_given_up_half_way() {
        let mut looks = 0;
        let given_up = estimate(&AsianCall { steps: 10, ..CALL }, || {
            looks += 1;
            looks <= 2
        });
        assert_eq!((given_up, looks), (None, 3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]
        #[test]
        fn the_price_keeps_the_bounds_of_a_call(
            strike in 0.0f64..200.0, volatility in 0.0f64..1.0, steps in 1u32..20, seed: u64,
        ) {
            let call = AsianCall { strike, volatility, steps, paths: 500, seed, ..CALL };
            let got = price(&call);
            // Not below 0, and not above the underlying's mean, which strike 0 gives
            // with the same random numbers.
            let whole = price(&AsianCall { strike: 0.0, ..call }).price;
            prop_assert!(got.price >= 0.0 && got.price <= whole);
            // Call minus put is the mean minus the discounted strike; a put is not below 0.
            prop_assert!(got.price >= whole - strike * (-call.rate).exp() - 1e-9);
        }
    }
}
