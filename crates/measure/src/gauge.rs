//! A reading that may be missing, and why.

use crate::SharedText;
use serde::{Deserialize, Serialize};

/// What a gauge answers: a value, or the reason why there is none.
///
/// Never a silent zero: a machine without a power meter says so.
pub type Gauge<T> = Result<T, Missing>;

/// The reason why a gauge has no value, as text for the operator.
///
/// It states what is absent and, where there is a remedy, what to do: `"/sys/class/powercap has no
/// intel-rapl domain"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct Missing {
    /// One sentence without a full stop.
    pub reason: SharedText,
}

impl Missing {
    /// A missing value with its reason.
    pub fn because(reason: impl Into<SharedText>) -> Self {
        Self { reason: reason.into() }
    }
}
