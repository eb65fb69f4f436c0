//! Threads of this process in the place of a server's, and readings that are made up.

use super::*;
use crate::sys::sched::{affinity_of, set_affinity};
use crate::testing::Sleeper;
use lull_control::CoreSet;
use lull_control::dispatcher::{
    Answer, CoreChoice, CoreSpeed, DispatchObservation, DispatchRequest, Ladder, MeasurementPeriod,
    MeasurementRule, Supply,
};
use lull_measure::Percentile;
use std::sync::Mutex;

/// The age at which a request moves to a fast core.
const THRESHOLD: Nanos = Nanos::from_millis(10);

/// From the slow type to the fast one at an age; it keeps what it is shown.
struct MovesUp(Arc<Mutex<Vec<DispatchObservation>>>);

impl Dispatcher for MovesUp {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let kind = usize::from(request.age >= THRESHOLD);
        let place = if request.on == Some(kind) { CoreChoice::Stay } else { CoreChoice::On(kind) };
        Answer { place, again: Some(THRESHOLD) }
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        let (every, percentile) = (MeasurementPeriod::Answers(3), Percentile::P50);
        Some(MeasurementRule { every, window: 10, percentile, bound: None })
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        self.0.lock().unwrap().push(*seen);
    }
}

/// A dispatch over the first two cores of this process, a slow and a fast one; `None` on a machine
/// with one.
struct Scene {
    dispatch: UnmodifiedDispatch,
    slow: CoreSet,
    fast: CoreSet,
    all: CoreSet,
    shown: Arc<Mutex<Vec<DispatchObservation>>>,
}

impl Scene {
    fn new() -> Option<Self> {
        let all = affinity_of(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let mut cores = all.iter().collect::<Vec<_>>().into_iter();
        let one = |core| [core].into_iter().collect::<CoreSet>();
        let (slow, fast) = (one(cores.next()?), one(cores.next()?));
        let types = vec![CoreSpeed::new("slow", 1.0, 1.0), CoreSpeed::new("fast", 2.0, 6.8)];
        let ladder = Ladder::new(types, Supply::Fixed(vec![1, 1])).unwrap();
        let cores = vec![slow.clone(), fast.clone()];
        let floor = Floor { ladder, cores, abandon: Nanos::from_secs(60) };
        let shown = Arc::default();
        let dispatcher = Box::new(MovesUp(Arc::clone(&shown)));
        let (server, roots) = (std::process::id(), Roots::default());
        let dispatch = UnmodifiedDispatch::new(floor, dispatcher, None, server, &roots).unwrap();
        Some(Self { dispatch, slow, fast, all, shown })
    }

    /// Reads these connections this long after the beginning.
    fn step(&mut self, ms: u64, seen: &[RequestSeen]) {
        let now = self.at(ms);
        self.dispatch.step(now, seen.iter().copied());
    }

    fn at(&self, ms: u64) -> Nanos {
        self.dispatch.begun.saturating_add(Nanos::from_millis(ms))
    }

    /// A connection with a pending request.
    fn pending(&self, id: u32, tid: i32, since_ms: u64) -> RequestSeen {
        let since_ns = Some(self.at(since_ms).0);
        RequestSeen { since_ns, ..idle(id, tid) }
    }
}

fn idle(id: u32, tid: i32) -> RequestSeen {
    RequestSeen {
        id: Id(id),
        generation: 1,
        pid: std::process::id(),
        tid: tid.cast_unsigned(),
        since_ns: None,
        waits: false,
        queries: 0,
        latency_ns: 0,
        parked_ns: 0,
    }
}

#[test]
fn an_old_request_moves_to_the_fast_core_and_its_thread_back_when_it_has_ended() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    let request = scene.pending(0, thread.tid, 1);
    scene.step(2, &[request]);
    assert_eq!(thread.cores(), scene.slow);
    scene.step(12, &[request]);
    assert_eq!(thread.cores(), scene.fast);
    let answered = RequestSeen { queries: 1, latency_ns: 11_500_000, ..idle(0, thread.tid) };
    scene.step(13, &[answered]);
    assert_eq!(thread.cores(), scene.slow);
    let counted = scene.dispatch.take_tally();
    assert_eq!((counted.tally.latency.count(), counted.tally.moves, counted.brief), (1, 1, 0));
    let took = counted.tally.latency.mean().unwrap();
    assert!(took.0.abs_diff(11_500_000) < 200_000, "as the server measured it: {took}");
    scene.step(14, &[RequestSeen { pid: 0, ..answered }]);
    assert_eq!(thread.cores(), scene.all, "its connection is closed");
}

