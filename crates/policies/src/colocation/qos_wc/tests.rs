//! Algorithm 1, claim by claim.

use super::*;
use crate::testing::{Bench, be, gone, lc, lc_spec, machine};
use lull_control::{AppObservation, Knob};

/// Ten looks are a second.
const EPOCH: Nanos = Nanos::from_millis(100);

/// 1000 a second a core, on five cores at most.
fn profile() -> Vec<f64> {
    (1..=8).map(|cores| 1000.0 * f64::from(cores.min(5))).collect()
}

fn floored(floor_per_s: f64) -> AppSpec {
    let objectives = vec![Objective::Throughput { floor_per_s }];
    AppSpec { objectives, threads: Some(100), ..AppSpec::best_effort("be") }
}

/// A promise of 10 ms on the p95 to 4 connections, and a floor on best effort.
fn apps(floor_per_s: f64) -> Vec<AppSpec> {
    vec![AppSpec { threads: Some(4), ..lc_spec("a") }, floored(floor_per_s)]
}

fn bench(apps: &[AppSpec]) -> Bench<QosWc> {
    let config = Config { profile: profile(), ..Config::default() };
    Bench::new(QosWc::new(config, &machine(8), apps), EPOCH)
}

/// Cores of each area after this many looks.
fn after(bench: &mut Bench<QosWc>, looks: usize, apps: &[AppObservation]) -> Vec<usize> {
    (0..looks).for_each(|_| drop(bench.see(apps.to_vec())));
    bench.policy.areas.as_ref().expect("areas are drawn").cores.clone()
}

