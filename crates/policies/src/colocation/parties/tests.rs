//! The paper's loop and the script's, rule by rule.

use super::*;
use crate::testing::{
    Bench, alive, be, be_spec, cores_only, gone, lc, lc_spec, machine, p95_ms, plant, silent, steer,
};
use lull_control::{CoreSet, Knob, Setting};

const PERIOD: Nanos = Nanos::from_millis(500);
const SAMPLE: Nanos = Nanos::from_millis(100);

fn specs() -> Vec<AppSpec> {
    vec![lc_spec("a"), lc_spec("b"), be_spec("be")]
}

fn build(config: &str, machine: &Machine, apps: &[AppSpec]) -> Result<Parties, PolicyError> {
    Parties::new(read(&config.parse().unwrap())?, machine, apps)
}

fn bench(config: &str) -> Bench<Parties> {
    Bench::new(build(config, &cores_only(9), &specs()).unwrap(), PERIOD)
}

fn script(config: &str) -> Bench<Parties> {
    let config = format!("mode = \"script\"\n{config}");
    Bench::new(build(&config, &cores_only(9), &specs()).unwrap(), SAMPLE)
}

fn cores(bench: &Bench<Parties>) -> String {
    bench.policy.partition.line(Kind::Cores)
}

#[test]
fn it_begins_with_an_equal_partition_of_everything() {
    let parties = build("", &machine(9), &specs()).unwrap();
    let lines = Kind::ALL.map(|kind| parties.partition.line(kind));
    assert_eq!(lines, ["3 3 3 +0", "7 7 6 +0", "4 3 3 +0"]);
}

#[test]
fn who_has_least_slack_gets_a_unit_of_best_effort_work_first() {
    let mut bench = bench("");
    let plan = bench.see(vec![lc(20.0), lc(30.0), be(50.0)]);
    assert_eq!(cores(&bench), "3 4 2 +0", "b is further off than a");
    let step = plan.steps().find(|step| step.setting.knob() == Knob::Cores(AppId(1))).unwrap();
    let named = matches!(step.reason, Reason::Threshold { metric, app, .. }
        if metric.name == SLACK.name && app == Some(AppId(1)));
    assert!(named, "{:?}", step.reason);
    assert_eq!(plan.expected.unwrap().direction, Way::Higher);
}

#[test]
fn then_the_app_with_most_slack_gives_down_to_its_floor() {
    let mut bench = bench("");
    for _ in 0..8 {
        bench.see(vec![lc(5.0), lc(30.0), be(50.0)]);
    }
    assert_eq!(cores(&bench), "1 7 1 +0");
}

