//! Gains of EETL's controller from open-loop step responses, without MATLAB.
//!
//! EETL (Haque et al., MICRO 2017), section 4.2, records the step response of the tail
//! to the threshold at the middle load of each band and hands it to MATLAB's PID
//! tuner. Here the step is run on the simulated plant at fixed thresholds, a
//! first-order lag with dead time is fitted to the mean of many runs, and the
//! gains are those of Skogestad (Simple analytic rules for model reduction and
//! PID controller tuning, Journal of Process Control 13, 2003, SIMC):
//!
//! ```text
//! Kp = T / (g (tc + dead)),   Ki = Kp / min(T, 4 (tc + dead)),   tc = dead
//! ```
//!
//! with g the static gain in ms of tail a ms of threshold, T and the dead time in
//! epochs. The tail is taken over a window of four epochs, so that T is about
//! two to three epochs at any load; what differs with load is g.

use crate::experiment::{LabError, Setup};
use crate::figure::{Axis, CurveStyle, Figure, Point};
use crate::papers::micro_2017_eetl::system::{DispatchBench, fixed_threshold, parsed, scenario};
use lull_control::dispatcher::{
    Answer, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher, MeasurementRule,
};
use lull_measure::{Nanos, Percentile};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use lull_sim::dispatch::{DispatchModel, DispatchSimulation};
use lull_sim::{Replication, RunLength};
use rayon::prelude::*;
use serde::Serialize;

/// Epochs before the step, which fill the window, and after it.
const BEFORE: usize = 12;
const AFTER: usize = 20;
/// Epochs on either side that the ends are averaged over.
const ENDS: usize = 8;
const EPOCH: u64 = 500;

/// The response to a step, and the gains that follow from it.
#[derive(Debug, Clone, Serialize)]
pub struct Tuned {
    /// The load at which the step is made.
    pub rate_per_s: f64,
    /// Thresholds before and after.
    pub step_ms: [f64; 2],
    /// Mean tail in each epoch, from the first one shown.
    pub response_ms: Vec<f64>,
    /// The fitted lag.
    pub plant: Lag,
    /// Proportional gain.
    pub kp: f64,
    /// Integral gain.
    pub ki: f64,
    /// Tail expected of the closed loop from half the target's threshold, by epoch.
    pub expected_ms: Vec<f64>,
}

/// A first-order lag with dead time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Lag {
    /// ms of tail a ms of threshold.
    pub gain: f64,
    /// Time constant in epochs.
    pub epochs: f64,
    /// Dead time in epochs.
    pub dead_epochs: f64,
    /// Tail at a threshold of 0, on the straight line through both.
    pub offset_ms: f64,
}

/// Why there are no gains.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A simulation failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// More arrives than the cores can do, whatever the threshold.
    #[error("{rate_per_s} requests/s are more than the cores serve: {most_per_s:.0} at most")]
    Overload {
        /// The load.
        rate_per_s: f64,
        /// The highest rate that all cores can serve.
        most_per_s: f64,
    },
    /// The threshold does not move the tail.
    #[error(
        "at {rate_per_s} requests/s the tail moves by {moved_ms:.1} ms over a step of {step_ms:.0} \
         ms: nothing to control; take a load below the largest that the cores serve"
    )]
    Flat {
        /// The load.
        rate_per_s: f64,
        /// The change of the tail.
        moved_ms: f64,
        /// The step of the threshold.
        step_ms: f64,
    },
}

/// Two dispatchers, of which the second takes over after some periods: an open-loop step.
struct Stepped {
    before: Box<dyn Dispatcher>,
    after: Box<dyn Dispatcher>,
    left: usize,
}

impl Stepped {
    fn now(&mut self) -> &mut dyn Dispatcher {
        if self.left > 0 { self.before.as_mut() } else { self.after.as_mut() }
    }
}

impl Dispatcher for Stepped {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        self.now().place(request)
    }

    fn decision_scope(&self) -> DecisionScope {
        self.before.decision_scope()
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        self.before.measurement_rule()
    }

    fn adjust(&mut self, _: &DispatchObservation) {
        self.left = self.left.saturating_sub(1);
    }
}

