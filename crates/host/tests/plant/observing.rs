//! What is seen of a real app.

use crate::child::App;
use crate::scene::{APP, EPOCH, Scene, latency_critical, one_core};
use lull_control::{AppId, AppSpec, Plant, PlantError, ProgressSource, Setting};
use lull_host::apps::{AppHandle, CgroupSlots};
use lull_host::gauges::memory_pressure::MemoryPressure;
use lull_host::gauges::run_queue::RunQueue;
use lull_host::{HostApp, LatencyFrom, ProgressFrom, Roots};
use lull_measure::catalogue::{
    CONTEXT_SWITCHES, CPU, MEMORY_PRESSURE, RUN_QUEUE_P99, RUN_QUEUE_WAIT,
};
use lull_measure::push::{LatencyWindow, Message, Progress};
use lull_measure::{Latency, Nanos, Percentile};
use lull_testing::skip;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

fn now() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
}

fn push(mut to: &UnixStream, message: &Message) {
    let mut line = Vec::new();
    message.encode(&mut line).unwrap();
    to.write_all(&line).unwrap();
}

fn window(histogram: Latency) -> Message {
    let length_ns = Nanos::from_millis(10);
    Message::Latency(Box::new(LatencyWindow {
        app: "served".to_owned(),
        start_ns: now() - length_ns,
        length_ns,
        completed: histogram.count(),
        histogram,
        ..LatencyWindow::default()
    }))
}

#[test]
fn a_working_app_uses_cpu_and_switches_threads() {
    let app = App::start(3);
    let mut scene = Scene::new(&app);
    let seen = scene.plant.observe(Nanos::from_millis(200)).unwrap();
    let app = seen.app(APP).unwrap();
    assert!(app.alive);
    // The harness has a thread of its own beside the app's first and its workers.
    assert!(*app.threads.as_ref().unwrap() >= 4, "{:?}", app.threads);
    assert!(app.readings.get(CPU).unwrap() > 0.0);
    assert!(app.readings.get(CONTEXT_SWITCHES).unwrap() > 0.0);
    let wait = app.readings.get(RUN_QUEUE_WAIT);
    assert!(wait.is_ok(), "{wait:?}");
    assert!(seen.cores.iter().any(|core| core.utilisation.as_ref().is_ok_and(|busy| *busy > 0.0)));
    assert!(seen.energy.unwrap().energy.0 > 0.0);
}

/// Epochs in which threads that share a core must have waited for each other often.
const EPOCHS_MAX: usize = 100;

#[test]
fn run_queue_latency_is_a_latency_of_an_app_that_reports_none() {
    let app = App::start(4);
    if let Err(why) = RunQueue::probe(&Roots::default()) {
        return skip(&why.reason);
    }
    let mut scene = Scene::waiting(&app);
    // Four threads that work half of the time share one core.
    let outcome = scene.set(Setting::Cores(APP, one_core()));
    assert!(outcome.in_force().is_some(), "{outcome:?}");
    let (mut waits, mut waited_s, mut known_s) = (0, 0.0, 0.0);
    for _ in 0..EPOCHS_MAX {
        let seen = scene.plant.observe(Nanos::from_millis(200)).unwrap();
        let (app, latency) = (&seen.apps[0], seen.apps[0].latency.as_ref().unwrap());
        let tail = latency.tail(Percentile::P99).map(Nanos::as_secs_f64);
        assert_eq!(app.readings.get(RUN_QUEUE_P99).ok(), tail, "what policies see is shown");
        let mean = latency.window.mean().map_or(0.0, Nanos::as_secs_f64);
        waits += latency.window.count();
        waited_s += mean * latency.window.count() as f64;
        // The kernel's own sum of the same waits, read at another moment.
        known_s += app.readings.value(RUN_QUEUE_WAIT).unwrap() * seen.epoch.as_secs_f64();
        if waits >= 100 {
            break;
        }
    }
    assert!(waits >= 100, "{waits} waits");
    assert!((0.5..2.0).contains(&(waited_s / known_s)), "{waited_s} s, by schedstat {known_s} s");
}

