//! A lower bound on the energy of any dispatcher that does not know the work of requests.
//!
//! Request Clairvoyant knows how long each request is. Other dispatchers see only the age of
//! a request and the work done. The bound here leaves out every cost but that of not knowing:
//!
//! - There is a free core of every type whenever one is wanted.
//! - A move costs its energy and no time.
//! - All requests meet the mean pace, 1/(1 + x (M + s - 1)) at their own speed s. M,
//!   the mean sum of the others' speeds, is taken as if all ran slow: the offered
//!   work r over their pace, so that 1 + x M = 1/(1 - x r). Fluctuations of the
//!   pace average out to second order.
//!
//! All that distinguishes unfinished requests is age and work done.
//! The optimum is therefore a dynamic programme over these two
//! and its core's type, backwards from the target: in each step it may run on
//! any type, in any order, or wait; beyond the target it is late and runs
//! on the type with the least energy. Late answers have a price, and the bound is
//!
//! ```text
//! max over prices of (least mean energy + price x late share) - price x allowed share
//! ```
//!
//! which by weak duality no mixture of plans undercuts that keeps the share.
//! The steps are [`STEP_MS`]; twice as fine changes the bound by less than
//! 0.5 % (tested). For Lucene's demand the bound equals the closed form of one threshold
//! (tested): slow first, fast at the last moment, slow again after the target. Running fast
//! last is optimal for any demand, because fewer requests are left to run fast.

use lull_control::dispatcher::CoreSpeed;
use lull_measure::{Nanos, Percentile};
use lull_sim::dispatch::{DispatchModel, top_speeds};
use lull_sim::model::{Distribution, Shape};
use statrs::distribution::{ContinuousCDF, Gamma};

/// Length of a step of age and of a cell of work, in ms.
const STEP_MS: f64 = 1.0;
/// Work beyond this many means is neglected (for gamma, less than 1e-11 of all).
const MOST_MEANS: f64 = 16.0;
/// Thirds by which the interval of prices is cut down: to 1e-7 of it.
const CUTS: usize = 40;

/// A demand as the programme needs it, on a grid of work.
struct Demand {
    cell_ms: f64,
    /// Share of requests with more work than this cell's.
    over: Vec<f64>,
    /// Mean work beyond it, those without any counted.
    beyond_ms: Vec<f64>,
}

/// The actions that one request may take, and their costs.
struct Programme<'a> {
    types: &'a [CoreSpeed],
    demand: &'a Demand,
    /// Indexed by type: the share of its core's speed that a request gets there.
    paces: Vec<f64>,
    target_ms: f64,
    step_ms: f64,
    move_ms: f64,
}

/// The bound for a machine at a load, in millijoules a request, static power
/// included; `None` for a demand that is not gamma.
pub(super) fn least_mj(
    model: &DispatchModel,
    work: Distribution,
    target: Nanos,
    percentile: Percentile,
    rate_per_s: f64,
) -> Option<f64> {
    let ladder = model.ladder().ok()?;
    let demand = Demand::gamma(work, STEP_MS)?;
    let programme = Programme {
        types: ladder.types(),
        demand: &demand,
        paces: ladder.types().iter().map(|one| pace(model, work, rate_per_s, one.speed)).collect(),
        target_ms: target.as_millis_f64(),
        step_ms: STEP_MS,
        move_ms: model.move_cost.as_millis_f64(),
    };
    let static_mj = 1e3 * model.static_watts.0 * top_speeds(&ladder) / rate_per_s;
    Some(programme.bound_mj(1.0 - percentile.fraction()) + static_mj)
}

/// Returns the rate of progress of a request at this speed, beside the mean of the others.
fn pace(model: &DispatchModel, work: Distribution, rate_per_s: f64, speed: f64) -> f64 {
    let others = 1.0 - model.interference * rate_per_s * work.mean.as_secs_f64();
    1.0 / (1.0 / others + model.interference * (speed - 1.0))
}

impl Demand {
    fn gamma(work: Distribution, cell_ms: f64) -> Option<Self> {
        let Shape::Gamma { cv2 } = work.shape else { return None };
        let mean_ms = work.mean.as_millis_f64();
        let gamma = Gamma::new(1.0 / cv2, 1.0 / (cv2 * mean_ms)).ok()?;
        let cells = (MOST_MEANS * mean_ms / cell_ms) as usize;
        Some(Self::from_survival(cells, cell_ms, |work_ms| gamma.sf(work_ms)))
    }

