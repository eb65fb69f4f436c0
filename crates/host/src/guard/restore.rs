//! Putting back: first the state that is safe for every SLO, then the saved one.
//!
//! Safe means that every frequency domain runs as fast as its owner's bounds allow and that
//! no process is stopped. It takes one pass of cheap calls, so that a machine left by a
//! killed agent serves its requests while the rest is restored. The safe state never gives
//! more than the owner had: threads get their saved cores and classes, not all cores.
//!
//! Threads are restored field by field (`reach.rs`). Limits of units are last, because a busy
//! systemd keeps them waiting.

use super::held::Held;
use super::original::{Key, Original};
use super::reach::{self, Reach};
use super::restoration::{Restoration, Restored};
use crate::Roots;
use crate::apps::{self, Ended, Forks, GRACE, Group, ProcessId, StartedTree, signal};
use crate::drivers::ethtool::{self, Coalescing};
use crate::drivers::systemd::{self, UnitState};
use crate::drivers::{FileError, PutBack, resctrl, text};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The pause between two attempts to restore limits of units.
const UNIT_PAUSE: Duration = Duration::from_millis(500);

impl Original {
    /// Restores the value, if its owner still exists and Lull, and no other program, has set it.
    /// Threads are left to `reach.rs`, which knows Lull's writes to them.
    pub fn restore(&self, roots: &Roots) -> Restored {
        let found = match self {
            Self::RealTimeThrottle { path, runtime_us, ours } => {
                retext(path, &runtime_us.to_string(), ours).map_err(io::Error::other)
            }
            Self::Text { path, text, ours, .. } => {
                retext(path, text, ours).map_err(io::Error::other)
            }
            Self::Coalescing { nic, was, ours } => recoalesce(nic, was, ours),
            Self::Group { path } => resctrl::remove(path).map(written),
            Self::CpuFreq { state, ours } => {
                state.put_back_ours(ours).map(Restored::from).map_err(io::Error::other)
            }
            Self::Cgroup(file) => file.put_back().map(Restored::from).map_err(io::Error::other),
            Self::Unit(state) => return restore_limit(state, roots, systemd::deadline()),
            Self::Stopped { pid, start_time_ticks } => {
                let process = ProcessId { pid: *pid, start_ticks: *start_time_ticks };
                resume(roots, process)
            }
            Self::Thread { .. } | Self::Started { .. } => Ok(Restored::Already),
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
            Self::CpuFreq { state, ours } => state.boost(ours).unwrap_or(false),
            Self::Text { path, safe: Some(safe), ours, .. } => {
                let is_unsafe = |now: String| now != *safe && has_set(ours, &now);
                text::read(path).is_ok_and(is_unsafe) && text::write(path, safe).is_ok()
            }
            _ => false,
        }
    }

    /// The same for a file that is known to have no other program's text: the safe state, or
    /// another file that was restored, may have given it one that Lull has not written.
    fn without_ours(&self) -> Self {
        let mut known = self.clone();
        if let Self::Text { ours, .. } = &mut known {
            ours.clear();
        }
        known
    }
}

impl From<PutBack> for Restored {
    fn from(outcome: PutBack) -> Self {
        match outcome {
            PutBack::Done => Self::Done,
            PutBack::Already => Self::Already,
            PutBack::Gone => Self::Gone,
            PutBack::Left { found } => Self::Left { found },
        }
    }
}

fn restore_limit(state: &UnitState, roots: &Roots, deadline: Instant) -> Restored {
    let restored = state.put_back(&roots.run, deadline).map(Restored::from);
    restored.unwrap_or_else(|error| Restored::Failed { why: error.to_string() })
}

fn retext(path: &Path, text: &str, ours: &[String]) -> Result<Restored, FileError> {
    let found = text::read(path)?;
    if found == text {
        return Ok(Restored::Already);
    }
    if !has_set(ours, &found) {
        return Ok(Restored::Left { found });
    }
    text::write(path, text)?;
    let found = text::read(path)?;
    if found == text {
        return Ok(Restored::Done);
    }
    let source = io::Error::other(format!("it reads back as `{found}`"));
    Err(FileError { path: path.to_owned(), wanted: Some(text.to_owned()), source })
}

/// Whether Lull has set a value that is `found`. Without a record it counts as Lull's.
fn has_set(ours: &[String], found: &str) -> bool {
    ours.is_empty() || ours.iter().any(|text| text == found)
}

