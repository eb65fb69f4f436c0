//! The search without end, and what it is shown.

use super::*;
use crate::testing::{Bench, alive, be, be_spec, cores_only, gone, lc, lc_spec, silent, steer};
use crate::toolkit::regions::Kind;
use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{CoreSet, Knob, Plant, Setting};
use lull_measure::catalogue::INSTRUCTIONS;

const SAMPLE: Nanos = Nanos::from_millis(100);

fn specs() -> Vec<AppSpec> {
    vec![be_spec("a"), be_spec("b"), lc_spec("lc")]
}

fn build(config: &str, machine: &Machine, apps: &[AppSpec]) -> Result<Satori, PolicyError> {
    Satori::new(read(&config.parse().unwrap())?, machine, apps)
}

fn bench() -> Bench<Satori> {
    Bench::new(build("", &cores_only(9), &specs()).unwrap(), SAMPLE)
}

fn cores(bench: &Bench<Satori>) -> String {
    bench.policy.partition.line(Kind::Cores)
}

#[test]
fn it_begins_even_and_gives_each_app_the_most_in_turn() {
    let mut bench = bench();
    let tried = [0; 4].map(|_| {
        bench.see(vec![be(50.0), be(50.0), lc(5.0)]);
        cores(&bench)
    });
    assert_eq!(tried, ["3 3 3 +0", "7 1 1 +0", "1 7 1 +0", "1 1 7 +0"]);
}

#[test]
fn speeds_are_shares_of_the_most_seen_and_fairness_is_jains_index() {
    let mut bench = bench();
    bench.see(vec![alive(), alive(), alive()]);
    bench.see(vec![be(100.0), be(100.0), alive()]);
    bench.see(vec![be(50.0), be(100.0), alive()]);
    let last = bench.policy.samples.back().unwrap();
    let Goals { throughput, fairness } = bench.policy.goals(&last.rates);
    assert!((throughput - 0.75).abs() < 1e-12);
    // Slow-downs 2 and 1: 9/(2 * 5).
    assert!((fairness - 0.9).abs() < 1e-12);
}

#[test]
fn a_source_is_chosen_once() {
    let mut bench = bench();
    let counted = be(50.0).with_reading(INSTRUCTIONS, Ok(1e9));
    for app in [alive(), counted.clone(), be(50.0), counted] {
        bench.see(vec![app, be(50.0), silent(0)]);
    }
    let of_first: Vec<_> = bench.policy.samples.iter().map(|sample| sample.rates[0]).collect();
    assert_eq!(of_first, [Some(1e9), None, Some(1e9)]);
    assert_eq!(bench.policy.sources[2], Some(Source::Answers));
}

#[test]
fn nothing_readable_moves_nothing_and_no_number_is_no_reading() {
    let mut bench = bench();
    for _ in 0..5 {
        bench.see(vec![be(f64::NAN), alive(), alive()]);
        assert_eq!(cores(&bench), "3 3 3 +0");
    }
    bench.see(vec![be(f64::NAN), be(10.0), alive()]);
    assert_eq!(cores(&bench), "7 1 1 +0");
}

#[test]
fn more_apps_than_cores_are_refused_with_the_numbers() {
    let text = build("", &cores_only(2), &specs()).err().unwrap().to_string();
    assert!(text.contains("2 cores") && text.contains("3 parties"), "{text}");
}

#[test]
fn apps_that_exit_are_searched_without_down_to_none() {
    let mut bench = bench();
    bench.see(vec![be(50.0), be(50.0), lc(5.0)]);
    bench.see(vec![gone(), be(50.0), lc(5.0)]);
    assert_eq!(cores(&bench), "5 4 +0");
    let plan = bench.see(vec![gone(), be(50.0), gone()]);
    let all = Setting::Cores(AppId(1), CoreSet::first(9));
    assert_eq!(plan.setting(Knob::Cores(AppId(1))), Some(&all));
    assert!(bench.see(vec![gone(), gone(), gone()]).is_empty());
}

#[test]
fn on_a_plant_where_one_app_has_two_threads_the_rest_is_shared_fairly() {
    let app = |name, threads| MemoryApp {
        spec: AppSpec { solo_per_s: Some(f64::from(threads)), ..AppSpec::best_effort(name) },
        demand_cores: 0.0,
        service: Nanos::from_millis(1),
        threads,
    };
    // Two cores are all that `small` can use; 5 and 5 of the rest are fast and fair.
    let apps = vec![app("small", 2), app("a", 8), app("b", 8)];
    let mut plant = MemoryPlant::new(12, apps)
        .without(Capability::CacheWays, "test")
        .without(Capability::MemoryBandwidth, "test");
    let mut satori = build("memory = 30", plant.machine(), plant.apps()).unwrap();
    steer(&mut plant, &mut satori, SAMPLE, 70);
    let goals = |sample: &Sample| satori.goals(&sample.rates);
    let last: Vec<_> = satori.samples.iter().rev().take(20).map(goals).collect();
    let mean = |of: fn(&Goals) -> f64| last.iter().map(of).sum::<f64>() / 20.0;
    let (throughput, fairness) = (mean(|g| g.throughput), mean(|g| g.fairness));
    assert!(throughput > 0.7 && fairness > 0.8, "T {throughput}, F {fairness}");
}

#[test]
fn periods_and_weights_that_make_no_sense_are_refused_at_their_key() {
    let key = |config: &str| match build(config, &cores_only(9), &specs()).err() {
        Some(PolicyError::Config { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key("equalise = \"500ms\""), "equalise");
    assert_eq!(key("weight_min = 0.6"), "weight_min");
    assert_eq!(key("memory = 0"), "memory");
}
