//! The experiments about REEF, cut short: their shapes in seconds.

use lull_lab::experiment::Setup;
use lull_lab::registry::find;
use lull_lab::report::{Report, Verdict};

fn run(name: &str) -> Report {
    let report = find(name).unwrap().run(&Setup { quick: true, ..Setup::new("test") }).unwrap();
    assert!(!report.rows.is_empty() && report.figures.iter().all(|it| it.svg.contains("</svg>")));
    for row in &report.rows {
        assert!(row.verdict != Verdict::Reported || row.why.is_some(), "{row:?}");
        assert!(row.ours.is_finite(), "{row:?}");
    }
    report
}

fn ours(report: &Report, row: &str) -> f64 {
    let found = report.rows.iter().find(|it| it.row == row);
    found.unwrap_or_else(|| panic!("no row `{row}`")).ours
}

#[test]
fn sleep_pays_beyond_its_break_even_and_batches_get_there() {
    let report = run("reef-c6");
    let moved: Vec<_> = report.rows.iter().filter(|row| !row.mean_is_within()).collect();
    assert!(moved.is_empty(), "{moved:#?}");
}

#[test]
fn small_batches_are_worth_their_factor_in_tails() {
    let report = run("reef-batch");
    let ratio = ours(&report, "EE(P99) of N = 2 over N = 8");
    assert!((3.0..4.5).contains(&ratio), "{ratio}");
}

#[test]
fn tails_grow_beyond_the_limit_of_what_the_device_can_do() {
    let report = run("reef-lambda");
    assert!(ours(&report, "EE(P99), 110 % over 105 %") < 0.9);
}

#[test]
fn throughput_is_flat_from_six_cores_on_and_tails_are_not() {
    let report = run("reef-thread-packing");
    assert_eq!(ours(&report, "cores from which throughput is flat"), 6.0);
    assert!(ours(&report, "p99.9 over mean, 8 cores over 2") > 2.5);
}

#[test]
fn a_gate_brings_instructions_back_to_those_of_few_threads() {
    let report = run("reef-ipq");
    assert!(ours(&report, "MySQL, 512 threads") > 5.0);
    assert!(ours(&report, "MySQL, 512 threads, REEF") < 1.05);
}

#[test]
fn a_gate_saves_power_under_other_schedulers_too() {
    let report = run("reef-os");
    for scheduler in ["ghOSt(sol)", "Cgroup(cpu)"] {
        let row = format!("{scheduler}: power, REEF against self-serving threads");
        assert!(ours(&report, &row) < -4.0, "{row}");
    }
}

#[test]
fn longer_rests_sleep_deeper_and_starts_are_cheap_against_a_query() {
    let report = run("reef-overhead");
    assert!(ours(&report, "steps of longer rests with more C6 residency") >= 6.0);
    assert!(ours(&report, "the highest cost over the mean latency") < 5.0);
}

#[test]
fn a_gated_server_wastes_no_instructions_beside_other_apps() {
    let report = run("reef-colocation");
    assert!(ours(&report, "MySQL: throughput, REEF against SATORI") > 30.0);
    assert!(ours(&report, "MySQL: instructions a query, REEF against SATORI") < -40.0);
}

#[test]
#[ignore = "slow: 18 s of three schemes, 512 connections each"]
fn every_core_is_in_one_zone_whatever_the_scheme() {
    let report = run("reef-qoswc");
    for scheme in ["PSLO+Demeter", "PSLO+REEF+Demeter", "PSLO+REEF+QoS-WC"] {
        let zone = |zone: &str| ours(&report, &format!("{scheme}: {zone} cores before 85 s"));
        let all = zone("hot") + zone("warm") + zone("cold");
        assert!((all - 24.0).abs() < 1e-9, "{scheme}: {all}");
        assert!(zone("hot") >= 1.0 && zone("warm") >= 1.0, "{scheme}");
    }
}
