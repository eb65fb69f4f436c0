//! Areas of cores for the threads of one server: a thread that serves a connection runs on the
//! cores of its client's class (QoS-WC; REEF, SoCC'25, section 3.5).
//!
//! The agent sets the affinities from outside, by what the page says: the thread that has read a
//! connection's last query, and the class of its client. So a query costs what it costs without
//! areas, and one process knows all that must be restored. A new connection runs where its thread
//! did before until the next reading of the page.
//!
//! Only threads that serve one connection each are moved. In a pool of threads, or an event loop, a
//! thread serves whichever connection is ready: a connection whose thread changes shows that, and
//! all threads of that process get their own cores back for good. The library lets threads that a
//! moved thread starts begin with its own cores; those that have inherited an area nevertheless get
//! the cores of their process.
//!
//! The page is not trusted: a thread is moved only if the kernel says that it is one of a process
//! which has mapped the page. A thread never runs on cores that it could not use before. It gets
//! its own cores back when its connection is closed, when an operator bypasses the gate, and at the
//! end, unless another program has changed them since; one that had all cores of its cpuset follows
//! that again. If the agent is killed, the library gives a thread those that it had before its
//! first request, at its next query, and the next agent gives back the rest (`give_back`). An agent
//! that was only stopped moves its threads again.

mod moved;

use super::{ConnectionSeen, Runtime};
use crate::Roots;
use crate::apps::{Facts, ProcessId};
use crate::sys::sched::affinity_of;
use lull_control::CoreSet;
use lull_measure::Nanos;
use lull_oncall::{CONNECTIONS, Class, Id};
use moved::{Moved, set_own_cores};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

/// How long a thread that is not the server's counts as such: its number may get another thread.
const FOREIGN_FOR: Nanos = Nanos::from_secs(1);
/// Threads that are looked up at one reading; the others are looked up at the next ones.
const LOOK_UPS_MAX: u32 = 32;
/// Time without a reading or a heartbeat after which threads may have taken their own cores back:
/// the library does so three seconds after a heartbeat, and the last one before a pause is up to a
/// second old when the pause begins.
const SILENCE: Nanos = Nanos::from_millis(1900);
/// Sets of cores that are remembered as given to threads.
const GIVEN_MAX: usize = 1024;

/// The counts of the areas of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AreaTally {
    /// How often a thread was moved to an area.
    pub moves: u64,
    /// Moves that the kernel refused, or to an area none of whose cores the thread may use.
    pub refused: u64,
    /// Threads that the kernel says are not the server's.
    pub foreign: u64,
    /// Processes whose threads serve several connections each; theirs are not moved.
    pub pools: u64,
}

/// A process that has mapped the page.
#[derive(Debug)]
struct KnownServer {
    process: ProcessId,
    /// Threads that were there before any was moved, or were looked at since they started. A
    /// thread inherits cores only when it starts: theirs are their own now.
    settled: BTreeSet<i32>,
    /// Whether threads of it other than the first were moved.
    has_threads: bool,
}

/// Moves the threads of a server to the areas of their clients' classes. It has no thread of its
/// own.
#[derive(Debug)]
pub struct ThreadAreas {
    runtime: Arc<Runtime>,
    roots: Roots,
    /// A process that has mapped the page and is not a server.
    agent: u32,
    /// Indexed by the number of the class; `None` leaves its threads on their own cores.
    areas: Vec<Option<CoreSet>>,
    threads: BTreeMap<i32, Moved>,
    /// Generation and thread of each connection at the last reading.
    served: BTreeMap<Id, (u32, u32)>,
    /// Processes that have mapped the page.
    servers: BTreeMap<u32, KnownServer>,
    /// Cores that threads were given, as the kernel has them.
    given: BTreeSet<CoreSet>,
    pools: BTreeSet<u32>,
    /// Threads that are not the server's, and when that was found.
    foreign: BTreeMap<i32, Nanos>,
    /// Threads that may still be looked up at this reading.
    look_ups: u32,
    /// When the page was read last.
    last: Nanos,
    /// Whether threads may have taken their own cores back, since the agent was silent.
    was_silent: bool,
    tally: AreaTally,
}

