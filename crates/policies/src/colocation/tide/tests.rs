//! The level: what makes it fall and rise, and what is none of its business.

use super::*;
use crate::testing::{
    Bench, alive, be, be_spec, cores_only, gone, lc, lc_spec, machine, observation, p95_ms, plant,
    silent, steer,
};
use lull_control::{CoreSet, Knob, Plant};
use lull_measure::Latency;
use lull_measure::catalogue::CPU;

const PERIOD: Nanos = Nanos::from_millis(500);

fn specs() -> Vec<AppSpec> {
    let a = AppSpec { max_load_per_s: Some(10_000.0), ..lc_spec("a") };
    vec![a, lc_spec("b"), be_spec("be")]
}

fn build(config: &str, machine: &Machine, apps: &[AppSpec]) -> Result<Tide, PolicyError> {
    Tide::new(read(&config.parse().unwrap())?, machine, apps)
}

/// A policy whose first plan is in force.
fn begun(tide: Tide) -> Bench<Tide> {
    let apps = tide.apps.clone();
    let mut bench = Bench::new(tide, PERIOD);
    let of = |spec: &AppSpec| if spec.is_latency_critical() { silent(0) } else { be(50.0) };
    bench.see(apps.iter().map(of).collect());
    bench
}

/// One that has risen to the top, 9 + 19 + 9 levels above the bottom.
fn bench() -> Bench<Tide> {
    let mut bench = begun(build("", &machine(10), &specs()).unwrap());
    // Six periods to the top, one more to see that it is well there.
    for _ in 0..7 {
        bench.see(vec![lc(5.0), lc(5.0), be(50.0)]);
    }
    bench
}

/// All requests at one latency, so that chance has no part in it.
fn level_after(bench: &mut Bench<Tide>, tails_ms: &[f64]) -> Vec<usize> {
    let mut levels = Vec::new();
    for tail in tails_ms {
        bench.see(vec![lc(*tail), lc(5.0), be(50.0)]);
        levels.push(bench.policy.level);
    }
    levels
}

#[test]
fn it_begins_with_everything_for_latency_critical_apps_and_rises_to_all_in_a_few_periods() {
    let mut bench = Bench::new(build("", &machine(10), &specs()).unwrap(), PERIOD);
    let plan = bench.see(vec![lc(5.0), lc(5.0), be(50.0)]);
    for (app, cores) in [(0, 10), (1, 10), (2, 1)] {
        let wanted = Setting::Cores(AppId(app), CoreSet::first(cores));
        assert_eq!(plan.setting(Knob::Cores(AppId(app))), Some(&wanted));
    }
    let levels = level_after(&mut bench, &[5.0; 7]);
    assert_eq!(levels, [1, 3, 7, 15, 31, 37, 37]);
    let idle = Setting::Scheduling(AppId(2), Scheduling::Idle);
    assert_eq!(plan.setting(Knob::Scheduling(AppId(2))), Some(&idle));
    assert_eq!(plan.setting(Knob::Scheduling(AppId(0))), None);
}

#[test]
fn a_miss_beyond_chance_halves_the_level_and_near_misses_in_a_row_go_half_way_back() {
    assert_eq!(level_after(&mut bench(), &[12.0]), [18]);
    // Half of the way back to 31, where there was room.
    assert_eq!(level_after(&mut bench(), &[9.6; 3]), [37, 37, 34]);
    let mut bench = bench();
    bench.policy.evidence.clear();
    assert_eq!(level_after(&mut bench, &[9.4; 6]), [37; 6], "between the thresholds it rests");
}

#[test]
fn what_was_before_the_first_plan_is_not_held_against_it() {
    let mut bench = Bench::new(build("", &machine(10), &specs()).unwrap(), PERIOD);
    assert_eq!(level_after(&mut bench, &[50.0, 5.0, 5.0]), [0, 1, 3]);
}

#[test]
fn a_fall_is_given_a_period_to_work_unless_things_get_worse() {
    assert_eq!(level_after(&mut bench(), &[20.0, 15.0, 15.0]), [18, 18, 9]);
    assert_eq!(level_after(&mut bench(), &[20.0, 25.0]), [18, 9]);
}

