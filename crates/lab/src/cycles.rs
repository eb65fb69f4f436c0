//! Response time and control error of the same load at several burst cycles.
//!
//! A controller that needs about as long to raise the clock as the load stays high is always
//! in the wrong state: the anti-synchrony of Wang et al., TRIOS 2013, section 4.

use crate::backlog::{ControlError, ErrorMeter};
use crate::figure::{Axis, CurveStyle, Figure, Point};
use crate::progress::Progress;
use crate::trial::{Trial, estimate_of, response_ms};
use lull_measure::Nanos;
use lull_sim::stats::{Estimate, Failure};
use std::ops::Range;

/// The measurements at one burst cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Cycle {
    /// High and low together.
    pub cycle: Nanos,
    /// Mean response time of each replication, in milliseconds.
    pub responses_ms: Vec<f64>,
    /// Control error of each replication; empty where it was not followed.
    pub errors: Vec<ControlError>,
}

/// The error as the algorithm of section 4.1 adds it up: the mean backlog.
pub const BACKLOG: fn(&ControlError) -> f64 = |error| error.backlog_mean_s;
/// The largest backlog.
pub const LARGEST: fn(&ControlError) -> f64 = |error| error.backlog_max_s;
/// The error by the formula of section 4.1: |work done - required| in a window.
pub const WINDOW: fn(&ControlError) -> f64 = |error| error.window_mean_s;

impl Cycle {
    /// Runs a trial, whose load has this cycle, and follows the control error
    /// of app number `app`.
    ///
    /// # Errors
    /// As [`Trial::replicate`].
    pub fn measure(
        trial: &Trial<'_>,
        cycle: Nanos,
        app: usize,
        replications: Range<u64>,
        progress: &Progress<'_>,
    ) -> Result<Self, Failure> {
        let start = || ErrorMeter::new(trial, app);
        let runs = trial.replicate(replications, progress, start, |meter, turned| {
            meter.observe(turned);
        })?;
        let (totals, meters): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
        Ok(Self {
            cycle,
            responses_ms: totals.iter().map(response_ms(app)).collect(),
            errors: meters.iter().map(ErrorMeter::read).collect(),
        })
    }

    /// Its length in seconds.
    pub fn seconds(&self) -> f64 {
        self.cycle.as_secs_f64()
    }

    /// Mean response time, in milliseconds.
    pub fn response_ms(&self) -> Estimate {
        estimate_of(&self.responses_ms)
    }

    /// A part of the control error ([`BACKLOG`], [`LARGEST`], [`WINDOW`]), in
    /// milliseconds of work at full speed.
    pub fn error_ms(&self, part: fn(&ControlError) -> f64) -> Estimate {
        estimate_of(&self.errors.iter().map(|error| 1e3 * part(error)).collect::<Vec<_>>())
    }
}

/// Number of the cycle at which a value is largest; one that is not a number,
/// such as the response time of no request, is not looked at.
pub fn worst(cycles: &[Cycle], value: impl Fn(&Cycle) -> f64) -> Option<usize> {
    let known = (0..cycles.len()).filter(|at| value(&cycles[*at]).is_finite());
    known.max_by(|a, b| value(&cycles[*a]).total_cmp(&value(&cycles[*b])))
}

/// The cycle whose length is nearest to this one, as a ratio.
pub fn nearest(cycles: &[Cycle], seconds: f64) -> Option<&Cycle> {
    let distance = |cycle: &Cycle| (cycle.seconds() / seconds).ln().abs();
    cycles.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// Response time over the cycle, a curve a sweep.
pub fn response_figure(title: &str, sweeps: &[(&str, &[Cycle])]) -> Figure {
    figure(title, "mean response time (ms)", sweeps, Cycle::response_ms)
}

/// Mean backlog over the cycle, a curve a sweep.
pub fn error_figure(title: &str, sweeps: &[(&str, &[Cycle])]) -> Figure {
    let error = |cycle: &Cycle| cycle.error_ms(BACKLOG);
    figure(title, "mean error (ms of work at full speed)", sweeps, error)
}

/// The axis of burst cycles.
pub fn axis() -> Axis {
    Axis::log("burst cycle (s)").ticks([0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
}

fn figure(
    title: &str,
    label: &str,
    sweeps: &[(&str, &[Cycle])],
    value: impl Fn(&Cycle) -> Estimate,
) -> Figure {
    let axes = Figure::new(title, axis(), Axis::linear(label));
    sweeps.iter().fold(axes, |figure, (name, cycles)| {
        let points =
            cycles.iter().map(|cycle| Point::from_estimate(cycle.seconds(), &value(cycle)));
        figure.with_curve(*name, CurveStyle::Line, points)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(seconds: u64, response_ms: f64) -> Cycle {
        let error = ControlError { backlog_mean_s: response_ms / 2e3, ..ControlError::default() };
        Cycle {
            cycle: Nanos::from_secs(seconds),
            responses_ms: vec![response_ms, response_ms + 2.0],
            errors: vec![error],
        }
    }

    #[test]
    fn the_worst_and_the_nearest_cycle_are_found() {
        let cycles = [cycle(1, 10.0), cycle(2, 30.0), cycle(8, 20.0)];
        let response = |cycle: &Cycle| cycle.response_ms().mean;
        assert_eq!(worst(&cycles, response), Some(1));
        assert_eq!(worst(&[], response), None);
        assert_eq!(worst(&[cycle(1, f64::NAN), cycle(2, 1.0)], response), Some(1));
        assert_eq!(nearest(&cycles, 5.0).map(Cycle::seconds), Some(8.0));
        assert_eq!(cycles[1].response_ms().mean, 31.0);
        assert_eq!(cycles[1].error_ms(BACKLOG).mean, 15.0);
    }
}
