//! Calibrates the number of paths so that requests take a given time on this machine.

use super::price::Walk;
use super::{AsianCall, Demand};
use crate::Generator;
use crate::clock;
use lull_measure::Nanos;
use serde::Serialize;
use std::hint::black_box;

/// The outcome of [`calibrate`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Calibration {
    /// The demand whose median request takes the requested time.
    pub demand: Demand,
    /// Time that one path takes on one core here.
    pub path_ns: f64,
}

/// Rounds of measurement; the fastest counts, since others only slow a round.
const ROUNDS: u32 = 7;
const ROUND_PATHS: u32 = 500;

/// Returns the demand of which half the requests take at most `median` on an
/// undisturbed core. Takes about 20 ms at 252 steps.
pub fn calibrate(median: Nanos, steps: u32, rng: &mut Generator) -> Calibration {
    let path_ns = (0..ROUNDS).map(|_| time_a_path(steps, rng)).fold(f64::INFINITY, f64::min);
    let base_paths = median.0 as f64 / path_ns / Demand::median_length(rng);
    // Where even the shortest request takes longer than `median`, the result is that one.
    Calibration { demand: Demand { base_paths: base_paths.clamp(0.01, 1e6), steps }, path_ns }
}

fn time_a_path(steps: u32, rng: &mut Generator) -> f64 {
    let call = AsianCall { steps, ..Demand::default().draw(rng) };
    let mut walk = Walk::new(&call);
    let start = clock::now();
    for _ in 0..ROUND_PATHS {
        black_box(walk.mean(black_box(&call)));
    }
    clock::now().saturating_sub(start).0.max(1) as f64 / f64::from(ROUND_PATHS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rng;

    #[test]
    fn longer_requests_need_more_paths() {
        let long = calibrate(Nanos::from_millis(20), 252, &mut rng(1));
        let short = calibrate(Nanos::from_micros(200), 252, &mut rng(1));
        assert!(long.demand.base_paths > short.demand.base_paths);
        assert!(long.demand.check().is_ok() && short.demand.check().is_ok());
    }
}