/// A cgroup of version 2, removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Self> {
        let mut tops = ["", "unified"].into_iter().map(|it| Path::new("/sys/fs/cgroup").join(it));
        let top = tops.find(|top| top.join("cgroup.controllers").exists())?;
        let place = top.join(format!("lull-test-{}", std::process::id()));
        std::fs::create_dir(&place).ok().map(|()| Self(place))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just ended leaves its cgroup a moment later.
        while self.0.exists() && std::fs::remove_dir(&self.0).is_err() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn memory_pressure_is_a_latency_of_an_app_that_reports_none() {
    if let Err(why) = MemoryPressure::probe(&Roots::default()) {
        return skip(&why.reason);
    }
    let Some(cgroup) = Cgroup::new() else { return skip("no cgroup of version 2 can be made") };
    let app = App::start(1);
    std::fs::write(cgroup.0.join("cgroup.procs"), app.pid().to_string()).unwrap();
    let mut scene = Scene::under_memory_pressure(&app);
    for _ in 0..2 {
        let seen = scene.plant.observe(Nanos::from_millis(200)).unwrap();
        let (app, latency) = (&seen.apps[0], seen.apps[0].latency.as_ref().unwrap());
        let share = *app.readings.get(MEMORY_PRESSURE).as_ref().unwrap();
        let tail_s = latency.tail(Percentile::P95).unwrap().as_secs_f64();
        assert!((tail_s - share).abs() <= 0.01 * share + 1e-6, "{tail_s} s, {share}");
        assert!(latency.window.count() >= 19, "{}", latency.window.count());
    }
    // In the top cgroup its pressure would be that of the machine.
    let top = cgroup.0.with_file_name("cgroup.procs");
    std::fs::write(top, app.pid().to_string()).unwrap();
    let seen = scene.plant.observe(EPOCH).unwrap();
    let why = seen.apps[0].latency.as_ref().unwrap_err();
    assert!(why.reason.contains("top cgroup"), "{why}");
    drop(app);
}

#[test]
fn latency_is_what_was_pushed_and_silence_is_missing() {
    let app = App::start(0);
    let mut scene = Scene::new(&app);
    let silent = scene.plant.observe(EPOCH).unwrap();
    let why = silent.apps[0].latency.as_ref().unwrap_err();
    assert!(why.reason.contains("nothing was pushed yet"), "{why}");
    let client = UnixStream::connect(scene.socket()).unwrap();
    push(&client, &window([1, 2, 3].map(Nanos::from_millis).into_iter().collect()));
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert_eq!(seen.apps[0].latency.as_ref().unwrap().window.count(), 3);
    push(&client, &window(Latency::default()));
    let idle = scene.plant.observe(EPOCH).unwrap();
    assert_eq!(idle.apps[0].latency.as_ref().unwrap().window.count(), 0, "idle is not silent");
    scene.plant.observe(EPOCH).unwrap();
    let silent = scene.plant.observe(EPOCH).unwrap();
    let why = silent.apps[0].latency.as_ref().unwrap_err();
    assert!(why.reason.contains("no push for"), "{why}");
}

#[test]
fn progress_is_read_at_the_configured_place() {
    let app = App::start(1);
    let be = || AppSpec::best_effort("served");
    let mut scene = Scene::from_spec(&app, be(), ProgressFrom::CpuTime, true);
    let seen = scene.plant.observe(EPOCH).unwrap();
    let progress = seen.apps[0].progress.as_ref().unwrap();
    assert_eq!(progress.source, ProgressSource::CpuTime);
    assert_eq!(progress.per_s, seen.apps[0].readings.get(CPU).unwrap());

    let mut scene = Scene::from_spec(&app, be(), ProgressFrom::Push, true);
    let client = UnixStream::connect(scene.socket()).unwrap();
    let report = |total| {
        let (app, unit) = ("served".to_owned(), "paths".to_owned());
        push(&client, &Message::Progress(Progress { app, unit, total, time_ns: now() }));
    };
    report(10.0);
    assert!(scene.plant.observe(EPOCH).unwrap().apps[0].progress.is_err(), "a rate needs two");
    report(30.0);
    let seen = scene.plant.observe(EPOCH).unwrap();
    let progress = seen.apps[0].progress.as_ref().unwrap();
    assert_eq!(progress.source, ProgressSource::Pushed("paths".to_owned()));
    assert!(progress.per_s > 0.0);
    let lc = Scene::from_spec(&app, latency_critical(), ProgressFrom::CpuTime, true)
        .plant
        .observe(EPOCH);
    assert!(lc.unwrap().apps[0].progress.is_err());
}

