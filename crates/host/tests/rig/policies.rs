//! Policies end to end: the control loop, real drivers, and two small apps.
//!
//! What is shown is that plans become settings of the kernel, that the journal
//! says so, and that everything is as before afterwards; what they save is no
//! matter of an emulator.

use crate::Tests;
use crate::calibrate::Hardware;
use crate::frequency::hardware;
use crate::kills::Knobs;
use crate::scene::ledger;
use crate::workload::Workload;
use lull_control::journal::{Decision, Entry, Event};
use lull_control::{
    AppSpec, ControlLoop, Controller, Got, Knob, Outcome, Plant, Reason, Rng, Rules, Setting,
};
use lull_host::apps::{AppHandle, Target};
use lull_host::gauges::energy::PowerModel;
use lull_host::gauges::push::PushGauge;
use lull_host::sys::sched::affinity_of;
use lull_host::{HostApp, HostConfig, HostPlant, LatencyFrom, ProgressFrom, Roots, Stop};
use lull_measure::{Nanos, Percentile};
use rand::SeedableRng;
use std::path::Path;

pub(crate) const TESTS: Tests = &[
    ("policies::arq_gives_cores_to_the_app_that_suffers", arq),
    ("policies::step_dvfs_climbs_under_load_and_the_hardware_has_it", step_dvfs),
    ("policies::bayop_tries_frequencies_and_delays", bayop),
    ("policies::a_refused_setting_is_journalled_in_the_drivers_words", refused),
];

/// Epochs that a policy may take; emulation on a busy machine is slow.
const EPOCHS: usize = 600;
/// The app that serves is the first.
const SERVED: usize = 0;

/// A policy by its name and config.
struct Run {
    policy: &'static str,
    config: &'static str,
    epoch: Nanos,
    burning: u16,
}

fn apps() -> [AppSpec; 2] {
    let bound = Nanos::from_millis(3);
    let served = AppSpec::latency_critical("served", Percentile::P95, bound);
    let served = AppSpec { ideal: Some(Nanos::from_millis(1)), threads: Some(1), ..served };
    [served, AppSpec { solo_per_s: Some(4.0), ..AppSpec::best_effort("burning") }]
}

fn plant(dir: &Path, workload: &Workload) -> HostPlant {
    let (roots, specs) = (Roots::default(), apps());
    let push = PushGauge::listen(&dir.join("push"), &specs).unwrap();
    let app = |(spec, pid): (AppSpec, i32)| {
        let handle = AppHandle::attach(&spec.name, &Target::Pid(pid), &roots).unwrap();
        let (latency, progress) = (LatencyFrom::Push, ProgressFrom::CpuTime);
        HostApp { spec, handle, latency, progress }
    };
    let config = HostConfig {
        apps: specs.into_iter().zip(workload.pids()).map(app).collect(),
        push: Some(push),
        power: PowerModel::default(),
        ledger: ledger(dir),
        foreign_wins: true,
        stop: Stop::new().unwrap(),
        roots: roots.clone(),
    };
    HostPlant::new(config).unwrap()
}

impl Run {
    /// Runs until `is_enough` of all decisions so far, then puts everything back.
    fn until(&self, mut is_enough: impl FnMut(&[Decision]) -> bool) -> Vec<Decision> {
        let dir = tempfile::tempdir().unwrap();
        let workload = Workload::start(&dir.path().join("push"), self.burning);
        let before = (Knobs::now(), workload.pids().map(|pid| affinity_of(pid).unwrap()));
        let plant = plant(dir.path(), &workload);
        let config = self.config.parse().unwrap();
        let policy =
            lull_policies::registry::build(self.policy, &config, plant.machine(), plant.apps());
        let policy = policy.unwrap_or_else(|error| panic!("{}: {error}", self.policy));
        // The emulator may stand still for longer than a server may be silent.
        let rules = Rules { silence_max: Nanos::from_secs(60), ..Rules::default() };
        let controller = Controller::new(policy, rules, &plant).unwrap();
        let mut control = ControlLoop::new(plant, controller, self.epoch, Rng::seed_from_u64(1));
        let mut made = Vec::new();
        for _ in 0..EPOCHS {
            let epoch = control.turn().unwrap();
            made.extend(epoch.entries.into_iter().filter_map(decision));
            if is_enough(&made) {
                break;
            }
        }
        assert!(is_enough(&made), "{} has decided: {made:#?}", self.policy);
        let (_, restored) = control.finish();
        let is_back = |outcome: &Outcome| !matches!(outcome.got, Got::Refused { .. });
        assert!(restored.outcomes.iter().all(is_back), "{restored:?}");
        let after = (Knobs::now(), workload.pids().map(|pid| affinity_of(pid).unwrap()));
        assert_eq!(after, before, "{}", self.policy);
        made
    }
}

