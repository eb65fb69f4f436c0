//! Threads of this process in the place of a server's, which has mapped the page, too.

use super::*;
use crate::oncall::{Counts, Rules};
use crate::sys::sched::set_affinity;
use crate::testing::Sleeper;
use lull_control::CoreId;
use lull_oncall::{BYPASS_CLASS, Peer, Settings};

/// Two areas of one core each for the classes 0 and 1; class 2 has none.
struct Scene {
    areas: ThreadAreas,
    runtime: Arc<Runtime>,
    first: CoreSet,
    second: CoreSet,
    all: CoreSet,
}

impl Scene {
    /// `None` on a machine with one core.
    fn new() -> Option<Self> {
        let all = affinity_of(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let mut cores = all.iter().collect::<Vec<CoreId>>().into_iter();
        let one = |core| [core].into_iter().collect::<CoreSet>();
        let (Some(first), Some(second)) = (cores.next(), cores.next()) else {
            lull_testing::skip("areas need two cores");
            return None;
        };
        let (first, second) = (one(first), one(second));
        let runtime = Arc::new(Runtime::start(&Settings::default(), &Rules::default()).unwrap());
        let mut areas = ThreadAreas::new(Arc::clone(&runtime), &Roots::default());
        // The threads of this process are the server's.
        areas.agent = 0;
        areas.set_areas(vec![Some(first.clone()), Some(second.clone()), None]);
        Some(Self { areas, runtime, first, second, all })
    }

    fn step(&mut self, connections: &[ConnectionSeen]) {
        self.areas.step(Nanos::from_secs(1), connections);
    }
}

fn served(id: u32, tid: i32, client_class: usize) -> ConnectionSeen {
    ConnectionSeen {
        id: Id(id),
        generation: 1,
        worker: (std::process::id(), tid.cast_unsigned()),
        peer: Peer::default(),
        local_port: 3306,
        class: Class::Gated,
        client_class,
        latency: Counts::default(),
        queries: 1,
        transactions: 1,
        parked: (0, Nanos::ZERO),
        waits: false,
        pending: None,
    }
}

fn closed(one: &ConnectionSeen) -> ConnectionSeen {
    ConnectionSeen { worker: (0, one.worker.1), ..one.clone() }
}

#[test]
fn a_thread_runs_in_the_area_of_its_clients_class_until_its_connection_is_closed() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    scene.step(&[served(0, 0, 0)]);
    assert_eq!(thread.cores(), scene.all, "no thread has served it yet");
    let connection = served(0, thread.tid, 0);
    scene.step(std::slice::from_ref(&connection));
    assert_eq!(thread.cores(), scene.first);
    scene.step(std::slice::from_ref(&connection));
    assert_eq!((scene.areas.tally().moves, scene.areas.threads_of(0)), (1, 1), "moved once");
    scene.step(&[served(0, thread.tid, 1)]);
    assert_eq!(thread.cores(), scene.second, "its client changed its class");
    scene.step(&[closed(&connection)]);
    assert_eq!((thread.cores(), scene.areas.threads_of(1)), (scene.all.clone(), 0));
    // The server has kept the thread for its next connection.
    scene.step(&[served(1, thread.tid, 0)]);
    assert_eq!(thread.cores(), scene.first);
    let tally = AreaTally { moves: 3, ..AreaTally::default() };
    assert_eq!(scene.areas.tally(), tally);
}

#[test]
fn an_area_that_moves_takes_its_threads_along() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    scene.step(&[served(0, thread.tid, 0)]);
    scene.areas.set_areas(vec![Some(scene.second.clone())]);
    scene.step(&[served(0, thread.tid, 0)]);
    assert_eq!(thread.cores(), scene.second);
    scene.areas.set_areas(vec![None]);
    scene.step(&[served(0, thread.tid, 0)]);
    assert_eq!(thread.cores(), scene.all);
}

#[test]
fn clients_without_an_area_and_threads_of_several_connections_stay_on_their_own_cores() {
    let Some(mut scene) = Scene::new() else { return };
    let threads = [(); 4].map(|()| Sleeper::new());
    let bypass = usize::from(BYPASS_CLASS);
    scene.step(&[
        served(0, threads[0].tid, 2),
        served(1, threads[1].tid, bypass),
        served(2, threads[2].tid, usize::MAX),
        served(3, threads[3].tid, 0),
        served(4, threads[3].tid, 0),
        served(5, threads[3].tid, 1),
    ]);
    assert!(threads.iter().all(|thread| thread.cores() == scene.all));
    assert_eq!(scene.areas.tally(), AreaTally::default());
}

