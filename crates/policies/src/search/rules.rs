//! The rules of a search: how it chooses candidates, and when it ends.

use super::prior::PriorMean;
use lull_control::TrialEvidence;
use lull_measure::Percentile;
use lull_measure::statistics::trials_without_event;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Confidence of the one-sided limits of the share of late requests.
pub(super) const CONFIDENCE: f64 = 0.99;

/// How a search chooses candidates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Latency and power modelled separately.
    #[default]
    Apart,
    /// The paper's penalty.
    Penalty,
    /// The front of power, tail below the bound and, where it is known, best-effort progress.
    Front,
    /// Anywhere: what a search must beat.
    Random,
}

/// No method has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write apart, penalty, front or random")]
pub struct UnknownMethod;

/// The method predicts no tail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the methods penalty and random predict no tail that a safe search could avoid: write the \
     method apart or front"
)]
pub struct UnsafeMethod;

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        match name {
            "apart" => Ok(Self::Apart),
            "penalty" => Ok(Self::Penalty),
            "front" => Ok(Self::Front),
            "random" => Ok(Self::Random),
            _ => Err(UnknownMethod),
        }
    }
}

impl Method {
    /// Checks that the method can avoid settings whose tail it predicts to be too long.
    ///
    /// # Errors
    /// If it predicts no tail.
    pub fn check_safe(self) -> Result<(), UnsafeMethod> {
        match self {
            Self::Apart | Self::Front => Ok(()),
            Self::Penalty | Self::Random => Err(UnsafeMethod),
        }
    }
}

/// The bound, the length and the caution of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// How candidates are chosen.
    pub method: Method,
    /// The bound on the tail, in microseconds.
    pub bound_us: f64,
    /// Share of the requests that the objective allows over the bound: 0.01 for a p99.
    pub allowed: f64,
    /// Trials at most.
    pub trials: usize,
    /// Quasi-random trials to begin with (`Penalty` only; the paper's Ax: 5).
    pub begin: usize,
    /// The least probability of being at or below 1.2 bounds with which a candidate is tried.
    pub floor: f64,
    /// Probability that one more trial meets the bound that it must have to be chosen for good.
    pub final_floor: f64,
    /// Trials that measure a setting again before it can be chosen for good; in a short search
    /// a quarter of its trials.
    pub confirm: usize,
    /// The prior mean (`Apart` only).
    pub prior: PriorMean,
    /// The search ends when the expected decrease of power was below this share
    /// five times running; 0 for never.
    pub stop_below: f64,
    /// Share of requests over the bound that a search may cause; then only
    /// candidates that are nearly sure to meet it are tried.
    pub harm_max: f64,
    /// Whether settings that are predicted to exceed twice the bound are never tried (`Apart` and
    /// `Front` only).
    pub safe: bool,
}

impl Rules {
    /// Ours, for this bound on a p99 and this many trials.
    pub fn new(method: Method, bound_us: f64, trials: usize) -> Self {
        Self {
            method,
            bound_us,
            allowed: 0.01,
            trials,
            begin: 5,
            floor: 0.9,
            final_floor: 0.95,
            confirm: 5,
            prior: PriorMean::Constant,
            stop_below: 0.0,
            harm_max: 1.0,
            safe: false,
        }
    }

    /// Returns the same rules for the tail at this percentile.
    #[must_use]
    pub fn at(self, percentile: Percentile) -> Self {
        Self { allowed: 1.0 - percentile.fraction(), ..self }
    }

    /// Returns the requests that a trial takes at least: enough that the trials of one setting
    /// can show that it meets the bound if none of them is late, and that one request is
    /// expected beyond the percentile.
    pub fn least_requests(&self) -> u64 {
        let all = trials_without_event(self.allowed, 1.0 - CONFIDENCE);
        // The share is not exact in binary: a p99.99 takes 10,000 requests, not 10,001.
        let one_beyond = (1.0 / self.allowed * (1.0 - 1e-9)).ceil() as u64;
        all.div_ceil(self.confirmations() as u64 + 1).max(one_beyond)
    }

    /// Whether this evidence shows that a setting meets the bound.
    pub(crate) fn is_enough(&self, evidence: &TrialEvidence) -> bool {
        evidence.is_within() && evidence.probability >= self.final_floor
    }

    /// Returns how often a setting is measured again before it can be chosen for good.
    pub fn confirmations(&self) -> usize {
        self.confirm.min(self.trials / 4).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_methods_are_those_of_the_config() {
        for method in [Method::Apart, Method::Penalty, Method::Front, Method::Random] {
            let name = serde_json::to_value(method).unwrap();
            assert_eq!(name.as_str().unwrap().parse(), Ok(method));
        }
        assert_eq!("best".parse::<Method>(), Err(UnknownMethod));
    }

    #[test]
    fn a_trial_takes_more_requests_for_a_higher_percentile() {
        let least = |percentile| Rules::new(Method::Apart, 1.0, 30).at(percentile).least_requests();
        // Six trials of 100 requests are more than the 556 that none late among them takes.
        for (percent, requests) in [(90.0, 10), (99.0, 100), (99.9, 1000), (99.99, 10_000)] {
            assert_eq!(least(Percentile::new(percent).unwrap()), requests, "p{percent}");
        }
        let short = Rules::new(Method::Apart, 1.0, 5).at(Percentile::P95).least_requests();
        assert_eq!(short, 55, "109 requests in two trials");
    }
}
