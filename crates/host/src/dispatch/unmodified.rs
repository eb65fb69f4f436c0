//! Dispatching of the requests of an unmodified server, whose threads each serve a connection.
//!
//! The preloaded library writes into the page when a request begins and ends, and which thread
//! has it. One thread of the agent reads the page every millisecond, as the paper's scheduler
//! checks requests (EETL, MICRO-50, section 5.4), and moves the threads: the dispatcher is the
//! one that marked servers have, and the server needs no marks.
//!
//! Two things differ from [`Dispatch`](super::Dispatch). A request begins on the cores of the
//! slowest type, where its thread rests, and is dispatched up to a period later. And a request
//! for which there is no core runs on the cores of the slowest type beside others instead of
//! waiting. A request that begins and ends within a period is counted and not moved. A request
//! that waits at the server's gate begins when it has its turn: its age and its latency, as the
//! dispatcher sees them, are without the wait.
//!
//! The page is not trusted: a thread is moved only if the kernel says that it is the server's.
//! When the dispatcher ends, its threads get the cores back that they had before; when the agent
//! is killed, the library gives a thread those that it had before its first request, at its next
//! query. Threads that a dispatched one starts begin with them.

use super::state::{DispatchState, Order, Tally};
use super::{DispatchError, Floor, Speeds};
use crate::Roots;
use crate::monotonic;
use crate::oncall::{RequestSeen, Runtime};
use crate::sys::sched::{mask_from, mask_of, set_mask};
use lull_control::CoreId;
use lull_control::dispatcher::Dispatcher;
use lull_measure::Nanos;
use lull_oncall::{CONNECTIONS, Id};
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two readings of the page.
const PERIOD: Duration = Duration::from_millis(1);
/// Readings between two checks of frequencies that other programs have set.
const LOOK_AFTER: u32 = 1000;

/// Brief requests of a connection that are counted at one reading: only a connection that is found
/// late has more, and a hostile count must not keep this thread busy.
const BRIEF_MAX: u64 = 1000;

/// How long a thread that is not the server's counts as such: its number may get another thread.
const FOREIGN_FOR: Nanos = Nanos::from_secs(1);
/// Threads that are looked up at one reading; the others are looked up at the next ones.
const LOOK_UPS_MAX: u32 = 64;

/// Where a thread may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadCores {
    /// On all cores of the slowest type.
    Slowest,
    On(CoreId),
}

/// A thread of the server that serves a connection.
#[derive(Debug)]
struct Worker {
    connection: Id,
    at: Option<ThreadCores>,
    affinity: Option<Affinity>,
}

/// The cores of a thread that was moved.
#[derive(Debug, Clone, Copy)]
struct Affinity {
    /// The cores before the first move.
    own: CpuSet,
    /// The mask as the kernel has it since the last move.
    set: CpuSet,
}

impl Worker {
    /// Lets its thread run on these cores only.
    fn pin(&mut self, tid: i32, mask: &CpuSet) -> io::Result<()> {
        let own = match &self.affinity {
            Some(affinity) => affinity.own,
            None => mask_of(tid)?,
        };
        set_mask(tid, mask)?;
        // The kernel leaves out cores that the thread's cgroup does not have.
        self.affinity = Some(Affinity { own, set: mask_of(tid)? });
        Ok(())
    }

    /// Lets its thread run where it did before the first move, unless another program has set its
    /// cores since. A thread that has ended has no affinity.
    fn release(&self, tid: i32) {
        let Some(Affinity { own, set }) = &self.affinity else { return };
        if mask_of(tid).is_ok_and(|present| present == *set) {
            let _ = set_mask(tid, own);
        }
    }
}

/// A connection at the last reading. Its sums begin at zero, as they do in the page.
#[derive(Debug, Default)]
struct Known {
    generation: u32,
    queries: u64,
    latency_ns: u64,
    /// The sum of its waits at the gate when its last answer was seen.
    parked_ns: u64,
    /// The last reading at which it waited at the gate.
    waited: Nanos,
    request: Option<UnderWay>,
    tid: i32,
    /// Its thread serves another connection, too.
    is_shared: bool,
    is_closed: bool,
}

/// A request at the dispatcher.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    /// Its number there.
    id: u64,
    /// The time at which the server read it, as in the page: it identifies the request.
    since_ns: u64,
    /// When it had its turn, which is when its age begins.
    begun: Nanos,
}