impl ThreadAreas {
    /// Begins without any area. Until this is dropped, the library takes the cores of threads back
    /// if the agent dies.
    pub fn new(runtime: Arc<Runtime>, roots: &Roots) -> Self {
        runtime.set_dispatched(true);
        Self {
            runtime,
            roots: roots.clone(),
            agent: std::process::id(),
            areas: Vec::new(),
            threads: BTreeMap::new(),
            served: BTreeMap::new(),
            servers: BTreeMap::new(),
            given: BTreeSet::new(),
            pools: BTreeSet::new(),
            foreign: BTreeMap::new(),
            look_ups: 0,
            last: Nanos::ZERO,
            was_silent: false,
            tally: AreaTally::default(),
        }
    }

    /// Sets the area of each class of clients, by its number; threads move at the next step.
    pub fn set_areas(&mut self, areas: Vec<Option<CoreSet>>) {
        self.areas = areas;
    }

    /// Returns the counts so far.
    pub const fn tally(&self) -> AreaTally {
        self.tally
    }

    /// Returns how many threads are in the area of a class now.
    pub fn threads_of(&self, class: usize) -> usize {
        self.threads.values().filter(|thread| thread.class == class).count()
    }

    /// Takes in what the page says at this time, and moves threads.
    pub fn step(&mut self, now: Nanos, connections: &[ConnectionSeen]) {
        self.look_ups = LOOK_UPS_MAX;
        self.note_silence(now);
        self.find_pools(connections);
        let is_bypassed = self.runtime.bypassed_since_s().is_some();
        let wanted = if is_bypassed { BTreeMap::new() } else { self.wanted(connections) };
        self.release_all_but(&wanted);
        for (tid, (process, class)) in wanted {
            self.put(now, tid, process, class);
        }
    }

    /// Moves threads again that have taken their own cores back while this process was stopped, or
    /// the machine was busy for so long that the library took the agent for dead.
    fn note_silence(&mut self, now: Nanos) {
        let heartbeat = Nanos(self.runtime.page.control().heartbeat_ns());
        let last = std::mem::replace(&mut self.last, now);
        let is_silent = now.saturating_sub(last.min(heartbeat)) > SILENCE;
        if std::mem::replace(&mut self.was_silent, is_silent) && !is_silent {
            for (tid, thread) in &mut self.threads {
                thread.forget_area_if_free(*tid);
            }
        }
    }

    /// Finds the processes whose threads take turns between connections.
    fn find_pools(&mut self, connections: &[ConnectionSeen]) {
        let mut served = BTreeMap::new();
        for one in connections {
            let (process, tid) = one.worker;
            if process == 0 || tid == 0 {
                continue;
            }
            let before = self.served.get(&one.id);
            let has_turned = before
                .is_some_and(|(generation, other)| *generation == one.generation && *other != tid);
            if has_turned || one.class == Class::Shared {
                self.note_pool(process);
            }
            served.insert(one.id, (one.generation, tid));
        }
        self.served = served;
    }

    fn note_pool(&mut self, process: u32) {
        // Only a hostile page has more.
        if self.pools.len() >= CONNECTIONS {
            self.pools.clear();
        }
        self.tally.pools += u64::from(self.pools.insert(process));
    }

    /// Returns process and class of each thread that belongs in an area: it serves one connection,
    /// of a class that has an area.
    fn wanted(&self, connections: &[ConnectionSeen]) -> BTreeMap<i32, (u32, usize)> {
        let mut all: BTreeMap<i32, Option<(u32, usize)>> = BTreeMap::new();
        for one in connections {
            let (process, tid) = one.worker;
            let Some(tid) = i32::try_from(tid).ok().filter(|tid| *tid != 0 && process != 0) else {
                continue;
            };
            let serves_one = !all.contains_key(&tid);
            all.insert(tid, serves_one.then_some((process, one.client_class)));
        }
        let alone = all.into_iter().filter_map(|(tid, one)| Some((tid, one?)));
        let belongs = |(process, class): (u32, usize)| {
            process != self.agent
                && !self.pools.contains(&process)
                && self.areas.get(class).is_some_and(Option::is_some)
        };
        alone.filter(|(_, one)| belongs(*one)).collect()
    }

    /// Gives all other threads their own cores back.
    fn release_all_but(&mut self, wanted: &BTreeMap<i32, (u32, usize)>) {
        let gone: Vec<i32> =
            self.threads.keys().copied().filter(|tid| !wanted.contains_key(tid)).collect();
        for tid in gone {
            self.release(tid);
        }
    }

    /// Gives a thread its own cores back if it still is the server's.
    fn release(&mut self, tid: i32) {
        if let Some(thread) = self.threads.remove(&tid)
            && is_thread_of(&self.roots, thread.process, tid)
        {
            thread.release(tid, &self.roots);
        }
    }

