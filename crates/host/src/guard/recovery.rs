//! Finds the changes that a dead agent left, restores them, and reports the outcome.

use super::entry::{EntryContent, FORMAT, FORMAT_MIN, Lines};
use super::held::Held;
use super::ledger::LedgerError;
use super::ledger_file::{Clock, LedgerFile};
use super::lock::{Holder, Lock, Role};
use super::original::Key;
use super::restoration::Restoration;
use super::restore;
use super::state_dir::StateDir;
use crate::Roots;
use crate::apps::{Ended, Facts, Forks, GRACE, ProcessId};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// How long to wait for a restore that holds the lock: the grace of started apps, as much again,
/// and ten seconds for systemd. A guard that waits longer for systemd keeps the lock.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(GRACE.as_secs() * 2 + 15);
/// How long a guard, and `lull restore`, continues to restore limits of units while systemd does
/// not answer.
pub(super) const UNIT_PATIENCE: Duration = Duration::from_secs(90);
/// How long a holder of the lock may take to identify itself.
const NAME_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an agent that was killed may take to end. The kernel ends a process that waits for a
/// disk once the disk has answered. Of 1,000 kills beside builds one restore was refused while this
/// was 5 s and the next 300 ms; which of them was too short is not known.
const DYING_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to look for the signs that an agent is dying before it counts as running. The
/// kernel removes a delivered SIGKILL from the pending set a moment before it marks the
/// process as exiting, so one look can miss both, and the process may wait for a core then.
const SIGNS_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// The traces of a dead agent, and the outcome of restoring them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recovery {
    /// The dead agent; `None` if the line that names it is damaged.
    pub agent: Option<ProcessId>,
    /// The action.
    pub how: RecoveryAction,
    /// Lines that could not be used, and why; their values were not restored.
    pub damaged: Vec<String>,
}

/// The action on a dead agent's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryAction {
    /// They were restored now.
    Now(Restoration),
    /// Its guard, or an earlier restore by hand, restored them.
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
        f.write_str(" left changes")?;
        match &self.how {
            RecoveryAction::Now(restoration) => write!(f, ": {restoration}")?,
            RecoveryAction::ByGuard(restoration) => {
                write!(f, ", restored by its guard or an earlier `lull restore`: {restoration}")?;
            }
            RecoveryAction::OtherBoot { values } => {
                write!(f, ": the machine was restarted since, so its {values} values are dropped")?;
            }
        }
        match self.damaged.as_slice() {
            [] => Ok(()),
            damaged => write!(f, "; unreadable in the ledger: {}", damaged.join(", ")),
        }
    }
}

impl Recovery {
    /// Whether a value is known not to be as its owner left it.
    pub fn has_failed(&self) -> bool {
        !self.failed().is_empty() || !self.damaged.is_empty()
    }

    /// The values that are not as they were, and why.
    fn failed(&self) -> &[(Key, String)] {
        match &self.how {
            RecoveryAction::Now(restoration) | RecoveryAction::ByGuard(restoration) => {
                &restoration.failed
            }
            RecoveryAction::OtherBoot { .. } => &[],
        }
    }
}

/// Restores what a dead agent left in the state directory, by hand, or returns what its guard
/// restored. A recovery is returned once, and then what has failed of it.
///
/// # Errors
/// [`LedgerError::Busy`] if the agent runs, others if the ledger cannot be read.
pub fn restore_stale(dir: &StateDir, roots: &Roots) -> Result<Option<Recovery>, LedgerError> {
    let _lock = lock(dir, Role::Restorer)?;
    // The ledger is closed afterwards, so that no other process tries again.
    let recovery = recover(dir, roots, UNIT_PATIENCE)?;
    if let (Some(recovery), Some((mut file, _))) = (&recovery, LedgerFile::existing(dir)?) {
        // If that cannot be written, a later restore or start reports the whole recovery again.
        let _ = keep_failed(recovery, &mut file, &Clock::read(roots)?);
    }
    Ok(recovery)
}

/// Leaves in a closed ledger only what a later restore or start must report.
fn keep_failed(
    recovery: &Recovery,
    file: &mut LedgerFile,
    clock: &Clock,
) -> Result<(), LedgerError> {
    if !recovery.has_failed() {
        let path = file.path().to_owned();
        return file.empty().map_err(|source| LedgerError::Write { path, source });
    }
    let failed = Restoration { failed: recovery.failed().to_vec(), ..Restoration::default() };
    file.append(&[clock.entry(EntryContent::Restored(failed))])
}

