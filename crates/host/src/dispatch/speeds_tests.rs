//! Frequencies for requests, on a tree of a driver's files.

use super::*;
use crate::Roots;
use crate::drivers::cpufreq::tests::policy;
use crate::guard::{GuardCommand, Ledger, LedgerError, StateDir};
use crate::sys::sched::affinity_of;
use crate::testing::Tree;
use lull_control::dispatcher::{Answer, CoreSpeed, DispatchRequest, Dispatcher, Supply};
use lull_measure::Hertz;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

const LEVELS: [Hertz; 2] = [Hertz(1_200_000_000), Hertz(2_400_000_000)];

/// Slow at first, fast from an age on.
struct At(Nanos);

impl Dispatcher for At {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        match request.on {
            None if request.free[0] > 0 => Answer::on(0, Some(self.0)),
            Some(_) if request.age >= self.0 => Answer::on(1, None),
            _ => Answer::stay(Some(self.0)),
        }
    }
}

/// A driver's files for each core that this process may use, and a state directory.
struct Scene {
    tree: Tree,
    cores: CoreSet,
}

impl Scene {
    fn new(governors: &str) -> Self {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        let cores = affinity_of(me).unwrap();
        let scene = Self { tree: Tree::new(), cores };
        scene.tree.write("sys/devices/system/cpu/online", &format!("{}\n", scene.cores));
        for core in scene.cores.iter() {
            let dir = dir(core);
            policy(&scene.tree, &dir, governors);
            scene.tree.write(&format!("{dir}/affected_cpus"), &format!("{core}\n"));
        }
        scene
    }

    /// One of the cores.
    fn floor(&self) -> Floor {
        let one: CoreSet = self.cores.iter().take(1).collect();
        let types = vec![CoreSpeed::new("slow", 1.0, 1.7), CoreSpeed::new("fast", 2.0, 6.8)];
        let ladder = Ladder::new(types, Supply::Any(1)).unwrap();
        Floor { ladder, cores: vec![one], abandon: Nanos::from_secs(3600) }
    }

    fn core(&self) -> CoreId {
        self.cores.iter().next().unwrap()
    }

    /// The kernel's own processes, the tree's frequencies.
    fn roots(&self) -> Roots {
        Roots { sys: self.tree.roots().sys, ..Roots::default() }
    }

    fn ledger(&self) -> Ledger {
        let place = || StateDir::locate(Some(&self.tree.path("state"))).unwrap();
        for _ in 0..1000 {
            match Ledger::open(place(), &self.roots()) {
                // A child of another test holds the lock until it executes its program.
                Err(LedgerError::Busy { .. }) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => return opened.unwrap().ledger,
            }
        }
        panic!("the state directory stays busy");
    }

    fn speeds(&self) -> Result<Speeds, SpeedsError> {
        let safety = Safety::unguarded(self.ledger());
        Speeds::open(&self.floor(), &LEVELS, &self.roots(), safety)
    }

    fn dispatch(&self, dispatcher: Box<dyn Dispatcher>) -> Dispatch {
        Dispatch::start_scaling(self.floor(), dispatcher, self.speeds().unwrap()).unwrap()
    }

    fn file(&self, name: &str) -> String {
        let path = self.tree.path(&format!("{}/{name}", dir(self.core())));
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// Waits until the file says so: the timer's thread writes it.
    fn comes(&self, name: &str, text: &str) {
        let begun = Instant::now();
        while self.file(name) != text {
            assert!(begun.elapsed() < PATIENCE, "did not come: {name} at {text}");
            std::thread::yield_now();
        }
    }

    fn refused(&self) -> String {
        let text = self.speeds().unwrap_err().to_string();
        assert_eq!(self.file("scaling_governor"), "schedutil", "nothing is left changed");
        text
    }
}

fn dir(core: CoreId) -> String {
    format!("sys/devices/system/cpu/cpufreq/policy{}", core.0)
}

#[test]
fn a_requests_core_gets_its_frequency_by_age_and_all_is_put_back() {
    let scene = Scene::new("schedutil userspace");
    let dispatch = scene.dispatch(Box::new(At(Nanos::from_millis(1))));
    assert_eq!(scene.file("scaling_setspeed"), "1200000", "every level was tried, the slow last");
    let mark = dispatch.begin(Nanos::ZERO);
    scene.comes("scaling_setspeed", "2400000");
    drop(mark);
    assert_eq!(scene.file("scaling_setspeed"), "1200000", "an idle core is slow");
    assert_eq!((dispatch.take_tally().unwrap().moves, dispatch.refused()), (1, 0));
    let restored = dispatch.restore().unwrap();
    assert_eq!((restored.done, restored.failed.len()), (1, 0));
    assert_eq!(scene.file("scaling_governor"), "schedutil");
    assert!(dispatch.restore().is_none(), "once");
    drop(dispatch.begin(Nanos::ZERO));
    assert_eq!(scene.file("scaling_governor"), "schedutil", "requests go on without");
}

#[test]
fn a_driver_without_userspace_is_held_by_its_bounds() {
    let scene = Scene::new("schedutil performance");
    let dispatch = scene.dispatch(Box::new(At(Nanos::from_millis(1))));
    assert_eq!(scene.file("scaling_max_freq"), "1200000");
    let mark = dispatch.begin(Nanos::ZERO);
    scene.comes("scaling_min_freq", "2400000");
    drop((mark, dispatch));
    assert_eq!(scene.file("scaling_min_freq"), "800000");
    assert_eq!(scene.file("scaling_max_freq"), "2400000");
}

#[test]
fn a_mark_that_outlives_its_place_leaves_no_frequency_behind() {
    let scene = Scene::new("schedutil userspace");
    let dispatch = scene.dispatch(Box::new(At(Nanos::from_secs(3600))));
    let mark = dispatch.begin(Nanos::ZERO);
    drop(dispatch);
    assert_eq!(scene.file("scaling_governor"), "schedutil");
    drop(mark);
    assert_eq!(scene.file("scaling_governor"), "schedutil");
}

/// Fails when a request grows old.
struct Broken;

impl Dispatcher for Broken {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        assert!(request.on.is_none(), "as no dispatcher should");
        Answer::on(0, Some(Nanos::from_millis(1)))
    }
}

