//! Apps that arrive, or are restarted, after the run has begun.

use super::*;

/// The loop of a machine on which an app that its owner has pinned to two cores arrives, or is
/// restarted, after the run has begun. The policy gives it one core and a real-time class.
fn with_a_late_app(is_restarted: bool) -> ControlLoop<MemoryPlant> {
    let mut plant = plant();
    if !is_restarted {
        plant.end(LC);
    }
    let mut plan = Plan::keep();
    plan.set(Setting::Cores(LC, CoreSet::first(1)), Reason::Start);
    let class = Scheduling::RoundRobin { priority: 1 };
    plan.set(Setting::Scheduling(LC, class), Reason::Start);
    let controller = Controller::new(Box::new(Always(plan)), Rules::default(), &plant).unwrap();
    let mut run = ControlLoop::new(plant, controller, EPOCH, Rng::seed_from_u64(1));
    run.turn().unwrap();
    run.plant_mut().begin(LC);
    let _ = run.plant_mut().apply(&owners_of_late_app());
    // Longer than the dwell time of either knob.
    (0..20).for_each(|_| drop(run.turn().unwrap()));
    run
}

fn owners_of_late_app() -> [Setting; 2] {
    let class = Scheduling::Normal { nice: -5 };
    [Setting::Cores(LC, CoreSet::first(2)), Setting::Scheduling(LC, class)]
}

#[test]
fn the_safe_state_gives_a_late_or_restarted_app_what_its_owner_gave_these_processes() {
    for is_restarted in [false, true] {
        let mut run = with_a_late_app(is_restarted);
        for owners in owners_of_late_app() {
            assert!(!run.plant().settings().contains(&owners), "the policy has set it");
        }
        run.plant_mut().set_silent(LC, true);
        (0..6).for_each(|_| drop(run.turn().unwrap()));
        assert!(run.controller().is_safe());
        let now = run.plant().settings();
        for owners in owners_of_late_app() {
            assert!(now.contains(&owners), "{owners} after restart {is_restarted}: {now:?}");
        }
    }
}
