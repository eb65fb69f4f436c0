//! A policy's plan: settings of knobs, each with its reason.

use crate::{AppId, Knob, Setting};
use lull_measure::catalogue::Metric;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Why a policy wants a setting. A few forms serve all policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The policy's starting state.
    Start,
    /// The policy always requests this.
    Fixed,
    /// A metric crossed a threshold.
    Threshold {
        /// The metric.
        metric: &'static Metric,
        /// The app; `None` for the machine.
        app: Option<AppId>,
        /// Its value.
        value: f64,
        /// The threshold.
        threshold: f64,
    },
    /// The last move made a metric worse and is undone.
    Undo {
        /// The metric.
        metric: &'static Metric,
        /// Its value before the move.
        before: f64,
        /// Its value after it.
        after: f64,
    },
    /// A setting is tried to learn from it.
    Trial {
        /// The number of the trial in its search, from 1.
        number: u32,
        /// The expected gain over the best so far, if a model chose it.
        expected_gain: Option<f64>,
    },
    /// The best that a search has found.
    Found {
        /// The number of trials.
        trials: u32,
        /// The value it had.
        score: f64,
    },
    /// An app has exited; its resources are free.
    Exited {
        /// The app.
        app: AppId,
    },
    /// The SLO-safe state, because the policy cannot be followed now.
    Safe {
        /// The error.
        cause: String,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Fixed => f.write_str("fixed by the policy"),
            Self::Threshold { metric, value, threshold, .. } => {
                let sign = if value < threshold { '<' } else { '>' };
                write!(f, "{} {value:.3} {sign} {threshold}", metric.name)
            }
            Self::Undo { metric, before, after } => {
                write!(f, "undo: {} went from {before:.3} to {after:.3}", metric.name)
            }
            Self::Trial { number, expected_gain: None } => write!(f, "trial {number}"),
            Self::Trial { number, expected_gain: Some(gain) } => {
                write!(f, "trial {number}, expected to gain {gain:.3}")
            }
            Self::Found { trials, score } => {
                write!(f, "the best of {trials} trials, with a score of {score:.3}")
            }
            Self::Exited { .. } => f.write_str("an app has exited"),
            Self::Safe { cause } => write!(f, "SLO-safe state: {cause}"),
        }
    }
}

/// The effect that a policy expects of its plan; the journal compares it with the measured effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// The metric.
    pub metric: &'static Metric,
    /// The app; `None` for the machine.
    pub app: Option<AppId>,
    /// The direction in which it should change.
    pub direction: Direction,
    /// The expected change, where the policy has a model; in the metric's unit.
    pub by: Option<f64>,
}

/// The direction in which a metric should change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Down.
    Lower,
    /// Up.
    Higher,
}

/// The whole wanted state of the knobs a policy owns.
///
/// A knob the plan does not name is left as it is. The loop applies only
/// what differs from the plant's state, so a policy repeats its plan freely.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    steps: BTreeMap<Knob, Step>,
    /// The effect that the policy expects of a change, if it makes one.
    pub expected: Option<Expectation>,
}

/// One requested setting and the reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The wanted state.
    pub setting: Setting,
    /// Why.
    pub reason: Reason,
}

impl Plan {
    /// Leaves every knob as it is.
    pub fn keep() -> Self {
        Self::default()
    }

    /// Wants a setting; a second one for the same knob replaces the first.
    pub fn set(&mut self, setting: Setting, reason: Reason) {
        self.steps.insert(setting.knob(), Step { setting, reason });
    }

    /// The wanted settings in the order of their knobs.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.values()
    }

    /// The wanted setting of one knob.
    pub fn setting(&self, knob: Knob) -> Option<&Setting> {
        self.steps.get(&knob).map(|step| &step.setting)
    }

    /// Whether no knob is named.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CoreSet;

    #[test]
    fn one_knob_has_one_setting() {
        let mut plan = Plan::keep();
        assert!(plan.is_empty());
        for cores in [1, 2] {
            plan.set(Setting::Cores(AppId(0), CoreSet::first(cores)), Reason::Start);
        }
        assert_eq!(plan.steps().count(), 1);
        let kept = plan.setting(Knob::Cores(AppId(0)));
        assert_eq!(kept, Some(&Setting::Cores(AppId(0), CoreSet::first(2))));
    }
}
