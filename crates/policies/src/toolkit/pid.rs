//! A PID controller in discrete time whose gains follow the load.
//!
//! EETL (Haque et al., MICRO-50), section 4.2 and table 2. One step an epoch, error
//! e = target - measured:
//!
//! ```text
//! I += e;   u = Kp e + Ki I + Kd (e - e_before);   u clamped to [0, most]
//! ```
//!
//! The paper prints the error as measured minus target. With positive gains
//! that is positive feedback: the threshold runs to 0 and stays there. Not
//! printed and ours: the clamp resets I so that Ki I is the clamped value
//! (anti-windup), and a change of gains rescales I so that Ki I stays
//! (bumpless switch).

use crate::config::wrong;
use lull_control::PolicyError;
use serde::{Deserialize, Serialize};

/// Gains of one band of load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Band {
    /// The band ends at this rate; the last has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) up_to_per_s: Option<f64>,
    /// Proportional gain.
    pub(crate) kp: f64,
    /// Integral gain.
    pub(crate) ki: f64,
    /// Derivative gain.
    pub(crate) kd: f64,
}

/// Table 2: below 50, 50 to 70 and above 70 requests per second.
pub(crate) fn published() -> Vec<Band> {
    let band = |up_to_per_s, kp, ki, kd| Band { up_to_per_s, kp, ki, kd };
    vec![
        band(Some(50.0), 0.11, 0.49, 0.0),
        band(Some(70.0), 0.15, 0.25, 0.0),
        band(None, 0.19, 0.17, 0.03),
    ]
}

/// Refuses gains that cannot control.
pub(crate) fn check(key: &str, bands: &[Band]) -> Result<(), PolicyError> {
    let Some((last, others)) = bands.split_last() else {
        return Err(wrong(key, format!("`{key}` is empty: give at least one band of gains")));
    };
    let mut before = 0.0;
    for band in others {
        match band.up_to_per_s {
            Some(end) if end > before => before = end,
            _ => {
                let message = format!("`{key}`: bands must end at rising `up_to_per_s`");
                return Err(wrong(key, message));
            }
        }
    }
    if last.up_to_per_s.is_some() {
        return Err(wrong(key, format!("`{key}`: the last band has no `up_to_per_s`")));
    }
    let bad = |band: &&Band| {
        let fine = |gain: f64| gain >= 0.0 && gain.is_finite();
        !(fine(band.kp) && band.ki > 0.0 && fine(band.ki) && fine(band.kd))
    };
    match bands.iter().find(bad) {
        Some(band) => {
            let message = format!("`{key}`: {band:?} needs ki above 0, kp and kd of 0 or more");
            Err(wrong(key, message))
        }
        None => Ok(()),
    }
}

/// The controller with its state.
#[derive(Debug, Clone)]
pub(crate) struct Pid {
    bands: Vec<Band>,
    band: usize,
    most: f64,
    integral: f64,
    before: Option<f64>,
}

impl Pid {
    /// A controller whose output begins at `start` and lies in [0, `most`].
    /// `bands` must have been checked.
    pub(crate) fn new(bands: Vec<Band>, start: f64, most: f64) -> Self {
        let integral = start.clamp(0.0, most) / bands[0].ki;
        Self { bands, band: 0, most, integral, before: None }
    }

    /// Steps the controller by one epoch; `None` for the rate keeps the band.
    pub(crate) fn step(&mut self, error: f64, rate_per_s: Option<f64>) -> f64 {
        if let Some(rate) = rate_per_s {
            self.switch(rate);
        }
        let Band { kp, ki, kd, .. } = self.bands[self.band];
        self.integral += error;
        let slope = error - self.before.unwrap_or(error);
        self.before = Some(error);
        let wanted = kp * error + ki * self.integral + kd * slope;
        let output = wanted.clamp(0.0, self.most);
        if output != wanted {
            self.integral = output / ki;
        }
        output
    }

    fn switch(&mut self, rate_per_s: f64) {
        let inside = |band: &Band| band.up_to_per_s.is_none_or(|end| rate_per_s <= end);
        let to = self.bands.iter().position(inside).unwrap_or(self.bands.len() - 1);
        self.integral *= self.bands[self.band].ki / self.bands[to].ki;
        self.band = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tail over threshold, straight as figure 3 shows it at low load.
    fn settle(bands: Vec<Band>, slope: f64, rate: f64) -> Vec<f64> {
        let mut pid = Pid::new(bands, 100.0, 400.0);
        let mut threshold = 100.0;
        let step = |_| {
            let measured = 130.0 + slope * threshold;
            threshold = pid.step(200.0 - measured, Some(rate));
            measured
        };
        (0..60).map(step).collect()
    }

    #[test]
    fn the_published_gains_bring_the_tail_to_the_target() {
        for (rate, slope) in [(25.0, 0.5), (60.0, 0.6), (80.0, 0.7)] {
            let last = *settle(published(), slope, rate).last().unwrap();
            assert!((last - 200.0).abs() < 1.0, "{rate} per s: {last}");
        }
    }

    #[test]
    fn with_the_printed_sign_the_threshold_runs_away() {
        let mut pid = Pid::new(published(), 100.0, 400.0);
        let mut threshold = 100.0;
        for _ in 0..60 {
            let measured = 130.0 + 0.5 * threshold;
            threshold = pid.step(measured - 200.0, Some(25.0));
        }
        assert_eq!(threshold, 0.0, "which is the tail-latency policy");
    }

    #[test]
    fn a_clamp_is_left_as_soon_as_the_error_turns() {
        let mut pid = Pid::new(published(), 100.0, 400.0);
        for _ in 0..50 {
            assert!(pid.step(150.0, Some(25.0)) <= 400.0);
        }
        assert!(pid.step(-50.0, Some(25.0)) < 400.0, "the integral has not wound up");
        for _ in 0..50 {
            assert!(pid.step(-150.0, Some(25.0)) >= 0.0);
        }
        assert!(pid.step(50.0, Some(25.0)) > 0.0);
    }

    #[test]
    fn a_change_of_gains_does_not_move_the_output() {
        let mut pid = Pid::new(published(), 120.0, 400.0);
        let before = pid.step(0.0, Some(25.0));
        for rate in [60.0, 90.0, 25.0, 70.0, 50.0] {
            let after = pid.step(0.0, Some(rate));
            assert!((after - before).abs() < 1e-9, "{rate}: {after}");
        }
        assert_eq!(pid.band, 0, "50 per s is still in the first band");
    }

    #[test]
    fn gains_that_cannot_control_are_refused() {
        let band = |up_to_per_s, ki| Band { up_to_per_s, kp: 0.1, ki, kd: 0.0 };
        assert!(check("gains", &published()).is_ok());
        let wrong = [
            vec![],
            vec![band(Some(50.0), 0.1)],
            vec![band(None, 0.1), band(None, 0.1)],
            vec![band(Some(50.0), 0.1), band(Some(50.0), 0.1), band(None, 0.1)],
            vec![band(None, 0.0)],
            vec![band(None, f64::NAN)],
        ];
        for bands in wrong {
            assert!(check("gains", &bands).is_err(), "{bands:?}");
        }
    }
}
