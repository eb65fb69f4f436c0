//! What comes of a scenario: estimates by policy, and paired differences.

use super::Quantity;
use crate::trial::of;
use lull_measure::Nanos;
use lull_sim::stats::{Estimate, paired};
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// The figures of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The scenario's title.
    pub title: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Forgotten at the start of each replication.
    pub warmup: Nanos,
    /// Counted time of each replication.
    pub length: Nanos,
    /// What was measured.
    pub quantities: Vec<Quantity>,
    /// The policies, the reference first.
    pub policies: Vec<PolicyOutcome>,
    /// What the reader should know before believing any figure.
    pub notices: Vec<String>,
}

/// The figures of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyOutcome {
    /// What it is called in the scenario.
    pub label: String,
    /// Its name in the registry.
    pub policy: String,
    /// By quantity, then by replication; NaN where there is no value.
    pub values: Vec<Vec<f64>>,
}

/// A difference to the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Policy less reference, replication by replication.
    pub difference: Estimate,
    /// The difference in percent of the reference's mean.
    pub percent: f64,
}

impl Comparison {
    /// Whether the interval excludes zero, so that there is a difference.
    pub fn is_clear(&self) -> bool {
        !self.difference.covers(0.0) && self.difference.mean.is_finite()
    }
}

impl Outcome {
    /// Number of replications of every policy.
    pub fn replications(&self) -> usize {
        let first = self.policies.first().and_then(|policy| policy.values.first());
        first.map_or(0, Vec::len)
    }

    /// A figure of a policy, by their numbers.
    pub fn estimate(&self, policy: usize, quantity: usize) -> Estimate {
        of(&self.policies[policy].values[quantity])
    }

    /// A figure of a policy less that of the first one. Both met the same
    /// requests, so that what they share cancels.
    pub fn compare(&self, policy: usize, quantity: usize) -> Comparison {
        let values = |policy: usize| &self.policies[policy].values[quantity];
        let difference = paired(values(policy), values(0)).unwrap_or_else(|| of(&[]));
        let percent = 100.0 * difference.mean / of(values(0)).mean;
        Comparison { difference, percent }
    }

    fn figures(&self, policy: usize) -> Vec<Figure<'_>> {
        let of = |(at, quantity)| Figure::new(quantity, &self.estimate(policy, at), None);
        self.quantities.iter().enumerate().map(of).collect()
    }

    fn differences(&self, policy: usize) -> Vec<Figure<'_>> {
        let of = |(at, quantity)| {
            let Comparison { difference, percent } = self.compare(policy, at);
            Figure::new(quantity, &difference, Some(percent))
        };
        self.quantities.iter().enumerate().map(of).collect()
    }
}

/// A figure in JSON.
#[derive(Debug, serde::Serialize)]
struct Figure<'a> {
    #[serde(flatten)]
    quantity: &'a Quantity,
    mean: Option<f64>,
    ci95: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<f64>,
}

impl<'a> Figure<'a> {
    fn new(quantity: &'a Quantity, estimate: &Estimate, percent: Option<f64>) -> Self {
        let finite = |value: f64| value.is_finite().then_some(value);
        let ci95 = interval(estimate);
        Self { quantity, mean: finite(estimate.mean), ci95, percent: percent.and_then(finite) }
    }
}

/// Ends of the 95 % interval; `None` without one.
pub(super) fn interval(estimate: &Estimate) -> Option<[f64; 2]> {
    let Estimate { mean, half_width, .. } = *estimate;
    let known = mean.is_finite() && half_width.is_finite();
    known.then_some([mean - half_width, mean + half_width])
}

/// A policy in JSON.
#[derive(Debug, serde::Serialize)]
struct Policy<'a> {
    label: &'a str,
    policy: &'a str,
    figures: Vec<Figure<'a>>,
}

/// Differences in JSON.
#[derive(Debug, serde::Serialize)]
struct Difference<'a> {
    label: &'a str,
    less: &'a str,
    figures: Vec<Figure<'a>>,
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let label = |at: usize| self.policies[at].label.as_str();
        let policies = self.policies.iter().enumerate().map(|(at, policy)| Policy {
            label: label(at),
            policy: &policy.policy,
            figures: self.figures(at),
        });
        let differences = (1..self.policies.len()).map(|at| Difference {
            label: label(at),
            less: label(0),
            figures: self.differences(at),
        });
        let mut all = to.serialize_struct("Outcome", 8)?;
        all.serialize_field("scenario", &self.title)?;
        all.serialize_field("seed", &self.seed)?;
        all.serialize_field("warmup_s", &self.warmup.as_secs_f64())?;
        all.serialize_field("length_s", &self.length.as_secs_f64())?;
        all.serialize_field("replications", &self.replications())?;
        all.serialize_field("notices", &self.notices)?;
        all.serialize_field("policies", &policies.collect::<Vec<_>>())?;
        all.serialize_field("differences", &differences.collect::<Vec<_>>())?;
        all.end()
    }
}