#[test]
fn comfort_lets_it_rise_faster_and_faster_up_to_what_broke() {
    let mut bench = bench();
    let levels = level_after(&mut bench, &[20.0, 5.0, 5.0, 5.0, 5.0, 5.0]);
    // 37 broke at this load: 36 is as far as it goes for ten seconds.
    assert_eq!(levels, [18, 19, 21, 25, 33, 36]);
    let levels = level_after(&mut bench, &[5.0; 16]);
    assert_eq!((levels[13], levels[15]), (36, 37), "{levels:?}");
}

#[test]
fn a_load_that_broke_a_level_finds_it_lowered_when_it_comes_back() {
    let loaded = |tail: f64, share: f64| {
        let mut app = lc(tail);
        app.latency.as_mut().unwrap().offered_per_s = 10_000.0 * share;
        vec![app, lc(5.0), be(50.0)]
    };
    let mut bench = bench();
    bench.see(loaded(20.0, 0.9));
    assert_eq!(bench.policy.level, 18);
    for _ in 0..6 {
        bench.see(loaded(5.0, 0.3));
    }
    assert_eq!(bench.policy.level, 37, "a low load is not held back");
    bench.see(loaded(5.0, 0.95));
    assert_eq!(bench.policy.level, 36, "and the high one is at once");
}

#[test]
fn a_mark_that_cuts_a_rise_off_is_not_judged_as_one() {
    let loaded = |tail: f64, share: f64, progress: f64| {
        let mut app = lc(tail);
        app.latency.as_mut().unwrap().offered_per_s = 10_000.0 * share;
        vec![app, lc(5.0), be(progress)]
    };
    let mut bench = bench();
    bench.see(loaded(20.0, 0.9, 50.0));
    for _ in 0..3 {
        bench.see(loaded(20.0, 0.95, 50.0));
    }
    let low = bench.policy.level;
    for _ in 0..5 {
        bench.see(loaded(5.0, 0.3, 50.0));
    }
    assert!(bench.policy.level > low);
    bench.see(loaded(5.0, 0.95, 50.0));
    let marked = bench.policy.level;
    // Best-effort work now has less, so E_S is up; that is no reason to go up again.
    bench.see(loaded(9.2, 0.95, 5.0));
    assert_eq!(bench.policy.level, marked);
}

#[test]
fn latency_critical_apps_fill_ways_of_their_own() {
    let mut bench = bench();
    let ways = |plan: &Plan, app| match plan.setting(Knob::CacheWays(AppId(app))) {
        Some(Setting::CacheWays(_, mask)) => mask.0,
        other => panic!("{other:?}"),
    };
    let plan = bench.see(vec![lc(5.0), lc(5.0), be(50.0)]);
    assert_eq!((ways(&plan, 0), ways(&plan, 1)), (0x3ff, 0xffc00));
    assert_eq!(ways(&plan, 2), 0xfffff, "best-effort work at the top reaches into all of them");
    for _ in 0..2 {
        bench.see(vec![lc(9.2), lc(5.0), be(50.0)]);
    }
    let plan = bench.see(vec![lc(9.2), lc(5.0), be(50.0)]);
    assert!(ways(&plan, 0).count_ones() > 10, "who stands worse gets a way");
}

/// So many periods of comfort in which best-effort work does so much where it is fenced, goes
/// second, and is left alone; the last plan.
fn lasting(bench: &mut Bench<Tide>, periods: u32, per_s: [f64; 3]) -> Plan {
    let mut plan = Plan::keep();
    for _ in 0..periods {
        let does = match bench.policy.arrangements.now() {
            Arrangement::Fenced => per_s[0],
            Arrangement::First => per_s[1],
            Arrangement::Open => per_s[2],
        };
        plan = bench.see(vec![lc(5.0), lc(5.0), be(does)]);
    }
    plan
}