/// Gains for one load on the paper's 2F-13S and demand, at this target.
///
/// # Errors
/// If a simulation fails, or the threshold does not move the tail.
pub fn tune(setup: &Setup<'_>, target: Nanos, rate_per_s: f64) -> Result<Tuned, TuneError> {
    let model = scenario().default_amp().at_rate(rate_per_s);
    let most_per_s = capacity_per_s(&model, setup.seed)?;
    if rate_per_s >= most_per_s {
        return Err(TuneError::Overload { rate_per_s, most_per_s });
    }
    let target_ms = target.as_millis_f64();
    // Around the threshold that meets the target at low load.
    let step_ms = [0.4 * target_ms, 0.6 * target_ms];
    let response_ms = respond(setup, &model, target, step_ms)?;
    let plant = fit(&response_ms, step_ms);
    let moved_ms = plant.gain * (step_ms[1] - step_ms[0]);
    if moved_ms < 1.0 {
        return Err(TuneError::Flat { rate_per_s, moved_ms, step_ms: step_ms[1] - step_ms[0] });
    }
    let (kp, ki) = gains(&plant);
    let expected_ms = close(&plant, (kp, ki), target_ms);
    Ok(Tuned { rate_per_s, step_ms, response_ms, plant, kp, ki, expected_ms })
}

/// Requests a second that all cores together can do, slowing each other.
fn capacity_per_s(model: &DispatchModel, seed: u64) -> Result<f64, LabError> {
    let ladder = model.ladder()?;
    let each = ladder.types().iter().enumerate();
    let speed: f64 = each.map(|(kind, one)| one.speed * ladder.cores(kind) as f64).sum();
    let profile = model.profile(8000, seed)?;
    let mean_s = profile.iter().map(|work| work.as_secs_f64()).sum::<f64>() / 8000.0;
    Ok(speed / (1.0 + model.interference * (speed - 1.0)) / mean_s)
}

/// Mean tail by epoch around the step, over many runs.
fn respond(
    setup: &Setup<'_>,
    model: &DispatchModel,
    target: Nanos,
    step_ms: [f64; 2],
) -> Result<Vec<f64>, LabError> {
    let bench = DispatchBench::new(setup, target);
    let ladder = model.ladder()?;
    let profile = model.profile(8000, setup.seed)?;
    let percentile = Percentile::P99;
    let site = Site { ladder: &ladder, percentile, target: bench.target, profile: &profile };
    let fixed = |threshold_ms: f64| {
        DISPATCHERS.build("eetl", &parsed(&fixed_threshold(threshold_ms, target)), &site)
    };
    let runs = setup.either(64, 16);
    setup.progress.expect(runs);
    let one = |replication| -> Result<Vec<f64>, LabError> {
        let (before, after) = (fixed(step_ms[0])?, fixed(step_ms[1])?);
        let dispatcher = Box::new(Stepped { before, after, left: BEFORE });
        let requests = EPOCH * (BEFORE + AFTER) as u64;
        let streams = Replication { seed: setup.seed, number: replication };
        let length = RunLength { warmup: 0, counted: requests };
        let outcome = DispatchSimulation::measure(model, dispatcher, streams, length)?;
        setup.progress.step();
        let tail = |tail: Option<Nanos>| tail.map_or(f64::NAN, Nanos::as_millis_f64);
        Ok(outcome.measurements.iter().map(|record| tail(record.tail)).collect())
    };
    let all: Vec<Result<Vec<f64>, LabError>> = (0..runs).into_par_iter().map(one).collect();
    let all: Vec<Vec<f64>> = all.into_iter().collect::<Result<_, _>>()?;
    let mean = |epoch: usize| all.iter().map(|run| run[epoch]).sum::<f64>() / all.len() as f64;
    // The first epochs fill the window and are not shown.
    Ok((BEFORE - ENDS..BEFORE + AFTER).map(mean).collect())
}

/// The lag through 28 and 63 % of the step (Sundaresan and Krishnaswamy's kind
/// of two-point fit: T = 1.5 (t63 - t28), dead time = t63 - T).
fn fit(response_ms: &[f64], step_ms: [f64; 2]) -> Lag {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let low = mean(&response_ms[..ENDS]);
    let high = mean(&response_ms[response_ms.len() - ENDS..]);
    let gain = (high - low) / (step_ms[1] - step_ms[0]);
    let after = &response_ms[ENDS - 1..];
    let crossing = |share: f64| {
        let level = low + share * (high - low);
        let past = |value: f64| (value - level) * (high - low).signum() >= 0.0;
        let at = (1..after.len()).find(|at| past(after[*at])).unwrap_or(after.len() - 1);
        let (from, to) = (after[at - 1], after[at]);
        let part = if to == from { 1.0 } else { (level - from) / (to - from) };
        (at - 1) as f64 + part.clamp(0.0, 1.0)
    };
    let (early, late) = (crossing(0.283), crossing(0.632));
    let epochs = (1.5 * (late - early)).max(0.1);
    // A measurement at the end of an epoch acts in the next one at the earliest.
    let dead_epochs = (late - epochs).max(1.0);
    Lag { gain, epochs, dead_epochs, offset_ms: low - gain * step_ms[0] }
}

