//! The seam to whatever is watched and steered: a host or a simulated machine.

use crate::{AppId, AppSpec, Knob, KnobScope, Machine, Observation, Setting};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// Anything a policy can watch and steer.
///
/// A plant knows no policy. Its clock is the only clock: a host's observe
/// waits for the epoch to pass, a simulator's computes it.
pub trait Plant {
    /// Returns the description of the machine, which is fixed for a run.
    fn machine(&self) -> &Machine;

    /// The apps on it, indexed by [`crate::AppId`]; those that were removed from the run included.
    fn apps(&self) -> &[AppSpec];

    /// Whether an app has a process now. An app without one is absent and has no knobs.
    fn is_present(&self, _app: AppId) -> bool {
        true
    }

    /// Lets one epoch pass and returns its measurements.
    ///
    /// # Errors
    /// [`PlantError::Stopped`] if a stop is requested while waiting, [`PlantError::Lost`] if the
    /// plant can no longer be observed.
    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError>;

    /// The knobs as they are now, as far as they can be read.
    fn settings(&self) -> Vec<Setting>;

    /// The knobs of an app as its owner set them. Called when the app has arrived or was
    /// restarted, because its new processes may have other values than the former ones. A plant
    /// whose new processes may have Lull's values already must not return those.
    fn owners(&self, app: AppId) -> Vec<Setting> {
        let is_own = |knob: Knob| knob.app() == Some(app) && knob.row().scope == KnobScope::App;
        self.settings().into_iter().filter(|setting| is_own(setting.knob())).collect()
    }

    /// Sets knobs. Idempotent; a setting that cannot be had changes nothing and is answered with
    /// [`ApplyOutcome::Refused`] or the nearest with [`ApplyOutcome::Clamped`].
    fn apply(&mut self, wanted: &[Setting]) -> Applied;

    /// Restores every knob to its value before the first `apply`.
    fn restore(&mut self) -> Applied;
}

/// Why a plant could not be observed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlantError {
    /// A stop of the run was requested.
    #[error("stopped")]
    Stopped,
    /// The plant is gone; the run ends and knobs are restored.
    #[error("{0}")]
    Lost(String),
}

/// The results of requested settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a refused setting must be reported to the user"]
pub struct Applied {
    /// One outcome for each requested setting, in order.
    pub outcomes: Vec<Outcome>,
}

/// The result of one requested setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The requested setting.
    pub wanted: Setting,
    /// The outcome.
    pub got: ApplyOutcome,
}

/// The effective result of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyOutcome {
    /// Set as requested.
    Done,
    /// The setting was in force already; nothing was written.
    Already,
    /// Something near was set.
    Clamped {
        /// The setting that took effect.
        to: Setting,
        /// The reason for the difference.
        why: String,
    },
    /// The request was refused; nothing was changed.
    Refused {
        /// The reason and a remedy.
        why: String,
    },
}

impl Outcome {
    /// Returns why the knob still has its former setting although another one was wanted: it was
    /// refused, or accepted and not carried out. `from` is the former setting, where known.
    pub fn failure(&self, from: Option<&Setting>) -> Option<String> {
        match &self.got {
            ApplyOutcome::Refused { why } => Some(why.clone()),
            ApplyOutcome::Clamped { to, why } if from == Some(to) => {
                Some(format!("it was accepted, and {to} stays: {why}"))
            }
            ApplyOutcome::Done | ApplyOutcome::Already | ApplyOutcome::Clamped { .. } => None,
        }
    }

    /// The setting in force afterwards; `None` if it was refused.
    pub fn in_force(&self) -> Option<&Setting> {
        match &self.got {
            ApplyOutcome::Done | ApplyOutcome::Already => Some(&self.wanted),
            ApplyOutcome::Clamped { to, .. } => Some(to),
            ApplyOutcome::Refused { .. } => None,
        }
    }
}
