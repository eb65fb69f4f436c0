//! Finds what a dead agent left, restores it, and reports the outcome.

use super::entry::{FORMAT, Lines, What};
use super::held::Held;
use super::ledger::LedgerError;
use super::ledger_file::{Clock, LedgerFile};
use super::lock::{Holder, Lock, Role};
use super::restore::{self, Restoration};
use super::state_dir::StateDir;
use crate::Roots;
use crate::apps::{self, GRACE, ProcessId};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a restore may hold the lock: the grace of started apps and as much again.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(GRACE.as_secs() * 2 + 5);
/// How long a holder of the lock may take to say who it is.
const NAME_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// The traces of a dead agent, and the outcome of restoring them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recovery {
    /// The dead agent; `None` if the line that names it is damaged.
    pub agent: Option<ProcessId>,
    /// What was done.
    pub how: How,
    /// Lines that could not be used, and why; their values were not restored.
    pub damaged: Vec<String>,
}

/// What was done about a dead agent's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// They were restored now.
    Now(Restoration),
    /// Its guard had put them back.
    ByGuard(Restoration),
    /// They are of an earlier boot: the kernel has dropped them long since.
    OtherBoot {
        /// How many.
        values: usize,
    },
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.agent {
            Some(agent) => write!(f, "agent {}", agent.pid)?,
            None => f.write_str("an agent")?,
        }
        f.write_str(" ended without putting back its changes: ")?;
        match &self.how {
            How::Now(restoration) => restoration.fmt(f)?,
            How::ByGuard(restoration) => write!(f, "its guard did; {restoration}")?,
            How::OtherBoot { values } => {
                write!(f, "the machine was restarted since, so its {values} values are dropped")?;
            }
        }
        match self.damaged.as_slice() {
            [] => Ok(()),
            damaged => write!(f, "; unreadable in the ledger: {}", damaged.join(", ")),
        }
    }
}

/// Restores what a dead agent left in the state directory, by hand.
///
/// # Errors
/// [`LedgerError::Busy`] if the agent runs, others if the ledger cannot be read.
pub fn restore_stale(dir: &StateDir, roots: &Roots) -> Result<Option<Recovery>, LedgerError> {
    let _lock = lock(dir, Role::Restorer)?;
    recover(dir, roots)
}

/// Takes the lock; waits for a restore that is under way.
pub(super) fn lock(dir: &StateDir, role: Role) -> Result<Lock, LedgerError> {
    let started = Instant::now();
    loop {
        let holder = match Lock::take(dir, role) {
            Ok(Ok(lock)) => return Ok(lock),
            Ok(Err(holder)) => holder,
            Err(source) => {
                let path = dir.path().join("lock");
                return Err(LedgerError::Write { path, source });
            }
        };
        if let Some(refusal) = refusal(dir, holder, started.elapsed()) {
            return Err(refusal);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Why not to wait any longer for the holder of the lock. The file may still
/// name the holder before, which is dead then.
fn refusal(dir: &StateDir, holder: Option<Holder>, waited: Duration) -> Option<LedgerError> {
    let dir = dir.path().to_owned();
    let exists = |pid| {
        rustix::process::Pid::from_raw(pid).is_some_and(|pid| {
            rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
        })
    };
    match holder {
        Some(Holder { role: Role::Agent, pid }) if exists(pid) || waited > NAME_TIMEOUT => {
            Some(LedgerError::Busy { pid, dir })
        }
        Some(Holder { pid, .. }) if waited > RESTORE_TIMEOUT => {
            Some(LedgerError::Restoring { pid, dir })
        }
        None if waited > NAME_TIMEOUT => Some(LedgerError::Restoring { pid: 0, dir }),
        _ => None,
    }
}

/// Restores what the ledger in `dir` holds, if its agent is dead.
pub(super) fn recover(dir: &StateDir, roots: &Roots) -> Result<Option<Recovery>, LedgerError> {
    let Some((mut file, lines)) = LedgerFile::existing(dir)? else { return Ok(None) };
    let clock = Clock::read(roots)?;
    check_format(&file, &lines)?;
    let held = Held::from_lines(&lines, clock.boot());
    match held.agent {
        Some(agent) if !held.closed && agent.facts(roots).is_some() && is_other(agent) => {
            Err(LedgerError::Busy { pid: agent.pid, dir: dir.path().to_owned() })
        }
        _ => put_all_back(&mut file, &lines, roots, &clock),
    }
}

/// Restores what a ledger holds, of any agent, and closes it.
pub(super) fn put_all_back(
    file: &mut LedgerFile,
    lines: &Lines,
    roots: &Roots,
    clock: &Clock,
) -> Result<Option<Recovery>, LedgerError> {
    let held = Held::from_lines(lines, clock.boot());
    let told = |how| Some(Recovery { agent: held.agent, how, damaged: lines.damaged.clone() });
    if held.closed {
        return Ok(held.restored.clone().map(How::ByGuard).and_then(told));
    }
    let started = held.started();
    let is_empty = held.values() == 0 && started.is_empty() && lines.damaged.is_empty();
    let how = match held.other_boot {
        0 if is_empty => None,
        values if is_empty => Some(How::OtherBoot { values }),
        _ => {
            let restoration = restore::boost_and_put_back(roots, &held);
            // Recorded for the next agent; the values are restored even if the disk is full.
            let _ = file.append(&[clock.entry(What::Restored(restoration.clone()))]);
            Some(How::Now(restoration))
        }
    };
    if let Some(agent) = held.agent {
        let _ = apps::terminate(roots, &started, &[apps::mark_of(agent)], GRACE);
    }
    file.close(&clock.entry(What::Closed))?;
    Ok(how.and_then(told))
}

fn is_other(agent: ProcessId) -> bool {
    agent.pid != rustix::process::getpid().as_raw_nonzero().get()
}

fn check_format(file: &LedgerFile, lines: &Lines) -> Result<(), LedgerError> {
    let format = |entry: &super::entry::Entry| match entry.what {
        What::Header { format, .. } if format != FORMAT => Some(format),
        _ => None,
    };
    match lines.entries.iter().find_map(format) {
        Some(found) => Err(LedgerError::Format { path: file.path().to_owned(), found }),
        None => Ok(()),
    }
}
