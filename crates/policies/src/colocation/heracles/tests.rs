//! Algorithms 1 and 2, branch by branch.

use super::*;
use crate::testing::{
    Bench, alive, be, be_spec, cores_only, gone, lc, lc_spec, machine, p95_ms, plant, silent, steer,
};
use lull_control::{AppObservation, CoreSet, Knob};

const SECOND: Nanos = Nanos::from_secs(1);

fn specs() -> Vec<AppSpec> {
    vec![AppSpec { max_load_per_s: Some(10_000.0), ..lc_spec("lc") }, be_spec("be")]
}

fn build(config: &str, machine: &Machine, apps: &[AppSpec]) -> Result<Heracles, PolicyError> {
    Heracles::new(read(&config.parse().unwrap())?, machine, apps)
}

fn bench(config: &str) -> Bench<Heracles> {
    Bench::new(build(config, &machine(10), &specs()).unwrap(), SECOND)
}

/// Only the top level: the second one sleeps.
fn top_only(config: &str) -> Bench<Heracles> {
    bench(&format!("growth_period = \"10000s\"\nperiod = \"1s\"\n{config}"))
}

fn rest(bench: &Bench<Heracles>) -> [u32; 3] {
    Kind::ALL.map(|kind| bench.policy.partition.units_of(kind, REST))
}

fn loaded(tail_ms: f64, share: f64) -> AppObservation {
    let mut app = lc(tail_ms);
    app.latency.as_mut().unwrap().offered_per_s = share * 10_000.0;
    app
}

fn grown(bench: &mut Bench<Heracles>, cores: u32) {
    bench.policy.give_rest(Kind::Cores, cores);
}

#[test]
fn best_effort_work_begins_with_one_core_and_a_tenth_of_the_cache() {
    assert_eq!(rest(&bench("")), [1, 2, 1]);
}

#[test]
fn a_missed_bound_disables_best_effort_work_for_five_minutes() {
    let mut bench = top_only("");
    grown(&mut bench, 4);
    let plan = bench.see(vec![loaded(11.0, 0.2), be(50.0)]);
    assert_eq!(rest(&bench), [1, 1, 1]);
    let idle = Setting::Scheduling(AppId(1), Scheduling::Idle);
    assert_eq!(plan.setting(Knob::Scheduling(AppId(1))), Some(&idle));
    for _ in 0..299 {
        bench.see(vec![loaded(5.0, 0.2), be(50.0)]);
        assert!(!bench.policy.enabled);
    }
    let plan = bench.see(vec![loaded(5.0, 0.2), be(50.0)]);
    assert!(bench.policy.enabled);
    let normal = Setting::Scheduling(AppId(1), Scheduling::Normal { nice: 0 });
    assert_eq!(plan.setting(Knob::Scheduling(AppId(1))), Some(&normal));
}

#[test]
fn high_load_disables_it_and_only_low_load_enables_it_again() {
    let mut bench = top_only("");
    let enabled = [0.84, 0.86, 0.82, 0.79].map(|share| {
        bench.see(vec![loaded(5.0, share), be(50.0)]);
        bench.policy.enabled
    });
    assert_eq!(enabled, [true, false, false, true]);
}

#[test]
fn without_a_known_maximum_load_says_nothing() {
    let mut apps = specs();
    apps[0].max_load_per_s = None;
    let heracles = build("period = \"1s\"", &machine(10), &apps).unwrap();
    let mut bench = Bench::new(heracles, SECOND);
    bench.see(vec![loaded(5.0, 100.0), be(50.0)]);
    assert!(bench.policy.enabled);
}

#[test]
fn in_prose_little_slack_stops_growth_and_less_cuts_to_two_cores() {
    let mut bench = top_only("");
    grown(&mut bench, 5);
    let after = |bench: &mut Bench<Heracles>, tail| {
        bench.see(vec![loaded(tail, 0.2), be(50.0)]);
        (bench.policy.may_grow, rest(bench)[0])
    };
    assert_eq!(after(&mut bench, 8.0), (true, 5));
    assert_eq!(after(&mut bench, 9.2), (false, 5));
    assert_eq!(after(&mut bench, 9.6), (false, 2));
    assert_eq!(after(&mut bench, 8.0), (true, 2));
}

#[test]
fn the_literal_chain_looks_at_slack_only_between_the_two_loads() {
    let cores_after = |load| {
        let mut bench = top_only("mode = \"literal\"");
        grown(&mut bench, 5);
        bench.see(vec![loaded(9.6, load), be(50.0)]);
        rest(&bench)[0]
    };
    assert_eq!([0.2, 0.82].map(cores_after), [5, 2]);
}

#[test]
fn ways_come_first_while_they_help_and_then_a_core() {
    let mut bench = bench("");
    let mut trail = Vec::new();
    // Every second epoch decides: way given, judged as helpful, given, judged as useless, core.
    for progress in [50.0, 60.0, 60.0, 60.0, 60.0] {
        for _ in 0..2 {
            bench.see(vec![loaded(5.0, 0.2), be(progress)]);
        }
        trail.push([rest(&bench)[0], rest(&bench)[1]]);
    }
    assert_eq!(trail, [[1, 3], [1, 3], [1, 4], [1, 4], [2, 4]]);
}

