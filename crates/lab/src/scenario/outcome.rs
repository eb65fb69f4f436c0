//! The result of a scenario: estimates for each policy, and paired differences.

use super::Quantity;
use crate::trial::estimate_of;
use lull_control::EpochRule;
use lull_measure::Nanos;
use lull_sim::stats::{Estimate, paired_difference};
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// The figures of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The scenario's title.
    pub title: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Warm-up of each replication, which is not counted.
    pub warmup: Nanos,
    /// Counted time of each replication.
    pub length: Nanos,
    /// The measured quantities.
    pub quantities: Vec<Quantity>,
    /// The policies, the reference first.
    pub policies: Vec<PolicyOutcome>,
    /// Notices about how far the figures are valid.
    pub notices: Vec<String>,
}

/// The figures of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyOutcome {
    /// Its label in the scenario.
    pub label: String,
    /// Its name in the registry.
    pub policy: String,
    /// How often it observes and decides; `None` of what decides for each request.
    pub epoch: Option<EpochRule>,
    /// Indexed by quantity, then by replication; NaN where there is no value.
    pub values: Vec<Vec<f64>>,
    /// Values of the first replications under other assumptions within their uncertainty: by
    /// assumption, quantity, replication. Empty without uncertain assumptions.
    pub otherwise: Vec<Vec<Vec<f64>>>,
}

/// A difference to the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Policy less reference, replication by replication.
    pub difference: Estimate,
    /// The difference in percent of the reference's mean.
    pub percent: f64,
    /// How far the difference moves down and up under the other assumptions.
    pub margins: [f64; 2],
}

impl Comparison {
    /// Whether the interval excludes zero, so that there is a difference.
    pub fn is_clear(&self) -> bool {
        widened(&self.difference, self.margins).is_some_and(|[low, high]| low > 0.0 || high < 0.0)
    }

    /// Ends of the interval; `None` without one.
    pub fn interval(&self) -> Option<[f64; 2]> {
        widened(&self.difference, self.margins)
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
        estimate_of(&self.policies[policy].values[quantity])
    }

    /// A figure of a policy less that of the first one. Both met the same requests, so that shared
    /// effects cancel.
    pub fn compare(&self, policy: usize, quantity: usize) -> Comparison {
        let values = |policy: usize| &self.policies[policy].values[quantity];
        let difference = paired_difference(values(policy), values(0));
        let difference = difference.unwrap_or_else(|| estimate_of(&[]));
        let percent = 100.0 * difference.mean / estimate_of(values(0)).mean;
        let [own, reference] = [policy, 0].map(|policy| self.shifts(policy, quantity));
        let shifts = own.iter().zip(&reference).map(|(own, reference)| own - reference);
        Comparison { difference, percent, margins: margins(shifts) }
    }

    /// Ends of a figure's 95 % interval over replications, widened by its changes under other
    /// assumptions; `None` without an interval.
    pub fn interval(&self, policy: usize, quantity: usize) -> Option<[f64; 2]> {
        let margins = margins(self.shifts(policy, quantity).into_iter());
        widened(&self.estimate(policy, quantity), margins)
    }

    /// The changes of a figure under each other assumption.
    fn shifts(&self, policy: usize, quantity: usize) -> Vec<f64> {
        let PolicyOutcome { values, otherwise, .. } = &self.policies[policy];
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let shift = |other: &Vec<Vec<f64>>| {
            let other = &other[quantity];
            mean(other) - mean(&values[quantity][..other.len()])
        };
        otherwise.iter().map(shift).collect()
    }

    fn figures(&self, policy: usize) -> Vec<FigureJson<'_>> {
        let of = |(at, quantity)| {
            let (mean, ci95) = (self.estimate(policy, at).mean, self.interval(policy, at));
            FigureJson::new(quantity, mean, ci95, None)
        };
        self.quantities.iter().enumerate().map(of).collect()
    }

    fn differences(&self, policy: usize) -> Vec<FigureJson<'_>> {
        let of = |(at, quantity)| {
            let compared = self.compare(policy, at);
            let (mean, ci95) = (compared.difference.mean, compared.interval());
            FigureJson::new(quantity, mean, ci95, Some(compared.percent))
        };
        self.quantities.iter().enumerate().map(of).collect()
    }
}

/// A figure in JSON.
#[derive(Debug, serde::Serialize)]
struct FigureJson<'a> {
    #[serde(flatten)]
    quantity: &'a Quantity,
    mean: Option<f64>,
    ci95: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<f64>,
}