#[test]
fn where_loads_stay_the_arrangement_that_is_worth_most_is_found_and_kept() {
    let idle = Setting::Scheduling(AppId(2), Scheduling::Idle);
    let all = Setting::CacheWays(AppId(0), lull_control::WayMask::run(0, 20));
    let found = |per_s: [f64; 3]| {
        let mut bench = bench();
        let plan = lasting(&mut bench, 100, per_s);
        let goes_first = plan.setting(Knob::Scheduling(AppId(2))) == Some(&idle);
        (goes_first, plan.setting(Knob::CacheWays(AppId(0))) == Some(&all))
    };
    assert_eq!(found([80.0, 50.0, 50.0]), (true, false));
    assert_eq!(found([50.0, 80.0, 50.0]), (true, true));
    assert_eq!(found([50.0, 50.0, 80.0]), (false, true));
}

#[test]
fn a_trial_is_written_as_one_and_so_is_what_was_found() {
    let mut bench = bench();
    let (mut trials, mut found) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let plan = lasting(&mut bench, 1, [80.0, 50.0, 50.0]);
        for step in plan.steps() {
            match step.reason {
                Reason::Trial { number, .. } => trials.push(number),
                Reason::Found { trials, score } => found.push((trials, score)),
                _ => {}
            }
        }
    }
    trials.sort_unstable();
    trials.dedup();
    found.dedup();
    assert_eq!(trials, [2, 3], "the fences were the first");
    // E_BE of 80 of 100 is 0.2, and weighs a fifth.
    assert!(matches!(found[..], [(3, score)] if (score - 0.04).abs() < 1e-9), "{found:?}");
}

#[test]
fn other_loads_bring_the_fences_back_at_once_with_what_was_marked() {
    let loaded = |share: f64| {
        let mut app = lc(5.0);
        app.latency.as_mut().unwrap().offered_per_s = 10_000.0 * share;
        vec![app, lc(5.0), be(50.0)]
    };
    let mut bench = bench();
    lasting(&mut bench, 100, [50.0, 50.0, 80.0]);
    assert_eq!(bench.policy.arrangements.now(), Arrangement::Open);
    let now = bench.time;
    let hold = Hold { first: Nanos::from_secs(10), longest: Nanos::from_secs(60) };
    bench.policy.marks[0].add_violation(0.92, 8, now, hold);
    bench.see(loaded(0.92));
    assert_eq!(bench.policy.arrangements.now(), Arrangement::Fenced);
    assert_eq!(bench.policy.level, 7);
}

#[test]
fn without_progress_the_cost_of_fences_is_unknown_and_they_stay() {
    for missing in [alive(), be(f64::NAN)] {
        let mut bench = bench();
        for _ in 0..200 {
            bench.see(vec![lc(5.0), lc(5.0), missing.clone()]);
            assert_eq!(bench.policy.arrangements.now(), Arrangement::Fenced);
        }
    }
}

#[test]
fn what_another_level_left_behind_is_not_held_against_this_one() {
    let mut bench = bench();
    let behind = |oldest_s: u64| {
        let mut app = lc(20.0);
        let latency = app.latency.as_mut().unwrap();
        (latency.outstanding, latency.oldest) = (5, Some(Nanos::from_secs(oldest_s)));
        vec![app, lc(5.0), be(50.0)]
    };
    assert!(!bench.policy.catching_up);
    bench.see(behind(1));
    assert!(bench.policy.catching_up, "the level fell, and late requests wait");
    bench.see(vec![lc(5.0), lc(5.0), be(50.0)]);
    assert!(!bench.policy.catching_up);
}

#[test]
fn a_rise_that_raises_entropy_beyond_its_interval_is_taken_back() {
    let mut bench = bench();
    level_after(&mut bench, &[20.0, 5.0, 5.0]);
    assert_eq!(bench.policy.level, 21);
    let plan = bench.see(vec![lc(20.0), lc(5.0), be(50.0)]);
    assert_eq!(bench.policy.level, 19, "to where it was, not to the half");
    assert!(plan.steps().any(|step| matches!(step.reason, Reason::Undo { .. })));
}

