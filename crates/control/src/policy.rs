//! The seam to whatever decides.

use crate::{
    AppId, AppSpec, Capability, Machine, Observation, Plan, RosterChange, RosterEvent, Setting,
    TrialEvidence,
};
use lull_measure::Missing;

/// The random numbers handed to policies; seeded per run.
pub type Rng = rand_xoshiro::Xoshiro256PlusPlus;

/// A controller of machine settings: pure, with state.
///
/// No clock, no I/O, no global state, no random numbers but `rng`. The time
/// is [`Observation::time`]. The same object is unit-tested, simulated,
/// shadowed and trusted with the knobs.
pub trait Policy: Send {
    /// Returns the requested state after an observation.
    fn decide(&mut self, seen: &Observation, rng: &mut Rng) -> Plan;

    /// Called when objectives change but the set of apps does not. Returns `false` if
    /// the policy must be rebuilt because its learned state no longer applies.
    fn retarget(&mut self, _: &[AppSpec]) -> bool {
        false
    }

    /// Called when ideals or solo rates of the same apps were corrected, because the run has
    /// refuted them. By default a policy keeps the references with which it was built.
    fn references_changed(&mut self, _: &[AppSpec]) {}

    /// Called before `decide` when apps have departed, arrived or were restarted since the last
    /// observation. Returns `false` if the policy must be rebuilt.
    ///
    /// By default a policy adapts to departures and restarts by the observation, and is rebuilt
    /// when an app arrives, because it has given the resources of an absent app to others.
    fn roster_changed(&mut self, changes: &[RosterChange]) -> bool {
        changes.iter().all(|change| change.event != RosterEvent::Arrived)
    }

    /// Receives the settings of the last plan that are not in force, each with the reason: the
    /// plant or a limit refused them, or another program has changed their knob. Called before
    /// the next `decide`, so that a learning policy does not attribute the next observation to
    /// them. Settings that wait for their dwell, and those of a dry run, are not among them.
    fn refused(&mut self, _: &[(Setting, String)]) {}

    /// Returns why the policy could not decide, for example because its own code failed. Called
    /// after each `decide`: while there is a cause, the SLO-safe state is in force instead of
    /// the plan, and the journal has the cause.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Returns what the policy has found since the last call, oldest first; empty if
    /// the policy does not search. The caller stores the discoveries.
    fn discoveries(&mut self) -> Vec<Discovery> {
        Vec::new()
    }
}

/// A setting that a policy's search has found at a load, or later evidence on a setting that it
/// keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovery {
    /// The app whose objective it serves.
    pub app: AppId,
    /// Requests per second at which it was found.
    pub rate_per_s: f64,
    /// The settings of that point.
    pub settings: Vec<Setting>,
    /// Its values in the order of the search, each in its knob's own unit.
    pub values: Vec<f64>,
    /// The knobs that were searched, in that order.
    pub knobs: Vec<Capability>,
    /// Whether it meets the objective; if not, nothing was found that does.
    pub meets: bool,
    /// The tail, in microseconds.
    pub tail_us: f64,
    /// Mean power, in watts.
    pub watts: f64,
    /// Trials of the search that has just ended; 0 for a known setting that was measured again.
    pub trials: u32,
    /// The evidence of the setting's own trials.
    pub evidence: Option<TrialEvidence>,
    /// Values of the settings that the search has refuted at this load.
    pub refuted: Vec<Vec<f64>>,
}

/// Why a policy cannot run here.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// The plant lacks something the policy is nothing without.
    #[error("policy `{policy}` needs {capability}, which is missing here: {why}")]
    Lacks {
        /// The policy's name.
        policy: &'static str,
        /// The missing capability.
        capability: Capability,
        /// Why that is missing.
        why: Missing,
    },
    /// A config value is wrong.
    #[error("{message}")]
    Config {
        /// The key below `[policy]`; empty for the section itself.
        key: String,
        /// The error and the correction.
        message: String,
    },
    /// The apps do not suit the policy.
    #[error("policy `{policy}`: {message}")]
    Apps {
        /// The policy's name.
        policy: &'static str,
        /// The error and the correction.
        message: String,
    },
}

impl PolicyError {
    /// Returns the error for a config that has this policy's keys below `part`. An error without
    /// a key is one of the name.
    #[must_use]
    pub fn within(self, part: &str) -> Self {
        let (key, message) = match self {
            Self::Config { key, message } => (key, message),
            other => ("name".to_owned(), other.to_string()),
        };
        Self::Config { key: format!("{part}.{key}"), message }
    }
}

/// Checks that a plant has all that a policy needs: a policy never runs crippled.
///
/// # Errors
/// The first capability that is missing.
pub fn require(
    policy: &'static str,
    needs: &[Capability],
    machine: &Machine,
) -> Result<(), PolicyError> {
    for capability in needs {
        if let Err(why) = machine.capabilities.get(*capability) {
            return Err(PolicyError::Lacks { policy, capability: *capability, why });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_within_a_part_names_the_key_in_the_whole_config() {
        let config = |key: &str| PolicyError::Config { key: key.to_owned(), message: "m".into() };
        assert_eq!(config("cap").within("admission"), config("admission.cap"));
        let apps = PolicyError::Apps { policy: "arq", message: "no app".to_owned() };
        let message = apps.to_string();
        let key = "policy.name".to_owned();
        assert_eq!(apps.within("policy"), PolicyError::Config { key, message });
    }
}
