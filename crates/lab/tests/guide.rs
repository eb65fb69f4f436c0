//! The research guide is true: its policy is this program, and does what it says.

#[path = "../examples/policy.rs"]
#[expect(dead_code, reason = "its main prints for people")]
mod policy;

use lull_measure::Nanos;

const BOUND: Nanos = Nanos::from_millis(10);

/// Tail and progress at the end.
fn end(demand_cores: f64) -> (Nanos, f64) {
    let epoch = policy::run(8, demand_cores, BOUND).unwrap();
    let tail = epoch.assessment.apps[0].tail.unwrap().latency;
    (tail, epoch.seen.apps[1].progress.as_ref().unwrap().per_s)
}

#[test]
fn the_guides_policy_lends_what_its_app_can_spare_and_no_more() {
    let (tail, lent_much) = end(1.0);
    assert!(tail <= BOUND, "{tail}");
    let (tail, lent_little) = end(4.0);
    assert!(tail <= BOUND, "{tail}");
    assert!(lent_much > 2.0 * lent_little && lent_little > 0.0, "{lent_much}, {lent_little}");
}

#[test]
fn the_guide_prints_the_program_that_is_compiled_and_it_has_60_lines() {
    let page = include_str!("../../../docs/research.md");
    let program = include_str!("../examples/policy.rs");
    let (_, rest) = page.split_once("```rust\n").expect("the page has a block of Rust");
    let (printed, _) = rest.split_once("```").expect("the block ends");
    let differs = printed.lines().zip(program.lines()).find(|(page, file)| page != file);
    assert_eq!(differs, None, "copy crates/lab/examples/policy.rs into docs/research.md");
    assert_eq!(printed.lines().count(), program.lines().count());
    assert!(program.lines().count() <= 60, "{} lines", program.lines().count());
}