#[test]
fn requests_that_were_never_seen_are_counted_for_the_dispatcher() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    scene.step(1, &[idle(0, thread.tid)]);
    let answered = RequestSeen { queries: 5, latency_ns: 5_000_000, ..idle(0, thread.tid) };
    scene.step(2, &[answered]);
    let counted = scene.dispatch.take_tally();
    assert_eq!((counted.brief, counted.tally.latency.count()), (5, 5));
    let shown = scene.shown.lock().unwrap();
    assert_eq!(shown.len(), 1, "a period of three answers");
    assert!(shown[0].tail.unwrap().0.abs_diff(1_000_000) < 50_000, "{:?}", shown[0]);
}

#[test]
fn requests_that_end_before_the_first_reading_of_a_connection_or_after_the_last_are_counted() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    let of = |queries: u64| RequestSeen {
        queries,
        latency_ns: queries * 100_000,
        ..idle(0, thread.tid)
    };
    scene.step(2, &[of(7)]);
    scene.step(3, &[RequestSeen { pid: 0, ..of(12) }]);
    // Another connection has claimed the record, and has not cleared it yet.
    scene.step(4, &[of(12)]);
    scene.step(5, &[RequestSeen { generation: 2, ..of(3) }]);
    let counted = scene.dispatch.take_tally();
    assert_eq!((counted.brief, counted.tally.latency.count()), (15, 15));
}

#[test]
fn a_request_without_a_core_runs_among_the_slow_ones_and_has_the_next_that_is_free() {
    let Some(mut scene) = Scene::new() else { return };
    let threads = [Sleeper::new(), Sleeper::new()];
    let requests = [0, 1].map(|id| scene.pending(id, threads[id as usize].tid, 1));
    scene.step(2, &requests);
    assert!(threads.iter().all(|thread| thread.cores() == scene.slow));
    scene.step(12, &requests);
    assert_eq!([threads[0].cores(), threads[1].cores()], [scene.fast.clone(), scene.slow.clone()]);
    let counted = scene.dispatch.take_tally();
    assert_eq!(counted.refused, 0);
}

#[test]
fn a_thread_of_another_program_and_one_of_several_connections_are_left_alone() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let others = std::process::Command::new("sh")
        .arg("-c")
        .arg("sleep 60 >/dev/null 2>&1 & echo $!")
        .output();
    let grandchild: i32 =
        String::from_utf8(others.unwrap().stdout).unwrap().trim().parse().unwrap();
    let before = affinity_of(grandchild).unwrap();
    let requests = [
        scene.pending(0, thread.tid, 1),
        scene.pending(1, thread.tid, 1),
        scene.pending(2, grandchild, 1),
        scene.pending(3, child.id().cast_signed(), 1),
        scene.pending(4, 1, 1),
        scene.pending(5, i32::MAX, 1),
        scene.pending(6, -1, 1),
    ];
    scene.step(2, &requests);
    assert_eq!(affinity_of(grandchild).unwrap(), before);
    assert_eq!(affinity_of(child.id().cast_signed()).unwrap(), scene.slow, "a worker process");
    let counted = scene.dispatch.take_tally();
    assert!(counted.shared >= 1 && counted.foreign >= 3, "{counted:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    // The thread has ended with its request: it is buried, not moved.
    scene.step(20, &requests);
    let pid = rustix::process::Pid::from_raw(grandchild).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_request_that_waits_at_the_gate_begins_with_its_turn() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    let request = scene.pending(0, thread.tid, 1);
    // It is read before its worker waits, and waits for 50 ms.
    scene.step(2, &[request]);
    let waiting = RequestSeen { waits: true, ..request };
    scene.step(3, &[waiting]);
    assert_eq!(scene.dispatch.state.active(), 0, "it is not under way");
    scene.step(51, &[waiting]);
    // Its worker has the turn, and notes the wait at the next reading.
    scene.step(52, &[request]);
    let admitted = RequestSeen { parked_ns: 49_000_000, ..request };
    scene.step(60, &[admitted]);
    assert_eq!(thread.cores(), scene.slow, "9 ms old");
    scene.step(62, &[admitted]);
    assert_eq!(thread.cores(), scene.fast);
    let answered = RequestSeen { since_ns: None, queries: 1, latency_ns: 62_000_000, ..admitted };
    scene.step(63, &[answered]);
    let latency = scene.dispatch.take_tally().tally.latency;
    assert_eq!(latency.count(), 1);
    assert!(latency.mean().unwrap().0.abs_diff(13_000_000) < 200_000, "without the wait");
}