#[test]
fn after_a_dispatchers_panic_frequencies_are_those_of_before() {
    let scene = Scene::new("schedutil userspace");
    let dispatch = Arc::new(scene.dispatch(Box::new(Broken)));
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let first = Arc::clone(&dispatch);
    // It must live until its request is old: the dispatcher is not called for ended threads.
    let thread = std::thread::spawn(move || {
        let mark = first.begin(Nanos::ZERO);
        let _ = wait.recv();
        mark
    });
    let begun = Instant::now();
    while dispatch.take_tally().is_some() {
        assert!(begun.elapsed() < PATIENCE, "the dispatcher was not asked again");
        std::thread::yield_now();
    }
    drop(end);
    let mark = thread.join().unwrap();
    assert_eq!(scene.file("scaling_governor"), "schedutil");
    assert_eq!(dispatch.begin(Nanos::ZERO).id(), 0, "it runs undispatched");
    drop(mark);
}

#[test]
fn a_frequency_that_another_program_sets_stays() {
    let scene = Scene::new("schedutil userspace");
    let mut speeds = scene.speeds().unwrap();
    assert!(speeds.maintain().is_empty());
    scene.tree.write(&format!("{}/scaling_governor", dir(scene.core())), "powersave\n");
    let problems = speeds.maintain();
    assert!(problems.len() == 1 && problems[0].contains("leaves it alone"), "{problems:?}");
    speeds.set(scene.core(), 1).unwrap();
    assert_eq!(speeds.restore().unwrap().done, 0);
    assert_eq!(scene.file("scaling_governor"), "powersave");
}

#[test]
fn without_a_guard_frequencies_are_restored_and_no_longer_set() {
    let scene = Scene::new("schedutil userspace");
    // This guard reports that it is ready, ends, and cannot be started a second time.
    let script = format!("cd '{}' && mkdir once && echo armed", scene.tree.path("").display());
    let guard = GuardCommand { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()] };
    let place = StateDir::locate(Some(&scene.tree.path("state"))).unwrap();
    let safety = Safety::open(place, &scene.roots(), guard).unwrap();
    let mut speeds = Speeds::open(&scene.floor(), &LEVELS, &scene.roots(), safety).unwrap();
    assert_eq!(scene.file("scaling_governor"), "userspace");
    let notices = loop {
        let notices = speeds.maintain();
        if !notices.is_empty() {
            break notices;
        }
        std::thread::yield_now();
    };
    assert!(notices[0].contains("frequencies are not set without a guard"), "{notices:?}");
    speeds.set(scene.core(), 1).unwrap();
    assert_eq!(scene.file("scaling_governor"), "schedutil");
    assert!(speeds.maintain().is_empty(), "it was reported");
}

#[test]
fn old_frequencies_are_in_the_ledger_before_the_first_is_set() {
    let scene = Scene::new("schedutil userspace");
    let speeds = scene.speeds().unwrap();
    let ledger = std::fs::read_to_string(scene.tree.path("state/ledger")).unwrap();
    assert!(ledger.contains("\"governor\":\"schedutil\""), "{ledger}");
    // The process dies: nothing is dropped, and the next agent finds it.
    std::mem::forget(speeds);
    assert_eq!(scene.file("scaling_governor"), "userspace");
}

#[test]
fn a_speed_that_cannot_be_set_is_an_error_before_any_request_depends_on_it() {
    let scene = Scene::new("schedutil userspace");
    let file = |name: &str| format!("{}/{name}", dir(scene.core()));
    scene.tree.write(&file("scaling_available_frequencies"), "2000000 1200000\n");
    let step = scene.refused();
    assert!(step.contains("does not take 2.4") && step.contains("nearest it takes"), "{step}");
    scene.tree.write(&file("scaling_available_frequencies"), "2400000 1200000\n");
    scene.tree.write(&file("scaling_max_freq"), "2000000\n");
    let held = scene.refused();
    assert!(held.contains("is held at 2") && held.contains("scaling_max_freq"), "{held}");
    let two: CoreSet = [CoreId(0), CoreId(1)].into_iter().collect();
    let domain = lull_control::FrequencyDomain {
        id: lull_control::DomainId(0),
        cores: two.clone(),
        steps: LEVELS.to_vec(),
        continuous: false,
    };
    let shared = speeds::domains(&[domain], &two, &LEVELS).unwrap_err().to_string();
    assert!(shared.contains("cores 0 and 1 share one frequency"), "{shared}");
    let none = speeds::domains(&[], &two, &LEVELS).unwrap_err().to_string();
    assert!(none.contains("core 0 has no frequency"), "{none}");
}
