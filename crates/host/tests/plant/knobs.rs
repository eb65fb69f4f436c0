//! Knobs on every thread of a real app, and other writers.

use crate::child::App;
use crate::scene::{APP, EPOCH, Scene, allowed, latency_critical, one_core, second_core};
use lull_control::{ApplyOutcome, Capability, CoreSet, Knob, Plant, Scheduling, Setting};
use lull_host::ProgressFrom;
use lull_host::sys::sched::{SchedState, affinity_of, scheduling_of, set_affinity, set_scheduling};

fn threads(app: &App) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", app.pid())).unwrap();
    tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

fn affinities(app: &App) -> Vec<CoreSet> {
    threads(app).into_iter().map(|tid| affinity_of(tid).unwrap()).collect()
}

fn cores(of: CoreSet) -> Setting {
    Setting::Cores(APP, of)
}

/// Capabilities differ by user; a knob that is missing is tested elsewhere.
fn has(scene: &Scene, capability: Capability) -> bool {
    scene.plant.machine().capabilities.has(capability)
}

#[test]
fn every_thread_is_set_and_new_ones_follow() {
    let mut app = App::start(4);
    let mut scene = Scene::new(&app);
    let outcome = scene.set(cores(one_core()));
    assert!(outcome.in_force().is_some(), "{outcome:?}");
    assert!(affinities(&app).iter().all(|found| *found == one_core()));
    app.add_worker();
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert!(seen.foreign.is_empty(), "a new thread is nobody's interference: {:?}", seen.foreign);
    assert!(affinities(&app).iter().all(|found| *found == one_core()));
}

#[test]
fn a_new_thread_that_goes_elsewhere_is_brought_back() {
    let Some(other) = second_core() else { return };
    let mut app = App::start(0);
    let mut scene = Scene::new(&app);
    scene.set(cores(one_core()));
    // Set by the app itself before the plant has seen the thread.
    let new = app.add_worker();
    set_affinity(new, &[other].into_iter().collect()).unwrap();
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert!(seen.foreign.is_empty(), "{:?}", seen.foreign);
    assert_eq!(affinity_of(new).unwrap(), one_core());
}

#[test]
fn each_thread_gets_back_what_it_had_itself() {
    let Some(other) = second_core() else { return };
    let other: CoreSet = [other].into_iter().collect();
    let mut app = App::start(2);
    let bound = app.add_worker();
    set_affinity(bound, &other).unwrap();
    let mut scene = Scene::new(&app);
    let before: Vec<_> =
        threads(&app).into_iter().map(|tid| (tid, affinity_of(tid).unwrap())).collect();
    assert_eq!(scene.cores(), allowed(), "the app reads as the union");
    scene.set(cores(one_core()));
    assert_eq!(affinity_of(bound).unwrap(), one_core());
    let young = app.add_worker();
    scene.plant.observe(EPOCH).unwrap();
    let restored = scene.plant.restore();
    assert_eq!(restored.outcomes[0].got, ApplyOutcome::Done);
    for (tid, was) in before {
        assert_eq!(affinity_of(tid).unwrap(), was, "thread {tid}");
    }
    assert_eq!(affinity_of(young).unwrap(), allowed(), "born under Lull, as its process was");
}

/// The safe state gives apps what their owners gave them.
#[test]
fn an_app_that_gets_what_its_owner_gave_it_has_the_cores_and_the_class_of_each_thread() {
    let Some(other) = second_core() else { return };
    let other: CoreSet = [other].into_iter().collect();
    let mut app = App::start(1);
    let pinned = app.add_worker();
    set_affinity(pinned, &other).unwrap();
    let batch = SchedState { policy: 3, rt_priority: 0, nice: 3 };
    set_scheduling(pinned, batch).unwrap();
    let mut scene = Scene::new(&app);
    scene.set(cores(one_core()));
    assert_eq!(affinity_of(pinned).unwrap(), one_core());
    assert_eq!(scene.set(cores(allowed())).got, ApplyOutcome::Done);
    assert_eq!(affinity_of(pinned).unwrap(), other, "its owner gave it no more");
    assert_eq!(affinity_of(app.pid()).unwrap(), allowed());
    let young = app.add_worker();
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    assert_eq!(affinity_of(young).unwrap(), allowed());
    if has(&scene, Capability::Scheduling) {
        let is_class = |setting: &&Setting| matches!(setting, Setting::Scheduling(..));
        let owners = scene.plant.owners(APP).iter().find(is_class).unwrap().clone();
        scene.set(Setting::Scheduling(APP, Scheduling::Idle));
        assert_eq!(scene.set(owners).got, ApplyOutcome::Done);
        assert_eq!(scheduling_of(pinned).unwrap(), batch);
    }
    // Not a value that Lull has written to this thread.
    set_affinity(app.pid(), &other).unwrap();
    assert_eq!(scene.plant.observe(EPOCH).unwrap().foreign.len(), 1, "others are still seen");
    let _ = scene.plant.restore();
    assert_eq!(scheduling_of(pinned).unwrap(), batch);
    assert!([pinned, app.pid()].iter().all(|tid| affinity_of(*tid).unwrap() == other));
}

