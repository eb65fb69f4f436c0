//! The prior of a search: its prediction for a setting before it has measured one nearby.
//!
//! Without a prior the mean is a constant, and only points near those tried
//! say anything of others. The response model (Dong et al., CCDS 2026, eqs. 1 and 2, with our
//! form of eq. 3: [`Form::Coalesced`]) has six parameters that few trials fit,
//! and speaks of all points; the Gaussian process then learns only by how much
//! the server differs from it.

use super::reading::Reading;
use super::response::{Form, Measured, Response, fit};
use super::space::{SearchPoint, Space};
use lull_control::{Capability, Rng};
use rand::SeedableRng;
use serde::{Deserialize, Serialize};

/// The prior mean, which predictions approach far from all trials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriorMean {
    /// The mean of the measurements.
    #[default]
    Constant,
    /// The response model, fitted to the measurements.
    Response,
}

impl PriorMean {
    /// Whether a space has what this mean speaks of: the response model is one
    /// of delay and frequency.
    pub fn fits(self, space: &Space) -> bool {
        self == Self::Constant || Axes::find(space).is_some()
    }
}

/// Bounds over which a reading says only that the server is swamped: the model
/// has no queue that runs away.
const SWAMPED: f64 = 2.0;

/// A response model fitted to the trials of a search.
#[derive(Debug, Clone)]
pub(super) struct Prior {
    axes: Axes,
    response: Response,
}

/// Where a space has delay and frequency.
#[derive(Debug, Clone, Copy)]
struct Axes {
    delay: usize,
    frequency: usize,
    fastest_ghz: f64,
}

impl Prior {
    /// Fits the model; `None` with fewer than six readings below twice the bound, or where delay or
    /// frequency are not searched.
    pub(super) fn fit<'a>(
        space: &Space,
        readings: impl Iterator<Item = (&'a SearchPoint, &'a Reading)>,
        bound_us: f64,
    ) -> Option<Self> {
        let axes = Axes::find(space)?;
        let sane = readings.filter(|(_, it)| it.tail_us < SWAMPED * bound_us);
        let measured: Vec<_> = sane
            .map(|(point, it)| Measured {
                tail_us: it.tail_us,
                watts: it.watts,
                ..axes.at(&space.values(point))
            })
            .collect();
        // The one start has no chance in it.
        let response = fit(Form::Coalesced, &measured, 1, &mut Rng::seed_from_u64(0))?;
        Some(Self { axes, response })
    }

    /// Logarithms of tail in microseconds and power in watts that the model
    /// expects at values in the knobs' own units.
    pub(super) fn logs(&self, values: &[f64]) -> [f64; 2] {
        let at = self.axes.at(values);
        [self.response.tail_us(&at), self.response.watts(&at)].map(|it| it.max(1e-9).ln())
    }
}

impl Axes {
    fn find(space: &Space) -> Option<Self> {
        let axis = |knob| space.dimensions().iter().position(|it| it.knob == knob);
        let frequency = axis(Capability::Frequency)?;
        let fastest_ghz = space.dimensions()[frequency].levels.last()?.value;
        Some(Self { delay: axis(Capability::Coalescing)?, frequency, fastest_ghz })
    }

    /// A point without measurements.
    fn at(self, values: &[f64]) -> Measured {
        Measured {
            // In the adaptive mode the delay counts as 0.
            delay_us: values[self.delay].max(0.0),
            speed: values[self.frequency] / self.fastest_ghz,
            // The gap is used by the timeline alone.
            gap_us: 1.0,
            tail_us: 0.0,
            watts: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lc_spec, machine};

    const KNOBS: [Capability; 2] = [Capability::Coalescing, Capability::Frequency];

    /// The model itself, at values of the space.
    fn server(values: &[f64]) -> Reading {
        let (delay, speed) = (values[0], values[1] / 2.0);
        let tail_us = 100.0 / speed.powf(0.7) + 0.8 * delay;
        let watts = 30.0 * speed.powf(1.2) * ((delay + 30.0) / 30.0).powf(-0.1);
        Reading { tail_us, watts, requests: 1, late: 0, progress_per_s: None }
    }

    #[test]
    fn few_readings_speak_of_points_far_away() {
        let space = Space::from_machine(&machine(4), &[lc_spec("a")], &KNOBS).unwrap();
        let near: Vec<_> = space.points().filter(|it| it.0[0] < 20).collect();
        let readings: Vec<_> = near.iter().map(|it| (it, server(&space.values(it)))).collect();
        let pairs = || readings.iter().map(|(point, reading)| (*point, reading));
        let prior = Prior::fit(&space, pairs(), 500.0).unwrap();
        let far = space.values(&space.point(2 * 200));
        let [tail, watts] = prior.logs(&far).map(f64::exp);
        let truth = server(&far);
        assert!((tail / truth.tail_us - 1.0).abs() < 0.05, "{tail} {truth:?}");
        assert!((watts / truth.watts - 1.0).abs() < 0.05, "{watts} {truth:?}");
        assert!(Prior::fit(&space, pairs().take(5), 500.0).is_none(), "five are too few");
    }

    #[test]
    fn it_is_not_there_where_delay_or_frequency_are_not_searched() {
        let cores =
            Space::from_machine(&machine(4), &[lc_spec("a")], &[Capability::Cores]).unwrap();
        assert!(!PriorMean::Response.fits(&cores) && PriorMean::Constant.fits(&cores));
        assert!(Prior::fit(&cores, [].into_iter(), 500.0).is_none());
    }
}