/// Takes the lock; waits for a restore that is under way.
pub(super) fn lock(dir: &StateDir, role: Role) -> Result<Lock, LedgerError> {
    let started = Instant::now();
    let mut was_dying = false;
    loop {
        let holder = match Lock::take(dir, role) {
            Ok(Ok(lock)) => return Ok(lock),
            Ok(Err(holder)) => holder,
            Err(source) => {
                let path = dir.path().join("lock");
                return Err(LedgerError::Write { path, source });
            }
        };
        was_dying |= matches!(holder, Some(Holder { role: Role::Agent, pid }) if is_dying(pid));
        let patience = if was_dying { DYING_TIMEOUT } else { SIGNS_TIMEOUT };
        if let Some(refusal) = refusal(dir, holder, started.elapsed(), patience) {
            return Err(refusal);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process has been killed and has not ended yet: SIGKILL is pending, or the
/// kernel is taking the process down.
fn is_dying(pid: i32) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let is_killed = |status: String| {
        let pending = |line: &str| {
            let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        };
        let sigkill = 1 << (libc::SIGKILL - 1);
        status.lines().filter_map(pending).any(|mask| mask & sigkill != 0)
    };
    match Facts::of_process(&Roots::default(), pid) {
        Ok(facts) if facts.is_ended() || facts.is_exiting => true,
        Ok(_) => read("status").is_ok_and(is_killed),
        Err(_) => true,
    }
}

/// Why not to wait any longer for the holder of the lock. The file may still
/// name the holder before, which is dead then.
fn refusal(
    dir: &StateDir,
    holder: Option<Holder>,
    waited: Duration,
    patience: Duration,
) -> Option<LedgerError> {
    let dir = dir.path().to_owned();
    match holder {
        Some(Holder { role: Role::Agent, pid }) if waited > patience => {
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
pub(super) fn recover(
    dir: &StateDir,
    roots: &Roots,
    patience: Duration,
) -> Result<Option<Recovery>, LedgerError> {
    let Some((mut file, lines)) = LedgerFile::existing(dir)? else { return Ok(None) };
    let clock = Clock::read(roots)?;
    check_format(&file, &lines)?;
    let held = Held::from_lines(&lines, clock.boot());
    match held.agent {
        Some(agent) if !held.closed && is_other(agent) && !ends_soon(agent, roots) => {
            Err(LedgerError::Busy { pid: agent.pid, dir: dir.path().to_owned() })
        }
        // No process followed forks since the guard died.
        _ => put_all_back(&mut file, &lines, &Forks::default(), roots, &clock, patience),
    }
}

/// Waits for the end of an agent that has lost its lock. The kernel releases the lock of a
/// killed process a moment before the process counts as ended.
fn ends_soon(agent: ProcessId, roots: &Roots) -> bool {
    let begun = Instant::now();
    while agent.may_run(roots) {
        if begun.elapsed() > DYING_TIMEOUT {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Restores the values in a ledger, of any agent, and closes it. Limits of units that fail are
/// restored again until `patience` is over. Of a closed ledger only failed values are restored.
pub(super) fn put_all_back(
    file: &mut LedgerFile,
    lines: &Lines,
    forks: &Forks,
    roots: &Roots,
    clock: &Clock,
    patience: Duration,
) -> Result<Option<Recovery>, LedgerError> {
    let held = Held::from_lines(lines, clock.boot());
    let report = |how| Some(Recovery { agent: held.agent, how, damaged: lines.damaged.clone() });
    if held.closed {
        let Some(mut restored) = held.restored.clone() else { return Ok(None) };
        if !restore::retry_failed(roots, &held, &mut restored) {
            return Ok(report(RecoveryAction::ByGuard(restored)));
        }
        let _ = file.append(&[clock.entry(EntryContent::Restored(restored.clone()))]);
        return Ok(report(RecoveryAction::Now(restored)));
    }
    let started = held.started();
    let is_empty = held.values() == 0 && started.is_empty() && lines.damaged.is_empty();
    let mut outcome = (!is_empty).then(|| restore::boost_and_put_back(roots, &held, forks));
    // The outcome is recorded for the next agent; the values are restored even if the disk is full.
    let mut record = |outcome: Option<&Restoration>| {
        if let Some(restoration) = outcome {
            let _ = file.append(&[clock.entry(EntryContent::Restored(restoration.clone()))]);
        }
    };
    record(outcome.as_ref());
    let Ended { left, unproven, .. } = restore::end_started(roots, &held, &started, forks);
    if !left.is_empty() || !unproven.is_empty() {
        restore::count_left(roots, left, &unproven, outcome.get_or_insert_default());
        record(outcome.as_ref());
    }
    // Limits of units are retried after everything else is restored, since this may take long.
    let retry = |total| restore::retry_limits(roots, &held, total, patience);
    if outcome.as_mut().is_some_and(retry) {
        record(outcome.as_ref());
    }
    let recovery = match (outcome, held.other_boot) {
        (Some(restoration), _) => report(RecoveryAction::Now(restoration)),
        (None, 0) => None,
        (None, values) => report(RecoveryAction::OtherBoot { values }),
    };
    let nothing = || "there was nothing to restore".to_owned();
    let outcome = recovery.as_ref().map_or_else(nothing, Recovery::to_string);
    file.close(&clock.entry(EntryContent::Closed), &outcome)?;
    Ok(recovery)
}

fn is_other(agent: ProcessId) -> bool {
    agent.pid != rustix::process::getpid().as_raw_nonzero().get()
}

fn check_format(file: &LedgerFile, lines: &Lines) -> Result<(), LedgerError> {
    let format = |entry: &super::entry::Entry| match entry.what {
        EntryContent::Header { format, .. } if !(FORMAT_MIN..=FORMAT).contains(&format) => {
            Some(format)
        }
        _ => None,
    };
    // A closed ledger of another version holds nothing to restore, whatever its format.
    if lines.is_closed() {
        return Ok(());
    }
    match lines.entries.iter().find_map(format) {
        Some(found) => Err(LedgerError::Format { path: file.path().to_owned(), found }),
        None => Ok(()),
    }
}
