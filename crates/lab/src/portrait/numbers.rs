//! Policies of numeric knobs: memcached behind a network card, as in
//! `examples/tune/netserver.toml`, at 100,000 requests/s.

use super::trace::{MetricCurve, follow};
use super::{PortraitError, SEED};
use crate::figure::{Axis, CurveStyle, Figure};
use crate::server::ServerFile;
use lull_measure::Nanos;
use lull_measure::catalogue::{CORE_FREQUENCY, POWER, TAIL_LATENCY};

const EPOCH: Nanos = Nanos::from_millis(20);
const EPOCHS: usize = 300;
const RATE_PER_S: f64 = 100e3;

/// Searches as short as the scene is, a profile of it, a setting to hold.
fn config(policy: &str) -> &'static str {
    match policy {
        "bayop" => "knobs = [\"coalescing\", \"frequency\"]\nwindow = \"100ms\"\nsettle = \"20ms\"",
        "static" => "delay = \"100us\"\nfrequency = \"1.3GHz\"",
        "co-pi" => {
            "period = \"100ms\"\nprofile = [{ rate_per_s = 1e5, delay = \"200us\", \
             frequency = \"1.2GHz\" }]"
        }
        _ => "",
    }
}

pub(super) fn panels(policy: &str) -> Result<Vec<Figure>, PortraitError> {
    let scene = |error: String| PortraitError::Scene(error);
    let file: ServerFile = toml::from_str(include_str!("../../../../examples/tune/netserver.toml"))
        .map_err(|error| scene(error.to_string()))?;
    let scenario = file.check().map_err(|error| scene(error.to_string()))?;
    let model = scenario.model.at_rate(RATE_PER_S);
    let plant = model.plant(&scenario.app, SEED, 0)?;
    let trace = follow(plant, policy, config(policy), EPOCH, EPOCHS)?;
    let time = || Axis::linear("time (s)");
    let curve = |metric, label, factor, every| MetricCurve { metric, label, factor, every };
    let title = format!("{policy}: p99 latency of memcached at 100,000 requests/s");
    let tails = Figure::new(title, time(), Axis::log("latency (us)"));
    let name = scenario.app.name.as_str();
    let tails = trace.add_curve(tails, name, curve(TAIL_LATENCY, name, 1e6, 1), CurveStyle::Trace);
    let clock = Figure::new("Frequency of core 0", time(), Axis::linear("GHz").between(1.0, 3.0));
    let clock =
        trace.add_curve(clock, "core 0", curve(CORE_FREQUENCY, "0", 1e-9, 1), CurveStyle::Steps);
    let power = Figure::new("Power", time(), Axis::linear("power (W)"));
    let power = trace.add_curve(power, "power", curve(POWER, "", 1.0, 1), CurveStyle::Trace);
    let bound = scenario.app.tail().map_or(Nanos::ZERO, |(_, bound)| bound);
    Ok(vec![tails.mark(bound.as_micros_f64(), "bound"), clock, power])
}
