//! The requests that clients send to the options server.

use super::AsianCall;
use crate::Generator;
use rand::RngExt;
use rand_distr::Pareto;
use serde::{Deserialize, Serialize};

/// Requests of widely different length.
///
/// Paths `n = n0 (sigma/0.2)² V` with trade value `V` Pareto of shape 1.5 from
/// 1, capped at 20: wide and valuable options are priced more closely. Spot 100,
/// strike 80 to 120, volatility 0.1 to 0.4, dividend yield 0 to 3 %, all
/// uniform, rate 5 %, one year. The EETL paper does not print its parameters;
/// these are of the same kind, with the length left to be calibrated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Demand {
    /// Paths of a request of volatility 0.2 and value 1; see [`super::calibrate()`].
    pub base_paths: f64,
    /// Steps of a path: trading days of a year.
    pub steps: u32,
}

/// Why a demand is not valid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum DemandError {
    /// The number of paths is out of range.
    #[error("base_paths = {0}: write a number from 0.01 to 1e6")]
    BasePaths(f64),
    /// The number of steps is out of range.
    #[error("steps = {0}: write a whole number from 1 to 100000")]
    Steps(u32),
}

const VALUE_SHAPE: f64 = 1.5;
const VALUE_CAP: f64 = 20.0;

impl Default for Demand {
    fn default() -> Self {
        Self { base_paths: 100.0, steps: 252 }
    }
}

impl Demand {
    /// Whether requests can be drawn.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn check(&self) -> Result<(), DemandError> {
        if !(0.01..=1e6).contains(&self.base_paths) {
            return Err(DemandError::BasePaths(self.base_paths));
        }
        if !(1..=100_000).contains(&self.steps) {
            return Err(DemandError::Steps(self.steps));
        }
        Ok(())
    }

    /// Draws a request.
    pub fn draw(&self, rng: &mut Generator) -> AsianCall {
        let volatility = rng.random_range(0.1..0.4);
        let paths = self.base_paths * relative_length(volatility, rng);
        AsianCall {
            spot: 100.0,
            strike: rng.random_range(80.0..120.0),
            rate: 0.05,
            dividend: rng.random_range(0.0..0.03),
            volatility,
            years: 1.0,
            steps: self.steps,
            // Two paths are the least that have a standard error.
            paths: (paths.round() as u32).max(2),
            seed: rng.random(),
        }
    }

    /// Mean paths of a request: `n0 E[(sigma/0.2)²] E[V]`.
    ///
    /// With sigma uniform on 0.1 to 0.4 the first mean is 1.75; with V capped at
    /// c the second is `1 + 2 (1 - c^-0.5)`.
    pub fn mean_paths(&self) -> f64 {
        let volatility = (0.4f64.powi(3) - 0.1f64.powi(3)) / (3.0 * 0.3) / 0.2f64.powi(2);
        let excess = (1.0 - VALUE_CAP.powf(1.0 - VALUE_SHAPE)) / (VALUE_SHAPE - 1.0);
        self.base_paths * volatility * (1.0 + excess)
    }

    /// The median of [`Demand::draw`]'s paths in units of `base_paths`.
    pub(crate) fn median_length(rng: &mut Generator) -> f64 {
        let mut lengths: Vec<_> = (0..20_001)
            .map(|_| {
                let volatility = rng.random_range(0.1..0.4);
                relative_length(volatility, rng)
            })
            .collect();
        *lengths.select_nth_unstable_by(10_000, f64::total_cmp).1
    }
}

fn relative_length(volatility: f64, rng: &mut Generator) -> f64 {
    let law = Pareto::new(1.0, VALUE_SHAPE).expect("constant scale and shape are positive");
    let value: f64 = rng.sample(law);
    (volatility / 0.2).powi(2) * value.min(VALUE_CAP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rng;

    #[test]
    fn lengths_differ_widely_and_are_capped() {
        let (demand, mut rng) = (Demand { base_paths: 100.0, steps: 252 }, rng(3));
        let mut paths: Vec<_> = (0..20_000).map(|_| demand.draw(&mut rng).paths).collect();
        paths.sort_unstable();
        let (median, p99, longest) = (paths[10_000], paths[19_800], paths[19_999]);
        assert!(p99 > 8 * median, "{median} {p99}");
        assert!(longest <= 8_000, "20 times (0.4/0.2)² times 100: {longest}");
        let wanted = 100.0 * Demand::median_length(&mut rng);
        assert!((f64::from(median) / wanted - 1.0).abs() < 0.05, "{median} {wanted}");
    }

    #[test]
    fn the_mean_is_that_of_the_draws() {
        let (demand, mut rng) = (Demand { base_paths: 1000.0, steps: 1 }, rng(5));
        let draws = 200_000;
        let total: f64 = (0..draws).map(|_| f64::from(demand.draw(&mut rng).paths)).sum();
        let ratio = total / f64::from(draws) / demand.mean_paths();
        assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
    }

    #[test]
    fn every_request_is_one_that_the_server_understands() {
        let mut rng = rng(4);
        for base_paths in [0.01, 100.0, 1e6] {
            let demand = Demand { base_paths, ..Demand::default() };
            demand.check().unwrap();
            for _ in 0..200 {
                let call = demand.draw(&mut rng);
                let mut line = Vec::new();
                call.write(&mut line);
                assert_eq!(std::str::from_utf8(&line).unwrap().parse(), Ok(call));
            }
        }
    }

    #[test]
    fn a_demand_out_of_range_is_refused() {
        for base_paths in [0.0, -1.0, f64::NAN, 1e7] {
            assert!(Demand { base_paths, steps: 1 }.check().is_err());
        }
        assert!(Demand { base_paths: 1.0, steps: 0 }.check().is_err());
    }
}
