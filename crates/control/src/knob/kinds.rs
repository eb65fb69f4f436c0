//! Owners of knobs, the counting of their changes, and their safe values.

use serde::{Deserialize, Serialize};

/// The number of a frequency domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DomainId(pub u16);

/// The number of a network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NicId(pub u16);

/// The number of a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DialId(pub u16);

/// The owner of a knob; a machine lists its gates, domains, interfaces and dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnobScope {
    /// One app.
    App,
    /// The on-call gate of one app.
    Gate,
    /// One frequency domain.
    Domain,
    /// One network interface.
    Interface,
    /// One [`Dial`](crate::Dial): a numbered control of the machine with a name and a range.
    Dial,
    /// The whole machine.
    Machine,
}

/// A value that a row can state without knowing the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standard {
    /// The value that the knob had before Lull wrote it first, and where it had none, the most that
    /// the machine has: all cores, all ways, the highest frequency.
    Most,
    /// The value that the knob had before Lull wrote it first.
    Original,
}

/// How changes of a knob count for the shortest time between two changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dwell {
    /// All knobs of this row together, so that the parts of one move (a core from one app to
    /// another) pass or wait together.
    Together,
    /// Each knob for itself.
    Each,
}