#[test]
fn a_way_that_costs_the_first_app_its_slack_goes_back() {
    for hurt in [9.2, 5.6] {
        let mut bench = bench("");
        for tail in [5.0, hurt] {
            for _ in 0..2 {
                bench.see(vec![loaded(tail, 0.2), be(50.0)]);
            }
        }
        assert_eq!(rest(&bench)[1], 2, "p95 {hurt}");
        assert_eq!(bench.policy.growth, Growth::Cores);
    }
}

#[test]
fn bandwidth_follows_cores() {
    let mut bench = top_only("");
    grown(&mut bench, 5);
    bench.see(vec![loaded(9.6, 0.2), be(50.0)]);
    assert_eq!((rest(&bench)[0], rest(&bench)[2]), (2, 2));
}

#[test]
fn of_several_latency_critical_apps_the_tightest_is_the_one() {
    let mut tight = lc_spec("tight");
    tight.objectives =
        AppSpec::latency_critical("", lull_measure::Percentile::P95, Nanos::from_millis(2))
            .objectives;
    let heracles = build("", &machine(10), &[lc_spec("loose"), tight, be_spec("be")]).unwrap();
    assert_eq!(heracles.first, Some(AppId(1)));
    assert_eq!(heracles.rest, [AppId(0), AppId(2)]);
}

#[test]
fn one_side_alone_has_everything() {
    for apps in [vec![lc_spec("lc")], vec![be_spec("be"), be_spec("be2")], Vec::new()] {
        let seen =
            apps.iter().map(|spec| if spec.is_latency_critical() { lc(5.0) } else { be(1.0) });
        let seen: Vec<_> = seen.collect();
        let heracles = build("", &cores_only(4), &apps).unwrap();
        let plan = Bench::new(heracles, SECOND).see(seen);
        for app in 0..apps.len() as u16 {
            let all = Setting::Cores(AppId(app), CoreSet::first(4));
            assert_eq!(plan.setting(Knob::Cores(AppId(app))), Some(&all));
        }
    }
}

#[test]
fn a_single_core_cannot_be_divided() {
    let text = build("", &cores_only(1), &specs()).err().unwrap().to_string();
    assert!(text.contains("1 cores") && text.contains("2 parties"), "{text}");
}

#[test]
fn silence_changes_nothing_and_an_idle_app_has_slack() {
    let mut bench = top_only("");
    grown(&mut bench, 5);
    bench.see(vec![alive(), be(50.0)]);
    bench.see(vec![silent(0), be(50.0)]);
    assert_eq!(rest(&bench)[0], 5);
    bench.see(vec![loaded(9.6, 0.2), be(50.0)]);
    assert_eq!(rest(&bench)[0], 2);
    bench.see(vec![silent(0), be(50.0)]);
    assert!(bench.policy.may_grow, "no request is waiting");
    bench.see(vec![silent(3), be(50.0)]);
    assert!(!bench.policy.enabled, "a second is over the bound");
}

#[test]
fn missing_progress_never_counts_as_a_gain() {
    for progress in [be(f64::NAN), alive()] {
        let mut bench = bench("");
        for _ in 0..4 {
            bench.see(vec![loaded(5.0, 0.2), progress.clone()]);
        }
        assert_eq!([rest(&bench)[0], rest(&bench)[1]], [2, 3], "a way, unjudged, then a core");
    }
}

#[test]
fn who_remains_has_everything() {
    let mut bench = bench("");
    let plan = bench.see(vec![gone(), be(50.0)]);
    let all = Setting::Cores(AppId(1), CoreSet::first(10));
    assert_eq!(plan.setting(Knob::Cores(AppId(1))), Some(&all));
    let mut bench = self::bench("");
    let plan = bench.see(vec![lc(5.0), gone()]);
    let all = Setting::Cores(AppId(0), CoreSet::first(10));
    assert_eq!(plan.setting(Knob::Cores(AppId(0))), Some(&all));
}

#[test]
fn loads_upside_down_are_refused_at_their_key() {
    let refused = build("load_low = 0.9", &machine(4), &specs()).err();
    assert!(matches!(refused, Some(PolicyError::Config { key, .. }) if key == "load_low"));
}

#[test]
fn on_a_plant_that_answers_best_effort_work_grows_until_slack_is_used() {
    // Three cores leave 5 % of slack: it may stay and not grow on.
    let mut plant = plant(10, &[2.05]);
    let mut heracles = build("", &machine(10), &specs()).unwrap();
    let seen = steer(&mut plant, &mut heracles, SECOND, 120);
    let last = p95_ms(seen.last().unwrap(), 0);
    assert!((9.0..9.5).contains(&last), "p95 {last} ms");
    assert_eq!(heracles.partition.line(Kind::Cores), "3 7 +0");
}
