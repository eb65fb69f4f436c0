//! Why a trial has no reading.

use lull_control::Capability;
use serde::{Deserialize, Serialize};

/// Why a trial has no reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredRefusal")]
pub struct Refusal {
    /// The knob that could not be set; `None` if the trial failed for another reason.
    pub knob: Option<Capability>,
    /// The reason.
    pub why: String,
}

/// A refusal as stores have it; those of earlier versions have the reason only.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredRefusal {
    Why(String),
    Whole { knob: Option<Capability>, why: String },
}

impl Refusal {
    /// Creates the refusal of a knob.
    pub fn of_knob(knob: Capability, why: String) -> Self {
        Self { knob: Some(knob), why }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { knob: None, why }
    }
}

impl From<StoredRefusal> for Refusal {
    fn from(stored: StoredRefusal) -> Self {
        match stored {
            StoredRefusal::Why(why) => why.into(),
            StoredRefusal::Whole { knob, why } => Self { knob, why },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_refusals_are_read_with_their_knob_and_those_of_earlier_versions_without() {
        let refusal = Refusal::of_knob(Capability::Coalescing, "not supported".to_owned());
        let text = serde_json::to_string(&refusal).unwrap();
        assert_eq!(serde_json::from_str::<Refusal>(&text).unwrap(), refusal);
        let former: Refusal = serde_json::from_str("\"held back\"").unwrap();
        assert_eq!((former.knob, former.why.as_str()), (None, "held back"));
    }
}
