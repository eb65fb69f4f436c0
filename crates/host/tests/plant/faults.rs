//! Apps that go away, and threads that come and go while they are looked at.

use crate::child::App;
use crate::nobody::as_nobody;
use crate::scene::{APP, EPOCH, Scene, one_core, second_core};
use lull_control::{ApplyOutcome, Plant, PlantError, Scheduling, Setting};
use lull_host::gauges::app_time::AppTime;
use lull_host::gauges::energy::Rapl;
use lull_host::gauges::pressure::Pressure;
use lull_host::guard::{GuardState, LedgerError, Original, Patience, restore_stale};
use lull_host::{LiveThread, Roots};
use lull_measure::Nanos;
use lull_measure::catalogue::{CPU, RUN_QUEUE_WAIT};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn an_app_that_is_gone_has_reasons_and_no_knobs() {
    let mut app = App::start(2);
    let mut scene = Scene::new(&app);
    scene.set(Setting::Cores(APP, one_core()));
    app.end();
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert!(!seen.apps[0].alive);
    let why = seen.apps[0].readings.get(CPU).unwrap_err();
    assert!(why.reason.contains("served has no live process"), "{why}");
    assert!(!scene.plant.settings().iter().any(|setting| matches!(setting, Setting::Cores(..))));
    let outcome = scene.set(Setting::Cores(APP, one_core()));
    assert!(matches!(outcome.got, ApplyOutcome::Refused { .. }), "{outcome:?}");
    assert!(scene.plant.restore().outcomes.is_empty(), "nobody is left to restore");
    assert_eq!(scene.plant.take_notices(), [""; 0]);
}

/// The guard reports that it is ready, ends, and cannot be started a second time.
#[test]
fn without_a_guard_no_knob_is_written_and_no_epoch_begins() {
    let app = App::start(1);
    let mut scene = Scene::new(&app);
    let place = tempfile::tempdir().unwrap();
    let script = format!("cd '{}' && mkdir once && echo armed", place.path().display());
    let guard = scene.guard(&script);
    scene.plant.set_guard(guard.clone());
    while guard.beat(Patience::Usual).is_ok() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = scene.cores();
    let outcome = scene.set(Setting::Cores(APP, one_core()));
    let ApplyOutcome::Refused { why } = &outcome.got else { panic!("{outcome:?}") };
    assert!(why.contains("the guard, which restores knobs, has ended"), "{why}");
    assert_eq!(scene.cores(), before);
    let lost = scene.plant.observe(EPOCH).unwrap_err();
    assert!(matches!(lost, PlantError::Lost(_)), "{lost}");
}

#[test]
fn of_many_beats_in_a_wait_few_are_sent_and_a_lost_guard_is_replaced() {
    let app = App::start(1);
    let mut scene = Scene::new(&app);
    let place = tempfile::tempdir().unwrap();
    let beats = place.path().join("beats");
    let mut guard = scene.noting_guard(&beats);
    let begun = Instant::now();
    for _ in 0..3 {
        guard.beat(Patience::Long).unwrap();
        (0..1000).for_each(|_| guard.beat_in_wait().unwrap());
    }
    let most = 4 + begun.elapsed().as_millis() as usize / 100;
    std::thread::sleep(Duration::from_millis(150));
    guard.beat_in_wait().unwrap();
    let sent = || std::fs::read(&beats).unwrap();
    let count = |beat: u8| sent().iter().filter(|sent| **sent == beat).count();
    // The other end of the pipe writes them when it gets to run.
    while count(5) < 4 || sent().last() != Some(&5) {
        std::thread::yield_now();
    }
    assert!(count(60) == 3 && count(5) <= most, "{:?}", sent());
    let lost = Pid::from_raw(guard.pid().cast_signed()).unwrap();
    kill_process(lost, Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(150));
    guard.beat_in_wait().unwrap();
    assert!(matches!(guard.poll(), Ok(GuardState::Respawned(_))));
    guard.finish().unwrap();
}

/// A file of the machine, of which Lull has changed the text.
fn text(path: &Path) -> Original {
    let ours = vec!["before".to_owned(), "ours".to_owned()];
    Original::Text { path: path.to_owned(), text: "before".to_owned(), safe: None, ours }
}

