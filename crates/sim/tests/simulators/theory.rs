//! The simulator against exact theory, briefly: runs long enough for half a
//! percent are the experiment `theory` of the lab, all of whose rows are a test.

use lull_measure::Nanos;
use lull_sim::plant::System;
use lull_sim::stats::{Experiment, Runs, Warmup};
use lull_sim::theory::{Case, cases};

/// Eight replications of a case with this many requests each.
fn simulate(case: &Case, requests: u64) -> Runs {
    let length = case.length(requests);
    let warmup = Warmup::Fixed(length.scale(0.1));
    let experiment = Experiment { warmup, length, first: 0, replications: 8 };
    experiment.run(|replication| Ok(System::new(&case.model, 1, replication)?)).unwrap()
}

/// Whether theory lies in the interval, widened so that of some fifty cases
/// none misses it by chance (1.7 times a t interval of 8 is a 99.5 % one), and
/// whether Little's law holds at every server.
fn judge(case: &Case, runs: &Runs) -> Result<(), String> {
    let estimate = runs.estimate(|totals| case.quantity.value(totals)).unwrap();
    if !estimate.near(case.expected, 1.7) {
        return Err(format!("{}: {estimate:?} for {}", case.name, case.expected));
    }
    for totals in &runs.totals {
        for (number, server) in totals.servers.iter().enumerate() {
            let (present, flow) = server.little(totals.span);
            // Both count the same except for the requests present at the two ends.
            if (present - flow).abs() > 0.05 * present {
                return Err(format!("{}: Little at {number}: {present} {flow}", case.name));
            }
        }
    }
    Ok(())
}

#[test]
fn every_case_of_theory_lies_in_its_interval() {
    let failures: Vec<String> =
        cases().iter().filter_map(|case| judge(case, &simulate(case, 10_000)).err()).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn the_warm_up_rule_forgets_the_start_of_a_filling_queue() {
    let case = &cases()[4];
    assert_eq!(case.name, "M/M/1, load 0.9");
    let length = Nanos::from_secs(60);
    let experiment = Experiment { warmup: Warmup::Mser, length, first: 0, replications: 2 };
    let runs = experiment.run(|number| Ok(System::new(&case.model, 3, number)?)).unwrap();
    assert!(runs.warmup <= length.scale(0.5), "{}", runs.warmup);
    assert_eq!(runs.totals[0].span, length);
}
