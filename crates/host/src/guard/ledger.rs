//! The ledger: what Lull changed, on disk before it is changed.
//!
//! One file in the state directory, appended to and synchronised before any
//! knob is written; its lines are described in `entry.rs`. While a ledger is
//! open its agent holds the lock of the directory. A ledger that its agent did
//! not close belongs to an agent that died: its guard puts the values back,
//! and if that died too the next [`Ledger::open`] does, before anything else.
//!
//! Verified on Linux 6.18: the values survive SIGKILL at random moments of
//! agent and guard (`tests/processes`), torn and damaged lines, and a full
//! file system (`/dev/full`, a tmpfs of one page).

use super::cpuset;
use super::entry::{Entry, EntryContent, FORMAT};
use super::field::{FieldValue, ThreadWrite};
use super::held::Held;
use super::ledger_file::{Clock, LedgerFile};
use super::lock::{Lock, Role};
use super::original::{Key, Original};
use super::recovery::{self, Recovery};
use super::restoration::Restoration;
use super::restore;
use super::state_dir::StateDir;
use crate::apps::{Facts, Forks, ProcessId, threads_of};
use crate::files::unless_gone;
use crate::own_directory::DirectoryError;
use crate::{LiveThread, Roots};
use lull_control::CoreSet;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A ledger longer than this loses the lines of owners that are gone.
const COMPACT_BYTES: u64 = 1 << 20;

/// An agent's own open ledger.
#[derive(Debug)]
pub struct Ledger {
    file: LedgerFile,
    held: Held,
    clock: Clock,
    dir: StateDir,
    roots: Roots,
    agent: ProcessId,
    compact_at: u64,
    forks: Forks,
    _lock: Lock,
}