#[test]
fn slack_of_a_fifth_is_given_up_to_best_effort_work() {
    let mut bench = bench("");
    bench.see(vec![lc(7.9), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "2 3 4 +0", "slack 0.21 is enough");
    let mut bench = self::bench("");
    bench.see(vec![lc(8.1), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "3 3 3 +0", "slack 0.19 is not");
}

#[test]
fn without_best_effort_work_what_is_given_up_lies_idle_and_is_taken_first() {
    let parties = build("", &cores_only(8), &[lc_spec("a"), lc_spec("b")]).unwrap();
    let mut bench = Bench::new(parties, PERIOD);
    bench.see(vec![lc(5.0), lc(9.0)]);
    assert_eq!(cores(&bench), "3 4 +1");
    bench.see(vec![lc(9.0), lc(20.0)]);
    assert_eq!(cores(&bench), "3 5 +0");
}

#[test]
fn a_downsizing_that_hurts_is_taken_back_and_the_app_rests_for_thirty_seconds() {
    let mut bench = bench("");
    let before = bench.see(vec![lc(9.0), lc(9.0), be(50.0)]);
    bench.see(vec![lc(5.0), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "2 3 4 +0");
    let after = bench.see(vec![lc(9.8), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "3 3 3 +0");
    let settings = |plan: &Plan| plan.steps().map(|step| step.setting.clone()).collect::<Vec<_>>();
    assert_eq!(settings(&before), settings(&after));
    assert!(after.steps().any(|step| matches!(step.reason, Reason::Undo { .. })));
    // Undone at 1.5 s; 30 s are the 60 periods up to 31.5 s.
    for _ in 0..59 {
        bench.see(vec![lc(5.0), lc(9.0), be(50.0)]);
        assert_eq!(cores(&bench), "3 3 3 +0");
    }
    bench.see(vec![lc(5.0), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "2 3 4 +0");
}

#[test]
fn an_upsizing_is_never_taken_back_but_turns_the_wheel_if_it_made_things_worse() {
    let parties = build("", &machine(9), &specs()).unwrap();
    let mut bench = Bench::new(parties, PERIOD);
    bench.see(vec![lc(20.0), lc(9.0), be(50.0)]);
    let first = bench.policy.clients[0].wheel.unwrap();
    bench.see(vec![lc(19.0), lc(9.0), be(50.0)]);
    assert_eq!(bench.policy.clients[0].wheel, Some(first), "it helped, so the wheel stays");
    bench.see(vec![lc(25.0), lc(9.0), be(50.0)]);
    assert_eq!(bench.policy.clients[0].wheel.unwrap().at, (first.at + 1) % 3);
    let even: u32 = [3, 7, 4].iter().sum();
    let held: u32 = Kind::ALL.iter().map(|kind| bench.policy.partition.units_of(*kind, 0)).sum();
    assert_eq!(held, even + 3, "three units came and none went back");
}

#[test]
fn a_kind_that_no_app_can_give_is_skipped() {
    // Two cores for two holders: only ways and bandwidth can move.
    let apps = [lc_spec("a"), be_spec("be")];
    let mut bench = Bench::new(build("", &machine(2), &apps).unwrap(), PERIOD);
    for _ in 0..20 {
        bench.see(vec![lc(20.0), be(50.0)]);
    }
    let lines = Kind::ALL.map(|kind| bench.policy.partition.line(kind));
    assert_eq!(lines, ["1 1 +0", "19 1 +0", "9 1 +0"]);
    let plan = bench.see(vec![lc(20.0), be(50.0)]);
    assert_eq!(plan.expected, None, "no way to upsize: nothing moves");
}

#[test]
fn a_donor_by_the_very_kind_it_would_get_next_turns_its_wheel() {
    let mut bench = Bench::new(build("", &machine(9), &specs()).unwrap(), PERIOD);
    let wheel = Some(Wheel { direction: Direction::Up, at: 0 });
    bench.policy.clients[0].wheel = wheel;
    bench.policy.clients[1].wheel = wheel;
    // Best-effort work has nothing above its floor to give.
    while bench.policy.partition.shift(Kind::Cores, Some(2), Some(0)) {}
    bench.see(vec![lc(5.0), lc(30.0), be(50.0)]);
    assert_eq!(cores(&bench), "4 4 1 +0");
    assert_eq!(bench.policy.clients[0].wheel.unwrap().at, 1);
}

#[test]
fn more_apps_than_units_of_a_kind_are_refused_with_the_numbers() {
    let text = build("", &cores_only(2), &specs()).err().unwrap().to_string();
    assert!(text.contains("2 cores") && text.contains("3 parties"), "{text}");
}

#[test]
fn without_latency_critical_apps_best_effort_work_has_everything() {
    let mut bench = Bench::new(build("", &cores_only(4), &[be_spec("be")]).unwrap(), PERIOD);
    let plan = bench.see(vec![be(10.0)]);
    let all = Setting::Cores(AppId(0), CoreSet::first(4));
    assert_eq!(plan.setting(Knob::Cores(AppId(0))), Some(&all));
}

#[test]
fn epochs_without_answers_move_nothing_and_a_stuck_app_is_helped() {
    let mut bench = bench("");
    for apps in [[silent(0), silent(0), alive()], [alive(), alive(), alive()]] {
        bench.see(apps.to_vec());
        assert_eq!(cores(&bench), "3 3 3 +0");
    }
    bench.see(vec![lc(20.0), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "4 3 2 +0");
    bench.see(vec![silent(0), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "4 3 2 +0", "an idle app is not in need");
    bench.see(vec![silent(4), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "5 3 1 +0", "one whose requests wait is");
}

#[test]
fn progress_that_is_no_number_or_missing_changes_nothing() {
    let lines = [f64::NAN, f64::INFINITY, 50.0].map(|progress| {
        let mut bench = bench("");
        bench.see(vec![lc(20.0), lc(9.0), be(progress)]);
        cores(&bench)
    });
    assert_eq!(lines, ["4 3 2 +0"; 3]);
}

#[test]
fn what_an_app_that_exits_held_goes_to_best_effort_work() {
    let mut bench = bench("");
    let plan = bench.see(vec![gone(), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "0 3 6 +0");
    assert_eq!(plan.setting(Knob::Cores(AppId(0))), None);
    assert!(plan.steps().any(|step| step.reason == Reason::Exited { app: AppId(0) }));
    bench.see(vec![gone(), lc(9.0), gone()]);
    assert_eq!(cores(&bench), "0 3 0 +6");
}

#[test]
fn the_script_needs_slack_gone_in_the_last_sample_and_in_the_mean() {
    let mut bench = script("");
    for _ in 0..9 {
        bench.see(vec![lc(9.0), lc(9.0), be(50.0)]);
    }
    bench.see(vec![lc(9.6), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "3 3 3 +0", "one bad sample of ten");
    for _ in 0..12 {
        bench.see(vec![lc(9.6), lc(9.0), be(50.0)]);
    }
    assert_eq!(cores(&bench), "4 2 3 +0", "b gives, since best-effort work is not known");
}

#[test]
fn the_script_watches_five_samples_before_it_acts_again() {
    let mut bench = script("");
    let mut moved = Vec::new();
    for _ in 0..11 {
        moved.push(bench.see(vec![lc(20.0), lc(9.0), be(50.0)]).expected.is_some());
    }
    let at: Vec<_> = (0..11).filter(|sample| moved[*sample]).collect();
    assert_eq!(at, [0, 5], "b has two cores to give and then none");
}

#[test]
fn in_the_script_any_app_in_need_votes_a_downsizing_down() {
    let mut bench = script("");
    bench.see(vec![lc(5.0), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "2 3 3 +1");
    for _ in 0..4 {
        bench.see(vec![lc(5.0), lc(9.8), be(50.0)]);
        assert_eq!(cores(&bench), "2 3 3 +1");
    }
    bench.see(vec![lc(5.0), lc(9.8), be(50.0)]);
    assert_eq!(cores(&bench), "3 3 3 +0");
    // Five samples to settle, all well; then it rests for ten seconds from the undo.
    for _ in 0..99 {
        bench.see(vec![lc(5.0), lc(9.0), be(50.0)]);
        assert_eq!(cores(&bench), "3 3 3 +0");
    }
    bench.see(vec![lc(5.0), lc(9.0), be(50.0)]);
    assert_eq!(cores(&bench), "2 3 3 +1");
}

#[test]
fn thresholds_upside_down_and_empty_counts_are_refused_at_their_key() {
    let key = |config: &str| match build(config, &cores_only(9), &specs()).err() {
        Some(PolicyError::Config { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key("upsize_below = 0.3"), "upsize_below");
    assert_eq!(key("votes = 0"), "votes");
    assert_eq!(key("sample = \"0s\""), "sample");
    assert_eq!(key("mode = \"neither\""), "mode");
}

#[test]
fn on_a_plant_that_answers_the_objectives_are_met_and_best_effort_work_gets_the_rest() {
    let mut plant = plant(9, &[2.8, 1.0]).without(Capability::CacheWays, "test");
    let mut parties = build("", &cores_only(9), &specs()).unwrap();
    let seen = steer(&mut plant, &mut parties, PERIOD, 12);
    let last = seen.last().unwrap();
    assert!(p95_ms(last, 0) < 10.0 && p95_ms(last, 1) < 10.0, "{:?}", parties.partition);
    // With 4 cores a is within its bound but has no 5 % of slack left.
    assert_eq!(parties.partition.line(Kind::Cores), "5 2 2 +0");
}
