//! Dispatchers: tail and power over the load, compared with a fixed age at which requests
//! move up (`tl`).

use super::{PortraitError, SEED};
use crate::figure::{Axis, CurveStyle, Figure, Point};
use crate::trial::estimate_of;
use lull_measure::{Nanos, Percentile};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use lull_sim::dispatch::{DispatchModel, DispatchSimulation};
use serde::Deserialize;

/// The dispatcher that is drawn beside every other.
const BESIDE: &str = "tl";
const BOUND: Nanos = Nanos::from_millis(200);
const WARMUP: Nanos = Nanos::from_secs(200);
const LENGTH: Nanos = Nanos::from_secs(200);
const REPLICATIONS: u64 = 3;
/// Requests of the profile that dispatchers are built from.
const PROFILE: usize = 4000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenes {
    cores: DispatchModel,
    levels: DispatchModel,
}

pub(super) fn panels(dispatcher: &str) -> Result<Vec<Figure>, PortraitError> {
    let scenes: Scenes = toml::from_str(include_str!("dispatch.toml"))
        .map_err(|error| PortraitError::Scene(error.to_string()))?;
    let wants_levels = matches!(dispatcher, "pegasus" | "rubik" | "just-in-time" | "level");
    let (model, machine, loads): (_, _, &[f64]) = if wants_levels {
        (scenes.levels, "four cores of five speeds", &[5.0, 10.0, 15.0, 20.0, 25.0, 30.0])
    } else {
        (scenes.cores, "13 slow and 2 fast cores", &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    };
    let load = || Axis::linear("requests/s");
    let mut tails = Figure::new(
        format!("{dispatcher}: p99 latency over the load, {machine}"),
        load(),
        Axis::linear("p99 (ms)"),
    );
    let mut power = Figure::new("Power over the load", load(), Axis::linear("power (W)"));
    let both = [dispatcher, BESIDE];
    for name in if dispatcher == BESIDE { &both[..1] } else { &both[..] } {
        let curve = curve(name, &model, loads)?;
        let part = |at: usize| curve.iter().map(move |points| points[at]);
        tails = tails.with_curve(*name, CurveStyle::Line, part(0));
        power = power.with_curve(*name, CurveStyle::Line, part(1));
    }
    Ok(vec![tails.mark(BOUND.as_millis_f64(), "bound"), power])
}

/// Tail and power at every load.
fn curve(
    dispatcher: &str,
    model: &DispatchModel,
    loads: &[f64],
) -> Result<Vec<[Point; 2]>, PortraitError> {
    let at = |rate: &f64| {
        let runs =
            (0..REPLICATIONS).map(|replication| measured(dispatcher, model, *rate, replication));
        let runs = runs.collect::<Result<Vec<_>, _>>()?;
        let point = |at: usize| {
            Point::from_estimate(
                *rate,
                &estimate_of(&runs.iter().map(|run| run[at]).collect::<Vec<_>>()),
            )
        };
        Ok([point(0), point(1)])
    };
    loads.iter().map(at).collect()
}

/// Tail in milliseconds and power in watts of one run.
fn measured(
    dispatcher: &str,
    model: &DispatchModel,
    rate_per_s: f64,
    replication: u64,
) -> Result<[f64; 2], PortraitError> {
    let model = model.at_rate(rate_per_s);
    let ladder = model.ladder()?;
    let profile = model.profile(PROFILE, SEED)?;
    let percentile = Percentile::P99;
    let site = Site { ladder: &ladder, percentile, target: BOUND, profile: &profile };
    let built = DISPATCHERS.build(dispatcher, &toml::Table::new(), &site)?;
    let mut node = DispatchSimulation::new(&model, built, SEED, replication)?;
    node.run_until(WARMUP);
    node.forget();
    node.run_until(WARMUP + LENGTH);
    let outcome = node.outcome();
    let tail = outcome.tail(percentile).map_or(f64::NAN, Nanos::as_millis_f64);
    Ok([tail, outcome.energy.0 / outcome.span.as_secs_f64()])
}
