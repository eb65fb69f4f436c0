//! The uncertainty of a prediction that comes from the uncertainty of the requests' demand.
//!
//! Near saturation a queue multiplies every error of the demand: at a load of
//! 0.95, 2 % more work makes the latency of M/M/1 60 % longer, and 5 % more
//! twenty times as long. An interval over replications does not
//! include that. So some replications are repeated with all demands smaller and larger
//! by their error, the interval is widened to their results, and a latency of
//! which they leave no more than the order of magnitude is not predicted.

use super::figures::{Reproduced, figures};
use super::model::Fit;
use super::recording::Recording;
use super::tally::Tally;
use super::windows::windows;
use crate::scenario::{Outcome, Quantity};
use crate::trial::estimate_of;

/// Relative difference of the CPU time per request between policies for the same requests,
/// because of caches, neighbours and context switches: ours. On a real
/// machine no quantity in a record of one policy gives a better value.
pub(super) const LEAST: f64 = 0.05;
/// Ratio of the largest to the smallest latency within the error of the demand above which no
/// latency is predicted (ours). Bounds are commonly twice the ideal.
const GOVERNED: f64 = 2.0;
/// Replications that are played again with other demands.
pub(super) const AGAIN: u64 = 2;

/// The relative error of the demand: the largest of
/// [`LEAST`], the error of CPU time in the reproduction, and the 95 % interval
/// of the recorded CPU time per request over windows.
pub(super) fn error(recording: &Recording, reproduced: &[Reproduced]) -> f64 {
    let specs = recording.apps.iter().enumerate();
    let critical = specs.filter(|(_, spec)| spec.is_latency_critical());
    critical.fold(LEAST, |worst, (app, spec)| {
        let id = format!("cpu[{}]", spec.name);
        let cpu = reproduced.iter().find(|figure| figure.quantity.id == id);
        let off = cpu.and_then(|cpu| Some((cpu.replayed? / cpu.measured? - 1.0).abs()));
        let known = |error: f64| if error.is_finite() { error } else { 0.0 };
        worst.max(off.map_or(0.0, known)).max(known(scatter(recording, app)))
    })
}

/// Half a 95 % interval of the CPU time per request over windows, as a share of it.
fn scatter(recording: &Recording, app: usize) -> f64 {
    let per_request = windows(recording).into_iter().filter_map(|(block, epochs)| {
        let tally = Tally::recorded(recording, recording.blocks[block][epochs].iter());
        let sum = tally.apps.get(app).filter(|sum| sum.answered > 0.0)?;
        Some(sum.cpu_s / sum.answered)
    });
    let estimate = estimate_of(&per_request.collect::<Vec<_>>());
    estimate.half_width / estimate.mean
}

/// The fit with all demands times a factor.
pub(super) fn scaled(fit: &Fit, factor: f64) -> Fit {
    let mut other = fit.clone();
    for own in other.apps.iter_mut().flatten() {
        own.work_ns *= factor;
    }
    other
}

/// Removes latencies that the error of the demand governs, and adds notices. The
/// first policy is the recorded one, whose latencies are known.
pub(super) fn withhold(outcome: &mut Outcome, recording: &Recording, error: f64) {
    let latencies: Vec<usize> = (0..figures(&recording.apps).len())
        .filter(|at| is_latency(&outcome.quantities[*at]))
        .collect();
    for policy in 1..outcome.policies.len() {
        for at in &latencies {
            let Some(range) = governed(outcome, policy, *at) else { continue };
            let quantity = &outcome.quantities[*at];
            outcome.notices.push(describe_demand(
                &outcome.policies[policy].label,
                quantity,
                range,
                error,
            ));
            let figure = &mut outcome.policies[policy];
            figure.values[*at].fill(f64::NAN);
        }
    }
}

fn is_latency(quantity: &Quantity) -> bool {
    quantity.unit == "ms"
}

/// The smallest and largest mean within the error of the demand, if they are
/// too far apart.
fn governed(outcome: &Outcome, policy: usize, at: usize) -> Option<[f64; 2]> {
    let own = &outcome.policies[policy];
    let again = |values: &Vec<f64>| estimate_of(values).mean;
    let all = own.otherwise.iter().map(|other| again(&other[at]));
    let all: Vec<f64> = all.chain([again(&own.values[at])]).collect();
    if !all[all.len() - 1].is_finite() {
        return None;
    }
    // Without an answer, a latency counts as infinitely long.
    let longest = |value: &f64| if value.is_finite() { *value } else { f64::INFINITY };
    let low = all.iter().map(longest).fold(f64::INFINITY, f64::min);
    let high = all.iter().map(longest).fold(0.0, f64::max);
    (high > GOVERNED * low).then_some([low, high])
}

fn describe_demand(policy: &str, quantity: &Quantity, [low, high]: [f64; 2], error: f64) -> String {
    format!(
        "policy `{policy}`: {} is not predicted: near saturation the answer is the error of the \
         demand. What requests demand is known to {:.0} %, and within that it is anything from \
         {low:.3} to {high:.3} ms; record under a lower load, or run the policy",
        quantity.name,
        100.0 * error
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{PolicyOutcome, figure_of};
    use lull_measure::Nanos;

    fn outcome(policies: Vec<PolicyOutcome>) -> Outcome {
        let quantity = figure_of("p95", Some("server"), "p95 latency", "ms");
        let (warmup, length) = (Nanos::ZERO, Nanos::ZERO);
        let (title, notices) = (String::new(), Vec::new());
        Outcome { title, seed: 1, warmup, length, quantities: vec![quantity], policies, notices }
    }

    fn policy(mean: f64, otherwise: [f64; 2]) -> PolicyOutcome {
        PolicyOutcome {
            label: "any".to_owned(),
            policy: "any".to_owned(),
            epoch: None,
            values: vec![vec![mean; 3]],
            otherwise: otherwise.map(|mean| vec![vec![mean; 2]]).to_vec(),
        }
    }

    #[test]
    fn a_latency_is_governed_if_the_demands_error_makes_it_double() {
        let of = |mean, otherwise| governed(&outcome(vec![policy(mean, otherwise)]), 0, 0);
        assert_eq!(of(3.0, [2.0, 3.9]), None);
        assert_eq!(of(3.0, [2.0, 4.1]), Some([2.0, 4.1]));
        assert_eq!(of(3.0, [2.9, f64::NAN]), Some([2.9, f64::INFINITY]));
        assert_eq!(of(f64::NAN, [2.9, 9.0]), None, "there is nothing to take out");
    }

    #[test]
    fn the_sentence_names_policy_figure_and_range() {
        let quantity = figure_of("p95", Some("server"), "p95 latency", "ms");
        let text = describe_demand("even", &quantity, [2.0, 9.5], 0.05);
        for words in ["`even`", "server: p95 latency", "to 5 %", "2.000 to 9.500 ms"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
