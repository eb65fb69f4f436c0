//! A search of thirty trials on a server's coarse grid (section 5.2.1), and its result.

use super::system::{Objective, space};
use crate::prelude::*;
use crate::server::{Cell, Grid, Run, ServerSetting, measure};
use lull_control::Rng;
use lull_measure::{Latency, Nanos};
use lull_policies::search::{Method, Reading, Rules, Search, SearchPoint, Space};
use lull_sim::ModelError;
use lull_sim::netserver::{MachineSimulation, NetServerModel};
use rand::SeedableRng;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Delays of the authors' script, and none.
const DELAYS_US: [f64; 12] =
    [0.0, 2.0, 4.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 200.0, 300.0, 400.0];
/// Trials of a search (section 5.2.1).
pub(super) const TRIALS: usize = 30;
/// Probability that one more trial meets the bound that a setting needs to be held for long. The
/// usual 0.95 is that of one trial: of 24 hours, one would miss the bound.
const HELD_FLOOR: f64 = 0.99;

/// The result of a search.
pub(super) struct Found {
    pub(super) point: SearchPoint,
    /// Mean power of its trials, in watts.
    pub(super) watts: f64,
    /// Share of their requests that were late.
    pub(super) harm: f64,
}

/// The pairs that are searched.
///
/// # Errors
/// If the model cannot be simulated.
pub(super) fn grid(model: &NetServerModel) -> Result<Grid, LabError> {
    Ok(Grid { space: space(model)?, delays_us: Some(DELAYS_US.into()), frequencies_ghz: None })
}

/// Returns every pair that can be set; those of the grid if the run is to be quick.
///
/// # Errors
/// If the model cannot be simulated.
pub(super) fn every_pair(setup: &Setup<'_>, model: &NetServerModel) -> Result<Space, LabError> {
    match setup.quick {
        true => Ok(grid(model)?.only()),
        false => space(model),
    }
}

/// Thirty trials for an objective.
pub(super) fn rules(method: Method, objective: Objective) -> Rules {
    let allowed = 1.0 - objective.percentile / 100.0;
    Rules { allowed, ..Rules::new(method, objective.bound_us, TRIALS) }
}

/// Thirty trials for an objective that the chosen setting must meet for long.
pub(super) fn rules_of_hold(method: Method, objective: Objective) -> Rules {
    Rules { final_floor: HELD_FLOOR, ..rules(method, objective) }
}

/// Searches; `trial` reads a point, with the search's own random numbers if it needs some.
///
/// # Errors
/// The first error of a trial.
pub(super) fn search<E>(
    space: &Space,
    rules: Rules,
    seed: u64,
    mut trial: impl FnMut(&SearchPoint, &mut Rng) -> Result<Reading, E>,
) -> Result<Found, E> {
    let mut search = Search::new(space.clone(), rules);
    let mut rng = Rng::seed_from_u64(seed);
    let (mut watts, mut trials) = (0.0, 0.0);
    while let Some(next) = search.ask(&mut rng) {
        let outcome = trial(&next.point, &mut rng)?;
        watts += outcome.watts;
        trials += 1.0;
        search.tell(next.point, Ok(outcome));
    }
    let point = search.choice().map_or_else(|| space.fastest(), |choice| choice.point);
    Ok(Found { point, watts: watts / trials, harm: search.harm() })
}

/// One setting at one load, with all its latencies.
///
/// # Errors
/// If the model cannot be simulated.
pub(super) fn measured(
    model: &NetServerModel,
    rate_per_s: f64,
    setting: ServerSetting,
    run: Run,
) -> Result<(Cell, Latency), ModelError> {
    let totals = measure(model, rate_per_s, setting, run)?;
    let cores = usize::from(model.cores);
    let cell = Cell::from_totals(rate_per_s, setting, &totals, (cores, run.percentile));
    Ok((cell, totals.latency))
}

/// A server at one load for each setting. Each runs on from stretch to stretch, and its
/// connections stay on the cores that they were hashed to.
///
/// No stretch is measured twice: a trial that repeats the random numbers of an earlier one would
/// confirm a setting without being evidence.
pub(super) struct Stretches<'a> {
    model: &'a NetServerModel,
    space: &'a Space,
    rate_per_s: f64,
    run: Run,
    /// Indexed by setting; `None` leaves all to Linux.
    servers: BTreeMap<Option<SearchPoint>, MachineSimulation>,
}

impl<'a> Stretches<'a> {
    /// Creates servers that start with this run's seed and warm-up.
    pub(super) fn new(
        model: &'a NetServerModel,
        space: &'a Space,
        rate_per_s: f64,
        run: Run,
    ) -> Self {
        Self { model, space, rate_per_s, run, servers: BTreeMap::new() }
    }

    /// Measures the next stretch of a setting, with all its latencies.
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub(super) fn next(
        &mut self,
        point: Option<&SearchPoint>,
        length: Nanos,
    ) -> Result<(Cell, Latency), ModelError> {
        let space = self.space;
        let setting =
            point.map_or(ServerSetting::DEFAULT, |point| ServerSetting::from_point(space, point));
        let server = match self.servers.entry(point.cloned()) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let (model, run) = (self.model.at_rate(self.rate_per_s), self.run);
                let mut server = model.simulation(run.seed, run.replication)?;
                setting.apply_to(&model, &mut server);
                server.run_until(run.warmup);
                free.insert(server)
            }
        };
        server.forget();
        server.run_until(server.now() + length);
        let totals = server.event_loop_totals();
        let of = (usize::from(self.model.cores), self.run.percentile);
        let cell = Cell::from_totals(self.rate_per_s, setting, &totals, of);
        Ok((cell, totals.latency))
    }
}

/// A cell as a trial sees it: a server that does not keep up is far over its bound.
pub(super) fn reading(cell: &Cell, latency: &Latency, objective: Objective) -> Reading {
    let bound = Nanos::from_secs_f64(objective.bound_us / 1e6);
    let tail_us = cell.tail_at(objective.percentile);
    let tail_us = if cell.keeps_up() { tail_us } else { tail_us.max(5.0 * objective.bound_us) };
    let unanswered = cell.arrived.saturating_sub(cell.answered);
    let late = latency.count_above(bound) + unanswered;
    let requests = cell.arrived.max(1);
    Reading { tail_us, watts: cell.watts, requests, late, progress_per_s: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_trials_of_a_setting_are_the_same_stretch_and_a_repetition_has_the_same_trials() {
        let (scenario, _) = super::super::system::scenario();
        let model = scenario.linux();
        let space = grid(&model).unwrap().only();
        let (warmup, length) = (Nanos::from_millis(5), Nanos::from_millis(5));
        let percentile = lull_measure::Percentile::P99;
        let run = Run { warmup, length, seed: 1, replication: 0, percentile };
        let play = || -> Vec<(u64, f64)> {
            let mut servers = Stretches::new(&model, &space, 200e3, run);
            let fastest = space.fastest();
            let mut next = |point: Option<&SearchPoint>| {
                let (cell, _) = servers.next(point, length).unwrap();
                (cell.arrived, cell.watts)
            };
            vec![next(Some(&fastest)), next(None), next(Some(&fastest)), next(Some(&fastest))]
        };
        let first = play();
        assert_eq!(first, play());
        assert!(first[0] != first[2] && first[2] != first[3], "{first:?}");
    }
}