#[test]
fn chance_neither_halves_the_level_nor_undoes_a_rise() {
    // Ten requests, the slowest just above the bound: p95 is 10.5 ms, give or take all of it.
    let few = |slowest_ms: f64| {
        let mut window = Latency::default();
        window.record_many(Nanos::from_millis(5), 9);
        window.record(Nanos::from_secs_f64(slowest_ms / 1e3));
        let mut app = lc(5.0);
        app.latency.as_mut().unwrap().window = window;
        app
    };
    let mut bench = bench();
    bench.see(vec![few(10.5), lc(5.0), be(50.0)]);
    assert_eq!(bench.policy.level, 37, "once is nothing");
    bench.see(vec![few(10.5), lc(5.0), be(50.0)]);
    bench.see(vec![few(10.5), lc(5.0), be(50.0)]);
    assert_eq!(bench.policy.level, 34, "three times is a little, not half of it");
    level_after(&mut bench, &[20.0, 5.0]);
    let level = bench.policy.level;
    bench.see(vec![few(10.5), lc(5.0), be(50.0)]);
    assert_eq!(bench.policy.level, level, "and a rise is not undone for it");
}

#[test]
fn a_tail_that_chance_would_carry_over_the_bound_is_no_room_to_rise() {
    let wide = |slowest_ms: f64| {
        let mut window = Latency::default();
        window.record_many(Nanos::from_millis(6), 90);
        window.record_many(Nanos::from_secs_f64(slowest_ms / 1e3), 10);
        let mut app = lc(5.0);
        // p95 is 6 or the slowest by chance; in the mean of its values it is the slowest.
        app.latency.as_mut().unwrap().window = window;
        vec![app, lc(5.0), be(50.0)]
    };
    let after = |slowest_ms: f64| {
        let mut bench = bench();
        level_after(&mut bench, &[20.0, 9.2]);
        for _ in 0..3 {
            bench.see(wide(slowest_ms));
        }
        bench.policy.level
    };
    assert!(after(8.0) > 18);
    assert_eq!(after(9.2), 18);
}

#[test]
fn without_scheduling_classes_cores_go_first_and_littles_law_guesses_them() {
    let bare = {
        let mut bare = cores_only(10);
        let why = lull_measure::Missing::because("test");
        bare.capabilities = bare.capabilities.without(Capability::Scheduling, why);
        bare
    };
    let mut apps = specs();
    apps[0].threads = Some(4);
    let mut bench = begun(build("", &bare, &apps).unwrap());
    // 2,000 a second at 2 CPU ms each keep 4 cores busy: 6 wanted, 4 threads; b: 1 busy, 2 wanted.
    let busy = |cores: f64| lc(5.0).with_reading(CPU, Ok(cores));
    for _ in 0..6 {
        bench.see(vec![busy(4.0), busy(1.0), be(50.0)]);
    }
    let plan = bench.see(vec![busy(4.0), busy(1.0), be(50.0)]);
    let four = Setting::Cores(AppId(2), CoreSet::first(4));
    assert_eq!(plan.setting(Knob::Cores(AppId(2))), Some(&four));
    assert_eq!(plan.setting(Knob::Scheduling(AppId(2))), None);
}

#[test]
fn priority_can_be_declined() {
    let mut bench = begun(build("priority = false", &machine(4), &specs()).unwrap());
    let plan = bench.see(vec![lc(20.0), lc(5.0), be(50.0)]);
    assert_eq!(plan.setting(Knob::Scheduling(AppId(2))), None);
}

#[test]
fn silence_and_idleness_move_nothing_and_waiting_requests_do() {
    let mut bench = bench();
    for apps in [[alive(), alive(), alive()], [silent(0), silent(0), be(f64::NAN)]] {
        bench.see(apps.to_vec());
        assert_eq!(bench.policy.level, 37);
    }
    bench.see(vec![silent(3), lc(5.0), be(50.0)]);
    assert_eq!(bench.policy.level, 18);
}

#[test]
fn without_one_class_there_is_nothing_to_do() {
    for apps in [vec![lc_spec("a")], vec![be_spec("be")], Vec::new()] {
        let seen =
            apps.iter().map(|app| if app.is_latency_critical() { lc(20.0) } else { be(1.0) });
        let seen: Vec<_> = seen.collect();
        let mut bench = Bench::new(build("", &cores_only(4), &apps).unwrap(), PERIOD);
        let plan = bench.see(seen);
        for app in 0..apps.len() as u16 {
            let all = Setting::Cores(AppId(app), CoreSet::first(4));
            assert_eq!(plan.setting(Knob::Cores(AppId(app))), Some(&all));
        }
    }
}