#[test]
fn a_wait_between_two_readings_is_no_age() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    scene.step(1, &[idle(0, thread.tid)]);
    // It arrived and had its turn since the last reading, which was late.
    let request = RequestSeen { parked_ns: 18_000_000, ..scene.pending(0, thread.tid, 1) };
    scene.step(21, &[request]);
    assert_eq!(thread.cores(), scene.slow, "2 ms old");
    let brief = RequestSeen { since_ns: None, queries: 2, latency_ns: 24_000_000, ..request };
    scene.step(24, &[brief]);
    let latency = scene.dispatch.take_tally().tally.latency;
    assert!(latency.count() == 2 && latency.quantile(Percentile::P99).unwrap().0 < 6_100_000);
}

#[test]
fn a_thread_that_is_not_the_servers_is_looked_up_once_in_a_while() {
    let Some(mut scene) = Scene::new() else { return };
    let foreign: Vec<RequestSeen> =
        (0..LOOK_UPS_MAX + 8).map(|id| scene.pending(id, i32::MAX - id as i32, 1)).collect();
    scene.step(2, &foreign);
    assert_eq!(scene.dispatch.foreign.len() as u32, LOOK_UPS_MAX, "at one reading");
    scene.step(3, &foreign);
    assert_eq!(scene.dispatch.look_ups, LOOK_UPS_MAX - 8);
    scene.step(4, &foreign);
    assert_eq!(scene.dispatch.look_ups, LOOK_UPS_MAX, "all are known");
    scene.step(1500, &foreign);
    assert_eq!(scene.dispatch.look_ups, 0, "their numbers may have other threads by now");
    assert_eq!(scene.dispatch.take_tally().foreign, u64::from(LOOK_UPS_MAX) + 8);
}

#[test]
fn the_end_of_the_dispatch_gives_threads_their_cores_back() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    let request = scene.pending(0, thread.tid, 1);
    scene.step(2, &[request]);
    let all = scene.all.clone();
    assert_ne!(thread.cores(), all);
    drop(scene);
    assert_eq!(thread.cores(), all);
}

#[test]
fn a_thread_gets_back_the_cores_that_it_had_unless_another_program_has_set_them() {
    let Some(mut scene) = Scene::new() else { return };
    let [own, changed] = [Sleeper::new(), Sleeper::new()];
    set_affinity(own.tid, &scene.fast).unwrap();
    let requests = [scene.pending(0, own.tid, 1), scene.pending(1, changed.tid, 1)];
    scene.step(2, &requests);
    assert!([&own, &changed].iter().all(|thread| thread.cores() == scene.slow));
    let fast = scene.fast.clone();
    set_affinity(changed.tid, &fast).unwrap();
    drop(scene);
    assert_eq!([own.cores(), changed.cores()], [fast.clone(), fast]);
}

#[test]
fn a_request_whose_answer_is_not_counted_yet_is_counted_at_the_next_reading() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    scene.step(2, &[scene.pending(0, thread.tid, 1)]);
    scene.step(12, &[idle(0, thread.tid)]);
    assert_eq!(scene.dispatch.take_tally().tally.latency.count(), 0);
    let answered = RequestSeen { queries: 1, latency_ns: 10_500_000, ..idle(0, thread.tid) };
    scene.step(13, &[answered]);
    let latency = scene.dispatch.take_tally().tally.latency;
    assert_eq!(latency.count(), 1);
    assert!(latency.mean().unwrap().0.abs_diff(10_500_000) < 200_000);
}

#[test]
fn a_hostile_page_keeps_no_thread_busy() {
    let Some(mut scene) = Scene::new() else { return };
    let thread = Sleeper::new();
    scene.step(1, &[idle(0, thread.tid)]);
    let counts = [(u64::MAX, 5), (3, u64::MAX), (0, 0)];
    for (step, (queries, latency_ns)) in counts.into_iter().enumerate() {
        let seen =
            RequestSeen { queries, latency_ns, since_ns: Some(u64::MAX), ..idle(0, thread.tid) };
        scene.step(2 + step as u64, &[seen]);
        scene.step(3 + step as u64, &[RequestSeen { since_ns: Some(1), ..seen }]);
    }
    assert!(scene.dispatch.take_tally().tally.latency.count() <= 6 * 1001);
}