/// The counts from dispatching the requests of an unmodified server.
#[derive(Debug, Clone, Default)]
pub struct UnmodifiedTally {
    /// The counts of the dispatcher.
    pub tally: Tally,
    /// Requests that began and ended between two readings: they were not moved.
    pub brief: u64,
    /// Connections that were not dispatched, since their thread served another one, too.
    pub shared: u64,
    /// Threads that the kernel says are not the server's.
    pub foreign: u64,
    /// Affinities and frequencies that the kernel refused.
    pub refused: u64,
}

/// Moves the threads of a server by what its page says. It has no thread of its own.
pub struct UnmodifiedDispatch {
    state: DispatchState,
    server: u32,
    roots: Roots,
    begun: Nanos,
    slowest: CpuSet,
    one: BTreeMap<CoreId, CpuSet>,
    connections: BTreeMap<Id, Known>,
    workers: BTreeMap<i32, Worker>,
    /// Threads that are not the server's, and when that was found.
    foreign: BTreeMap<i32, Nanos>,
    /// Threads that may still be looked up at this reading.
    look_ups: u32,
    speeds: Option<Speeds>,
    counted: UnmodifiedTally,
}

impl UnmodifiedDispatch {
    /// Returns the dispatching of the server that process `server` is; `speeds` where each core
    /// takes every speed.
    ///
    /// # Errors
    /// If the cores are not sound, or not those of this process.
    pub fn new(
        floor: Floor,
        dispatcher: Box<dyn Dispatcher>,
        speeds: Option<Speeds>,
        server: u32,
        roots: &Roots,
    ) -> Result<Self, DispatchError> {
        let whole = mask_of(rustix::thread::gettid().as_raw_nonzero().get())?;
        let outside = floor.all().find(|(_, core)| !whole.is_set(usize::from(core.0)));
        if let Some((_, core)) = outside {
            return Err(DispatchError::Core(core));
        }
        let state = DispatchState::new(floor, dispatcher)?;
        let mask = |core: CoreId| (core, mask_from(&[core].into_iter().collect()));
        Ok(Self {
            slowest: mask_from(state.floor().slowest()),
            one: state.floor().all().map(|(_, core)| mask(core)).collect(),
            state,
            server,
            roots: roots.clone(),
            begun: monotonic(),
            connections: BTreeMap::new(),
            workers: BTreeMap::new(),
            foreign: BTreeMap::new(),
            look_ups: 0,
            speeds,
            counted: UnmodifiedTally::default(),
        })
    }

    /// Takes in the page's state at this time, and moves threads.
    pub fn step(&mut self, now: Nanos, requests: impl Iterator<Item = RequestSeen>) {
        let now = now.saturating_sub(self.begun);
        self.look_ups = LOOK_UPS_MAX;
        for seen in requests {
            self.take_in(now, &seen);
        }
        self.state.tick(now);
        self.apply_orders(now);
    }

    /// Takes in one connection.
    fn take_in(&mut self, now: Nanos, seen: &RequestSeen) {
        let generation = seen.generation;
        match self.connections.get(&seen.id) {
            // The next connection of its record has not cleared the sums yet.
            Some(known) if known.generation == generation && known.is_closed => return,
            Some(known) if known.generation == generation => {}
            _ => {
                self.forget(now, seen.id);
                self.connections.insert(seen.id, Known { generation, ..Known::default() });
            }
        }
        self.end(now, seen);
        if seen.pid == 0 {
            self.forget(now, seen.id);
            let closed = Known { generation, is_closed: true, ..Known::default() };
            self.connections.insert(seen.id, closed);
        } else if seen.waits {
            self.wait(now, seen.id);
        } else {
            self.begin(now, seen);
        }
    }

    /// Notes that the request of a connection waits at the gate. One that was read a moment ago
    /// may have begun here before it waited: it begins again with its turn.
    fn wait(&mut self, now: Nanos, id: Id) {
        let Some(known) = self.connections.get_mut(&id) else { return };
        known.waited = now;
        if let Some(request) = known.request.take() {
            self.state.drop_request(now, request.id);
        }
    }