#[test]
fn threads_of_a_pool_get_their_own_cores_back_for_good() {
    let Some(mut scene) = Scene::new() else { return };
    let [one, other] = [Sleeper::new(), Sleeper::new()];
    scene.step(&[served(0, one.tid, 0)]);
    assert_eq!(one.cores(), scene.first);
    let turned = [served(0, other.tid, 0)];
    for _ in 0..2 {
        scene.step(&turned);
        assert_eq!([one.cores(), other.cores()], [scene.all.clone(), scene.all.clone()]);
    }
    assert_eq!(scene.areas.tally().pools, 1);
    let Some(mut scene) = Scene::new() else { return };
    let looped = ConnectionSeen { class: Class::Shared, ..served(0, one.tid, 0) };
    scene.step(&[looped]);
    assert_eq!((one.cores(), scene.areas.tally().pools), (scene.all.clone(), 1), "an event loop");
}

#[test]
fn another_connection_of_the_same_number_is_no_sign_of_a_pool() {
    let Some(mut scene) = Scene::new() else { return };
    let [one, other] = [Sleeper::new(), Sleeper::new()];
    scene.step(&[served(0, one.tid, 0)]);
    scene.step(&[ConnectionSeen { generation: 2, ..served(0, other.tid, 1) }]);
    assert_eq!([one.cores(), other.cores()], [scene.all.clone(), scene.second.clone()]);
    assert_eq!(scene.areas.tally().pools, 0);
}

#[test]
fn a_thread_never_runs_on_cores_that_it_could_not_use_before() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    set_affinity(thread.tid, &scene.first).unwrap();
    for _ in 0..2 {
        scene.step(&[served(0, thread.tid, 1)]);
        assert_eq!(thread.cores(), scene.first);
    }
    assert_eq!(scene.areas.tally(), AreaTally { refused: 1, ..AreaTally::default() });
    scene.areas.set_areas(vec![None, Some(scene.all.clone())]);
    scene.step(&[served(0, thread.tid, 1)]);
    assert_eq!(thread.cores(), scene.first, "the part of the area that it may use");
}

#[test]
fn a_thread_that_a_moved_one_has_started_gets_the_cores_of_its_process() {
    let Some(mut scene) = Scene::new() else { return };
    let [moved, pinned] = [Sleeper::new(), Sleeper::new()];
    scene.step(&[served(0, moved.tid, 0)]);
    // They would inherit the area of the thread that starts them.
    let [started, serving] = [Sleeper::new(), Sleeper::new()];
    for thread in [&pinned, &started, &serving] {
        set_affinity(thread.tid, &scene.first).unwrap();
    }
    // One of them serves a connection before it is found.
    scene.step(&[served(0, moved.tid, 0), served(1, serving.tid, 1)]);
    assert_eq!(serving.cores(), scene.second);
    // Not all threads of this process: other tests have some.
    let own = std::process::id();
    let tids = BTreeSet::from([moved.tid, pinned.tid, started.tid]);
    scene.areas.free_those(own, own.cast_signed(), tids.clone());
    let whole = affinity_of(own.cast_signed()).unwrap();
    assert_eq!([started.cores(), moved.cores()], [whole.clone(), scene.first.clone()]);
    assert_eq!(pinned.cores(), scene.first, "it was there before any was moved");
    set_affinity(started.tid, &scene.first).unwrap();
    scene.areas.free_those(own, own.cast_signed(), tids);
    assert_eq!(started.cores(), scene.first, "another program has pinned it since");
    scene.step(&[]);
    assert_eq!(serving.cores(), whole);
}

#[test]
fn a_thread_that_was_started_while_the_first_one_is_moved_gets_the_cores_that_this_one_had() {
    let Some(mut scene) = Scene::new() else { return };
    let [first, moved] = [Sleeper::new(), Sleeper::new()];
    scene.step(&[served(0, first.tid, 1), served(1, moved.tid, 0)]);
    let started = Sleeper::new();
    set_affinity(started.tid, &scene.first).unwrap();
    // Any thread can take the place of the first one here.
    scene.areas.free_those(std::process::id(), first.tid, BTreeSet::from([started.tid]));
    assert_eq!([first.cores(), started.cores()], [scene.second.clone(), scene.all.clone()]);
}

#[test]
fn cores_that_another_program_has_set_meanwhile_stay() {
    let Some(mut scene) = Scene::new() else { return };
    let threads = [Sleeper::new(), Sleeper::new()];
    let both = |class| [0, 1].map(|at| served(at, threads[at as usize].tid, class));
    scene.step(&both(0));
    set_affinity(threads[0].tid, &scene.second).unwrap();
    set_affinity(threads[1].tid, &scene.second).unwrap();
    scene.step(&[closed(&both(0)[0]), both(1)[1].clone()]);
    assert_eq!(threads[0].cores(), scene.second);
    scene.step(&[]);
    assert_eq!(threads[1].cores(), scene.second, "what was found at the move is restored");
}

