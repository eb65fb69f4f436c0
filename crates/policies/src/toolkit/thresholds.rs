//! Migration thresholds for low load: least energy with the tail on target.
//!
//! EETL (Haque et al., MICRO-50), figure 5. A request runs for v_1 on the slowest
//! type, then for v_2 on the next, and so on. With W_i the work done by the end
//! of stage i, c_i the energy of a unit of work on type i and S(w) the share of
//! requests with more work than w, mean energy and run time of work q are
//!
//! ```text
//! energy = c_N G(inf) - sum (c_{i+1} - c_i) G(W_i),   G(W) = integral of S from 0 to W
//! time(q) = q/s_N + sum (1/s_i - 1/s_{i+1}) W_i       for W_i <= q
//! ```
//!
//! G is concave and, for a profile of measured requests, piecewise linear. So
//! the least energy with the β-tail q of the profile on target is a linear
//! programme in W (the "equivalent convex problem" that the paper does not
//! print). G has a piece a request, thousands of them; only its tangents near
//! the optimum matter, and they are added one by one (Kelley's cutting planes),
//! which ends exactly, since the pieces are finite.
//!
//! The printed case split `v_1 < slow_r <= v_1 + v_2` takes v_2 for work; the
//! second stage ends at work v_1 + s_2 v_2. Here v are wall times.
//!
//! Types faster than some m may go unused: beyond the tail request speed buys
//! nothing, so W_m jumps from q to infinity. Each m is solved, the best is taken.

use lull_control::dispatcher::{DispatcherError, Ladder, samples_needed};
use lull_measure::{Nanos, Percentile};
use microlp::{ComparisonOp, OptimizationDirection, Problem, Solution, SolveOutcome, Variable};

/// Tangents that may be added before the search is given up; a few dozen are
/// what profiles of thousands of requests took.
const MOST_CUTS: usize = 1000;

/// The work of many requests, sorted, in milliseconds at speed 1.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    work_ms: Vec<f64>,
    /// Sums of the smallest.
    sums_ms: Vec<f64>,
}

/// Thresholds with their expected results at low load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Thresholds {
    /// Ages at which a request moves up, by type from the second; [`Nanos::MAX`]: never.
    pub(crate) ages: Vec<Nanos>,
    /// Work at which the stages end, in ms at speed 1; infinite: never.
    pub(crate) ends_ms: Vec<f64>,
    /// Mean energy a request, in millijoules (power times milliseconds).
    pub(crate) energy_mj: f64,
}

impl Profile {
    /// Sorts a profile and checks that it is large enough for the percentile.
    ///
    /// # Errors
    /// If there are too few requests, or one without work.
    pub(crate) fn new(work: &[Nanos], percentile: Percentile) -> Result<Self, DispatcherError> {
        let needed = samples_needed(percentile);
        if work.len() < needed {
            return Err(DispatcherError::Profile { found: work.len(), needed, percentile });
        }
        Ok(Self::sorted(work))
    }

    fn sorted(work: &[Nanos]) -> Self {
        let mut work_ms: Vec<f64> = work.iter().map(|one| one.as_millis_f64()).collect();
        work_ms.sort_unstable_by(f64::total_cmp);
        let mut sums_ms = vec![0.0];
        for (index, work) in work_ms.iter().enumerate() {
            sums_ms.push(sums_ms[index] + work);
        }
        Self { work_ms, sums_ms }
    }

    /// The work that this share of the requests does not exceed, in ms.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let count = self.work_ms.len();
        let place = (share * count as f64 - 1e-9).ceil().max(1.0) as usize;
        self.work_ms[place.min(count) - 1]
    }

    /// G: mean over requests of their work below `limit_ms`.
    fn below(&self, limit_ms: f64) -> f64 {
        let shorter = self.work_ms.partition_point(|work| *work <= limit_ms);
        let count = self.work_ms.len();
        // Infinity times the number of longer requests would be NaN at 0.
        let longer = if shorter < count { (count - shorter) as f64 * limit_ms } else { 0.0 };
        (self.sums_ms[shorter] + longer) / count as f64
    }

    /// Slopes of G left and right of a place: the shares of requests with at
    /// least, and with more than, this work.
    fn slopes(&self, at_ms: f64) -> [f64; 2] {
        let count = self.work_ms.len();
        let share = |shorter: usize| (count - shorter) as f64 / count as f64;
        [
            share(self.work_ms.partition_point(|work| *work < at_ms)),
            share(self.work_ms.partition_point(|work| *work <= at_ms)),
        ]
    }

    /// Quantile of the work left to requests that have done `done_ms`.
    pub(crate) fn left_ms(&self, done_ms: f64, share: f64) -> f64 {
        let shorter = self.work_ms.partition_point(|work| *work <= done_ms);
        let longer = &self.work_ms[shorter..];
        let place = (share * longer.len() as f64 - 1e-9).ceil().max(1.0) as usize;
        longer.get(place - 1).map_or(0.0, |work| work - done_ms)
    }

    /// Mean work beyond a place of those requests that get there; 0 beyond all.
    pub(crate) fn excess_ms(&self, beyond_ms: f64) -> f64 {
        let longer = self.slopes(beyond_ms)[1];
        if longer == 0.0 {
            return 0.0;
        }
        (self.below(f64::INFINITY) - self.below(beyond_ms)) / longer
    }

    /// Mean energy where stage i ends at work `ends_ms[i]`; the last type has no end.
    fn energy_mj(&self, ladder: &Ladder, ends_ms: &[f64]) -> f64 {
        let cost = |kind| ladder.joules_per_work_s(kind);
        let last = ladder.types().len() - 1;
        let all = cost(last) * self.below(f64::INFINITY);
        let saved = ends_ms.iter().enumerate();
        all - saved.map(|(kind, end)| (cost(kind + 1) - cost(kind)) * self.below(*end)).sum::<f64>()
    }
}