    /// Ends the request that has been answered since the last reading, and counts those that
    /// began since then, too.
    fn end(&mut self, now: Nanos, seen: &RequestSeen) {
        let Some(known) = self.connections.get_mut(&seen.id) else { return };
        let answers = seen.queries.wrapping_sub(known.queries);
        let latency_ns = seen.latency_ns.wrapping_sub(known.latency_ns);
        (known.queries, known.latency_ns) = (seen.queries, seen.latency_ns);
        let ended = known.request.take_if(|request| seen.since_ns != Some(request.since_ns));
        let mut left_ns = 0;
        if answers > 0 {
            let parked_ns = std::mem::replace(&mut known.parked_ns, seen.parked_ns);
            left_ns = latency_ns.saturating_sub(seen.parked_ns.wrapping_sub(parked_ns));
        }
        let mut brief = answers;
        if let Some(request) = ended {
            // Its latency is known if it alone ended; else it took at most until now.
            let age_ns = now.saturating_sub(request.begun).0;
            let took_ns = if answers == 1 { left_ns } else { age_ns.min(left_ns) };
            if answers == 0 {
                // The request has no answer, or one that the next reading will have.
                self.state.drop_request(now, request.id);
            } else {
                self.state.end(now, request.id, Nanos(took_ns));
            }
            left_ns = left_ns.saturating_sub(took_ns);
            brief = answers.saturating_sub(1);
        }
        let each = Nanos(left_ns / brief.max(1));
        let brief = brief.min(BRIEF_MAX);
        for _ in 0..brief {
            self.state.count_answer(now, each);
        }
        self.counted.brief += brief;
    }

    /// Begins the request that is pending.
    fn begin(&mut self, now: Nanos, seen: &RequestSeen) {
        let Some(since_ns) = seen.since_ns else { return };
        let Ok(tid) = i32::try_from(seen.tid) else { return };
        let is_under_way =
            self.connections.get(&seen.id).is_some_and(|known| known.request.is_some());
        if is_under_way || !self.is_worker(now, tid, seen.id) {
            return;
        }
        let Some(known) = self.connections.get_mut(&seen.id) else { return };
        // A worker that has its turn notes the length of its wait a little later.
        let parked = Nanos(seen.parked_ns.wrapping_sub(known.parked_ns));
        let begun = Nanos(since_ns).saturating_add(parked).saturating_sub(self.begun);
        let begun = begun.max(known.waited).min(now);
        let id = self.state.arrive(now, begun, tid);
        (known.request, known.tid) = (Some(UnderWay { id, since_ns, begun }), tid);
    }

    /// Whether a thread serves this connection alone, and is the server's.
    fn is_worker(&mut self, now: Nanos, tid: i32, connection: Id) -> bool {
        if let Some(worker) = self.workers.get(&tid) {
            let is_own = worker.connection == connection;
            if !is_own && let Some(known) = self.connections.get_mut(&connection) {
                let was_shared = std::mem::replace(&mut known.is_shared, true);
                self.counted.shared += u64::from(!was_shared);
            }
            return is_own;
        }
        let is_known_foreign = |found: &Nanos| now.saturating_sub(*found) < FOREIGN_FOR;
        if self.look_ups == 0 || self.foreign.get(&tid).is_some_and(is_known_foreign) {
            return false;
        }
        self.look_ups -= 1;
        if !is_thread_of(&self.roots, tid, self.server) {
            self.note_foreign(now, tid);
            return false;
        }
        self.foreign.remove(&tid);
        self.workers.insert(tid, Worker { connection, at: None, affinity: None });
        true
    }

    /// Notes that a thread is not the server's, so that it is not looked up at each reading.
    fn note_foreign(&mut self, now: Nanos, tid: i32) {
        // Only a hostile page has more.
        if self.foreign.len() >= CONNECTIONS {
            self.foreign.clear();
        }
        self.counted.foreign += u64::from(self.foreign.insert(tid, now).is_none());
    }