fn cores(plan: &Plan, app: u16) -> CoreSet {
    match plan.setting(Knob::Cores(AppId(app))) {
        Some(Setting::Cores(_, cores)) => cores.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lax_areas_begin_with_the_fewest_cores_for_their_budget_and_the_strictest_with_the_rest() {
    let mut bench = bench(&apps(2500.0));
    let plan = bench.see(vec![lc(1.0), be(2600.0)]);
    assert_eq!(bench.policy.areas.as_ref().unwrap().cores, [5, 3]);
    assert_eq!(cores(&plan, 0), CoreSet::first(5), "the strict one is hot");
    assert_eq!(cores(&plan, 1).len(), 3);
    assert!(cores(&plan, 0).intersection(&cores(&plan, 1)).is_empty());
}

#[test]
fn every_area_has_a_core_even_if_no_number_reaches_a_budget() {
    // Lax all the same: a hundred million queries at a time in 100 ms.
    let mut greedy = apps(1e9);
    greedy[1].threads = Some(100_000_000);
    let mut greedy = bench(&greedy);
    assert_eq!(after(&mut greedy, 1, &[lc(1.0), be(1.0)]), [1, 7]);
    let mut three = apps(2000.0);
    three.push(AppSpec::best_effort("c"));
    let config = Config { areas: 3, profile: profile(), ..Config::default() };
    let mut bench = Bench::new(QosWc::new(config, &machine(3), &three), EPOCH);
    assert_eq!(after(&mut bench, 1, &[lc(1.0), be(1.0), be(1.0)]), [1, 1, 1]);
}

#[test]
fn a_missed_promise_gets_one_core_a_look_from_the_laxest_that_can_spare_one() {
    let mut bench = bench(&apps(2500.0));
    after(&mut bench, 1, &[lc(1.0), be(2600.0)]);
    bench.policy.areas.as_mut().unwrap().cores = vec![2, 6];
    // TP(5) = 5000 > 5000/2600 x 2500 = 4808.
    assert_eq!(after(&mut bench, 1, &[lc(20.0), be(2600.0)]), [3, 5]);
    // TP(4) = 4000 is not.
    assert_eq!(after(&mut bench, 5, &[lc(20.0), be(2600.0)]), [3, 5]);
}

#[test]
fn an_area_that_is_slower_than_its_profile_gives_less() {
    let bench = bench(&apps(2000.0));
    let mut policy = bench.policy;
    policy.draw(&Reason::Start);
    let mut areas = policy.areas.take().unwrap();
    areas.cores = vec![3, 5];
    // Nothing was measured: 5 % of the profile, so alpha is 20.
    assert_eq!(policy.margin(&areas, 1), (4000.0, 20.0 * 2000.0));
    assert!(!policy.can_spare(&areas, 1));
}

#[test]
fn without_a_missed_promise_one_core_a_second_goes_to_the_strictest() {
    let mut moving = bench(&apps(1000.0));
    after(&mut moving, 1, &[lc(1.0), be(4500.0)]);
    moving.policy.areas.as_mut().unwrap().cores = vec![2, 6];
    let seen = [lc(1.0), be(4500.0)];
    assert_eq!(after(&mut moving, 9, &seen), [2, 6]);
    assert_eq!(after(&mut moving, 1, &seen), [3, 5], "the tenth quiet look");
    assert_eq!(after(&mut moving, 9, &seen), [3, 5]);
    assert_eq!(after(&mut moving, 1, &seen), [4, 4]);
    let mut still = bench(&apps(1000.0));
    still.policy.config.proactive = false;
    after(&mut still, 1, &seen);
    still.policy.areas.as_mut().unwrap().cores = vec![2, 6];
    assert_eq!(after(&mut still, 50, &seen), [2, 6]);
}

#[test]
fn a_core_that_went_too_far_comes_back_and_the_area_rests() {
    let mut bench = bench(&apps(2500.0));
    after(&mut bench, 20, &[lc(1.0), be(2600.0)]);
    let before = bench.policy.areas.clone().unwrap();
    let after_miss = after(&mut bench, 15, &[lc(1.0), be(2000.0)]);
    assert!(after_miss[1] > before.cores[1], "{after_miss:?}");
    assert!(bench.policy.areas.as_ref().unwrap().rests_until[1] > bench.time);
    bench.policy.calm = 1000;
    let areas = bench.policy.areas.clone().unwrap();
    assert_eq!(bench.policy.spare(&areas, bench.time), None);
}

#[test]
fn a_floor_that_no_core_would_raise_takes_none_from_the_strictest() {
    // Five cores give all that the profile has: best effort is limited by something else.
    let mut bench = bench(&apps(2500.0));
    after(&mut bench, 1, &[lc(1.0), be(2600.0)]);
    assert_eq!(after(&mut bench, 100, &[lc(1.0), be(2000.0)]), [3, 5]);
}

#[test]
fn best_effort_without_a_promise_ends_with_one_core() {
    let mut apps = apps(1.0);
    apps[1].objectives.clear();
    let mut bench = bench(&apps);
    bench.policy.config.calm = 1;
    assert_eq!(after(&mut bench, 30, &[lc(1.0), be(1.0)]), [7, 1]);
}

#[test]
fn promises_that_are_alike_share_an_area() {
    let mut apps = apps(2500.0);
    apps.insert(1, AppSpec { threads: Some(4), ..lc_spec("b") });
    let mut bench = bench(&apps);
    let plan = bench.see(vec![lc(1.0), lc(1.0), be(2600.0)]);
    assert_eq!(cores(&plan, 0), cores(&plan, 1));
    assert_eq!(bench.policy.areas.as_ref().unwrap().of, [Some(0), Some(0), Some(1)]);
    // 4 queries in 10 ms each: p95 over mean is 1 here.
    let budget = bench.policy.areas.as_ref().unwrap().budgets[0];
    assert!((budget - 800.0).abs() < 1.0, "{budget}");
}

#[test]
fn without_a_profile_it_is_measured_first() {
    let policy = QosWc::new(Config::default(), &machine(8), &apps(2500.0));
    let mut bench = Bench::new(policy, EPOCH);
    let mut tried = Vec::new();
    for _ in 0..60 {
        let able = tried.last().map_or(8, |cores: &usize| *cores).min(5) as f64;
        let plan = bench.see(vec![lc(1.0), be(1000.0 * able - 2000.0)]);
        if bench.policy.areas.is_some() {
            break;
        }
        tried.push(cores(&plan, 1).len());
        assert_eq!(cores(&plan, 0), cores(&plan, 1), "all share while it is measured");
    }
    tried.dedup();
    assert_eq!(tried, [8, 4, 2][..tried.len()], "halving until it costs throughput");
    assert!(tried.len() >= 2 && bench.policy.areas.is_some());
}

#[test]
fn tightened_promises_keep_cores_and_raise_budgets() {
    let mut bench = bench(&apps(2500.0));
    let cores = after(&mut bench, 5, &[lc(1.0), be(2600.0)]);
    let before = bench.policy.areas.as_ref().unwrap().budgets[0];
    let mut tight = apps(2500.0);
    let (percentile, bound) = (lull_measure::Percentile::P95, Nanos::from_millis(5));
    tight[0].objectives = vec![Objective::Tail { percentile, bound }];
    assert!(bench.policy.retarget(&tight));
    let now = bench.policy.areas.as_ref().unwrap();
    assert_eq!(now.cores, cores);
    assert!((now.budgets[0] / before - 2.0).abs() < 1e-6);
}

#[test]
fn an_exit_redraws_the_areas_for_those_that_stay() {
    let mut bench = bench(&apps(2500.0));
    after(&mut bench, 5, &[lc(1.0), be(2600.0)]);
    let plan = bench.see(vec![lc(1.0), gone()]);
    assert_eq!(cores(&plan, 0), CoreSet::first(8));
    assert_eq!(plan.setting(Knob::Cores(AppId(1))), None);
}

#[test]
fn a_guard_of_nothing_is_refused() {
    let refused = read::<Config>(&"guard = 0.0".parse().unwrap());
    assert!(refused.unwrap_err().to_string().contains("divide by nothing"));
}