#[test]
fn another_writer_is_reported_once_and_its_value_stays() {
    let Some(other) = second_core() else { return };
    let other: CoreSet = [other].into_iter().collect();
    let app = App::start(2);
    let mut scene = Scene::new(&app);
    scene.set(cores(one_core()));
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    set_affinity(app.pid(), &other).unwrap();
    let foreign = scene.plant.observe(EPOCH).unwrap().foreign;
    assert_eq!(foreign.len(), 1);
    assert_eq!((foreign[0].knob, &foreign[0].ours), (Knob::Cores(APP), &cores(one_core())));
    assert_eq!(foreign[0].found, cores(one_core().union(&other)));
    assert_eq!(foreign[0].whom, format!("thread {} of served", app.pid()));
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty(), "told twice");
    let _ = scene.plant.restore();
    assert_eq!(affinity_of(app.pid()).unwrap(), other, "the other writer wins");
    let workers = threads(&app).into_iter().filter(|tid| *tid != app.pid());
    assert!(workers.into_iter().all(|tid| affinity_of(tid).unwrap() == allowed()));
}

#[test]
fn another_writer_can_be_overruled() {
    let Some(other) = second_core() else { return };
    let app = App::start(1);
    let mut scene = Scene::from_spec(&app, latency_critical(), ProgressFrom::CpuTime, false);
    scene.set(cores(one_core()));
    set_affinity(app.pid(), &[other].into_iter().collect()).unwrap();
    assert_eq!(scene.plant.observe(EPOCH).unwrap().foreign.len(), 1);
    assert_eq!(scene.set(cores(one_core())).got, ApplyOutcome::Done);
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    let _ = scene.plant.restore();
    // Each thread gets back what its owner has given it last.
    assert_eq!(affinity_of(app.pid()).unwrap(), CoreSet::from_iter([other]));
    let others = affinities(&app).into_iter().filter(|found| *found == allowed());
    assert_eq!(others.count(), affinities(&app).len() - 1);
}

#[test]
fn classes_are_set_and_put_back_exactly() {
    let mut app = App::start(1);
    let batch = app.add_worker();
    let own = SchedState { policy: 3, rt_priority: 0, nice: 3 };
    set_scheduling(batch, own).unwrap();
    let mut scene = Scene::new(&app);
    if !has(&scene, Capability::Scheduling) {
        let outcome = scene.set(Setting::Scheduling(APP, Scheduling::Idle));
        let ApplyOutcome::Refused { why } = outcome.got else { panic!("{outcome:?}") };
        assert!(why.contains("CAP_SYS_NICE"), "{why}");
        return;
    }
    let first = scheduling_of(app.pid()).unwrap();
    let round_robin = Scheduling::RoundRobin { priority: 7 };
    for wanted in [Scheduling::Idle, Scheduling::Normal { nice: 5 }, round_robin] {
        let outcome = scene.set(Setting::Scheduling(APP, wanted));
        assert_eq!(outcome.got, ApplyOutcome::Done, "{wanted}");
        assert!(scene.plant.settings().contains(&Setting::Scheduling(APP, wanted)));
        assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty(), "{wanted}");
    }
    let young = app.add_worker();
    assert_eq!(scheduling_of(young).unwrap().rt_priority, 7);
    let _ = scene.plant.restore();
    assert_eq!(scheduling_of(batch).unwrap(), own);
    assert_eq!(scheduling_of(app.pid()).unwrap(), first);
    assert_eq!(scheduling_of(young).unwrap(), first);
}

#[test]
fn a_renice_by_another_program_is_noticed() {
    let app = App::start(1);
    let mut scene = Scene::new(&app);
    if !has(&scene, Capability::Scheduling) {
        return lull_testing::skip("this user may not change how threads are scheduled");
    }
    scene.set(Setting::Scheduling(APP, Scheduling::Normal { nice: 5 }));
    set_scheduling(app.pid(), SchedState { policy: 0, rt_priority: 0, nice: 9 }).unwrap();
    let foreign = scene.plant.observe(EPOCH).unwrap().foreign;
    assert_eq!(foreign.len(), 1);
    assert_eq!(foreign[0].found, Setting::Scheduling(APP, Scheduling::Normal { nice: 9 }));
    let _ = scene.plant.restore();
    assert_eq!(scheduling_of(app.pid()).unwrap().nice, 9);
}

#[test]
fn a_refused_class_leaves_no_thread_changed() {
    let app = App::start(2);
    let mut scene = Scene::new(&app);
    let before = scene.plant.settings();
    for wanted in [Scheduling::Normal { nice: 100 }, Scheduling::RoundRobin { priority: 0 }] {
        let outcome = scene.set(Setting::Scheduling(APP, wanted));
        assert!(matches!(outcome.got, ApplyOutcome::Refused { .. }), "{outcome:?}");
    }
    assert_eq!(scene.plant.settings(), before);
}