/// The thresholds of least energy that keep the percentile on target without
/// queueing.
///
/// # Errors
/// If the fastest type misses the target, with the best that can be reached.
pub(crate) fn solve(
    profile: &Profile,
    ladder: &Ladder,
    percentile: Percentile,
    target: Nanos,
) -> Result<Thresholds, DispatcherError> {
    let tail_ms = profile.quantile_ms(percentile.fraction());
    let fastest = ladder.fastest();
    let best_ms = tail_ms / ladder.types()[fastest].speed;
    if best_ms > target.as_millis_f64() {
        let best = Nanos::from_secs_f64(best_ms / 1e3);
        return Err(DispatcherError::Unreachable { target, best, percentile });
    }
    let mut found: Option<(Vec<f64>, f64)> = None;
    for last in 0..=fastest {
        let Some(ends_ms) = ends_below(profile, ladder, last, (tail_ms, target.as_millis_f64()))?
        else {
            continue;
        };
        let energy_mj = profile.energy_mj(ladder, &ends_ms);
        if found.as_ref().is_none_or(|(_, least)| energy_mj < *least) {
            found = Some((ends_ms, energy_mj));
        }
    }
    let (ends_ms, energy_mj) = found.ok_or_else(|| unsolved("no type meets the target"))?;
    Ok(Thresholds { ages: ages(ladder, &ends_ms), ends_ms, energy_mj })
}

fn unsolved(why: &str) -> DispatcherError {
    DispatcherError::Unsolved(why.to_owned())
}

/// A programme without limits is solved or it is not.
fn solved(outcome: Result<SolveOutcome, microlp::Error>) -> Result<Solution, DispatcherError> {
    match outcome.map_err(|error| unsolved(&error.to_string()))? {
        SolveOutcome::Solution(solution) => Ok(solution),
        SolveOutcome::Interrupted(_) => Err(unsolved("the solver was interrupted")),
    }
}

/// Ends of the stages, in work, if types above `last` are not used; `None`
/// where that misses the target.
fn ends_below(
    profile: &Profile,
    ladder: &Ladder,
    last: usize,
    (tail_ms, target_ms): (f64, f64),
) -> Result<Option<Vec<f64>>, DispatcherError> {
    let types = ladder.types();
    let room_ms = target_ms - tail_ms / types[last].speed;
    if room_ms < 0.0 {
        return Ok(None);
    }
    let mut ends_ms = vec![f64::INFINITY; types.len() - 1];
    if last == 0 {
        return Ok(Some(ends_ms));
    }
    let mut cuts = Cuts::new(profile, ladder, last, (tail_ms, room_ms))?;
    ends_ms[..last].copy_from_slice(&cuts.optimum()?);
    Ok(Some(ends_ms))
}

/// The linear programme, tangent by tangent.
struct Cuts<'a> {
    profile: &'a Profile,
    solution: Solution,
    /// W_i, and the variables for G(W_i).
    ends: Vec<Variable>,
    saved: Vec<Variable>,
    weights: Vec<f64>,
}

