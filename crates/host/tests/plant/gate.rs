//! The numbers of an on-call gate as knobs of the plant.

use crate::child::App;
use crate::scene::{APP, EPOCH, Scene};
use lull_control::{AppId, ApplyOutcome, Capability, Plant, Setting};
use lull_measure::Nanos;
use lull_oncall::{Mode, Settings};

fn gated(app: &App, mode: Mode) -> Scene {
    Scene::gated(app, &Settings { mode, cap: 16, ..Settings::default() })
}

/// C, N and D as the plant reads them.
fn numbers(scene: &Scene) -> Vec<Setting> {
    let of_gate = |setting: &Setting| Capability::OF_GATES.contains(&setting.knob().capability());
    scene.plant.settings().into_iter().filter(of_gate).collect()
}

fn all(cap: u32, batch: u32, delay: Nanos) -> Vec<Setting> {
    vec![Setting::GateCap(APP, cap), Setting::GateBatch(APP, batch), Setting::GateDelay(APP, delay)]
}

#[test]
fn each_number_is_set_by_itself_and_all_are_put_back() {
    let app = App::start(1);
    let mut scene = gated(&app, Mode::Post);
    let delay = Nanos::from_micros(250);
    assert_eq!(numbers(&scene), all(16, 1, Nanos::ZERO));
    assert_eq!(scene.set(Setting::GateCap(APP, 3)).got, ApplyOutcome::Done);
    assert_eq!(numbers(&scene), all(3, 1, Nanos::ZERO));
    assert_eq!(scene.set(Setting::GateDelay(APP, delay)).got, ApplyOutcome::Done);
    assert_eq!(scene.set(Setting::GateBatch(APP, 8)).got, ApplyOutcome::Done);
    assert_eq!(scene.set(Setting::GateBatch(APP, 8)).got, ApplyOutcome::Already);
    assert_eq!(numbers(&scene), all(3, 8, delay));
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert!(seen.foreign.is_empty(), "{:?}", seen.foreign);
    for outcome in scene.plant.restore().outcomes {
        assert!(outcome.in_force().is_some(), "{outcome:?}");
    }
    assert_eq!(numbers(&scene), all(16, 1, Nanos::ZERO));
}

#[test]
fn what_no_gate_keeps_is_refused_and_changes_nothing() {
    let app = App::start(0);
    let mut scene = gated(&app, Mode::Post);
    let before = numbers(&scene);
    for (wrong, word) in [
        (Setting::GateCap(APP, 0), "cap"),
        (Setting::GateCap(APP, 257), "256"),
        (Setting::GateBatch(APP, 4096), "batch"),
        (Setting::GateDelay(APP, Nanos::from_secs(1)), "delay"),
        (Setting::GateCap(AppId(7), 4), "no gate"),
    ] {
        let ApplyOutcome::Refused { why } = scene.set(wrong.clone()).got else {
            panic!("{wrong:?}")
        };
        assert!(why.contains(word), "{why}");
    }
    assert_eq!(numbers(&scene), before);
}

#[test]
fn an_app_whose_workers_never_wait_has_no_gate() {
    let app = App::start(0);
    let mut scene = gated(&app, Mode::Stats);
    assert!(scene.plant.machine().gates.is_empty() && numbers(&scene).is_empty());
    let ApplyOutcome::Refused { why } = scene.set(Setting::GateCap(APP, 4)).got else {
        panic!("set")
    };
    assert!(why.contains("no app has a gate"), "{why}");
}
