//! Why a trial has no reading.

use super::space::{SearchPoint, Space};
use lull_control::Capability;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Why a trial has no reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredRefusal")]
pub struct Refusal {
    /// The knob that could not be set; `None` if the trial failed for another reason.
    pub knob: Option<Capability>,
    /// The reason.
    pub why: String,
}

/// A refusal in the form of stores; those of earlier versions have the reason only.
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

/// Returns the levels that knobs have refused and that were never set, each with the number of its
/// dimension. A trial is its setting and, if it has no reading, the reason.
pub fn refused_levels<'a>(
    space: &Space,
    trials: &(impl Iterator<Item = (&'a SearchPoint, Option<&'a Refusal>)> + Clone),
) -> BTreeSet<(usize, u16)> {
    let axis =
        |refusal: &Refusal| space.dimensions().iter().position(|it| Some(it.knob) == refusal.knob);
    let refused = trials.clone().filter_map(|(point, refusal)| {
        let axis = axis(refusal?)?;
        Some((axis, point.0[axis]))
    });
    let was_set = |(axis, level): &(usize, u16)| {
        let mut set = trials.clone().filter(|(_, refusal)| refusal.is_none());
        set.any(|(point, _)| point.0[*axis] == *level)
    };
    refused.filter(|level| !was_set(level)).collect()
}

/// Whether a setting has one of these levels.
pub fn has_level(point: &SearchPoint, levels: &BTreeSet<(usize, u16)>) -> bool {
    point.0.iter().copied().enumerate().any(|level| levels.contains(&level))
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
