//! The measurements of one trial of a search.

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
    /// Progress of the best-effort apps per second: the geometric mean of their rates, so that
    /// apps whose work is counted in different units have equal weight. `None` if there is no
    /// such app, or its progress is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_per_s: Option<f64>,
}