    /// Simpson's rule in each cell, summed from the far end.
    fn from_survival(cells: usize, cell_ms: f64, over: impl Fn(f64) -> f64) -> Self {
        let at = |cell: usize| cell as f64 * cell_ms;
        let mut beyond_ms = vec![0.0; cells];
        for cell in (0..cells - 1).rev() {
            let middle = over(at(cell) + 0.5 * cell_ms);
            let sum = over(at(cell)) + 4.0 * middle + over(at(cell + 1));
            beyond_ms[cell] = beyond_ms[cell + 1] + sum * cell_ms / 6.0;
        }
        Self { cell_ms, over: (0..cells).map(|cell| over(at(cell))).collect(), beyond_ms }
    }
}

impl Programme<'_> {
    /// The best price gives the bound.
    fn bound_mj(&self, allowed: f64) -> f64 {
        let value = |price_mj: f64| self.value_mj(price_mj) - price_mj * allowed;
        // The price of a late answer never exceeds the cost of all work on the dearest type.
        let dearest = self.mj_per_ms().fold(0.0, f64::max);
        let most = dearest * self.demand.beyond_ms[0] / allowed;
        let (mut low, mut high) = (0.0, most);
        for _ in 0..CUTS {
            let third = (high - low) / 3.0;
            // The value is concave in the price.
            if value(low + third) < value(high - third) { low += third } else { high -= third }
        }
        value(0.5 * (low + high))
    }

    /// Energy of work on each type.
    fn mj_per_ms(&self) -> impl Iterator<Item = f64> {
        let each = self.types.iter().zip(&self.paces);
        each.map(|(one, pace)| one.watts.0 / (one.speed * pace))
    }

    /// Least mean of energy and price, at age 0 and without work done.
    fn value_mj(&self, price_mj: f64) -> f64 {
        let cheapest = self.mj_per_ms().fold(f64::MAX, f64::min);
        let demand = self.demand;
        let late = demand.over.iter().zip(&demand.beyond_ms);
        let late: Vec<f64> =
            late.map(|(over, beyond_ms)| over * price_mj + cheapest * beyond_ms).collect();
        let mut next = vec![late; self.types.len()];
        let steps = (self.target_ms / self.step_ms).round() as usize;
        for step in (0..steps).rev() {
            next = self.step_back(&next, step);
        }
        next.iter().map(|of_type| of_type[0]).fold(f64::MAX, f64::min)
    }

    /// Values a step earlier, for as much work as can be done by then.
    fn step_back(&self, next: &[Vec<f64>], step: usize) -> Vec<Vec<f64>> {
        let run: Vec<Vec<f64>> =
            (0..self.types.len()).map(|to| self.run(&next[to], to, step)).collect();
        let best = |from: usize| {
            let cell = |cell: usize| {
                let to = |(to, run): (usize, &Vec<f64>)| run[cell] + self.moved_mj(from, to, cell);
                run.iter().enumerate().map(to).fold(next[from][cell], f64::min)
            };
            (0..run[0].len()).map(cell).collect()
        };
        (0..self.types.len()).map(best).collect()
    }

    /// Values of running on a type for the next step.
    fn run(&self, next: &[f64], to: usize, step: usize) -> Vec<f64> {
        let speed = self.types[to].speed * self.paces[to];
        let per_ms = self.types[to].watts.0 / speed;
        let ahead = speed * self.step_ms / self.demand.cell_ms;
        let (whole, part) = (ahead as usize, ahead.fract());
        let between = |of: &[f64], cell: usize| {
            let (left, right) = (of[cell + whole], of[(cell + whole + 1).min(of.len() - 1)]);
            left + part * (right - left)
        };
        let beyond_ms = &self.demand.beyond_ms;
        let value = |cell: usize| {
            per_ms * (beyond_ms[cell] - between(beyond_ms, cell)) + between(next, cell)
        };
        (0..self.reach(step)).map(value).collect()
    }

    /// Cells that work can have come to by a step, on the fastest type.
    fn reach(&self, step: usize) -> usize {
        let fastest = self.types.iter().map(|one| one.speed).fold(0.0, f64::max);
        let cells = step as f64 * self.step_ms * fastest / self.demand.cell_ms;
        cells.ceil() as usize + 1
    }

    /// Energy of a move, times the share of requests that are unfinished.
    fn moved_mj(&self, from: usize, to: usize, cell: usize) -> f64 {
        let watts = if from == to { 0.0 } else { self.types[to].watts.0 };
        watts * self.move_ms * self.demand.over[cell]
    }
}

