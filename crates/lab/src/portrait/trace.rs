//! The actions of a policy over time on a plant, as curves.

use super::{PortraitError, SEED};
use crate::figure::{CurveStyle, Figure, Point};
use crate::trial::rules;
use lull_control::{ControlLoop, Controller, Plant, Rng, samples};
use lull_measure::Nanos;
use lull_measure::catalogue::{Metric, Sample};
use lull_policies::POLICIES;

use rand::SeedableRng;

/// All metrics of a run, epoch by epoch.
pub(super) struct Trace {
    epochs: Vec<(f64, Vec<Sample>)>,
}

/// Lets a policy steer a plant for this many epochs.
pub(super) fn follow<P: Plant>(
    plant: P,
    policy: &str,
    config: &str,
    epoch: Nanos,
    count: usize,
) -> Result<Trace, PortraitError> {
    let config: toml::Table = config.parse().expect("configs of portraits are TOML");
    let built = POLICIES.build(policy, &config, plant.machine(), plant.apps())?;
    let controller = Controller::new(built, rules(), &plant)?;
    let mut control = ControlLoop::new(plant, controller, epoch, Rng::seed_from_u64(SEED));
    let mut epochs = Vec::new();
    for _ in 0..count {
        let turn = control.turn()?;
        let (apps, state) = (control.plant().apps(), control.controller().state());
        let all = samples(apps, state, &turn.seen, &turn.assessment);
        epochs.push((turn.seen.time.as_secs_f64(), all));
    }
    Ok(Trace { epochs })
}

/// The drawn metric: of an app, a core, or the machine (no label), times a factor to the unit of
/// the axis, every so many epochs.
#[derive(Debug, Clone, Copy)]
pub(super) struct MetricCurve<'a> {
    pub(super) metric: &'static Metric,
    pub(super) label: &'a str,
    pub(super) factor: f64,
    pub(super) every: usize,
}

impl Trace {
    /// The values of a metric over time: one point for every `every` epochs, which is their
    /// mean, or their first value for step curves, because half a core does not exist.
    fn points(&self, source: MetricCurve<'_>, look: CurveStyle) -> Vec<Point> {
        let value = |all: &[Sample]| {
            let own = all
                .iter()
                .find(|it| it.metric.place == source.metric.place && it.label == source.label);
            own.and_then(|sample| sample.value.as_ref().ok().copied())
        };
        let point = |chunk: &[(f64, Vec<Sample>)]| {
            let known: Vec<f64> = chunk.iter().filter_map(|(_, all)| value(all)).collect();
            let mean = known.iter().sum::<f64>() / known.len() as f64;
            let shown = if look == CurveStyle::Steps { *known.first()? } else { mean };
            shown.is_finite().then(|| Point::at(chunk[0].0, round(source.factor * shown)))
        };
        self.epochs.chunks(source.every).filter_map(point).collect()
    }

    /// Adds a curve to a figure, if the metric is there.
    pub(super) fn add_curve(
        &self,
        figure: Figure,
        name: &str,
        source: MetricCurve<'_>,
        look: CurveStyle,
    ) -> Figure {
        let points = self.points(source, look);
        if points.is_empty() { figure } else { figure.with_curve(name, look, points) }
    }
}

/// Rounds to four digits: more would only make the file longer.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10f64.powi(value.abs().log10().floor() as i32 - 3);
    (value / unit).round() * unit
}
