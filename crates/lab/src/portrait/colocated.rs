//! Policies of cores, ways and priority: two servers and best-effort work on
//! one machine, the load of one server jumping at 60 s and back at 120 s.

use super::trace::{MetricCurve, follow};
use super::{PortraitError, SEED};
use crate::figure::{Axis, CurveStyle, Figure};
use crate::scenario::{Choice, Colocated, ColocatedFile};
use lull_measure::Nanos;
use lull_measure::catalogue::{APP_CORES, Metric, PROGRESS, TAIL_LATENCY};
use lull_sim::machine::MachinePlant;

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
    let scene = Colocated::new(file.into(), &Choice::default())
        .map_err(|error| PortraitError::Scene(error.to_string()))?
        .into_scene();
    let plant = MachinePlant::new(&scene.model, &scene.apps, SEED, 0)
        .map_err(|error| PortraitError::Scene(error.to_string()))?;
    let trace = follow(plant, policy, config(policy), EPOCH, EPOCHS)?;
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
        let label = spec.name.as_str();
        let curve =
            |metric: &'static Metric, factor, every| MetricCurve { metric, label, factor, every };
        if let Some((_, bound)) = spec.tail() {
            let over_bound = curve(TAIL_LATENCY, 1.0 / bound.as_secs_f64(), EVERY);
            tails = trace.add_curve(tails, &spec.name, over_bound, CurveStyle::Trace);
        }
        cores = trace.add_curve(cores, &spec.name, curve(APP_CORES, 1.0, 2), CurveStyle::Steps);
    }
    let solo = scene.apps.last().and_then(|spec| spec.solo_per_s).unwrap_or(1.0);
    let progress =
        MetricCurve { metric: PROGRESS, label: "stream", factor: 100.0 / solo, every: EVERY };
    let work = Figure::new(
        "Progress of stream, of that alone",
        time(),
        Axis::linear("progress (%)").between(0.0, 100.0),
    );
    let work = trace.add_curve(work, "stream", progress, CurveStyle::Trace);
    Ok(vec![tails.mark(1.0, "bound"), cores, work])
}
