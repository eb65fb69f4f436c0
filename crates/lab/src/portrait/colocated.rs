//! Policies of cores, ways and priority: two servers and best-effort work on
//! one machine, the load of one server jumping at 60 s and back at 120 s.

use super::trace::{Source, follow};
use super::{PortraitError, SEED};
use crate::figure::{Axis, Figure, Look};
use crate::scenario::{Choice, Colocated, ColocatedFile};
use lull_measure::Nanos;
use lull_measure::catalogue::{APP_CORES, Metric, PROGRESS, TAIL_LATENCY};
use lull_sim::node::NodePlant;

const EPOCH: Nanos = Nanos::from_millis(500);
const EPOCHS: usize = 360;
/// Epochs per drawn point of a tail.
const EVERY: usize = 4;

/// Keys without which a policy would do nothing here, or all else hide it.
fn config(policy: &str) -> &'static str {
    match policy {
        "rr" => "order = [\"xapian\", \"img-dnn\"]",
        _ => "",
    }
}

pub(super) fn panels(policy: &str) -> Result<Vec<Figure>, PortraitError> {
    let file: ColocatedFile = toml::from_str(include_str!("colocated.toml"))
        .map_err(|error| PortraitError::Scene(error.to_string()))?;
    let scene = Colocated::new(file, &Choice::default())
        .map_err(|error| PortraitError::Scene(error.to_string()))?
        .into_scene();
    let plant = NodePlant::new(&scene.model, &scene.apps, SEED, 0)
        .map_err(|error| PortraitError::Scene(error.to_string()))?;
    let trace = follow(plant, (policy, config(policy)), (EPOCH, EPOCHS))?;
    let time = || Axis::linear("time (s)");
    let mut tails = Figure::new(
        format!("{policy}: p95 latency; the load of xapian is 3.4 times as high from 60 to 120 s"),
        time(),
        Axis::log("p95 over its bound"),
    );
    let mut cores = Figure::new(
        "Cores that each may use",
        time(),
        Axis::linear("cores").ticks((0..=6).map(f64::from)).between(0.0, 6.3),
    );
    for spec in &scene.apps {
        let of = |metric: &'static Metric, factor| Source { metric, label: &spec.name, factor };
        if let Some((_, bound)) = spec.tail() {
            let source = of(TAIL_LATENCY, 1.0 / bound.as_secs_f64());
            tails = trace.on(tails, &spec.name, (source, EVERY), Look::Trace);
        }
        cores = trace.on(cores, &spec.name, (of(APP_CORES, 1.0), 2), Look::Steps);
    }
    let solo = scene.apps.last().and_then(|spec| spec.solo_per_s).unwrap_or(1.0);
    let progress = Source { metric: PROGRESS, label: "stream", factor: 100.0 / solo };
    let work = Figure::new(
        "Progress of stream, of that alone",
        time(),
        Axis::linear("progress (%)").between(0.0, 100.0),
    );
    let work = trace.on(work, "stream", (progress, EVERY), Look::Trace);
    Ok(vec![tails.mark(1.0, "bound"), cores, work])
}
