//! The loop of Demeter, rule by rule.

use super::*;
use crate::testing::{Bench, be, lc, lc_spec, machine};
use lull_control::{AppObservation, Knob};
use lull_measure::Hertz;

const PROMISED: AppId = AppId(0);
const OTHERS: AppId = AppId(1);

fn floored(floor_per_s: f64) -> AppSpec {
    let objectives = vec![Objective::Throughput { floor_per_s }];
    AppSpec { objectives, ..AppSpec::best_effort("be") }
}

fn demeter(apps: &[AppSpec]) -> Bench<Demeter> {
    let config = Config { answers: 1, ..Config::default() };
    let policy = Demeter::new(config, &machine(8), apps).unwrap();
    Bench::new(policy, Nanos::from_secs(1))
}

/// Hot cores, warm cores and the warm zone's steps below the highest.
fn zones(bench: &Bench<Demeter>) -> (usize, usize, usize) {
    let Zones { hot, warm } = bench.policy.zones;
    (hot, warm, bench.policy.below)
}

fn after(
    bench: &mut Bench<Demeter>,
    looks: usize,
    apps: &[AppObservation; 2],
) -> (usize, usize, usize) {
    (0..looks).for_each(|_| drop(bench.see(apps.to_vec())));
    zones(bench)
}

fn pair() -> Bench<Demeter> {
    demeter(&[lc_spec("a"), floored(100.0)])
}

fn cores(plan: &Plan, app: AppId) -> CoreSet {
    match plan.setting(Knob::Cores(app)) {
        Some(Setting::Cores(_, cores)) => cores.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_begins_with_half_of_the_cores_hot_and_all_at_full_speed() {
    let mut bench = pair();
    let plan = bench.see(vec![lc(9.0), be(102.0)]);
    assert_eq!(zones(&bench), (4, 4, 0));
    assert_eq!(cores(&plan, PROMISED), CoreSet::first(4));
    assert!(cores(&plan, OTHERS).intersection(&cores(&plan, PROMISED)).is_empty());
}

#[test]
fn a_missed_promise_makes_a_warm_core_hot_and_a_cold_one_if_warm_has_one() {
    let mut bench = pair();
    assert_eq!(after(&mut bench, 3, &[lc(20.0), be(102.0)]), (7, 1, 0));
    assert_eq!(after(&mut bench, 3, &[lc(20.0), be(102.0)]), (7, 1, 0), "no core is left");
    bench.policy.zones = Zones { hot: 1, warm: 1 };
    assert_eq!(after(&mut bench, 2, &[lc(20.0), be(102.0)]), (3, 1, 0), "cold ones");
}

#[test]
fn a_warm_zone_that_misses_its_own_floor_gives_nothing() {
    let mut bench = pair();
    assert_eq!(after(&mut bench, 5, &[lc(20.0), be(90.0)]), (4, 4, 0));
    bench.policy.zones = Zones { hot: 2, warm: 4 };
    assert_eq!(after(&mut bench, 1, &[lc(20.0), be(90.0)]), (3, 5, 0), "each a cold one");
}

#[test]
fn a_warm_zone_that_misses_its_floor_gets_hot_cores_of_promises_that_are_kept() {
    let mut bench = pair();
    bench.policy.zones = Zones { hot: 7, warm: 1 };
    assert_eq!(after(&mut bench, 2, &[lc(9.0), be(90.0)]), (5, 3, 0));
    assert_eq!(after(&mut bench, 3, &[lc(20.0), be(90.0)]), (5, 3, 0), "but not of missed ones");
}

#[test]
fn an_easy_promise_gives_a_hot_core_up_after_three_looks() {
    let mut bench = pair();
    assert_eq!(after(&mut bench, 2, &[lc(1.0), be(102.0)]), (4, 4, 0));
    assert_eq!(after(&mut bench, 1, &[lc(1.0), be(102.0)]), (3, 5, 0));
    assert_eq!(after(&mut bench, 90, &[lc(1.0), be(102.0)]), (1, 7, 0), "one is kept");
}

#[test]
fn best_effort_above_its_floor_loses_speed_first_and_then_cores() {
    let mut bench = pair();
    bench.policy.config.patience = 3;
    let lowest = bench.policy.lowest();
    assert!(lowest > 0);
    let kept = lc(9.0);
    let now = after(&mut bench, lowest, &[kept.clone(), be(120.0)]);
    assert_eq!((now.1, now.2), (4 + 4 - now.0, lowest));
    let now = after(&mut bench, 3, &[kept.clone(), be(120.0)]);
    assert_eq!(bench.policy.cold(), 1, "{now:?}");
    let now = after(&mut bench, 1, &[kept.clone(), be(90.0)]);
    assert_eq!(now.2, lowest - 1, "speed comes back first");
    let back = after(&mut bench, lowest, &[kept, be(90.0)]);
    assert_eq!((back.2, bench.policy.cold()), (0, 0), "then the core");
}

#[test]
fn zones_have_their_frequencies_and_a_shared_domain_that_of_its_fastest() {
    let mut bench = pair();
    bench.see(vec![lc(9.0), be(102.0)]);
    bench.policy.zones = Zones { hot: 2, warm: 3 };
    bench.policy.below = 1;
    bench.policy.place(&Reason::Start);
    let machine = machine(8);
    for domain in &machine.domains {
        let Some(Setting::Frequency(_, hertz)) =
            bench.policy.plan.setting(Knob::Frequency(domain.id))
        else {
            panic!("domain {:?} has no frequency", domain.id);
        };
        let ours = bench.policy.domains.iter().find(|one| one.id == domain.id).unwrap();
        let first = ours.places.iter().min().unwrap();
        let (top, wanted): (usize, Hertz) = match first {
            0..2 => (ours.levels.len() - 1, ours.levels[ours.levels.len() - 1]),
            2..5 => (ours.levels.len() - 2, ours.levels[ours.levels.len() - 2]),
            _ => (0, ours.levels[0]),
        };
        assert_eq!(*hertz, wanted, "{:?} at level {top}", ours.places);
    }
}

#[test]
fn best_effort_without_a_floor_keeps_a_share_of_its_first_second() {
    let mut bench = demeter(&[lc_spec("a"), AppSpec::best_effort("be")]);
    after(&mut bench, 1, &[lc(9.0), be(1000.0)]);
    assert_eq!(bench.policy.floor_per_s, Some(800.0));
}

#[test]
fn one_core_cannot_be_two_zones() {
    let apps = [lc_spec("a"), floored(1.0)];
    let refused = Demeter::new(Config::default(), &machine(1), &apps).err().unwrap();
    assert!(refused.to_string().contains("1 core"), "{refused}");
}

#[test]
fn tightened_objectives_apply_at_the_present_state() {
    let mut bench = pair();
    after(&mut bench, 3, &[lc(1.0), be(102.0)]);
    let mut tight = lc_spec("a");
    tight.objectives =
        vec![Objective::Tail { percentile: lull_measure::Percentile::P95, bound: Nanos(1000) }];
    assert!(bench.policy.retarget(&[tight, floored(100.0)]));
    assert_eq!(zones(&bench), (3, 5, 0));
    assert_eq!(after(&mut bench, 1, &[lc(1.0), be(102.0)]), (4, 4, 0), "1 ms is late now");
    assert!(!bench.policy.retarget(&[floored(1.0), floored(1.0)]), "another class is another run");
}
