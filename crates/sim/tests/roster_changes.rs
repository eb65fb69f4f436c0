//! Changes of the roster of a simulated machine: neither the machine nor its plant keeps anything
//! of each, and all knobs are restored. In a program of its own, because the memory of the whole
//! process is measured.
//!
//! `LULL_ROSTER_CHANGES=1000000` is the whole of it, a simulated day; CI runs a part.

use lull_control::{
    AppId, AppSpec, ControlLoop, Controller, CoreId, CoreSet, Observation, Plan, Plant, Policy,
    Reason, Rng, RosterEvent, Rules, Setting,
};
use lull_measure::Nanos;
use lull_sim::machine::{MachineModel, MachinePlant};
use rand::{RngExt, SeedableRng};

/// Number of roster changes unless the environment sets another.
const CHANGES: usize = 20_000;
/// Simulated time between two changes: a million of them take a day.
const BETWEEN: Nanos = Nanos::from_micros(86_400);
/// The memory that the allocator may keep for itself.
const KEPT_MAX_KIB: u64 = 1024;
const APPS: u16 = 4;
const CORES: u16 = 4;

/// Moves every app to another core in each epoch, so that new processes are set, too.
struct Rotate(u16);

impl Policy for Rotate {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.0 = (self.0 + 1) % CORES;
        let mut plan = Plan::keep();
        for app in 0..APPS {
            let core = CoreId((app + self.0) % CORES);
            let cores: CoreSet = [core].into_iter().collect();
            plan.set(Setting::Cores(AppId(app), cores), Reason::Start);
        }
        plan
    }
}

fn control() -> ControlLoop<MachinePlant> {
    let names = || (0..APPS).map(|app| format!("app-{app}"));
    let app = |name| format!("[[app]]\nname = \"{name}\"\nthreads = 2\nactivity = \"endless\"\n");
    let apps: String = names().map(app).collect();
    let text = format!("name = \"busy\"\ncores = {CORES}\nfrequency = \"2.2GHz\"\n{apps}");
    let model: MachineModel = toml::from_str(&text).expect("a model");
    let specs: Vec<AppSpec> = names().map(|name| AppSpec::best_effort(&name)).collect();
    let plant = MachinePlant::new(&model, &specs, 1, 0).expect("the apps are in the model");
    let controller = Controller::new(Box::new(Rotate(0)), Rules::default(), &plant);
    let controller = controller.expect("no limits");
    ControlLoop::new(plant, controller, BETWEEN, Rng::seed_from_u64(1))
}

/// Lets an app arrive, depart or be restarted in each of this many epochs.
fn change(control: &mut ControlLoop<MachinePlant>, changes: usize, rng: &mut Rng) {
    for _ in 0..changes {
        let app = AppId(rng.random_range(0..APPS));
        let event = match control.plant().is_present(app) {
            false => RosterEvent::Arrived,
            true if rng.random_bool(0.5) => RosterEvent::Departed,
            true => RosterEvent::Restarted,
        };
        control.plant_mut().change(app, event);
        control.turn().expect("a simulated machine can always be observed");
    }
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

/// Ends the run and lets absent apps arrive; all settings must be as before the changes.
fn check_restored(control: ControlLoop<MachinePlant>, before: &[Setting]) {
    let (mut plant, restored) = control.finish();
    for outcome in restored.outcomes {
        assert!(outcome.in_force().is_some(), "not restored: {outcome:?}");
    }
    for app in (0..APPS).map(AppId) {
        if !plant.is_present(app) {
            plant.change(app, RosterEvent::Arrived);
        }
    }
    assert_eq!(plant.settings(), before, "settings are not as before the changes");
}

#[test]
#[ignore = "slow: tens of thousands of simulated epochs"]
fn a_simulated_machine_does_not_grow_with_changes_of_its_roster_and_is_restored() {
    let changes = std::env::var("LULL_ROSTER_CHANGES")
        .map_or(CHANGES, |text| text.parse().expect("LULL_ROSTER_CHANGES is a number"));
    let (mut control, mut rng) = (control(), Rng::seed_from_u64(7));
    let settings = control.plant().settings();
    change(&mut control, changes / 4, &mut rng);
    let before = (resident_kib(), descriptors());
    change(&mut control, changes - changes / 4, &mut rng);
    let grown = resident_kib().saturating_sub(before.0);
    assert!(grown <= KEPT_MAX_KIB, "{grown} KiB more after {changes} changes");
    assert_eq!(descriptors(), before.1);
    assert!(control.controller().state().len() <= usize::from(APPS) * 4);
    assert_ne!(control.plant().settings(), settings, "the policy has set nothing");
    check_restored(control, &settings);
}