#[test]
fn what_a_refused_setting_has_changed_is_restored() {
    let app = App::start(1);
    let mut scene = Scene::new(&app);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("knob");
    std::fs::write(&path, "ours\n").unwrap();
    scene.plant.ledger_mut().record(&[text(&path)]).unwrap();
    let outcome = scene.set(Setting::Scheduling(APP, Scheduling::Normal { nice: 100 }));
    assert!(matches!(outcome.got, ApplyOutcome::Refused { .. }), "{outcome:?}");
    let _ = scene.plant.restore();
    assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), "before");
}

#[test]
fn what_could_not_be_restored_is_reported_until_it_is_and_its_ledger_stays_open() {
    if second_core().is_none() {
        return;
    }
    let app = App::start(1);
    let mut scene = Scene::new(&app);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("absent");
    scene.plant.ledger_mut().record(&[text(&path)]).unwrap();
    scene.set(Setting::Cores(APP, one_core()));
    for _ in 0..2 {
        let restored = scene.plant.restore();
        let unrestored = scene.plant.unrestored(&restored);
        assert!(unrestored.len() == 1 && unrestored[0].contains("absent"), "{unrestored:?}");
    }
    let state = scene.state();
    assert_eq!(scene.plant.close(Duration::ZERO).unwrap().left, []);
    std::fs::write(&path, "ours\n").unwrap();
    let recovery = loop {
        match restore_stale(&state, &Roots::default()) {
            // A process that another test makes has the ledger's lock until it runs its program.
            Err(LedgerError::Busy { .. }) => std::thread::yield_now(),
            other => break other.unwrap().unwrap(),
        }
    };
    assert!(!recovery.has_failed(), "{recovery}");
    assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), "before");
}

#[test]
fn an_ended_app_without_a_wait_is_not_alive() {
    let mut app = App::start(1);
    let mut scene = Scene::new(&app);
    assert!(scene.plant.observe(EPOCH).unwrap().apps[0].alive);
    app.end_as_zombie();
    assert!(!scene.plant.observe(EPOCH).unwrap().apps[0].alive);
}

#[test]
fn threads_that_come_and_go_are_no_error() {
    let mut app = App::start(2);
    let mut scene = Scene::new(&app);
    let churn = std::thread::spawn(move || {
        app.churn(2_000);
        app
    });
    let mut moves = 0;
    while !churn.is_finished() {
        for cores in [one_core(), crate::scene::allowed()] {
            let outcome = scene.set(Setting::Cores(APP, cores));
            assert!(outcome.in_force().is_some(), "{outcome:?}");
            moves += 1;
        }
        let seen = scene.plant.observe(Nanos::from_millis(5)).unwrap();
        assert!(seen.foreign.is_empty(), "{:?}", seen.foreign);
        let wait = seen.apps[0].readings.get(RUN_QUEUE_WAIT);
        assert!(wait.is_ok(), "{wait:?}");
    }
    assert!(moves > 0);
    assert_eq!(scene.plant.take_notices(), [""; 0]);
    drop(churn.join().unwrap());
}

#[test]
fn what_may_not_be_read_is_a_reason() {
    if as_nobody("faults::what_may_not_be_read_is_a_reason") {
        return;
    }
    let tree = tempfile::tempdir().unwrap();
    let roots = Roots::under(tree.path());
    let secret = |path: &str, content: &str| {
        let path = tree.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
    };
    secret("proc/7/stat", "7 (a) S 1");
    secret("proc/7/task/7/schedstat", "1 1 1");
    secret("proc/pressure/cpu", "some total=1");
    secret("sys/class/powercap/intel-rapl:0/energy_uj", "1");
    std::fs::write(tree.path().join("sys/class/powercap/intel-rapl:0/name"), "package-0").unwrap();
    let live = [LiveThread { pid: 7, tid: 7, start_ticks: 1 }];
    let used = AppTime::new(&roots).read(&live, Nanos::from_secs(1));
    let reasons = [
        used.cpu.unwrap_err(),
        used.wait.unwrap_err(),
        Pressure::probe(&roots).unwrap_err(),
        Rapl::open(&roots).unwrap_err(),
    ];
    for why in reasons {
        assert!(why.reason.contains("run as root to read it"), "{why}");
    }
}

#[test]
fn a_bad_push_client_is_reported() {
    let app = App::start(0);
    let mut scene = Scene::new(&app);
    let mut client = UnixStream::connect(scene.socket()).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    scene.plant.observe(EPOCH).unwrap();
    let notices = scene.plant.take_notices();
    assert!(notices[0].contains("was dropped: not a push message"), "{notices:?}");
    assert!(scene.plant.take_notices().is_empty());
}