/// Why old values cannot be saved or read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another agent runs.
    #[error(
        "another agent, process {pid}, already controls this machine (state directory {dir}): \
         stop it with `kill {pid}`, or name another state directory",
        dir = .dir.display()
    )]
    Busy {
        /// The other agent.
        pid: i32,
        /// The state directory of both.
        dir: PathBuf,
    },
    /// A restore has not ended in time.
    #[error(
        "process {pid} is still restoring old values (state directory {dir}): that takes up to two \
         minutes while systemd does not answer; if it takes longer, end it and run `lull restore`",
        dir = .dir.display()
    )]
    Restoring {
        /// The process.
        pid: i32,
        /// The state directory.
        dir: PathBuf,
    },
    /// Written by another version.
    #[error(
        "ledger {path} has format {found}, and this Lull knows format {FORMAT}: \
         run `lull restore` of the version that wrote it",
        path = .path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The old values are not safe on disk.
    #[error(
        "cannot save old values to {path}: {source}; no knob was changed",
        path = .path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The ledger cannot be closed after a restore.
    #[error(
        "{outcome}; the ledger {path} cannot be closed: {source}; make it writable and run \
         `lull restore`, which restores the values once more",
        path = .path.display()
    )]
    Unclosed {
        /// The outcome of the restore.
        outcome: String,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The ledger or a file that it needs cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A ledger and the recovery that its opening needed.
#[derive(Debug)]
pub struct Opened {
    /// The ledger.
    pub ledger: Ledger,
    /// The changes that an earlier agent left when it died, and their restoration.
    pub recovery: Option<Recovery>,
}

impl Ledger {
    /// Takes the state directory for this agent, restores what a dead agent
    /// left in it, and starts a new ledger.
    ///
    /// # Errors
    /// [`LedgerError::Busy`] if another agent has the directory, others if it
    /// or the ledger in it cannot be used.
    pub fn open(dir: StateDir, roots: &Roots) -> Result<Opened, LedgerError> {
        let lock = recovery::lock(&dir, Role::Agent)?;
        let recovery = recovery::recover(&dir, roots, Duration::ZERO)?;
        let clock = Clock::read(roots)?;
        let proc_error = |source| LedgerError::Read { path: roots.proc.clone(), source };
        let agent = ProcessId::own(roots).map_err(proc_error)?;
        let header = clock.entry(header(agent));
        let file = LedgerFile::create(&dir, std::slice::from_ref(&header))?;
        let mut held = Held::default();
        held.take(&header);
        let roots = roots.clone();
        let (compact_at, forks) = (COMPACT_BYTES, Forks::default());
        let ledger = Self { file, held, clock, dir, roots, agent, compact_at, forks, _lock: lock };
        Ok(Opened { ledger, recovery })
    }

    /// Saves values before a change: each value before its first change, and the one that Lull is
    /// about to write. A pair that is known already is skipped.
    ///
    /// # Errors
    /// [`LedgerError::Write`]: nothing of it counts as saved, so nothing of it may be changed.
    pub fn record(&mut self, originals: &[Original]) -> Result<(), LedgerError> {
        let unsaved = originals.iter().filter_map(|original| self.held.unsaved(original));
        let new: Vec<Entry> =
            unsaved.map(|original| self.clock.entry(EntryContent::Old(original))).collect();
        self.append(&new)
    }

    /// Saves how threads are scheduled, before any of them is first changed.
    ///
    /// A thread made under Lull's settings does not show its owner's: a new thread of a known
    /// process needs no line, since its main thread's values apply to it; a new process gets the
    /// values of its creator. A thread that is gone meanwhile is skipped.
    ///
    /// # Errors
    /// As [`Ledger::record`]; also if a thread's state cannot be read.
    pub fn record_threads(&mut self, threads: &[LiveThread]) -> Result<(), LedgerError> {
        let entries = self.originals_of(threads, |_| true)?;
        self.append(&entries)
    }

    /// Saves the values about to be written to threads, and how the threads were scheduled before,
    /// which must be on disk before the write.
    ///
    /// A process to which nothing is written, because it has the wanted values already, is saved
    /// only if a process of the ledger has made it: no other has anything to restore.
    ///
    /// # Errors
    /// As [`Ledger::record_threads`].
    pub fn record_writes(&mut self, writes: &[ThreadWrite]) -> Result<(), LedgerError> {
        let threads: Vec<LiveThread> = writes.iter().map(|write| write.thread).collect();
        let with_values = writes.iter().filter(|write| !write.values.is_empty());
        let written: BTreeSet<i32> = with_values.map(|write| write.thread.pid).collect();
        let mut entries = self.originals_of(&threads, |pid| written.contains(&pid))?;
        let mut by_values: BTreeMap<&[FieldValue], Vec<(i32, u64)>> = BTreeMap::new();
        let is_new =
            |write: &&ThreadWrite| !write.values.is_empty() && !self.held.has_written(write);
        for ThreadWrite { thread, values } in writes.iter().filter(is_new) {
            by_values.entry(values).or_default().push((thread.tid, thread.start_ticks));
        }
        for (values, threads) in by_values {
            entries
                .push(self.clock.entry(EntryContent::Write { threads, values: values.to_vec() }));
        }
        self.append(&entries)
    }

    /// Saves what processes were before Lull that others of the ledger have made since, as
    /// soon as they are seen: their creators may be gone when the values are restored. `parent_of`
    /// returns the first known parent of a process.
    ///
    /// # Errors
    /// As [`Ledger::record_threads`].
    pub fn record_descendants(
        &mut self,
        threads: &[LiveThread],
        parent_of: impl Fn(i32) -> Option<i32>,
    ) -> Result<(), LedgerError> {
        let mut entries = Vec::new();
        let is_known = |thread: &LiveThread| self.held.knows(&key_of(*thread));
        for main in threads.iter().filter(|thread| thread.is_main() && !is_known(thread)) {
            if let Some(parent) = parent_of(main.pid) {
                entries.extend(self.adoption(*main, parent)?.unwrap_or_default());
            }
        }
        self.append(&entries)
    }

    /// Returns the processes that others of the ledger have made since Lull first wrote to these,
    /// where the kernel reports forks, of the ones that `find` finds.
    pub fn unsaved_descendants(
        &self,
        mut find: impl FnMut(i32) -> Option<ProcessId>,
    ) -> Vec<LiveThread> {
        let mut found = Vec::new();
        self.forks.descendants(|pid, creator| {
            let is_steered = self.held.has_process(creator);
            let process = is_steered.then(|| find(pid)).flatten();
            let process = process.filter(|process| !self.held.has_process(*process));
            let main = process.map(|ProcessId { start_ticks, .. }| LiveThread {
                pid,
                tid: pid,
                start_ticks,
            });
            found.extend(main.filter(|main| self.held.may_adopt(creator.pid, *main)));
        });
        found
    }

    /// Saves threads again of which another program has set a field since they were saved, so that
    /// they get that back. This is for threads before a write to them: they were saved when they
    /// were first seen. A thread that is gone, or whose process is not saved, is skipped.
    ///
    /// A main thread's values go for the other threads, too. Where it is saved again, threads
    /// without a line get one of their own, because another program may have set it alone.
    ///
    /// # Errors
    /// As [`Ledger::record_threads`].
    pub fn record_changed(&mut self, threads: &[LiveThread]) -> Result<(), LedgerError> {
        let mut entries = Vec::new();
        let mut online = None;
        for thread in threads.iter().filter(|thread| self.held.inherited.contains_key(&thread.pid))
        {
            let Some(now) = self.read(*thread)? else { continue };
            let online = online.get_or_insert_with(|| cpuset::online(&self.roots)).clone();
            let allowed = cpuset::cores_of_process(&self.roots, thread.pid);
            let limits: Vec<_> = online.into_iter().chain(allowed).collect();
            if !self.held.knows(&key_of(*thread)) {
                entries.extend(self.set_alone(*thread, &now, &limits));
            } else if let Some(line) = self.held.changed(*thread, &now, &limits, &self.clock) {
                entries.push(line);
                if thread.is_main() {
                    entries.extend(self.own_of_others(*thread, &limits)?);
                }
            }
        }
        self.append(&entries)
    }

    /// The line of a thread that has none, if it was set otherwise than its main thread.
    fn set_alone(&self, thread: LiveThread, now: &Original, limits: &[CoreSet]) -> Option<Entry> {
        let ProcessId { pid, start_ticks } = ProcessId::lookup(&self.roots, thread.pid).ok()?;
        let main = LiveThread { pid, tid: pid, start_ticks };
        let own = self.held.differing(main, now, limits)?;
        Some(self.clock.entry(EntryContent::Old(own)))
    }

    /// The lines of the threads of a process that have none so far.
    fn own_of_others(
        &self,
        main: LiveThread,
        limits: &[CoreSet],
    ) -> Result<Vec<Entry>, LedgerError> {
        let mut entries = Vec::new();
        let others = self.threads_of(main.pid)?;
        let is_unknown = |thread: &LiveThread| !self.held.knows(&key_of(*thread));
        for other in others.into_iter().filter(is_unknown) {
            let now = self.read(other)?;
            let own = now.and_then(|now| self.held.own(main, &now, limits));
            entries.extend(own.map(|own| self.clock.entry(EntryContent::Old(own))));
        }
        Ok(entries)
    }

    /// The processes that were made since, where the kernel reports them.
    pub const fn forks(&self) -> &Forks {
        &self.forks
    }

    /// Returns the lines that [`Ledger::record_threads`] adds. For a process that is not written
    /// to, only values inherited from its creator.
    fn originals_of(
        &self,
        threads: &[LiveThread],
        is_written: impl Fn(i32) -> bool,
    ) -> Result<Vec<Entry>, LedgerError> {
        let unknown = |thread: &&LiveThread| !self.held.knows(&key_of(**thread));
        let (mains, others): (Vec<LiveThread>, Vec<LiveThread>) =
            threads.iter().filter(unknown).partition(|thread| thread.is_main());
        let mut new = Vec::new();
        let mut read_now = BTreeSet::new();
        let mut adopted = BTreeSet::new();
        let old = |original: Original| self.clock.entry(EntryContent::Old(original));
        for main in mains {
            let parent = match self.held.inherited.is_empty() {
                true => None,
                false => Facts::of_process(&self.roots, main.pid).ok().map(|facts| facts.parent),
            };
            let adoption = parent.map(|parent| self.adoption(main, parent)).transpose()?;
            if let Some(entries) = adoption.flatten() {
                adopted.insert(main.pid);
                new.extend(entries);
            } else if is_written(main.pid) {
                read_now.insert(main.pid);
                new.extend(self.read(main)?.map(old));
            }
        }
        for thread in others.into_iter().filter(|thread| is_written(thread.pid)) {
            let has_default =
                adopted.contains(&thread.pid) || self.held.inherited.contains_key(&thread.pid);
            if read_now.contains(&thread.pid) || !has_default {
                new.extend(self.read(thread)?.map(old));
            }
        }
        Ok(new)
    }

    /// Gives up values: their owner or another manager set them since, and
    /// that change wins. They are not restored, and a thread or file given up
    /// is not saved again.
    ///
    /// # Errors
    /// [`LedgerError::Write`]: the values would still be restored.
    pub fn release(&mut self, keys: &[Key]) -> Result<(), LedgerError> {
        let line = |key| self.clock.entry(EntryContent::Released(key));
        let entries: Vec<Entry> = keys.iter().cloned().map(line).collect();
        self.append(&entries)
    }

    /// How a thread was scheduled before Lull first set it or its process; `None` if the ledger
    /// does not hold that, so that it is as its owner set it.
    pub fn owners(&self, thread: LiveThread) -> Option<Original> {
        let process = self.held.inherited.get(&thread.pid)?;
        self.held.for_thread(thread, &process.original)
    }

    /// Restores everything now; the ledger stays open.
    pub fn restore(&self) -> Restoration {
        restore::put_back(&self.roots, &self.held, &self.forks)
    }

    /// Restores the threads of these processes and of their descendants, because they belong to no
    /// app any more; the ledger keeps their lines.
    pub fn restore_processes(&self, processes: &BTreeSet<ProcessId>) -> Restoration {
        restore::put_back(&self.roots, &self.held.only(processes), &self.forks)
    }

    /// Forgets the threads of processes that were restored completely because they belong to no
    /// app any more: what their owner sets from then on stays, also if Lull once wrote the same
    /// value. A thread is saved again before its next change.
    ///
    /// # Errors
    /// [`LedgerError::Write`], or [`LedgerError::Read`] if the threads cannot be listed: they would
    /// be restored once more at the end.
    pub fn dismiss(&mut self, processes: &BTreeSet<ProcessId>) -> Result<(), LedgerError> {
        let mut live = Vec::new();
        for process in processes.iter().filter(|process| process.may_run(&self.roots)) {
            live.extend(self.threads_of(process.pid)?);
        }
        let threads = self.held.known_threads(processes, &live);
        if threads.is_empty() {
            return Ok(());
        }
        self.append(&[self.clock.entry(EntryContent::Dismissed(threads))])
    }

    /// Ends the ledger: there is nothing to restore any more.
    ///
    /// # Errors
    /// If not even an empty file can be written; the guard then restores what
    /// the ledger holds, which changes nothing if all was restored.
    pub fn close(mut self) -> Result<(), LedgerError> {
        self.file.close(&self.clock.entry(EntryContent::Closed), "all values are as before")
    }

    /// The agent that this ledger belongs to.
    pub const fn agent(&self) -> ProcessId {
        self.agent
    }

    /// Returns the path of the ledger's file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    fn append(&mut self, entries: &[Entry]) -> Result<(), LedgerError> {
        if entries.is_empty() {
            return Ok(());
        }
        self.file.append(entries)?;
        for entry in entries {
            self.held.take(entry);
            entry.main_process().into_iter().for_each(|process| self.forks.distinguish(process));
        }
        if self.file.len() > self.compact_at {
            self.compact()?;
        }
        Ok(())
    }

    /// Drops the lines of threads and processes that are gone, which an app
    /// that makes many processes leaves behind.
    fn compact(&mut self) -> Result<(), LedgerError> {
        let mut entries = vec![self.clock.entry(header(self.agent))];
        entries.extend(self.held.alive(&self.roots, &self.clock));
        self.file = LedgerFile::create(&self.dir, &entries)?;
        self.held = Held::default();
        for entry in &entries {
            self.held.take(entry);
        }
        self.compact_at = COMPACT_BYTES.max(2 * self.file.len());
        Ok(())
    }

    /// The lines about a new process that a process of the ledger made: its parent, or where
    /// that has ended, the one that the kernel reported.
    fn adoption(&self, main: LiveThread, parent: i32) -> Result<Option<Vec<Entry>>, LedgerError> {
        let reported = self.forks.creator(main.pid).filter(|it| self.held.has_process(*it));
        let mut creators = [Some(parent), reported.map(|it| it.pid)].into_iter().flatten();
        let Some(creator) = creators.find(|creator| self.held.may_adopt(*creator, main)) else {
            return Ok(None);
        };
        let now = self.read(main)?;
        Ok(now.and_then(|now| self.held.adoption(&now, main, creator, &self.clock)))
    }

    /// The threads of a process; none if it is gone.
    fn threads_of(&self, pid: i32) -> Result<Vec<LiveThread>, LedgerError> {
        let found = unless_gone(threads_of(&self.roots, pid));
        found.map(Option::unwrap_or_default).map_err(|source| {
            let path = self.roots.proc.join(format!("{pid}/task"));
            LedgerError::Read { path, source }
        })
    }

    fn read(&self, thread: LiveThread) -> Result<Option<Original>, LedgerError> {
        match Original::of_thread(thread) {
            Ok(original) => Ok(Some(original)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(source) => {
                let path = self.roots.proc.join(format!("{}/task/{}", thread.pid, thread.tid));
                Err(LedgerError::Read { path, source })
            }
        }
    }
}

fn header(agent: ProcessId) -> EntryContent {
    EntryContent::Header { format: FORMAT, agent, version: env!("CARGO_PKG_VERSION").to_owned() }
}

const fn key_of(thread: LiveThread) -> Key {
    Key::Thread(thread.tid, thread.start_ticks)
}