    /// Lets a thread run in the area of a class.
    fn put(&mut self, now: Nanos, tid: i32, process: u32, class: usize) {
        if self.threads.get(&tid).is_some_and(|thread| thread.process != process) {
            // The thread has ended, and another process has its number.
            self.threads.remove(&tid);
        }
        if !self.threads.contains_key(&tid) && !self.find(now, tid, process, class) {
            return;
        }
        let Some(Some(area)) = self.areas.get(class) else { return };
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let is_there = thread.area == *area;
        thread.class = class;
        if is_there {
            return;
        }
        match thread.move_to(tid, area, &self.roots) {
            Ok(true) => {
                self.tally.moves += 1;
                if self.given.len() >= GIVEN_MAX {
                    self.given.clear();
                }
                self.given.insert(thread.set.clone());
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                self.threads.remove(&tid);
            }
            // The thread is not tried again before its area changes.
            Ok(false) | Err(_) => self.tally.refused += 1,
        }
    }

    /// Adds a thread with its own cores. Returns `false` if it is not the server's.
    fn find(&mut self, now: Nanos, tid: i32, process: u32, class: usize) -> bool {
        let is_known_foreign = |found: &Nanos| now.saturating_sub(*found) < FOREIGN_FOR;
        if self.look_ups == 0 || self.foreign.get(&tid).is_some_and(is_known_foreign) {
            return false;
        }
        self.look_ups -= 1;
        let Some((own, present)) = self.find_cores(process, tid) else {
            // Only a hostile page has more.
            if self.foreign.len() >= CONNECTIONS {
                self.foreign.clear();
            }
            self.tally.foreign += u64::from(self.foreign.insert(tid, now).is_none());
            return false;
        };
        self.foreign.remove(&tid);
        self.threads.insert(tid, Moved::new(process, class, own, present, &self.roots));
        true
    }

    /// Returns the cores that a thread has without Lull, and those that it has now; `None` if it is
    /// not the server's.
    fn find_cores(&mut self, process: u32, tid: i32) -> Option<(CoreSet, CoreSet)> {
        if !self.is_server(process) || !is_thread_of(&self.roots, process, tid) {
            return None;
        }
        let first = i32::try_from(process).ok()?;
        if let Some(server) = self.servers.get_mut(&process) {
            server.has_threads |= tid != first;
        }
        let present = affinity_of(tid).ok()?;
        let own = match self.has_inherited(process, tid, &present) {
            true => self.whole_of(first).ok()?,
            false => present.clone(),
        };
        Some((own, present))
    }

    /// Returns the cores that the first thread of a process has without Lull.
    fn whole_of(&self, first: i32) -> io::Result<CoreSet> {
        self.threads.get(&first).map_or_else(|| affinity_of(first), |one| Ok(one.own.clone()))
    }

    /// Whether a thread that was not moved has these cores because a moved thread has started it.
    fn has_inherited(&self, process: u32, tid: i32, cores: &CoreSet) -> bool {
        let is_settled = |server: &KnownServer| server.settled.contains(&tid);
        process.cast_signed() != tid
            && self.given.contains(cores)
            && !self.servers.get(&process).is_some_and(is_settled)
    }

    /// Gives threads that a moved thread has started the cores of their process. To be called once
    /// in a while.
    pub fn free_inherited(&mut self) {
        let with_threads = self.servers.iter().filter(|(_, server)| server.has_threads);
        let found: Vec<(u32, i32)> =
            with_threads.map(|(process, server)| (*process, server.process.pid)).collect();
        for (process, first) in found {
            self.free_those(process, first, threads(&self.roots, first).collect());
        }
    }

    /// Does so for some threads of a process, whose first thread is `first`.
    fn free_those(&mut self, process: u32, first: i32, tids: BTreeSet<i32>) {
        let Ok(whole) = self.whole_of(first) else { return };
        for tid in tids.iter().copied().filter(|tid| !self.threads.contains_key(tid)) {
            let has_inherited =
                |cores: CoreSet| cores != whole && self.has_inherited(process, tid, &cores);
            if affinity_of(tid).is_ok_and(has_inherited) {
                // A thread that has ended meanwhile needs none.
                let _ = set_own_cores(tid, process, &whole, &self.roots);
            }
        }
        if let Some(server) = self.servers.get_mut(&process) {
            server.settled = tids;
        }
    }

