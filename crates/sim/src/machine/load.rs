//! The rate of requests over time.

use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// Arrivals at this rate from `from` on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LoadStep {
    /// Time since the start; the first step begins at zero.
    pub from: Nanos,
    /// Requests per second.
    pub rate_per_s: f64,
}