impl<'a> FigureJson<'a> {
    fn new(
        quantity: &'a Quantity,
        mean: f64,
        ci95: Option<[f64; 2]>,
        percent: Option<f64>,
    ) -> Self {
        let finite = |value: f64| value.is_finite().then_some(value);
        Self { quantity, mean: finite(mean), ci95, percent: percent.and_then(finite) }
    }
}

/// The largest shifts down and up; infinite if a shift is not finite.
fn margins(shifts: impl Iterator<Item = f64>) -> [f64; 2] {
    shifts.fold([0.0, 0.0], |[below, above], shift| {
        let shift = if shift.is_finite() { [-shift, shift] } else { [f64::INFINITY; 2] };
        [f64::max(below, shift[0]), f64::max(above, shift[1])]
    })
}

/// The interval of an estimate, widened by these margins.
fn widened(estimate: &Estimate, [below, above]: [f64; 2]) -> Option<[f64; 2]> {
    let [low, high] = interval(estimate)?;
    (below.is_finite() && above.is_finite()).then_some([low - below, high + above])
}

/// Ends of the 95 % interval; `None` without one.
pub(super) fn interval(estimate: &Estimate) -> Option<[f64; 2]> {
    let Estimate { mean, half_width, .. } = *estimate;
    let known = mean.is_finite() && half_width.is_finite();
    known.then_some([mean - half_width, mean + half_width])
}

/// A policy in JSON.
#[derive(Debug, serde::Serialize)]
struct PolicyJson<'a> {
    label: &'a str,
    policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    figures: Vec<FigureJson<'a>>,
}

/// Differences in JSON.
#[derive(Debug, serde::Serialize)]
struct DifferenceJson<'a> {
    label: &'a str,
    less: &'a str,
    figures: Vec<FigureJson<'a>>,
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let label = |at: usize| self.policies[at].label.as_str();
        let policies = self.policies.iter().enumerate().map(|(at, policy)| PolicyJson {
            label: label(at),
            policy: &policy.policy,
            epoch: policy.epoch.as_ref().map(ToString::to_string),
            figures: self.figures(at),
        });
        let differences = (1..self.policies.len()).map(|at| DifferenceJson {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(values: [f64; 3], otherwise: &[[f64; 2]]) -> PolicyOutcome {
        PolicyOutcome {
            label: "any".to_owned(),
            policy: "any".to_owned(),
            epoch: None,
            values: vec![values.to_vec()],
            otherwise: otherwise.iter().map(|values| vec![values.to_vec()]).collect(),
        }
    }

    fn outcome(policies: Vec<PolicyOutcome>) -> Outcome {
        let quantity = Quantity { id: "x".to_owned(), name: "x".to_owned(), unit: "1" };
        Outcome {
            title: String::new(),
            seed: 1,
            warmup: Nanos::ZERO,
            length: Nanos::ZERO,
            quantities: vec![quantity],
            policies,
            notices: Vec::new(),
        }
    }

    #[test]
    fn an_interval_goes_as_far_as_any_assumption_takes_it() {
        // The first two of 10, 10, 10 go down by 2 and up by 5.
        let all = outcome(vec![policy([10.0; 3], &[[8.0, 8.0], [15.0, 15.0]])]);
        assert_eq!(all.interval(0, 0), Some([8.0, 15.0]));
        let known = outcome(vec![policy([10.0; 3], &[])]);
        assert_eq!(known.interval(0, 0), Some([10.0, 10.0]));
        let endless = outcome(vec![policy([10.0; 3], &[[f64::NAN, 10.0]])]);
        assert_eq!(endless.interval(0, 0), None);
    }

    #[test]
    fn what_moves_two_policies_alike_does_not_move_their_difference() {
        let alike = [[8.0, 8.0], [15.0, 15.0]];
        let more = [[9.0, 9.0], [16.0, 16.0]];
        let all = outcome(vec![policy([10.0; 3], &alike), policy([11.0; 3], &more)]);
        let compared = all.compare(1, 0);
        assert_eq!((compared.interval(), compared.is_clear()), (Some([1.0, 1.0]), true));
        let turned = [[12.0, 12.0], [13.0, 13.0]];
        let all = outcome(vec![policy([10.0; 3], &alike), policy([11.0; 3], &turned)]);
        let compared = all.compare(1, 0);
        assert_eq!((compared.interval(), compared.is_clear()), (Some([-2.0, 4.0]), false));
    }
}