#[test]
fn when_the_last_latency_critical_app_exits_best_effort_work_has_everything() {
    let mut bench = bench();
    level_after(&mut bench, &[20.0]);
    let plan = bench.see(vec![gone(), gone(), be(50.0)]);
    let all = Setting::Cores(AppId(2), CoreSet::first(10));
    assert_eq!(plan.setting(Knob::Cores(AppId(2))), Some(&all));
}

#[test]
fn the_ways_of_an_app_that_departs_go_to_the_others_until_it_returns() {
    let three = [lc_spec("a"), lc_spec("b"), lc_spec("c"), be_spec("be")];
    let mut bench = begun(build("", &machine(10), &three).unwrap());
    let mut masks = |present: [bool; 3]| {
        let critical = present.map(|is_present| if is_present { lc(5.0) } else { gone() });
        let plan = bench.see(critical.into_iter().chain([be(50.0)]).collect());
        [0, 1, 2].map(|app| match plan.setting(Knob::CacheWays(AppId(app))) {
            Some(Setting::CacheWays(_, mask)) => mask.0,
            _ => 0,
        })
    };
    let thirds = [0x3f, 0x1fc0, 0xfe000];
    assert_eq!(masks([true; 3]), thirds);
    assert_eq!(masks([true, false, true]), [0x3ff, 0, 0xffc00]);
    assert_eq!(masks([true, false, false]), [0xfffff, 0, 0], "one alone has all");
    assert_eq!(masks([false; 3]), [0; 3], "an absent app has no setting");
    assert_eq!(masks([true; 3]), thirds);
}

#[test]
fn a_rise_is_not_judged_beside_other_apps() {
    let mut bench = bench();
    level_after(&mut bench, &[20.0, 5.0, 5.0]);
    assert!(bench.policy.rise.is_some());
    let plan = bench.see(vec![gone(), lc(20.0), be(50.0)]);
    assert!(!plan.steps().any(|step| matches!(step.reason, Reason::Undo { .. })));
    assert_eq!(bench.policy.level, 10, "half of 21");
}

#[test]
fn more_apps_than_cores_are_no_trouble() {
    assert!(build("", &cores_only(2), &specs()).is_ok());
}

#[test]
fn senseless_thresholds_are_refused_at_their_key() {
    let key = |config: &str| match build(config, &machine(4), &specs()).err() {
        Some(PolicyError::Config { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(key("ebb_below = 0.2"), "ebb_below");
    assert_eq!(key("chance = -1"), "chance");
    assert_eq!(key("period = \"10ms\""), "period");
    assert_eq!(key("settled = \"0s\""), "settled");
}

#[test]
fn on_a_plant_that_answers_objectives_are_met_at_once_and_best_effort_work_keeps_its_cores() {
    let mut plant = plant(9, &[2.8, 1.0]);
    let mut tide = build("", plant.machine(), plant.apps()).unwrap();
    let seen = steer(&mut plant, &mut tide, PERIOD, 10);
    let missed =
        seen.iter().skip(1).filter(|seen| p95_ms(seen, 0) > 10.0 || p95_ms(seen, 1) > 10.0);
    assert_eq!(missed.count(), 0);
    let progress = seen.last().unwrap().apps[2].progress.as_ref().unwrap().per_s;
    assert!(progress > 5.0, "{progress} of 9 - 3.8 cores");
}

#[test]
fn the_entropy_by_which_it_decides_follows_corrected_references() {
    let mut tide = build("", &machine(10), &specs()).unwrap();
    let seen = observation(PERIOD, PERIOD, vec![lc(5.0), lc(5.0), be(200.0)]);
    assert_eq!(tide.assessor.assess(&seen).entropy.be, Some(0.0));
    let mut apps = specs();
    apps[2].solo_per_s = Some(400.0);
    tide.references_changed(&apps);
    assert_eq!(tide.assessor.assess(&seen).entropy.be, Some(0.5));
}
