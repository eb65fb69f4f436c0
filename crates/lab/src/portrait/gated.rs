//! Admission controllers: tail and power over the number of connections of a database
//! with more threads than cores, compared with the server alone (`open`).

use super::{PortraitError, SEED};
use crate::figure::{Axis, CurveStyle, Figure, Point};
use crate::papers::socc_2025_reef::mongo_with_connections;
use lull_control::Objective;
use lull_measure::compliance::Patience;
use lull_measure::{Latency, Nanos, Percentile};
use lull_policies::ADMISSION_CONTROLLERS;
use lull_policies::admission::Site;
use lull_sim::oversubscribed::{ConnectionClass, GatedTotals, OversubscribedModel};
use lull_sim::{Replication, RunLength};
use rayon::prelude::*;

/// The admission controller that is drawn beside every other.
const BESIDE: &str = "open";
const CONNECTIONS: [u32; 5] = [32, 64, 128, 256, 512];
/// Long enough for admission controllers that search for their cap.
const WARMUP: Nanos = Nanos::from_secs(12);
/// The same for `auto`, whose surveys of C and then of N end after 26 s here with 32 connections.
/// Until then the latency is that of every setting that it tries.
const SURVEYS: Nanos = Nanos::from_secs(60);
const LENGTH: Nanos = Nanos::from_secs(4);

/// Keys as the lab's own table of admission controllers has them.
fn config(admission: &str) -> &'static str {
    match admission {
        "reef" => "batch = 2\nwindow = \"500ms\"",
        "apples" => "window = \"500ms\"",
        _ => "",
    }
}

/// Connections to which a promise is made, the rest are best effort.
const PROMISED: u32 = 16;

/// Returns the objective under an admission controller that keeps objectives: a p99 of 40 ms, or
/// that one user in a thousand is driven away (REEF, SoCC 2025, sections 5.2 and 5.3).
fn promise(admission: &str) -> Option<Objective> {
    let bound = Nanos::from_millis(40);
    match admission {
        "pslo" => Some(Objective::Tail { percentile: Percentile::P99, bound }),
        "utslo" => Some(Objective::Disengagement { ratio: 0.001 }),
        _ => None,
    }
}

/// The server with this many connections, and what some of them are promised.
fn scene(promise: Option<Objective>, connections: u32) -> OversubscribedModel {
    let mut model = mongo_with_connections(connections);
    if promise.is_some() {
        let rest =
            ConnectionClass { connections: connections - PROMISED, ..model.class[0].clone() };
        let few = ConnectionClass {
            name: "promised".to_owned(),
            connections: PROMISED,
            objective: promise,
        };
        model.class = vec![few, rest];
    }
    model
}

/// One curve of a panel: its value of one run.
type Value = fn(&GatedTotals) -> f64;

/// Panels with the axis and the value of each.
fn views(admission: &str) -> [(String, Axis, Value); 3] {
    let power: Value = |served| served.power().0;
    let power = ("Power".to_owned(), Axis::linear("power (W)"), power);
    let Some(promise) = promise(admission) else {
        let title =
            format!("{admission}: p99 latency over the connections, each a thread of the server");
        let all: Value = GatedTotals::throughput_per_s;
        let rate = ("Throughput".to_owned(), Axis::linear("queries/s"), all);
        return [(title, Axis::log("p99 (ms)"), |served| p99_ms(&served.latency())), power, rate];
    };
    let rest: Value = |served| served.class_per_s(1);
    let rate = ("Throughput of the others".to_owned(), Axis::linear("queries/s"), rest);
    let kept: (String, Axis, Value) = match promise {
        Objective::Disengagement { .. } => (
            format!("{admission}: users driven away of {PROMISED} that are promised 0.1 %"),
            Axis::linear("users driven away (%)"),
            |served| 100.0 * Patience::OURS.ratio(&served.classes[0]).unwrap_or(f64::NAN),
        ),
        _ => (
            format!("{admission}: p99 of {PROMISED} connections that are promised 40 ms"),
            Axis::log("p99 (ms)"),
            |served| p99_ms(&served.classes[0]),
        ),
    };
    [kept, power, rate]
}

fn p99_ms(latency: &Latency) -> f64 {
    latency.quantile(Percentile::P99).map_or(f64::NAN, Nanos::as_millis_f64)
}

pub(super) fn panels(admission: &str) -> Result<Vec<Figure>, PortraitError> {
    let both = [admission, BESIDE];
    let names = if admission == BESIDE { &both[..1] } else { &both[..] };
    let all = names.iter().map(|name| over_connections(name, promise(admission)));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let panel = |(title, axis, value): (String, Axis, Value)| {
        let connections = Axis::log("connections").ticks(CONNECTIONS.map(f64::from));
        let empty = Figure::new(title, connections, axis);
        names.iter().zip(&all).fold(empty, |figure, (name, curve)| {
            let points = curve.iter().map(|(x, served)| Point::at(*x, value(served)));
            figure.with_curve(*name, CurveStyle::Line, points)
        })
    };
    Ok(views(admission).map(panel).into())
}

/// Runs of one admission controller, by number of connections.
fn over_connections(
    admission: &str,
    promise: Option<Objective>,
) -> Result<Vec<(f64, GatedTotals)>, PortraitError> {
    let one = |connections: &u32| {
        let model = scene(promise, *connections);
        Ok((f64::from(*connections), measured(admission, &model)?))
    };
    let all: Vec<Result<_, PortraitError>> = CONNECTIONS.par_iter().map(one).collect();
    all.into_iter().collect()
}

fn measured(admission: &str, model: &OversubscribedModel) -> Result<GatedTotals, PortraitError> {
    let objectives = model.objectives();
    // One core is left to the system.
    let site = Site::new(&objectives, model.cores.max(2) - 1);
    let config: toml::Table = config(admission).parse().expect("configs of portraits are TOML");
    let built = ADMISSION_CONTROLLERS.build(admission, &config, &site)?;
    let warmup = if admission == "auto" { SURVEYS } else { WARMUP };
    Ok(model.measure(
        built,
        Replication { seed: SEED, number: 0 },
        RunLength { warmup, counted: LENGTH },
    )?)
}