/// SIMC's gains with a closed loop as quick as the dead time.
fn gains(plant: &Lag) -> (f64, f64) {
    let slack = 2.0 * plant.dead_epochs;
    let kp = plant.epochs / (plant.gain * slack);
    (kp, kp / plant.epochs.min(4.0 * slack))
}

/// The closed loop on the fitted lag, from a threshold of half the target.
fn close(plant: &Lag, (kp, ki): (f64, f64), target_ms: f64) -> Vec<f64> {
    let settled = |threshold: f64| plant.offset_ms + plant.gain * threshold;
    let mut past = vec![0.5 * target_ms];
    let (mut tail, mut integral) = (settled(past[0]), past[0] / ki);
    let keep = (-1.0 / plant.epochs).exp();
    let delay = plant.dead_epochs.round() as usize;
    let mut expected = Vec::with_capacity(40);
    for _ in 0..40 {
        expected.push(tail);
        let error = target_ms - tail;
        integral += error;
        past.push((kp * error + ki * integral).clamp(0.0, 2.0 * target_ms));
        let acting = past[past.len() - 1 - delay.min(past.len() - 1)];
        tail = keep * tail + (1.0 - keep) * settled(acting);
    }
    expected
}

/// Draws the measured and the expected response, for all loads.
pub fn figures(tuned: &[Tuned], target: Nanos) -> [Figure; 2] {
    let axes = |title: &str| {
        Figure::new(title, Axis::linear("epoch (500 answers)"), Axis::linear("p99 (ms)"))
    };
    let add = |figure: Figure, values: fn(&Tuned) -> &[f64]| {
        tuned.iter().fold(figure, |figure, one| {
            let points = values(one).iter().enumerate();
            let points = points.map(|(epoch, ms)| Point::at(epoch as f64, *ms));
            figure.with_curve(format!("{}/s", one.rate_per_s), CurveStyle::Line, points)
        })
    };
    [
        add(axes("Open loop: the threshold steps up at epoch 8"), |one| &one.response_ms),
        add(axes("Expected of the closed loop"), |one| &one.expected_ms)
            .mark(target.as_millis_f64(), "target"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_of(gain: f64, epochs: f64, dead: usize) -> Vec<f64> {
        let mut response = vec![100.0; ENDS];
        for epoch in 1..=AFTER {
            let since = epoch.saturating_sub(dead) as f64;
            response.push(100.0 + gain * 40.0 * (1.0 - (-since / epochs).exp()));
        }
        response
    }

    #[test]
    fn a_known_lag_is_found_again() {
        let lag = fit(&step_of(0.5, 3.0, 1), [80.0, 120.0]);
        assert!((lag.gain - 0.5).abs() < 0.01, "{lag:?}");
        assert!((lag.epochs - 3.0).abs() < 0.4 && (lag.dead_epochs - 1.0).abs() < 0.4, "{lag:?}");
        assert!((lag.offset_ms - 60.0).abs() < 1.0, "{lag:?}");
    }

    #[test]
    fn gains_fall_with_the_plants_gain_and_the_loop_they_close_settles() {
        for gain in [0.1, 0.5, 1.0] {
            let plant = Lag { gain, epochs: 2.5, dead_epochs: 1.0, offset_ms: 150.0 };
            let (kp, ki) = gains(&plant);
            assert!((kp * gain - 1.25).abs() < 1e-9 && (ki * gain - 0.5).abs() < 1e-9);
            let reach = (150.0 + gain * 400.0).min(200.0);
            let last = *close(&plant, (kp, ki), 200.0).last().unwrap();
            assert!((last - reach).abs() < 2.0, "{gain}: {last}");
        }
    }

    #[test]
    fn the_simulated_plant_is_tuned_at_the_papers_design_load() {
        let setup = Setup { quick: true, ..Setup::new("test") };
        let tuned = tune(&setup, Nanos::from_millis(200), 25.0).unwrap();
        // Figure 3: at low load the slope is straight, about a half.
        assert!((0.3..0.7).contains(&tuned.plant.gain), "{:?}", tuned.plant);
        let last = *tuned.expected_ms.last().unwrap();
        assert!((last - 200.0).abs() < 4.0, "{last}");
        assert_eq!(figures(&[tuned], Nanos::from_millis(200)).len(), 2);
    }
}
