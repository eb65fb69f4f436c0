//! Policies of frequency: one database server whose load comes in bursts of two
//! seconds, every four.

use super::trace::{MetricCurve, follow};
use super::{PortraitError, SEED};
use crate::figure::{Axis, CurveStyle, Figure};
use lull_control::AppSpec;
use lull_measure::catalogue::{CORE_FREQUENCY, POWER, TAIL_LATENCY};
use lull_measure::{Nanos, Percentile};
use lull_sim::Model;
use lull_sim::plant::{PlantSpec, SimPlant};

const EPOCH: Nanos = Nanos::from_millis(50);
const EPOCHS: usize = 400;
const BOUND: Nanos = Nanos::from_millis(100);

pub(super) fn panels(policy: &str) -> Result<Vec<Figure>, PortraitError> {
    let model: Model = toml::from_str(include_str!("frequencies.toml"))
        .map_err(|error| PortraitError::Scene(error.to_string()))?;
    let app = AppSpec::latency_critical("rubbos", Percentile::P95, BOUND);
    let spec = PlantSpec { tier: "mysql".to_owned(), server: 0, apps: vec![app] };
    let plant = SimPlant::new(&model, &spec, SEED)?;
    let trace = follow(plant, policy, "", EPOCH, EPOCHS)?;
    let time = || Axis::linear("time (s)");
    let curve = |metric, label, factor, every| MetricCurve { metric, label, factor, every };
    let tails = Figure::new(
        format!("{policy}: p95 of 200 ms; the load is 3 times as high half of every 4 s"),
        time(),
        Axis::log("latency (ms)"),
    );
    let tails =
        trace.add_curve(tails, "rubbos", curve(TAIL_LATENCY, "rubbos", 1e3, 4), CurveStyle::Trace);
    let clock = Figure::new("Frequency", time(), Axis::linear("GHz").between(1.0, 2.4));
    let clock =
        trace.add_curve(clock, "core 0", curve(CORE_FREQUENCY, "0", 1e-9, 1), CurveStyle::Steps);
    let power = Figure::new("Power, relative (C = 1)", time(), Axis::linear("power"));
    let power = trace.add_curve(power, "power", curve(POWER, "", 1.0, 4), CurveStyle::Trace);
    Ok(vec![tails.mark(BOUND.as_millis_f64(), "bound"), clock, power])
}
