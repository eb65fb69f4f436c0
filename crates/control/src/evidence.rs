//! The evidence of a setting's trials on its objective.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The evidence for or against a setting, from its trials at one load.
///
/// The limits are one-sided at 99 %. The setting meets its objective if `at_most` is no more
/// than `allowed`, and `probability` is high enough for the search that uses it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrialEvidence {
    /// Trials of the setting.
    pub trials: u32,
    /// Requests in these trials.
    pub requests: u64,
    /// Requests that were over the bound, or were never answered.
    pub late: u64,
    /// Lower limit of the share of late requests.
    pub at_least: f64,
    /// Upper limit of the share of late requests.
    pub at_most: f64,
    /// Share of the requests that the objective allows to be late: 0.01 for a p99.
    pub allowed: f64,
    /// Probability that one more trial meets the bound, with the noise of a trial.
    pub probability: f64,
}

impl TrialEvidence {
    /// Whether the late requests are fewer than the objective allows.
    pub fn is_within(&self) -> bool {
        self.at_most <= self.allowed
    }

    /// Whether the late requests are more than the objective allows.
    pub fn is_beyond(&self) -> bool {
        self.at_least > self.allowed
    }
}

impl fmt::Display for TrialEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trials, requests, late, .. } = self;
        let percent = |share: f64| 100.0 * share;
        write!(f, "{late} of {requests} requests late in {trials} trials: ")?;
        if self.is_beyond() {
            write!(f, "at least {:.3} %", percent(self.at_least))?;
        } else {
            write!(f, "at most {:.3} %", percent(self.at_most))?;
        }
        let (allowed, chance) = (percent(self.allowed), percent(self.probability));
        write!(f, " where {allowed:.3} % may be; the next trial meets the bound with {chance:.0} %")
    }
}
