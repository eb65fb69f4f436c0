//! Putting back: first the state that is safe for every SLO, then the saved one.
//!
//! Safe means that every thread may run on every core at the highest
//! frequency that its bounds allow, and no process is stopped. It takes one
//! pass of cheap calls, so that a machine left by a killed agent serves its
//! requests while the rest is restored.
//!
//! A thread made under Lull's settings has no value of its own; it gets that
//! of its process's main thread, and a process made meanwhile that of its
//! parent. Passes are repeated until one changes nothing, since a thread not
//! yet restored may make another.
//!
//! Affinity is widened to all cores before the saved set is written, and left
//! so if that reads back as the saved set: a thread that was not bound before must
//! not end up bound to the cores that happen to be online.
//!
//! Verified on Linux 6.18 by `tests/processes`.

use super::held::{Held, Inherited};
use super::original::{Key, Original};
use crate::apps::{Facts, ProcessId, ProcessTable, signal, threads_of};
use crate::drivers::ethtool::{self, Coalescing};
use crate::drivers::{FileError, resctrl, text};
use crate::sys::sched::{self, SchedState};
use crate::{LiveThread, Roots};
use lull_control::CoreSet;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;

/// The outcome of restoring one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// It was restored.
    Done,
    /// It was so already.
    Already,
    /// Its thread or process is gone, its number perhaps reused.
    Gone,
    /// It is not as it was.
    Failed {
        /// The kernel's error.
        why: String,
    },
}

/// The outcome of restoring all values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a value that could not be restored must be reported to the user"]
pub struct Restoration {
    /// Values restored.
    pub done: usize,
    /// Values that were so already.
    pub already: usize,
    /// Values of threads and processes that are gone.
    pub gone: usize,
    /// Values that are not as they were, and why.
    pub failed: Vec<(Key, String)>,
}

impl fmt::Display for Restoration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, already, gone, failed } = self;
        write!(
            f,
            "{done} values restored, {already} were as before, {gone} had no owner any more"
        )?;
        for (key, why) in failed {
            write!(f, "; {key} is not as before: {why}")?;
        }
        Ok(())
    }
}

/// Passes over the threads of growing apps before giving up on the newest.
const PASSES: usize = 8;
/// As many cores as the kernel's calls take.
const ALL_CORES: u16 = 1024;

impl Original {
    /// Puts the value back, if its owner is still there.
    pub fn restore(&self, roots: &Roots) -> Restored {
        let found = match self {
            Self::Thread { tid, pid, start_time_ticks, .. } => {
                let thread = LiveThread { pid: *pid, tid: *tid, start_ticks: *start_time_ticks };
                is_alive(roots, thread).map_or(Ok(Restored::Gone), |()| self.reschedule(*tid))
            }
            Self::RealTimeThrottle { path, runtime_us } => rewrite(path, *runtime_us),
            Self::Text { path, text, .. } => retext(path, text).map_err(io::Error::other),
            Self::Coalescing { nic, was } => recoalesce(nic, was),
            Self::Group { path } => resctrl::remove(path).map(written),
            Self::CpuFreq(state) => state.put_back().map(written).map_err(io::Error::other),
            Self::Stopped { pid, start_time_ticks } => {
                let process = ProcessId { pid: *pid, start_ticks: *start_time_ticks };
                resume(roots, process)
            }
            Self::Started { .. } => Ok(Restored::Already),
        };
        found.unwrap_or_else(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => Restored::Gone,
            _ => Restored::Failed { why: error.to_string() },
        })
    }

    /// Makes one value safe for every objective at little cost, threads left
    /// out. Returns whether that changed anything; a failure is reported when the value is
    /// restored.
    fn boost(&self, roots: &Roots) -> bool {
        match self {
            Self::Stopped { .. } | Self::Group { .. } => self.restore(roots) == Restored::Done,
            Self::CpuFreq(state) => state.boost().unwrap_or(false),
            Self::Text { path, safe: Some(safe), .. } => {
                text::read(path).is_ok_and(|now| now != *safe) && text::write(path, safe).is_ok()
            }
            _ => false,
        }
    }

    /// Gives a thread this affinity and class.
    fn reschedule(&self, tid: i32) -> io::Result<Restored> {
        let Self::Thread { affinity, policy, rt_priority, nice, .. } = self else {
            return Ok(Restored::Already);
        };
        let mut outcome = Restored::Already;
        if sched::affinity_of(tid)? != *affinity {
            rebind(tid, affinity)?;
            outcome = Restored::Done;
        }
        let state = SchedState { policy: *policy, rt_priority: *rt_priority, nice: *nice };
        if sched::scheduling_of(tid)? != state {
            sched::set_scheduling(tid, state)?;
            outcome = Restored::Done;
        }
        Ok(outcome)
    }
}

