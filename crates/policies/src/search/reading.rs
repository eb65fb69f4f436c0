//! What one trial of a search measures.

use serde::{Deserialize, Serialize};

/// The measurements of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The tail at the percentile of the objective, in microseconds.
    pub tail_us: f64,
    /// Mean power, in watts.
    pub watts: f64,
    /// Requests in the trial.
    pub requests: u64,
    /// Requests over the bound, or never answered.
    pub late: u64,
}