impl<'a> Cuts<'a> {
    fn new(
        profile: &'a Profile,
        ladder: &Ladder,
        last: usize,
        (tail_ms, room_ms): (f64, f64),
    ) -> Result<Self, DispatcherError> {
        let speed = |kind: usize| ladder.types()[kind].speed;
        let cost = |kind| ladder.joules_per_work_s(kind);
        // A faster type that also uses less energy makes the slower one useless.
        let dearer = |kind: usize| (cost(kind + 1) - cost(kind)).max(0.0);
        let weights: Vec<f64> = (0..last).map(dearer).collect();
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let ends: Vec<_> = (0..last).map(|_| problem.add_var(0.0, (0.0, tail_ms))).collect();
        let most = profile.below(tail_ms);
        let saved: Vec<_> =
            weights.iter().map(|weight| problem.add_var(*weight, (0.0, most))).collect();
        let slower = |kind: usize| 1.0 / speed(kind) - 1.0 / speed(kind + 1);
        let spent: Vec<_> = ends.iter().enumerate().map(|(k, end)| (*end, slower(k))).collect();
        problem.add_constraint(spent.as_slice(), ComparisonOp::Le, room_ms);
        for pair in ends.windows(2) {
            let order = [(pair[0], 1.0), (pair[1], -1.0)];
            problem.add_constraint(order.as_slice(), ComparisonOp::Le, 0.0);
        }
        let solution = solved(problem.solve())?;
        Ok(Self { profile, solution, ends, saved, weights })
    }

    /// Adds tangents where the programme thinks too well of G, until it is right.
    fn optimum(&mut self) -> Result<Vec<f64>, DispatcherError> {
        for _ in 0..MOST_CUTS {
            let ends: Vec<f64> = self.ends.iter().map(|end| self.solution[*end]).collect();
            let mut excess = 0.0;
            for (index, at_ms) in ends.iter().enumerate() {
                let over = self.solution[self.saved[index]] - self.profile.below(*at_ms);
                excess += self.weights[index] * over.max(0.0);
            }
            // A millionth of the energy is ten times what the solver promises.
            if excess <= 1e-6 * self.profile.below(f64::INFINITY) {
                return Ok(ends);
            }
            for (index, at_ms) in ends.iter().enumerate() {
                self.add_tangents(index, *at_ms)?;
            }
        }
        Err(unsolved("the thresholds did not settle"))
    }

    fn add_tangents(&mut self, index: usize, at_ms: f64) -> Result<(), DispatcherError> {
        let value = self.profile.below(at_ms);
        if self.solution[self.saved[index]] <= value {
            return Ok(());
        }
        for slope in self.profile.slopes(at_ms) {
            // saved <= value + slope (W - at)
            let row = [(self.saved[index], 1.0), (self.ends[index], -slope)];
            let bound = value - slope * at_ms;
            let solution = self.solution.clone();
            self.solution = solved(solution.add_constraint(row, ComparisonOp::Le, bound))?;
        }
        Ok(())
    }
}