#[test]
fn epochs_follow_each_other_without_a_gap() {
    let app = App::start(0);
    let mut scene = Scene::new(&app);
    let mut sum = Nanos::ZERO;
    let mut last = Nanos::ZERO;
    for _ in 0..10 {
        let seen = scene.plant.observe(EPOCH).unwrap();
        assert!(seen.epoch >= EPOCH.scale(0.99), "{}", seen.epoch);
        sum += seen.epoch;
        last = seen.time;
    }
    assert_eq!(last, sum, "no time lies between epochs");
}

#[test]
fn news_of_a_discovery_interrupt_the_wait_and_leave_the_epoch_its_length() {
    let app = App::start(0);
    let mut scene = Scene::new(&app);
    let long = Nanos::from_secs(3_600);
    assert!(!scene.plant.wait_for_news(long).unwrap(), "there is no discovery");
    let (mut news, mut source) = UnixStream::pair().unwrap();
    scene.plant.set_discovery(Some(news.try_clone().unwrap().into()));
    source.write_all(b"n").unwrap();
    assert!(scene.plant.wait_for_news(long).unwrap());
    assert!(scene.plant.wait_for_news(long).unwrap(), "they were not taken in");
    news.read_exact(&mut [0]).unwrap();
    rustix::io::write(scene.stop.nudger().unwrap(), b"n").unwrap();
    assert!(!scene.plant.wait_for_news(long).unwrap(), "its owner ends the epoch");
    let seen = scene.plant.observe(long).unwrap();
    assert_eq!(seen.time, seen.epoch, "one epoch, however often it was interrupted");
    assert!(seen.epoch < long);
}

#[test]
fn a_cgroup_that_news_assign_is_looked_at_before_the_wait_goes_on() {
    let (app, other) = (App::start(0), App::start(0));
    let mut scene = Scene::new(&app);
    let (assigned, long) = (AppId(1), Nanos::from_secs(3_600));
    let slots = CgroupSlots::new("pod", 1);
    let host_app = HostApp {
        spec: AppSpec::best_effort("pod-1"),
        handle: AppHandle::attach_assigned(&["pod-1".to_owned()], &slots).remove(0),
        latency: LatencyFrom::Push,
        progress: ProgressFrom::CpuTime,
    };
    assert_eq!(scene.plant.exchange_apps(&[], vec![(assigned, host_app)]), []);
    let (news, mut source) = UnixStream::pair().unwrap();
    scene.plant.set_discovery(Some(news.into()));
    source.write_all(b"n").unwrap();
    assert!(scene.plant.wait_for_news(long).unwrap());
    let cgroup = tempfile::tempdir().unwrap();
    std::fs::write(cgroup.path().join("cgroup.procs"), format!("{}\n", other.pid())).unwrap();
    slots.take(cgroup.path());
    assert!(!scene.plant.is_present(assigned));
    // Nothing is waited for, because the run is to stop.
    scene.stop.request();
    assert_eq!(scene.plant.wait_for_news(long), Err(PlantError::Stopped));
    assert!(scene.plant.is_present(assigned));
}

#[test]
fn a_stop_ends_the_wait() {
    let app = App::start(0);
    let mut scene = Scene::new(&app);
    scene.stop.request();
    let stopped = scene.plant.observe(Nanos::from_secs(3600));
    assert_eq!(stopped.unwrap_err(), PlantError::Stopped);
}
