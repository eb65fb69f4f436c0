//! The capabilities of a plant: the gauges that can be read and the knobs that can be set, or the
//! reasons why not.

use crate::Capability;
use lull_measure::Missing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The capabilities of a plant: present, or missing with a reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Capabilities {
    found: BTreeMap<Capability, Finding>,
}

/// The result of probing one capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Present; the text names the means (`sched_setaffinity`, `resctrl`).
    By(String),
    /// Missing, with the reason.
    Missing(Missing),
}

impl Capabilities {
    /// States that a capability is there, and by which means.
    #[must_use]
    pub fn with_capability(mut self, capability: Capability, means: impl Into<String>) -> Self {
        self.found.insert(capability, Finding::By(means.into()));
        self
    }

    /// States that a capability is missing, and why.
    #[must_use]
    pub fn without(mut self, capability: Capability, why: Missing) -> Self {
        self.found.insert(capability, Finding::Missing(why));
        self
    }

    /// Removes the finding on a capability.
    #[must_use]
    pub fn unstated(mut self, capability: Capability) -> Self {
        self.found.remove(&capability);
        self
    }

    /// The means, or the reason why it is missing.
    ///
    /// # Errors
    /// If the capability is missing; the error says why.
    pub fn get(&self, capability: Capability) -> Result<&str, Missing> {
        match self.found.get(&capability) {
            Some(Finding::By(means)) => Ok(means),
            Some(Finding::Missing(why)) => Err(why.clone()),
            None => Err(Missing::because("this plant does not offer it")),
        }
    }

    /// Whether the capability is there.
    pub fn has(&self, capability: Capability) -> bool {
        self.get(capability).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_stated_is_missing_with_a_reason() {
        let some = Capabilities::default()
            .with_capability(Capability::Cores, "sched_setaffinity")
            .without(Capability::Energy, Missing::because("no RAPL"));
        assert_eq!(some.get(Capability::Cores), Ok("sched_setaffinity"));
        assert_eq!(some.get(Capability::Energy).unwrap_err().to_string(), "no RAPL");
        assert!(some.get(Capability::Frequency).is_err());
    }
}
