//! Changes of the roster: no policy, and no part of the control loop, keeps anything of each, and
//! all knobs are restored. In a program of its own, because the memory of the whole process is
//! measured.
//!
//! There are 60,000 changes, or as many as `LULL_ROSTER_CHANGES` says.

use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{
    AppId, AppSpec, Capability, ControlLoop, Controller, KNOBS, Plant, Rng, Rules, Setting,
};
use lull_measure::{Nanos, Percentile};
use lull_policies::{Entry, POLICIES, PolicyKind};
use rand::{RngExt, SeedableRng};

/// Changes of the roster in all, where the environment does not say.
const CHANGES: usize = 60_000;
/// The memory that the allocator may keep for itself during the changes of one policy.
const KEPT_MAX_KIB: u64 = 1024;

fn plant() -> MemoryPlant {
    let app = |spec: AppSpec| MemoryApp {
        demand_cores: if spec.is_latency_critical() { 1.0 } else { 0.0 },
        spec,
        service: Nanos::from_millis(1),
        threads: 4,
    };
    let lc = |name| AppSpec::latency_critical(name, Percentile::P95, Nanos::from_millis(10));
    let specs = [lc("a"), lc("b"), AppSpec::best_effort("c"), AppSpec::best_effort("d")];
    MemoryPlant::new(8, specs.into_iter().map(app).collect())
}

fn control(entry: &'static Entry<PolicyKind>) -> ControlLoop<MemoryPlant> {
    let plant = plant();
    let mut machine = plant.machine().clone();
    for capability in Capability::ALL {
        machine.capabilities = machine.capabilities.with_capability(capability, "test");
    }
    let build = move |apps: &[AppSpec]| entry.build(&toml::Table::new(), &machine, apps);
    let policy = build(plant.apps()).expect("all needs are met");
    let mut controller = Controller::new(policy, Rules::default(), &plant).expect("no limits");
    controller.set_rebuild(Box::new(move |apps| build(apps).map_err(|error| error.to_string())));
    ControlLoop::new(plant, controller, Nanos::from_millis(500), Rng::seed_from_u64(1))
}

/// Resident memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let digits = line.and_then(|line| line.trim().strip_suffix(" kB"));
    digits.and_then(|digits| digits.parse().ok()).expect("a size")
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}

/// Lets this many apps end, begin or be restarted, two an epoch.
fn change(control: &mut ControlLoop<MemoryPlant>, changes: usize, rng: &mut Rng) {
    for at in 0..changes {
        let app = AppId(rng.random_range(0..4));
        let plant = control.plant_mut();
        if plant.is_present(app) && rng.random_bool(0.6) {
            plant.end(app);
        } else {
            plant.begin(app);
        }
        if at % 2 == 1 {
            control.turn().expect("a plant in memory");
        }
    }
}

/// Ends the run and lets absent apps begin; all settings must be as before the changes.
fn check_restored(control: ControlLoop<MemoryPlant>, before: &[Setting], policy: &str) {
    let (mut plant, restored) = control.finish();
    for outcome in restored.outcomes {
        assert!(outcome.in_force().is_some(), "{policy}: not restored: {outcome:?}");
    }
    for app in (0..4).map(AppId) {
        if !plant.is_present(app) {
            plant.begin(app);
        }
    }
    assert_eq!(plant.settings(), before, "{policy}: settings are not as before the changes");
}

#[test]
#[ignore = "slow: tens of thousands of epochs under every policy"]
fn state_does_not_grow_with_changes_of_the_roster_and_knobs_are_restored() {
    let changes = std::env::var("LULL_ROSTER_CHANGES")
        .map_or(CHANGES, |text| text.parse().expect("LULL_ROSTER_CHANGES is a number"));
    let each = changes / POLICIES.iter().count();
    let mut rng = Rng::seed_from_u64(7);
    for entry in POLICIES.iter() {
        let mut control = control(entry);
        let settings = control.plant().settings();
        change(&mut control, each / 4, &mut rng);
        let before = (resident_kib(), descriptors());
        change(&mut control, each - each / 4, &mut rng);
        let grown = resident_kib().saturating_sub(before.0);
        assert!(grown <= KEPT_MAX_KIB, "{}: {grown} KiB more after {each} changes", entry.name);
        assert_eq!(descriptors(), before.1, "{}: descriptors", entry.name);
        let known = control.controller().state().len();
        let knobs = KNOBS.iter().map(|row| control.plant().machine().knobs(row, 4).len());
        assert!(known <= knobs.sum::<usize>(), "{}: {known} knobs are known", entry.name);
        check_restored(control, &settings, entry.name);
    }
}