#[cfg(test)]
mod tests {
    use super::super::system::{DispatchBench, scenario, unlimited};
    use super::*;
    use crate::experiment::Setup;

    fn types() -> Vec<CoreSpeed> {
        vec![CoreSpeed::new("slow", 1.0, 1.0), CoreSpeed::new("fast", 2.0, 6.8)]
    }

    fn bound_mj(demand: &Demand, (pace, target_ms, step_ms): (f64, f64, f64)) -> f64 {
        let types = types();
        let move_ms = 0.0;
        let paces = vec![pace; types.len()];
        let programme = Programme { types: &types, demand, paces, target_ms, step_ms, move_ms };
        programme.bound_mj(0.01)
    }

    /// Slow until 2 T - q/pace, fast until T, then slow.
    fn one_threshold_mj(demand: &Demand, pace: f64, target_ms: f64) -> f64 {
        let at = |values: &[f64], work_ms: f64| values[(work_ms / demand.cell_ms).round() as usize];
        let tail = demand.over.iter().position(|over| *over <= 0.01).unwrap();
        let tail_ms = tail as f64 * demand.cell_ms;
        let slow_ms = pace * (2.0 * target_ms - tail_ms / pace);
        let fast_ms = at(&demand.beyond_ms, slow_ms) - at(&demand.beyond_ms, tail_ms);
        (demand.beyond_ms[0] + 2.4 * fast_ms) / pace
    }

    #[test]
    fn for_lucene_the_bound_is_the_closed_form_of_one_threshold() {
        let fine = Demand::gamma(scenario().lucene, 0.5).unwrap();
        for pace in [1.0, 0.95] {
            let (bound, exact) =
                (bound_mj(&fine, (pace, 200.0, 0.5)), one_threshold_mj(&fine, pace, 200.0));
            assert!((bound / exact - 1.0).abs() < 5e-3, "pace {pace}: {bound} {exact}");
            let coarse = Demand::gamma(scenario().lucene, STEP_MS).unwrap();
            let coarse = bound_mj(&coarse, (pace, 200.0, STEP_MS));
            assert!((coarse / bound - 1.0).abs() < 5e-3, "pace {pace}: {coarse} {bound}");
        }
    }

    #[test]
    fn those_who_will_be_late_in_any_case_cost_no_speed() {
        // 99 of 100 take up to 40 ms, the rest 10 s: they are the ones that may be late.
        let over = |work_ms: f64| if work_ms < 40.0 { 1.0 - 0.99 * work_ms / 40.0 } else { 0.01 };
        let demand = Demand::from_survival(10_000, 1.0, over);
        let loose = bound_mj(&demand, (1.0, 200.0, 1.0));
        let slow = demand.beyond_ms[0];
        assert!((loose / slow - 1.0).abs() < 1e-3, "no request needs speed: {loose} {slow}");
        let tight = bound_mj(&demand, (1.0, 30.0, 1.0));
        assert!(tight > slow && tight < 1.5 * slow, "only the short are sped up: {tight} {slow}");
    }

    #[test]
    fn no_blind_dispatcher_undercuts_the_bound_even_with_a_fast_core_for_everybody() {
        let scenario = scenario();
        let setup = Setup { quick: true, ..Setup::new("test") };
        let bench = DispatchBench::new(&setup, scenario.lucene_target);
        for rate_per_s in [25.0, 80.0] {
            let (lucene, target) = (scenario.lucene, scenario.lucene_target);
            let bound =
                least_mj(&scenario.default_amp(), lucene, target, Percentile::P99, rate_per_s)
                    .unwrap();
            let free = bench.cell(&unlimited(&scenario), "just-in-time", "", rate_per_s).unwrap();
            // The samples of a quick run have a mean of their own.
            let ratio = free.energy().mean / bound;
            assert!((0.97..1.06).contains(&ratio), "{rate_per_s}: {ratio}");
        }
    }
}