fn decision(entry: Entry) -> Option<Decision> {
    match entry.event {
        Event::Decision(decision) => Some(decision),
        _ => None,
    }
}

/// The settings of one kind that took effect.
fn in_force(made: &[Decision], kind: fn(Knob) -> bool) -> Vec<Setting> {
    let settings = made.iter().filter_map(|decision| decision.outcome.in_force());
    settings.filter(|setting| kind(setting.knob())).cloned().collect()
}

fn of_frequency(knob: Knob) -> bool {
    matches!(knob, Knob::Frequency(_))
}

fn of_coalescing(knob: Knob) -> bool {
    matches!(knob, Knob::Coalescing(_))
}

fn arq() {
    let run = Run {
        policy: "arq",
        config: "period = \"200ms\"",
        epoch: Nanos::from_millis(200),
        burning: 4,
    };
    // The best-effort app is kept off the cores of the one that suffers.
    let is_off = |setting: &Setting| match setting {
        Setting::Cores(app, cores) => app.index() != SERVED && cores.len() < 4,
        _ => false,
    };
    let cores = |knob| matches!(knob, Knob::Cores(_));
    run.until(|made| in_force(made, cores).iter().any(is_off));
}

/// The middle one of the three frequencies that are used, in kHz / 100_000.
const MIDDLE: u8 = 0x10;

fn step_dvfs() {
    let run = Run { policy: "step-dvfs", config: "", epoch: Nanos::from_millis(50), burning: 4 };
    let mut was_slow = false;
    let made = run.until(|_| {
        was_slow |= (0..4).all(|cpu| hardware(cpu) == 0x08);
        was_slow && (0..4).any(|cpu| hardware(cpu) >= MIDDLE)
    });
    let busy = |made: &Decision| matches!(made.reason, Reason::Threshold { .. });
    assert!(made.iter().any(busy), "{made:#?}");
}

fn bayop() {
    let hardware = Hardware::of_cores();
    let run = Run {
        policy: "bayop",
        config: "knobs = [\"frequency\", \"coalescing\"]\ntrials = 4\nconfirm = 0\n\
                 settle = \"100ms\"\nwindow = \"300ms\"",
        epoch: Nanos::from_millis(100),
        burning: 1,
    };
    let number = |decision: &Decision| match decision.reason {
        Reason::Trial { number, .. } => number,
        _ => 0,
    };
    run.until(|made| {
        let trials = made.iter().map(number).max().unwrap_or_default();
        let both = [of_frequency, of_coalescing].map(|kind| in_force(made, kind).len());
        trials >= 4 && both.iter().all(|count| *count > 0)
    });
    drop(hardware);
}

fn refused() {
    // What this network driver does not take (see hold.rs).
    let run = Run {
        policy: "static",
        config: "delay = \"5us\"\nfrequency = \"1.2GHz\"",
        epoch: Nanos::from_millis(100),
        burning: 1,
    };
    let made = run.until(|made| in_force(made, of_frequency).len() >= 4 && made.len() > 4);
    let why = made.iter().find_map(|decision| match &decision.outcome {
        Outcome { wanted: Setting::Coalescing(..), got: Got::Refused { why } } => Some(why),
        _ => None,
    });
    let why = why.unwrap_or_else(|| panic!("no refusal: {made:#?}"));
    assert!(why.contains("eth0") && why.contains("Invalid argument"), "{why}");
}