    /// Whether a process has mapped the page.
    fn is_server(&mut self, process: u32) -> bool {
        let runs = |known: &KnownServer| known.process.facts(&self.roots).is_some();
        if self.servers.get(&process).is_some_and(runs) {
            return true;
        }
        let Some(found) = find_server(&self.runtime, &self.roots, process) else {
            self.servers.remove(&process);
            return false;
        };
        // Processes that have ended are not looked for.
        if self.servers.len() >= CONNECTIONS {
            self.servers.clear();
        }
        let settled = threads(&self.roots, found.pid).collect();
        self.servers.insert(process, KnownServer { process: found, settled, has_threads: false });
        true
    }
}

impl Drop for ThreadAreas {
    fn drop(&mut self) {
        self.release_all_but(&BTreeMap::new());
        // Cleared last: if the agent is killed meanwhile, the library still restores the threads.
        self.runtime.set_dispatched(false);
    }
}

/// Returns the process of this number if it has mapped the page.
fn find_server(runtime: &Runtime, roots: &Roots, process: u32) -> Option<ProcessId> {
    let found = ProcessId::lookup(roots, i32::try_from(process).ok()?).ok()?;
    runtime.is_mapped_by(process, roots).then_some(found)
}

/// Returns the threads of a process.
fn threads(roots: &Roots, process: i32) -> impl Iterator<Item = i32> + use<> {
    let entries = std::fs::read_dir(roots.proc.join(format!("{process}/task")));
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a thread is one of this process.
fn is_thread_of(roots: &Roots, process: u32, tid: i32) -> bool {
    i32::try_from(process).is_ok_and(|process| Facts::of_thread(roots, process, tid).is_ok())
}

/// Gives threads of servers the cores back that they have inherited: an agent that was killed has
/// left some of them in areas, and its successor does not know theirs.
pub(super) fn give_back(runtime: &Runtime, roots: &Roots) {
    for (process, left) in free_serving(runtime, roots) {
        // Threads that are kept for later connections, and those that a moved thread has started.
        let is_left = |tid: &i32| affinity_of(*tid).is_ok_and(|cores| left.contains(&cores));
        if let Ok(whole) = affinity_of(process) {
            let free = |tid| drop(set_own_cores(tid, process.cast_unsigned(), &whole, roots));
            threads(roots, process).filter(is_left).for_each(free);
        }
    }
}

/// Gives back the cores of threads that serve connections. Returns by process the other cores that
/// they had.
fn free_serving(runtime: &Runtime, roots: &Roots) -> BTreeMap<i32, BTreeSet<CoreSet>> {
    let mut left: BTreeMap<i32, BTreeSet<CoreSet>> = BTreeMap::new();
    let mut servers: BTreeMap<u32, bool> = BTreeMap::new();
    for (_, record) in runtime.page.records().filter(|(_, record)| record.pid() != 0) {
        let (process, tid) = (record.pid(), record.tid());
        let Some(tid) = i32::try_from(tid).ok().filter(|tid| *tid != 0) else { continue };
        let is_server = || find_server(runtime, roots, process).is_some();
        let is_servers =
            *servers.entry(process).or_insert_with(is_server) && is_thread_of(roots, process, tid);
        let creator = if is_servers { creator_of(runtime, roots, process, tid) } else { None };
        let whole = creator.and_then(|creator| affinity_of(creator).ok());
        if let (Some(whole), Ok(present)) = (whole, affinity_of(tid))
            && present != whole
        {
            // A thread that has ended meanwhile needs none.
            let _ = set_own_cores(tid, process, &whole, roots);
            left.entry(process.cast_signed()).or_default().insert(present);
        }
    }
    left
}

/// Returns the thread from which a thread of a server inherits its cores: the first one of its
/// process, or that of the process which has forked its own, as PostgreSQL does.
fn creator_of(runtime: &Runtime, roots: &Roots, process: u32, tid: i32) -> Option<i32> {
    let first = i32::try_from(process).ok()?;
    if tid != first {
        return Some(first);
    }
    let parent = Facts::of_process(roots, first).ok()?.parent;
    let is_server = u32::try_from(parent).is_ok_and(|it| runtime.is_mapped_by(it, roots));
    // The agent, too, has mapped the page, and has its own cores.
    (is_server && parent != std::process::id().cast_signed()).then_some(parent)
}

#[cfg(test)]
mod tests;