fn rebind(tid: i32, affinity: &CoreSet) -> io::Result<()> {
    sched::set_affinity(tid, &CoreSet::first(ALL_CORES))?;
    if sched::affinity_of(tid)? == *affinity {
        return Ok(());
    }
    sched::set_affinity(tid, affinity)?;
    let now = sched::affinity_of(tid)?;
    if now == *affinity {
        return Ok(());
    }
    Err(io::Error::other(format!("the kernel allows cores {now} and no longer {affinity}")))
}

fn is_alive(roots: &Roots, thread: LiveThread) -> Option<()> {
    let facts = Facts::of_thread(roots, thread.pid, thread.tid).ok()?;
    (facts.start_ticks == thread.start_ticks).then_some(())
}

fn rewrite(path: &Path, value: i64) -> io::Result<Restored> {
    if std::fs::read_to_string(path)?.trim() == value.to_string() {
        return Ok(Restored::Already);
    }
    std::fs::write(path, value.to_string())?;
    Ok(Restored::Done)
}

fn retext(path: &Path, text: &str) -> Result<Restored, FileError> {
    if text::read(path)? == text {
        return Ok(Restored::Already);
    }
    text::write(path, text)?;
    let found = text::read(path)?;
    if found == text {
        return Ok(Restored::Done);
    }
    let source = io::Error::other(format!("it reads back as `{found}`"));
    Err(FileError { path: path.to_owned(), wanted: Some(text.to_owned()), source })
}

const fn written(was_needed: bool) -> Restored {
    if was_needed { Restored::Done } else { Restored::Already }
}

fn recoalesce(nic: &str, was: &Coalescing) -> io::Result<Restored> {
    let now = match ethtool::get(nic) {
        Err(error) if error.source.raw_os_error() == Some(libc::ENODEV) => {
            return Ok(Restored::Gone);
        }
        now => now.map_err(io::Error::other)?,
    };
    let changed = was.unlike(&now);
    if changed == Coalescing::default() {
        return Ok(Restored::Already);
    }
    ethtool::set(nic, &changed).map_err(io::Error::other)?;
    Ok(Restored::Done)
}

fn resume(roots: &Roots, process: ProcessId) -> io::Result<Restored> {
    let Some(facts) = process.facts(roots) else { return Ok(Restored::Gone) };
    // Also to a process that is not stopped yet: SIGSTOP takes effect when the process next runs,
    // which may be after this, and SIGCONT cancels it.
    signal(roots, process, Signal::CONT)?;
    Ok(if facts.state == 'T' { Restored::Done } else { Restored::Already })
}

/// First the safe state, then the saved one.
pub(super) fn boost_and_put_back(roots: &Roots, held: &Held) -> Restoration {
    let mut reach = Reach::new(roots, held);
    let touched = reach.boost();
    reach.put_back(&touched)
}

/// The saved state at once, by an agent that leaves nothing unsafe.
pub(super) fn put_back(roots: &Roots, held: &Held) -> Restoration {
    Reach::new(roots, held).put_back(&BTreeSet::new())
}

/// The threads that Lull's settings reached.
struct Reach<'a> {
    roots: &'a Roots,
    held: &'a Held,
    /// All processes, to find children; listed when what is known is done,
    /// since the first listing of a machine with thousands takes a while.
    table: Option<ProcessTable>,
}

impl<'a> Reach<'a> {
    const fn new(roots: &'a Roots, held: &'a Held) -> Self {
        Self { roots, held, table: None }
    }