    /// Forgets a connection that is closed, and gives its thread its cores back.
    fn forget(&mut self, now: Nanos, id: Id) {
        let Some(known) = self.connections.remove(&id) else { return };
        if let Some(request) = known.request {
            self.state.drop_request(now, request.id);
        }
        let gone: Vec<i32> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.connection == id)
            .map(|(tid, _)| *tid)
            .collect();
        for tid in gone {
            if let Some(worker) = self.workers.remove(&tid) {
                self.release(tid, &worker);
            }
        }
    }

    /// Gives a thread its cores back if it still is the server's.
    fn release(&self, tid: i32, worker: &Worker) {
        if is_thread_of(&self.roots, tid, self.server) {
            worker.release(tid);
        }
    }

    fn apply_orders(&mut self, now: Nanos) {
        while self.state.has_orders() {
            for order in self.state.take_orders() {
                if let Order::Speed(core, kind) = order {
                    self.set_speed(core, kind);
                }
            }
        }
        // A thread without a request, or whose request has no core, is among the slow cores.
        let on_core: BTreeMap<i32, CoreId> = self.state.placed().collect();
        let tids: Vec<i32> = self.workers.keys().copied().collect();
        for tid in tids {
            let at = on_core.get(&tid).map_or(ThreadCores::Slowest, |core| ThreadCores::On(*core));
            self.put(now, tid, at);
        }
    }

    fn set_speed(&mut self, core: CoreId, kind: usize) {
        let set = self.speeds.as_mut().map(|speeds| speeds.set(core, kind));
        self.counted.refused += u64::from(matches!(set, Some(Err(_))));
    }

    fn put(&mut self, now: Nanos, tid: i32, at: ThreadCores) {
        let Some(worker) = self.workers.get_mut(&tid).filter(|worker| worker.at != Some(at)) else {
            return;
        };
        worker.at = Some(at);
        let mask = match at {
            ThreadCores::Slowest => Some(&self.slowest),
            ThreadCores::On(core) => self.one.get(&core),
        };
        let Some(Err(error)) = mask.map(|mask| worker.pin(tid, mask)) else { return };
        if error.raw_os_error() == Some(libc::ESRCH) {
            self.workers.remove(&tid);
            self.state.end_thread(now, tid);
        } else {
            self.counted.refused += 1;
        }
    }

    /// Returns the counts since the last call.
    pub fn take_tally(&mut self) -> UnmodifiedTally {
        let now = monotonic().saturating_sub(self.begun);
        let tally = self.state.take_tally(now);
        UnmodifiedTally { tally, ..std::mem::take(&mut self.counted) }
    }

    /// Keeps a guard of frequencies running; returns notices.
    fn maintain(&mut self) -> Vec<String> {
        self.speeds.as_mut().map(Speeds::maintain).unwrap_or_default()
    }
}

impl Drop for UnmodifiedDispatch {
    fn drop(&mut self) {
        for (tid, worker) in std::mem::take(&mut self.workers) {
            self.release(tid, &worker);
        }
        if let Some(speeds) = &mut self.speeds {
            let _ = speeds.restore();
        }
    }
}

/// Whether a thread is one of process `server` or of a child of it.
fn is_thread_of(roots: &Roots, tid: i32, server: u32) -> bool {
    let status = |id: u32| std::fs::read_to_string(roots.proc.join(format!("{id}/status")));
    let field = |text: &str, key: &str| -> Option<u32> {
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    };
    let is_it = || -> Option<bool> {
        let text = status(u32::try_from(tid).ok()?).ok()?;
        let is_own = field(&text, "Tgid:")? == server;
        Some(is_own || field(&text, "PPid:")? == server)
    };
    is_it().unwrap_or(false)
}

/// A thread that dispatches a server until this is dropped.
pub struct UnmodifiedThread {
    stop: Option<Sender<()>>,
    notices: Receiver<String>,
    thread: Option<JoinHandle<UnmodifiedTally>>,
}

impl UnmodifiedThread {
    /// Starts to dispatch.
    ///
    /// # Errors
    /// If no thread can be had.
    pub fn start(
        mut dispatch: UnmodifiedDispatch,
        runtime: Arc<Runtime>,
    ) -> Result<Self, DispatchError> {
        let (stop, stopped) = channel();
        let (notice, notices) = channel();
        let work = move || {
            runtime.set_dispatched(true);
            let mut requests = runtime.live_requests();
            let mut readings = 0_u32;
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                dispatch.step(monotonic(), requests.read().iter().copied());
                readings = readings.wrapping_add(1);
                if readings.is_multiple_of(LOOK_AFTER) {
                    // The receiver may be gone: the command ends.
                    dispatch.maintain().into_iter().for_each(|text| drop(notice.send(text)));
                }
            }
            let tally = dispatch.take_tally();
            // Threads get their cores back before the flag falls: if the agent is killed in
            // between, the library still restores them.
            drop(dispatch);
            runtime.set_dispatched(false);
            tally
        };
        let thread = std::thread::Builder::new().name("lull-dispatch".to_owned()).spawn(work)?;
        Ok(Self { stop: Some(stop), notices, thread: Some(thread) })
    }

    /// Returns the notices since the last call.
    pub fn take_notices(&self) -> Vec<String> {
        self.notices.try_iter().collect()
    }

    /// Ends the dispatching. Returns the counts; `None` if a dispatcher panicked.
    pub fn stop(mut self) -> Option<UnmodifiedTally> {
        self.join()
    }

    fn join(&mut self) -> Option<UnmodifiedTally> {
        drop(self.stop.take());
        self.thread.take()?.join().ok()
    }
}

impl Drop for UnmodifiedThread {
    fn drop(&mut self) {
        self.join();
    }
}

#[cfg(test)]
mod tests;
