//! Results of a scenario as tables for people.

use crate::text::{estimate, number, table};
use lull_control::EpochRule;
use lull_lab::cycles::{BACKLOG, Cycle, LARGEST};
use lull_lab::scenario::{Comparison, Outcome, Sweep, WorstCycles};
use lull_sim::stats::Estimate;

/// A mean with its interval, or a dash where there is no value.
fn cell(simulated: &Estimate) -> String {
    estimate(Some(*simulated).filter(|known| known.mean.is_finite()))
}

/// Both tables: figures by policy, and paired differences.
pub(in crate::commands) fn outcome(outcome: &Outcome) {
    println!(
        "{}: {} replications of {}, after {} of warm-up (seed {})\n",
        outcome.title,
        outcome.replications(),
        outcome.length,
        outcome.warmup,
        outcome.seed
    );
    println!("{}", figures(outcome));
    if outcome.policies.len() > 1 {
        let reference = &outcome.policies[0].label;
        println!(
            "\nless `{reference}`, replication by replication; * = not zero by its interval\n"
        );
        println!("{}", differences(outcome));
    }
    println!("\n{}", legend(outcome));
    outcome.notices.iter().for_each(|notice| println!("- {notice}"));
}

/// Returns a line on how the intervals are computed.
fn legend(outcome: &Outcome) -> &'static str {
    if outcome.policies.iter().all(|policy| policy.otherwise.is_empty()) {
        return "± is half a 95 % interval over replications";
    }
    "in brackets the 95 % interval over replications, as far out as the error of what was assumed \
     takes it"
}

/// A figure of a policy with its interval, and the margins where it has some.
fn figure(outcome: &Outcome, policy: usize, at: usize) -> String {
    let simulated = outcome.estimate(policy, at);
    match outcome.interval(policy, at) {
        _ if outcome.policies[policy].otherwise.is_empty() => cell(&simulated),
        ends => bracketed(simulated.mean, ends),
    }
}

/// `1.5 (1.1 to 2.4)`.
fn bracketed(mean: f64, ends: Option<[f64; 2]>) -> String {
    match ends {
        _ if !mean.is_finite() => "-".to_owned(),
        Some([low, high]) => format!("{} ({} to {})", number(mean), number(low), number(high)),
        None => format!("{} (no bounds)", number(mean)),
    }
}

fn figures(outcome: &Outcome) -> String {
    let labels = outcome.policies.iter().map(|policy| policy.label.as_str());
    let header: Vec<&str> = ["figure", "unit"].into_iter().chain(labels).collect();
    let rows = outcome.quantities.iter().enumerate().map(|(at, quantity)| {
        let policies = 0..outcome.policies.len();
        let cells = policies.map(|policy| figure(outcome, policy, at));
        [quantity.name.clone(), quantity.unit.to_owned()].into_iter().chain(cells).collect()
    });
    table(&header, epochs(outcome).into_iter().chain(rows))
}

/// The row that says how often each policy decides; `None` if all decide for each request.
fn epochs(outcome: &Outcome) -> Option<Vec<String>> {
    let all = || outcome.policies.iter().map(|policy| policy.epoch.as_ref());
    let text = |epoch: Option<&EpochRule>| epoch.map_or("-".to_owned(), ToString::to_string);
    let first = ["decides every", ""].map(str::to_owned);
    let is_known = all().any(|epoch| epoch.is_some());
    is_known.then(|| first.into_iter().chain(all().map(text)).collect())
}

fn differences(outcome: &Outcome) -> String {
    let labels = outcome.policies[1..].iter().map(|policy| policy.label.as_str());
    let header: Vec<&str> = ["figure", "unit"].into_iter().chain(labels).collect();
    let rows = outcome.quantities.iter().enumerate().map(|(at, quantity)| {
        let policies = 1..outcome.policies.len();
        let cells = policies.map(|policy| difference(&outcome.compare(policy, at), quantity.unit));
        [quantity.name.clone(), quantity.unit.to_owned()].into_iter().chain(cells).collect()
    });
    table(&header, rows)
}

/// `1.5 ± 0.2 * (+12 %)`; shares are in percent already, and need no percent of them.
fn difference(comparison: &Comparison, unit: &str) -> String {
    let clear = if comparison.is_clear() { " *" } else { "" };
    let percent = comparison.percent;
    let share = if percent.is_finite() && unit != "%" {
        let sign = if percent < 0.0 { "" } else { "+" };
        format!(" ({sign}{} %)", number(percent))
    } else {
        String::new()
    };
    let value = match comparison.margins {
        [0.0, 0.0] => cell(&comparison.difference),
        _ => bracketed(comparison.difference.mean, comparison.interval()),
    };
    format!("{value}{clear}{share}")
}

/// Prints one table a policy, and the summary.
pub(super) fn worst_cycles(found: &WorstCycles) {
    println!(
        "{}: bursts of app `{}`, {} replications a cycle (seed {})",
        found.title, found.app, found.replications, found.seed
    );
    for sweep in &found.policies {
        println!("\npolicy `{}`\n\n{}\n\n{}", sweep.label, cycles(sweep), verdict(sweep));
    }
    println!(
        "\n± is half a 95 % interval over replications; the error is work not yet done, at \
              full speed, at the ends of control epochs"
    );
    found.notices.iter().for_each(|notice| println!("- {notice}"));
}

fn cycles(sweep: &Sweep) -> String {
    let header = ["burst cycle", "mean response, ms", "mean error, ms", "largest error, ms", ""];
    let rows = sweep.cycles.iter().enumerate().map(|(at, cycle): (usize, &Cycle)| {
        vec![
            cycle.cycle.to_string(),
            cell(&cycle.response_ms()),
            cell(&cycle.error_ms(BACKLOG)),
            cell(&cycle.error_ms(LARGEST)),
            if at == sweep.worst { "worst" } else { "" }.to_owned(),
        ]
    });
    table(&header, rows)
}

fn verdict(sweep: &Sweep) -> String {
    let ends = [&sweep.cycles[0], &sweep.cycles[sweep.cycles.len() - 1]];
    format!(
        "worst at a cycle of {}: {} ms, {} times that of {} and {} times that of {}; the error is \
         largest at {}",
        sweep.worst().cycle,
        number(sweep.worst().response_ms().mean),
        cell(&sweep.times_shortest()),
        ends[0].cycle,
        cell(&sweep.times_longest()),
        ends[1].cycle,
        sweep.largest_error().cycle
    )
}