    /// The safe state: all cores for all threads, nothing stopped.
    ///
    /// Returns what it changed; a failure is reported when the value is restored.
    fn boost(&mut self) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        for original in self.held.originals() {
            if original.boost(self.roots) {
                touched.insert(original.key());
            }
        }
        for _ in 0..2 {
            let widened = self.threads().into_iter().filter(|(thread, _)| widen(*thread));
            touched.extend(widened.map(|(_, original)| original.key()));
            self.look_for_children();
        }
        touched
    }

    /// The saved state. `touched` are the values that the safe state changed.
    fn put_back(&mut self, touched: &BTreeSet<Key>) -> Restoration {
        let mut outcomes: BTreeMap<Key, Restored> = BTreeMap::new();
        // Twice: one file may decide what another takes (a governor its preferences).
        for _ in 0..2 {
            for original in self.held.originals().filter(|original| !is_started(original)) {
                let outcome = original.restore(self.roots);
                let was_done = outcomes.get(&original.key()) == Some(&Restored::Done);
                if !(was_done && outcome == Restored::Already) {
                    outcomes.insert(original.key(), outcome);
                }
            }
        }
        for _ in 0..PASSES {
            self.look_for_children();
            let mut changed = false;
            for (_, original) in self.threads() {
                let outcome = original.restore(self.roots);
                changed |= outcome == Restored::Done;
                if outcome != Restored::Already {
                    outcomes.insert(original.key(), outcome);
                }
            }
            if !changed {
                break;
            }
        }
        let mut total = Restoration::default();
        for (key, outcome) in outcomes {
            total.count(key, outcome, touched);
        }
        total
    }

    fn look_for_children(&mut self) {
        match &mut self.table {
            // Without a listing the known processes are restored all the same.
            None => self.table = ProcessTable::new(self.roots).ok(),
            Some(table) => drop(table.refresh()),
        }
    }

    /// All threads in reach now, each with the state to give it.
    fn threads(&self) -> Vec<(LiveThread, Original)> {
        let mut processes = self.held.inherited.clone();
        if let Some(table) = &self.table {
            adopt_children(table, self.held, &mut processes);
        }
        let mut found = Vec::new();
        for (pid, inherited) in &processes {
            if !has_started_at(self.roots, *pid, inherited.start_ticks) {
                continue;
            }
            let original = |thread| self.held.for_thread(thread, &inherited.original);
            let threads = threads_of(self.roots, *pid).unwrap_or_default();
            found.extend(threads.into_iter().filter_map(|one| Some((one, original(one)?))));
        }
        found
    }
}

/// Gives a thread all cores; whether that changed anything.
fn widen(thread: LiveThread) -> bool {
    let before = sched::affinity_of(thread.tid).ok();
    let widened = sched::set_affinity(thread.tid, &CoreSet::first(ALL_CORES));
    widened.is_ok() && before != sched::affinity_of(thread.tid).ok()
}

impl Restoration {
    fn count(&mut self, key: Key, outcome: Restored, touched: &BTreeSet<Key>) {
        match outcome {
            Restored::Already if touched.contains(&key) => self.done += 1,
            Restored::Done => self.done += 1,
            Restored::Already => self.already += 1,
            Restored::Gone => self.gone += 1,
            Restored::Failed { why } => self.failed.push((key, why)),
        }
    }
}

const fn is_started(original: &Original) -> bool {
    matches!(original, Original::Started { .. })
}

fn has_started_at(roots: &Roots, pid: i32, start_ticks: u64) -> bool {
    Facts::of_process(roots, pid).is_ok_and(|facts| facts.start_ticks == start_ticks)
}

/// Adds the processes made by those of the ledger since their values were saved.
fn adopt_children(table: &ProcessTable, held: &Held, processes: &mut BTreeMap<i32, Inherited>) {
    loop {
        let adopted = |(pid, facts): (i32, &Facts)| {
            let parent = processes.get(&facts.parent)?;
            let key = Key::Thread(pid, facts.start_ticks);
            let is_new = !processes.contains_key(&pid) && !held.is_released(&key);
            let child = Inherited { start_ticks: facts.start_ticks, ..parent.clone() };
            (is_new && parent.covers(facts.start_ticks)).then_some((pid, child))
        };
        let new: Vec<(i32, Inherited)> = table.iter().filter_map(adopted).collect();
        if new.is_empty() {
            return;
        }
        processes.extend(new);
    }
}