/// Ages at the ends of stages: wall time is work by speed.
fn ages(ladder: &Ladder, ends_ms: &[f64]) -> Vec<Nanos> {
    let (mut age_ms, mut before_ms) = (0.0, 0.0);
    let mut ages = Vec::with_capacity(ends_ms.len());
    for (kind, end_ms) in ends_ms.iter().enumerate() {
        age_ms += (end_ms - before_ms).max(0.0) / ladder.types()[kind].speed;
        before_ms = *end_ms;
        let never = !age_ms.is_finite();
        ages.push(if never { Nanos::MAX } else { Nanos::from_secs_f64(age_ms / 1e3) });
        if never {
            age_ms = f64::INFINITY;
            before_ms = 0.0;
        }
    }
    ages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::testing::{amp, amp_three, dvfs, gamma_like};
    use proptest::prelude::*;

    const P99: Percentile = Percentile::P99;

    fn ms(values: &[u64]) -> Vec<Nanos> {
        values.iter().map(|value| Nanos::from_millis(*value)).collect()
    }

    /// Run time of a request under thresholds on ends of stages.
    fn time_ms(ladder: &Ladder, ends_ms: &[f64], work_ms: f64) -> f64 {
        let (mut time, mut before) = (0.0, 0.0);
        for (kind, one) in ladder.types().iter().enumerate() {
            let end = ends_ms.get(kind).copied().unwrap_or(f64::INFINITY).min(work_ms);
            time += (end - before).max(0.0) / one.speed;
            before = end.max(before);
        }
        time
    }

    #[test]
    fn two_types_have_the_closed_form() {
        // Spec of the paper's figure: tail 265 ms of work, target 200 ms: 135 ms slow.
        let mut work = ms(&[80; 989]);
        work.extend(ms(&[265; 11]));
        let profile = Profile::new(&work, P99).unwrap();
        let target = Nanos::from_millis(200);
        let found = solve(&profile, &amp(), P99, target).unwrap();
        assert!((found.ages[0].as_millis_f64() - 135.0).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn what_the_slowest_core_can_do_it_does_alone() {
        let profile = Profile::new(&ms(&[100; 1000]), P99).unwrap();
        let found = solve(&profile, &dvfs(), P99, Nanos::from_millis(100)).unwrap();
        assert_eq!(found.ages, [Nanos::MAX; 4]);
        assert!((found.energy_mj - 170.0).abs() < 1e-9, "1.7 W for 100 ms: {found:?}");
    }

    #[test]
    fn a_target_beyond_the_fastest_core_is_refused_with_the_best_there_is() {
        let profile = Profile::new(&ms(&[300; 1000]), P99).unwrap();
        let refused = solve(&profile, &amp(), P99, Nanos::from_millis(149)).unwrap_err();
        let best = Nanos::from_millis(150);
        let target = Nanos::from_millis(149);
        assert_eq!(refused, DispatcherError::Unreachable { target, best, percentile: P99 });
        assert!(refused.to_string().contains("150ms"), "{refused}");
    }

    #[test]
    fn a_tiny_profile_is_refused_with_how_many_are_needed() {
        for work in [vec![], ms(&[10; 499])] {
            let refused = Profile::new(&work, P99).unwrap_err();
            let wanted =
                DispatcherError::Profile { found: work.len(), needed: 500, percentile: P99 };
            assert_eq!(refused, wanted);
        }
    }

    #[test]
    fn three_types_agree_with_a_search_of_all_places() {
        let work = ms(&[3, 7, 11, 16, 22, 29, 37, 46, 56, 67, 79, 92]);
        let (ladder, share) = (amp_three(), Percentile::new(75.0).unwrap());
        let profile = Profile::sorted(&work);
        let tail_ms = profile.quantile_ms(0.75);
        for target_ms in [29.0, 32.0, 38.0, 45.0, 52.0] {
            let target = Nanos::from_secs_f64(target_ms / 1e3);
            let found = solve(&profile, &ladder, share, target).unwrap();
            let mut least = f64::INFINITY;
            let places = || (0..=560).map(|step| f64::from(step) / 10.0).chain([f64::INFINITY]);
            for first in places() {
                for second in places().filter(|second| *second >= first) {
                    let ends = [first, second];
                    if time_ms(&ladder, &ends, tail_ms) <= target_ms + 1e-9 {
                        least = least.min(profile.energy_mj(&ladder, &ends));
                    }
                }
            }
            let ours = found.energy_mj;
            assert!(ours <= least + 1e-6 && ours > 0.99 * least, "{target_ms}: {ours} {least}");
        }
    }

    #[test]
    fn the_papers_size_is_solved_and_ages_rise() {
        let profile = Profile::new(&gamma_like(8000), P99).unwrap();
        let found = solve(&profile, &dvfs(), P99, Nanos::from_millis(200)).unwrap();
        assert!(found.ages.is_sorted() && found.ages[0] > Nanos::ZERO, "{found:?}");
        let fixed = [f64::INFINITY, f64::INFINITY, f64::INFINITY, f64::INFINITY];
        assert!(found.energy_mj > profile.energy_mj(&dvfs(), &fixed));
        assert!(found.energy_mj < profile.energy_mj(&dvfs(), &[0.0; 4]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn no_feasible_thresholds_are_cheaper_and_the_target_is_kept(
            work in prop::collection::vec(1u64..400, 20..200),
            slack in 1.0f64..2.2,
            cuts in prop::collection::vec(0.0f64..1.0, 4),
        ) {
            let (ladder, share) = (dvfs(), Percentile::P95);
            let profile = Profile::sorted(&ms(&work));
            let tail_ms = profile.quantile_ms(0.95);
            let target_ms = slack * tail_ms / 2.0;
            let target = Nanos::from_secs_f64(target_ms / 1e3);
            prop_assume!(target.as_millis_f64() >= tail_ms / 2.0);
            let found = solve(&profile, &ladder, share, target).unwrap();
            let mut time = 0.0;
            let mut done = 0.0;
            let mut before = 0.0;
            for (kind, age) in found.ages.iter().map(|age| age.as_millis_f64()).enumerate() {
                let stage = (age - before) * ladder.types()[kind].speed;
                let part = stage.min(tail_ms - done).max(0.0);
                (done, time, before) =
                    (done + part, time + part / ladder.types()[kind].speed, age);
            }
            time += (tail_ms - done) / 2.0;
            prop_assert!(time <= target_ms + 1e-3, "{time} {target_ms}");
            let mut ends: Vec<f64> = cuts.iter().map(|cut| cut * tail_ms).collect();
            ends.sort_by(f64::total_cmp);
            if time_ms(&ladder, &ends, tail_ms) <= target_ms {
                let theirs = profile.energy_mj(&ladder, &ends);
                prop_assert!(found.energy_mj <= theirs * (1.0 + 1e-6), "{found:?} {theirs}");
            }
        }
    }
}
