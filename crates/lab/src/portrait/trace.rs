//! What a policy does over time on some plant, as curves.

use super::{PortraitError, SEED};
use crate::figure::{Figure, Look, Point};
use crate::trial::rules;
use lull_control::{ControlLoop, Controller, Plant, Rng, samples};
use lull_measure::Nanos;
use lull_measure::catalogue::{Metric, Sample};
use lull_policies::registry;
use rand::SeedableRng;

/// All metrics of a run, epoch by epoch.
pub(super) struct Trace {
    epochs: Vec<(f64, Vec<Sample>)>,
}

/// Lets a policy steer a plant for so many epochs.
pub(super) fn follow<P: Plant>(
    plant: P,
    (policy, config): (&str, &str),
    (epoch, count): (Nanos, usize),
) -> Result<Trace, PortraitError> {
    let config: toml::Table = config.parse().expect("configs of portraits are TOML");
    let built = registry::build(policy, &config, plant.machine(), plant.apps())?;
    let controller = Controller::new(built, rules(), &plant)?;
    let mut control = ControlLoop::new(plant, controller, epoch, Rng::seed_from_u64(SEED));
    let mut epochs = Vec::new();
    for _ in 0..count {
        let turn = control.turn()?;
        let (apps, state) = (control.plant().apps(), control.controller().state());
        let all = samples(apps, state, &turn.seen, &turn.standing);
        epochs.push((turn.seen.time.as_secs_f64(), all));
    }
    Ok(Trace { epochs })
}

/// A metric of an app, a core, or the machine (no label), and a factor to the
/// unit of the axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) metric: &'static Metric,
    pub(super) label: &'a str,
    pub(super) factor: f64,
}

impl Trace {
    /// The values of a metric over time, every so many epochs together as one
    /// mean; of what has steps the first, since half a core is none.
    fn points(&self, (source, every): (Source<'_>, usize), look: Look) -> Vec<Point> {
        let value = |all: &[Sample]| {
            let own = all
                .iter()
                .find(|it| it.metric.name == source.metric.name && it.label == source.label);
            own.and_then(|sample| sample.value.as_ref().ok().copied())
        };
        let point = |chunk: &[(f64, Vec<Sample>)]| {
            let known: Vec<f64> = chunk.iter().filter_map(|(_, all)| value(all)).collect();
            let mean = known.iter().sum::<f64>() / known.len() as f64;
            let shown = if look == Look::Steps { *known.first()? } else { mean };
            shown.is_finite().then(|| Point::at(chunk[0].0, round(source.factor * shown)))
        };
        self.epochs.chunks(every).filter_map(point).collect()
    }

    /// Adds a curve to a figure, if the metric is there.
    pub(super) fn on(
        &self,
        figure: Figure,
        name: &str,
        (source, every): (Source<'_>, usize),
        look: Look,
    ) -> Figure {
        let points = self.points((source, every), look);
        if points.is_empty() { figure } else { figure.with_curve(name, look, points) }
    }
}

/// With four digits: more would only make the file longer.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10f64.powi(value.abs().log10().floor() as i32 - 3);
    (value / unit).round() * unit
}
