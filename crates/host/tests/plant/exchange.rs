//! Apps that are added to a run and removed from it.

use crate::child::App;
use crate::scene::{APP, EPOCH, Scene, allowed, one_core, second_core};
use lull_control::{AppId, AppSpec, ApplyOutcome, CoreSet, Plant, Setting};
use lull_host::apps::{AppHandle, Launch, Output, Target};
use lull_host::sys::sched::affinity_of;
use lull_host::{HostApp, HostError, LatencyFrom, ProgressFrom, Roots};
use lull_measure::catalogue::CPU;

const ADDED: AppId = AppId(1);

fn added(app: &App) -> HostApp {
    let target = Target::Pid(app.pid());
    HostApp {
        spec: AppSpec::best_effort("added"),
        handle: AppHandle::attach("added", &target, &Roots::default()).unwrap(),
        latency: LatencyFrom::Push,
        progress: ProgressFrom::CpuTime,
    }
}

fn cores(tid: i32) -> CoreSet {
    affinity_of(tid).unwrap()
}

#[test]
fn an_app_that_is_removed_has_its_knobs_back_and_one_that_is_added_is_read_and_set() {
    let Some(second) = second_core() else { return };
    let (mut first, other) = (App::start(0), App::start(1));
    let worker = first.add_worker();
    let mut scene = Scene::new(&first);
    assert_eq!(scene.set(Setting::Cores(APP, one_core())).got, ApplyOutcome::Done);
    // A thread that starts with the values that Lull has set, after the last look.
    let late = first.add_worker();
    let mut arriving = vec![(ADDED, added(&other))];
    scene.plant.check_arrivals(&mut arriving, &[APP]).unwrap();
    assert_eq!(cores(worker), one_core(), "a check changes nothing");
    assert_eq!(scene.plant.exchange_apps(&[APP], arriving), []);
    for tid in [first.pid(), worker, late] {
        assert_eq!(cores(tid), allowed(), "thread {tid}");
    }
    assert!(scene.plant.apps()[0].is_removed() && !scene.plant.is_present(APP));
    assert!(scene.plant.is_present(ADDED));
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert_eq!(seen.apps.iter().map(|app| app.alive).collect::<Vec<_>>(), [false, true]);
    assert!(seen.apps[1].readings.get(CPU).is_ok(), "{:?}", seen.apps[1].readings.get(CPU));
    let only: CoreSet = [second].into_iter().collect();
    assert_eq!(scene.set(Setting::Cores(ADDED, only.clone())).got, ApplyOutcome::Done);
    assert_eq!((cores(other.pid()), cores(first.pid())), (only, allowed()));
    let refused = scene.set(Setting::Cores(APP, one_core())).got;
    assert!(matches!(refused, ApplyOutcome::Refused { .. }), "{refused:?}");
    let restored = scene.plant.restore();
    assert_eq!(cores(other.pid()), allowed());
    assert_eq!(scene.plant.unrestored(&restored), [""; 0]);
}

#[test]
fn what_is_set_for_an_app_that_stays_is_untouched_when_another_one_comes_and_goes() {
    if second_core().is_none() {
        return;
    }
    let (first, other) = (App::start(1), App::start(1));
    let mut scene = Scene::new(&first);
    assert_eq!(scene.set(Setting::Cores(APP, one_core())).got, ApplyOutcome::Done);
    assert_eq!(scene.plant.exchange_apps(&[], vec![(ADDED, added(&other))]), []);
    assert_eq!(scene.set(Setting::Cores(ADDED, one_core())).got, ApplyOutcome::Done);
    assert_eq!(scene.plant.exchange_apps(&[ADDED], Vec::new()), []);
    assert_eq!((cores(first.pid()), cores(other.pid())), (one_core(), allowed()));
    // The same name has the same id again.
    assert_eq!(scene.plant.exchange_apps(&[], vec![(ADDED, added(&other))]), []);
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert!(seen.foreign.is_empty(), "{:?}", seen.foreign);
    assert_eq!(seen.apps.iter().map(|app| app.alive).collect::<Vec<_>>(), [true, true]);
    assert_eq!(scene.set(Setting::Cores(ADDED, one_core())).got, ApplyOutcome::Done);
    assert_eq!(cores(other.pid()), one_core());
    let _ = scene.plant.restore();
    assert_eq!((cores(first.pid()), cores(other.pid())), (allowed(), allowed()));
}

#[test]
fn an_app_with_a_process_of_another_one_that_stays_is_refused_with_both_names() {
    let first = App::start(0);
    let mut scene = Scene::new(&first);
    let mut arriving = [(ADDED, added(&first))];
    let refused = scene.plant.check_arrivals(&mut arriving, &[]);
    let Err(HostError::Shared { pid, first: one, second }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((pid, one.as_str(), second.as_str()), (first.pid(), "served", "added"));
    let mut again = [(ADDED, added(&first))];
    scene.plant.check_arrivals(&mut again, &[APP]).unwrap();
}

#[test]
fn a_started_app_that_is_removed_and_has_ended_is_not_in_the_ledger_any_more() {
    let app = App::start(0);
    let mut scene = Scene::new(&app);
    let launch = Launch {
        name: "added".to_owned(),
        argv: ["sleep", "600"].map(str::to_owned).to_vec(),
        env: Vec::new(),
        output: Output::Inherit,
        ready: None,
    };
    let ledger = scene.plant.ledger_mut();
    let handle = AppHandle::start(&launch, &Roots::default(), ledger).unwrap();
    let started = HostApp { handle, ..added(&app) };
    assert_eq!(scene.plant.exchange_apps(&[], vec![(ADDED, started)]), []);
    assert_eq!(scene.plant.exchange_apps(&[ADDED], Vec::new()), []);
    let lines = std::fs::read_to_string(scene.plant.ledger_mut().path()).unwrap();
    let is_released = |line: &str| line.contains("released") && line.contains("started");
    assert!(lines.lines().any(is_released), "{lines}");
}

#[test]
fn the_guard_is_patient_with_what_follows_an_exchange() {
    let app = App::start(0);
    let mut scene = Scene::new(&app);
    let place = tempfile::tempdir().unwrap();
    let beats = place.path().join("beats");
    let guard = scene.noting_guard(&beats);
    scene.plant.set_guard(guard.clone());
    assert_eq!(scene.plant.exchange_apps(&[APP], Vec::new()), []);
    guard.finish().unwrap();
    let beats = std::fs::read(beats).unwrap();
    assert_eq!(beats.last(), Some(&60), "{beats:?}");
}