const fn written(was_needed: bool) -> Restored {
    if was_needed { Restored::Done } else { Restored::Already }
}

fn recoalesce(nic: &str, was: &Coalescing, ours: &[String]) -> io::Result<Restored> {
    let now = match ethtool::get(nic) {
        Err(error) if error.source.raw_os_error() == Some(libc::ENODEV) => {
            return Ok(Restored::Gone);
        }
        now => now.map_err(io::Error::other)?,
    };
    let changed = was.unlike(&now);
    let lulls = changed.only(&now.of_ours(ours));
    if lulls != Coalescing::default() {
        ethtool::set(nic, &lulls).map_err(io::Error::other)?;
        let kept = ethtool::get(nic).map_err(io::Error::other)?;
        check_kept(&lulls, &kept)?;
    }
    Ok(match (changed == lulls, changed == Coalescing::default()) {
        (false, _) => Restored::Left { found: now.only(&changed.unlike(&lulls)).to_string() },
        (true, is_as_before) => written(!is_as_before),
    })
}

/// Checks that an interface reads back as it was set. A driver that adapts a delay changes it.
fn check_kept(wanted: &Coalescing, kept: &Coalescing) -> io::Result<()> {
    let fixed = Coalescing {
        rx_us: wanted.rx_us.filter(|_| kept.adaptive_rx != Some(true)),
        tx_us: wanted.tx_us.filter(|_| kept.adaptive_tx != Some(true)),
        ..*wanted
    };
    match fixed.unlike(kept) == Coalescing::default() {
        true => Ok(()),
        false => Err(io::Error::other(format!("it reads back as {}", kept.only(&fixed)))),
    }
}

fn resume(roots: &Roots, process: ProcessId) -> io::Result<Restored> {
    let Some(facts) = process.look(roots)? else { return Ok(Restored::Gone) };
    // The signal is sent also to a process that is not stopped yet: SIGSTOP takes effect when the
    // process next runs, which may be later, and SIGCONT cancels it.
    signal(roots, process, Signal::CONT)?;
    Ok(if facts.state == 'T' { Restored::Done } else { Restored::Already })
}

/// First the safe state, then the saved one.
pub(super) fn boost_and_put_back(roots: &Roots, held: &Held, forks: &Forks) -> Restoration {
    let mut touched = BTreeSet::new();
    for original in held.originals() {
        if original.boost(roots) {
            touched.insert(original.key());
        }
    }
    put_back_after(roots, held, forks, &touched)
}

/// The saved state at once, by an agent that leaves nothing unsafe.
pub(super) fn put_back(roots: &Roots, held: &Held, forks: &Forks) -> Restoration {
    put_back_after(roots, held, forks, &BTreeSet::new())
}

/// The saved state. `touched` are the values that the safe state changed.
fn put_back_after(
    roots: &Roots,
    held: &Held,
    forks: &Forks,
    touched: &BTreeSet<Key>,
) -> Restoration {
    let mut reach = Reach::new(roots, held, forks);
    reach.restore_known();
    let mut outcomes: BTreeMap<Key, Restored> = BTreeMap::new();
    let is_restored_here = |original: &&Original| {
        let is_left_out = matches!(
            original,
            Original::Thread { .. } | Original::Started { .. } | Original::Unit(_)
        );
        !is_left_out
    };
    // Two passes: one file may decide which values another accepts (a governor its preferences).
    for _ in 0..2 {
        for original in held.originals().filter(is_restored_here) {
            let key = original.key();
            let before = outcomes.get(&key);
            // A value that was left may show Lull's value now that another file is restored.
            let is_left = matches!(before, Some(Restored::Left { .. }));
            let is_known = !is_left && (before.is_some() || touched.contains(&key));
            let outcome = match is_known {
                true => original.without_ours().restore(roots),
                false => original.restore(roots),
            };
            if !(before == Some(&Restored::Done) && outcome == Restored::Already) {
                outcomes.insert(key, outcome);
            }
        }
    }
    let mut total = Restoration::default();
    for (key, outcome) in outcomes {
        let was_touched = outcome == Restored::Already && touched.contains(&key);
        total.count(key, if was_touched { Restored::Done } else { outcome });
    }
    reach.restore_all(&mut total);
    restore_limits(roots, held, &mut total, |_| true);
    total
}