#[test]
fn threads_that_have_taken_their_cores_back_from_a_silent_agent_move_again() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    let connections = [served(0, thread.tid, 0)];
    // Times of the gate's clock, which the heartbeat has, too.
    let begun = crate::monotonic();
    scene.runtime.page.control().beat(begun.0);
    let at = |ms| begun.saturating_add(Nanos::from_millis(ms));
    scene.areas.step(at(0), &connections);
    scene.areas.step(at(20), &connections);
    let all = scene.all.clone();
    set_affinity(thread.tid, &all).unwrap();
    scene.areas.step(at(40), &connections);
    assert_eq!(thread.cores(), all, "another program has set them");
    // As if this process had been stopped between the readings.
    scene.areas.last = Nanos::ZERO;
    scene.areas.step(at(60), &connections);
    assert_eq!(thread.cores(), all, "the heartbeat may be old still");
    scene.areas.step(at(80), &connections);
    assert_eq!(thread.cores(), scene.first);
}

#[test]
fn a_bypass_and_the_end_give_threads_their_cores_back() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    let connections = [served(0, thread.tid, 0)];
    scene.step(&connections);
    assert!(scene.runtime.page.control().bypass(1));
    scene.step(&connections);
    assert_eq!(thread.cores(), scene.all, "an operator bypasses the gate");
    scene.runtime.page.control().end_bypass();
    scene.step(&connections);
    assert_eq!(thread.cores(), scene.first);
    let Scene { areas, runtime, all, .. } = scene;
    assert!(runtime.page.header().is_dispatched(), "the library looks after the threads");
    drop(areas);
    assert_eq!(thread.cores(), all);
    assert!(!runtime.page.header().is_dispatched());
}

#[test]
fn a_page_cannot_name_threads_of_another_program() {
    let Some(mut scene) = Scene::new() else { return };
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let before = affinity_of(child.id().cast_signed()).unwrap();
    let thread = Sleeper::new();
    let named =
        |id, process, tid: u32| ConnectionSeen { worker: (process, tid), ..served(id, 0, 0) };
    let own = std::process::id();
    scene.step(&[
        // It has not mapped the page.
        named(0, child.id(), child.id()),
        // It is not a thread of this process.
        named(1, own, 1),
        named(2, u32::MAX, thread.tid.cast_unsigned()),
        named(3, own, u32::MAX),
        named(4, own, i32::MAX as u32),
    ]);
    assert_eq!(affinity_of(child.id().cast_signed()).unwrap(), before);
    assert_eq!(thread.cores(), scene.all);
    assert_eq!((scene.areas.tally().moves, scene.areas.tally().foreign), (0, 4));
    // The agent is not a server, although it has mapped the page.
    scene.areas.agent = own;
    scene.step(&[served(5, thread.tid, 0)]);
    assert_eq!(thread.cores(), scene.all);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_thread_that_is_not_the_servers_is_looked_up_once_in_a_while() {
    let Some(mut scene) = Scene::new() else { return };
    let many = LOOK_UPS_MAX + 8;
    let foreign: Vec<ConnectionSeen> =
        (0..many).map(|id| served(id, i32::MAX - id as i32, 0)).collect();
    scene.step(&foreign);
    assert_eq!(scene.areas.foreign.len() as u32, LOOK_UPS_MAX, "at one reading");
    scene.step(&foreign);
    assert_eq!(scene.areas.look_ups, LOOK_UPS_MAX - 8);
    scene.step(&foreign);
    assert_eq!(scene.areas.look_ups, LOOK_UPS_MAX, "all are known");
    scene.areas.step(Nanos::from_secs(3), &foreign);
    assert_eq!(scene.areas.look_ups, 0, "their numbers may have other threads by now");
    assert_eq!(scene.areas.tally().foreign, u64::from(many));
}

#[test]
fn the_agent_after_one_that_was_killed_gives_threads_the_cores_of_their_process() {
    let Some(scene) = Scene::new() else { return };
    let [left, free] = [Sleeper::new(), Sleeper::new()];
    let own = std::process::id();
    let cores = affinity_of(own.cast_signed()).unwrap();
    set_affinity(left.tid, &scene.first).unwrap();
    set_affinity(free.tid, &scene.first).unwrap();
    let page = &scene.runtime.page;
    let id = page.header().offer_record();
    let record = page.record(id).unwrap();
    assert!(record.claim(own, 3, Peer::default(), 3306));
    record.query_arrived(left.tid.cast_unsigned(), 1);
    // The rest concerns all threads of this process, of which other tests have some.
    let found = free_serving(&scene.runtime, &Roots::default());
    assert_eq!((left.cores(), free.cores()), (cores, scene.first.clone()));
    assert_eq!(found, BTreeMap::from([(own.cast_signed(), BTreeSet::from([scene.first.clone()]))]));
    // The first thread of a process that no server has forked is left alone.
    assert_eq!(creator_of(&scene.runtime, &Roots::default(), own, own.cast_signed()), None);
}
