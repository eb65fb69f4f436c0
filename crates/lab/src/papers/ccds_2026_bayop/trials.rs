//! A search of thirty trials on a server's coarse grid (section 5.2.1), and its result.

use super::system::{Objective, space};
use crate::prelude::*;
use crate::server::{Cell, Grid, Run, ServerSetting, measure};
use lull_control::Rng;
use lull_measure::{Latency, Nanos};
use lull_policies::search::{Method, Place, Reading, Rules, Search, Space};
use lull_sim::ModelError;
use lull_sim::netserver::NetServerModel;
use rand::SeedableRng;

/// Delays of the authors' script, and none.
const DELAYS_US: [f64; 12] =
    [0.0, 2.0, 4.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 200.0, 300.0, 400.0];
/// Trials of a search (section 5.2.1).
pub(super) const TRIALS: usize = 30;

/// The result of a search.
pub(super) struct Found {
    pub(super) place: Place,
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

/// Thirty trials for an objective.
pub(super) fn rules(method: Method, objective: Objective) -> Rules {
    let allowed = 1.0 - objective.percentile / 100.0;
    Rules { allowed, ..Rules::new(method, objective.bound_us, TRIALS) }
}

/// Searches; `trial` reads a place, with the search's own random numbers if it needs some.
///
/// # Errors
/// The first error of a trial.
pub(super) fn search<E>(
    space: &Space,
    rules: Rules,
    seed: u64,
    mut trial: impl FnMut(&Place, &mut Rng) -> Result<Reading, E>,
) -> Result<Found, E> {
    let mut search = Search::new(space.clone(), rules);
    let mut rng = Rng::seed_from_u64(seed);
    let (mut watts, mut trials) = (0.0, 0.0);
    while let Some(next) = search.ask(&mut rng) {
        let came = trial(&next.place, &mut rng)?;
        watts += came.watts;
        trials += 1.0;
        search.tell(next.place, Ok(came));
    }
    let place = search.choice().map_or_else(|| space.fastest(), |choice| choice.place);
    Ok(Found { place, watts: watts / trials, harm: search.harm() })
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