/// Restores limits of units. All have one deadline, so that a busy systemd delays the end of the
/// restore only once.
fn restore_limits(
    roots: &Roots,
    held: &Held,
    total: &mut Restoration,
    is_wanted: impl Fn(&Key) -> bool,
) {
    let deadline = systemd::deadline();
    for original in held.originals().filter(|original| is_wanted(&original.key())) {
        if let Original::Unit(state) = original {
            total.count(original.key(), restore_limit(state, roots, deadline));
        }
    }
}

/// Restores limits of units that have failed, until none fails or `patience` is over: systemd
/// answers nothing while it reloads its units. Returns whether it tried.
pub(super) fn retry_limits(
    roots: &Roots,
    held: &Held,
    total: &mut Restoration,
    patience: Duration,
) -> bool {
    let begun = Instant::now();
    let mut has_tried = false;
    while total.failed.iter().any(is_limit) && begun.elapsed() < patience {
        std::thread::sleep(UNIT_PAUSE);
        let (limits, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut total.failed).into_iter().partition(is_limit);
        total.failed = others;
        restore_limits(roots, held, total, |key| limits.iter().any(|(failed, _)| failed == key));
        has_tried = true;
    }
    has_tried
}

/// Tries again what a former restore could not restore, threads left out: they may have ended or
/// belong to another program by now. Returns whether it tried anything.
pub(super) fn retry_failed(roots: &Roots, held: &Held, total: &mut Restoration) -> bool {
    let failed = std::mem::take(&mut total.failed);
    let started = failed.iter().filter_map(|(key, _)| match key {
        Key::Started(process) => Some(*process),
        _ => None,
    });
    let started: Vec<ProcessId> = started.collect();
    let Ended { left, unproven, .. } = match started.is_empty() {
        true => Ended::default(),
        false => end_started(roots, held, &started, &Forks::default()),
    };
    let mut has_tried = false;
    for (key, why) in failed {
        let outcome = match &key {
            Key::Thread(..) => None,
            Key::Started(process) if left.contains(process) => Some(end_of(roots, *process)),
            Key::Started(_) => Some(Restored::Gone),
            key => {
                let original = held.originals().find(|original| original.key() == *key);
                original.map(|original| original.restore(roots))
            }
        };
        has_tried |= outcome.is_some();
        match outcome {
            // The value may be a result of the restore that failed.
            None | Some(Restored::Left { .. }) => total.failed.push((key, why)),
            Some(outcome) => total.count(key, outcome),
        }
    }
    let further = left.into_iter().filter(|process| !started.contains(process));
    count_left(roots, further, &unproven, total);
    has_tried
}

/// Ends these processes, which the agent has started, and what they have made.
pub(super) fn end_started(
    roots: &Roots,
    held: &Held,
    started: &[ProcessId],
    forks: &Forks,
) -> Ended {
    let marks: Vec<String> = held.agent.into_iter().map(apps::mark_of).collect();
    let tree = |root: &ProcessId| StartedTree { root: *root, group: Group::Unfollowed };
    let started: Vec<StartedTree> = started.iter().map(tree).collect();
    apps::terminate(forks, roots, &started, &marks, GRACE)
}

/// Counts processes that were started and could not be ended, and those of which it is not known
/// whether an app made them.
pub(super) fn count_left(
    roots: &Roots,
    processes: impl IntoIterator<Item = ProcessId>,
    unproven: &[ProcessId],
    total: &mut Restoration,
) {
    for process in processes {
        total.count(Key::Started(process), end_of(roots, process));
    }
    for process in unproven {
        let why = "in a process group with the number of an app that has ended";
        let missed = format!("{} {why}", reach::describe(roots, process.pid));
        if !total.missed.contains(&missed) {
            total.missed.push(missed);
        }
    }
}

/// The outcome of ending a process that was started.
fn end_of(roots: &Roots, process: ProcessId) -> Restored {
    match process.look(roots) {
        Ok(None) => Restored::Gone,
        Ok(Some(_)) => {
            Restored::Failed { why: "it could not be ended and runs; end it by hand".to_owned() }
        }
        Err(error) => Restored::Failed { why: format!("it cannot be looked up: {error}") },
    }
}

fn is_limit((key, _): &(Key, String)) -> bool {
    matches!(key, Key::Unit(..))
}
