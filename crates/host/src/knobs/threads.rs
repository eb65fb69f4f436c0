//! One value on every thread of an app: set, kept on new threads, watched.
//!
//! Affinity and scheduling class share everything but the system calls: a
//! value is written to each thread until a fresh listing shows none without
//! it; new threads, which inherit it unless the app says otherwise, are
//! brought under it every epoch; and a thread that shows another value than
//! was written has met another writer, unless the machine has changed what it allows. A setting
//! that the owner of the app has given it is another matter: each thread then gets the value that
//! it had itself, and new threads keep what they inherit. Only those that inherited Lull's value a
//! moment before get their owner's, too: a thread is listed some time after it was made.

use super::{KnobError, SaveOld};
use crate::Roots;
use crate::apps::ProcessId;
use crate::clock::boot_ticks;
use crate::gauges::app_time::is_gone;
use crate::guard::{FieldValue, Original, ThreadWrite};
use crate::threads::LiveThread;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Listings before giving up on an app that makes threads all the time; threads that it makes later
/// get the setting in the next epoch.
const LISTINGS_MAX: usize = 16;
/// Looks for threads that were made before the owner's values were given back. Later ones that
/// have a value of Lull's have it from their owner.
const LOOKS_MAX: u8 = 3;

/// A value that each thread has.
pub(crate) trait ThreadValue: Copy + PartialEq {
    /// The name of the value in messages: `cores`.
    const WHAT: &'static str;
    /// The type of an app's setting.
    type Wanted: Clone;
    /// The type of the machine's limit on a process's threads.
    type Limit;

    fn get(tid: i32) -> io::Result<Self>;
    /// Gives a thread this value, and writes only the fields in which it differs.
    fn set(self, tid: i32) -> io::Result<()>;
    /// The fields that [`ThreadValue::set`] writes to a thread that has `found`.
    fn fields(self, found: Self) -> Vec<FieldValue>;
    /// The value to write to a thread that has `found`.
    fn aim(wanted: &Self::Wanted, found: Self) -> Self;
    /// The value that a thread had before Lull, where it has `found` now; `None` if Lull leaves
    /// such a thread alone.
    fn owners(original: &Original, found: Self) -> Option<Self>;
    /// Whether `found` is as much of `aim` as the kernel allows.
    fn is_within(aim: Self, found: Self) -> bool;
    /// Reads what the machine allows the threads of a process now.
    fn limit(roots: &Roots, pid: i32) -> Self::Limit;
    /// Returns why a thread that was set to `ours` shows `found`.
    fn deviation(
        wanted: &Self::Wanted,
        ours: Self,
        found: Self,
        limits: &Limits<'_, Self::Limit>,
    ) -> Deviation;
    fn show(self) -> String;
}

/// Why a thread shows another value than was written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deviation {
    /// Another program has set the value.
    Foreign,
    /// The machine allows no more of the setting.
    Limited,
    /// The machine has replaced the setting, which is to be written again.
    Replaced,
}

/// The machine's limits on the threads of processes.
pub(crate) struct Limits<'a, L> {
    /// When they were written, if that is known.
    pub(crate) at_write: Option<&'a L>,
    pub(crate) now: &'a L,
}

/// The threads of one app, as of the last refresh and after another.
pub(crate) trait Threads {
    fn list(&self) -> &[LiveThread];
    fn refresh(&mut self);
}

/// The means with which values are written.
pub(crate) struct Means<'a, S> {
    /// Saves old values first.
    pub(crate) save: &'a mut S,
    /// Whether this process holds `CAP_SYS_NICE`.
    pub(crate) is_privileged: bool,
    pub(crate) roots: &'a Roots,
}

/// The goal for the threads of an app.
#[derive(Debug, Clone)]
struct Goal<W> {
    wanted: W,
    /// Whether the owner of the app has given it that.
    is_owners: bool,
}

impl<W> Goal<W> {
    /// The value to write to a thread that has `found`.
    fn aim<V: ThreadValue<Wanted = W>>(
        &self,
        thread: LiveThread,
        found: V,
        save: &impl SaveOld,
    ) -> V {
        if !self.is_owners {
            return V::aim(&self.wanted, found);
        }
        // A thread that is not saved is as its owner set it.
        let original = save.owners(thread);
        original.and_then(|original| V::owners(&original, found)).unwrap_or(found)
    }
}

/// A value on all threads of one app.
#[derive(Debug)]
pub(crate) struct ThreadKnob<V: ThreadValue> {
    goal: Option<Goal<V::Wanted>>,
    /// Lull's former values of threads while the owner's values are restored, because new threads
    /// may still inherit them.
    former: Option<Former<V>>,
    /// The value that each thread read back after it was set.
    set: BTreeMap<LiveThread, V>,
    /// The limit of each process when its threads were written last.
    limits: BTreeMap<i32, V::Limit>,
}

/// The values that Lull had set before it gave back the owner's.
#[derive(Debug)]
struct Former<V> {
    values: Vec<V>,
    /// The time of that write, in clock ticks since boot. A thread that began later has its values
    /// from its owner.
    at_ticks: u64,
    /// The looks at all threads that are left.
    looks: u8,
}

impl<V: ThreadValue> Former<V> {
    fn new<'a>(all: impl Iterator<Item = &'a V>) -> Self
    where
        V: 'a,
    {
        let mut values = Vec::new();
        for value in all {
            // Most threads of an app have the same one.
            if !values.contains(value) {
                values.push(*value);
            }
        }
        Self { values, at_ticks: boot_ticks(), looks: LOOKS_MAX }
    }
}

/// Threads that another writer has set since.
#[derive(Debug)]
pub(crate) struct Change<V: ThreadValue> {
    /// The value that Lull requested for the app.
    pub(crate) ours: V::Wanted,
    /// The threads, never empty.
    pub(crate) threads: Vec<LiveThread>,
}

impl<V: ThreadValue> Default for ThreadKnob<V> {
    fn default() -> Self {
        Self { goal: None, former: None, set: BTreeMap::new(), limits: BTreeMap::new() }
    }
}

/// The value of each thread that still lives.
pub(crate) fn values<V: ThreadValue>(
    threads: &[LiveThread],
) -> impl Iterator<Item = (LiveThread, V)> + '_ {
    threads.iter().filter_map(|thread| Some((*thread, V::get(thread.tid).ok()?)))
}

impl<V: ThreadValue> ThreadKnob<V> {
    /// Whether new threads are set.
    pub(crate) fn is_set(&self) -> bool {
        self.goal.as_ref().is_some_and(|goal| !goal.is_owners)
    }

    /// Sets every thread, new ones included. If one cannot be set, those set before are restored.
    pub(crate) fn set<S: SaveOld>(
        &mut self,
        wanted: &V::Wanted,
        threads: &mut impl Threads,
        means: &mut Means<'_, S>,
    ) -> Result<(), KnobError> {
        self.pursue(Goal { wanted: wanted.clone(), is_owners: false }, threads, means)
    }

    /// Gives every thread the value that it had before Lull, by which the app is as its owner
    /// `wanted` it. If one cannot be set, those set before are put back.
    pub(crate) fn give_back<S: SaveOld>(
        &mut self,
        wanted: &V::Wanted,
        threads: &mut impl Threads,
        means: &mut Means<'_, S>,
    ) -> Result<(), KnobError> {
        self.pursue(Goal { wanted: wanted.clone(), is_owners: true }, threads, means)
    }

    fn pursue<S: SaveOld>(
        &mut self,
        goal: Goal<V::Wanted>,
        threads: &mut impl Threads,
        means: &mut Means<'_, S>,
    ) -> Result<(), KnobError> {
        let mut before = BTreeMap::<LiveThread, V>::new();
        if let Err(error) = write_all(&goal, self.goal.as_ref(), threads, means, &mut before) {
            put_back(&goal, &before, means);
            return Err(error);
        }
        if !goal.is_owners {
            self.former = None;
        } else if self.is_set() {
            self.former = Some(Former::new(self.set.values()));
        }
        let done: Vec<_> = before.into_keys().collect();
        self.limits.clear();
        self.note_limits(&done, means.roots);
        self.set = values(&done).collect();
        self.goal = Some(goal);
        Ok(())
    }

    /// Checks every thread: applies the setting to new ones, and returns
    /// threads that others set. Does nothing for an app not set.
    pub(crate) fn watch<S: SaveOld>(
        &mut self,
        threads: &[LiveThread],
        means: &mut Means<'_, S>,
    ) -> Result<Option<Change<V>>, KnobError> {
        let Some(goal) = self.goal.clone() else { return Ok(None) };
        let (mut new, mut changed, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut allowed = BTreeMap::new();
        for (thread, found) in values(threads) {
            let ours = match self.set.get(&thread) {
                Some(ours) if *ours == found => continue,
                Some(ours) => *ours,
                None => {
                    new.push((thread, found));
                    continue;
                }
            };
            let now = || V::limit(means.roots, thread.pid);
            let now = &*allowed.entry(thread.pid).or_insert_with(now);
            let limits = Limits { at_write: self.limits.get(&thread.pid), now };
            match V::deviation(&goal.wanted, ours, found, &limits) {
                // The machine has granted a value that was refused before.
                Deviation::Limited if goal.aim(thread, found, &*means.save) == found => {
                    kept.push((thread, found));
                }
                Deviation::Limited => {}
                Deviation::Replaced => new.push((thread, found)),
                Deviation::Foreign => changed.push(thread),
            }
        }
        if self.set.len() + new.len() > threads.len() {
            self.set.retain(|thread, _| threads.contains(thread));
            let pids: BTreeSet<i32> = threads.iter().map(|thread| thread.pid).collect();
            self.limits.retain(|pid, _| pids.contains(pid));
        }
        for (thread, _) in kept.iter().chain(&new) {
            // A process with an older limit keeps it, because its other threads were read before.
            if let Some(now) = allowed.remove(&thread.pid) {
                self.limits.insert(thread.pid, now);
            }
            let now = || V::limit(means.roots, thread.pid);
            self.limits.entry(thread.pid).or_insert_with(now);
        }
        self.set.extend(kept);
        if changed.is_empty() || goal.is_owners {
            self.bring_under(&goal, new, means)?;
        }
        if changed.is_empty() {
            return Ok(None);
        }
        // Threads that had Lull's value when the owner's was given back may be listed later.
        if self.former.is_some() {
            self.set.extend(values(&changed));
        } else {
            self.restored();
        }
        Ok(Some(Change { ours: goal.wanted, threads: changed }))
    }

    /// Notes the machine's limits on these threads, before their values are read.
    fn note_limits(&mut self, threads: &[LiveThread], roots: &Roots) {
        let pids: BTreeSet<i32> = threads.iter().map(|thread| thread.pid).collect();
        self.limits.extend(pids.into_iter().map(|pid| (pid, V::limit(roots, pid))));
    }

    /// Applies the setting to new threads, and to those whose setting the machine has replaced.
    /// If that fails the thread keeps its value, and the failure is reported once.
    fn bring_under<S: SaveOld>(
        &mut self,
        goal: &Goal<V::Wanted>,
        new: Vec<(LiveThread, V)>,
        means: &mut Means<'_, S>,
    ) -> Result<(), KnobError> {
        let is_replaced = |(thread, _): &&(LiveThread, V)| self.set.contains_key(thread);
        let replaced: BTreeSet<LiveThread> =
            new.iter().filter(is_replaced).map(|(thread, _)| *thread).collect();
        self.set.extend(new.iter().copied());
        let new = if goal.is_owners { self.made_before(new) } else { new };
        if new.is_empty() {
            return Ok(());
        }
        // Lull's former value, and what the machine made of Lull's setting, are not the owner's.
        let is_written = |(thread, found): &&(LiveThread, V)| {
            !goal.is_owners && V::aim(&goal.wanted, *found) != *found && !replaced.contains(thread)
        };
        let written: Vec<LiveThread> =
            new.iter().filter(is_written).map(|(thread, _)| *thread).collect();
        means.save.changed_threads(&written)?;
        save_writes(goal, &new, means.save)?;
        let mut outcome = Ok(());
        for (thread, found) in new {
            match write(thread, found, goal, means) {
                Ok(Some(kept)) => drop(self.set.insert(thread, kept)),
                Ok(None) => drop(self.set.remove(&thread)),
                Err(error) => {
                    // The next epoch tries again where the thread could not be looked up.
                    if matches!(error, KnobError::NoLookUp { .. }) {
                        self.set.remove(&thread);
                    }
                    outcome = Err(error);
                }
            }
        }
        outcome
    }

    /// Returns the new threads that were made before the owner's values were given back, by threads
    /// that had Lull's. Ends the search once there is none.
    fn made_before(&mut self, mut new: Vec<(LiveThread, V)>) -> Vec<(LiveThread, V)> {
        let Some(Former { values, at_ticks, looks }) = &mut self.former else { return Vec::new() };
        // Threads that had Lull's value when it was given back may make others within a second.
        let latest = *at_ticks + rustix::param::clock_ticks_per_second();
        new.retain(|(thread, found)| thread.start_ticks <= latest && values.contains(found));
        *looks -= 1;
        if *looks == 0 || new.is_empty() {
            self.former = None;
        }
        new
    }

    /// Forgets the threads of processes that were restored, so that the app's present ones are set
    /// as new ones.
    pub(crate) fn forget(&mut self, processes: &BTreeSet<ProcessId>) {
        let is_theirs = |thread: &LiveThread| processes.iter().any(|one| one.pid == thread.pid);
        self.set.retain(|thread, _| !is_theirs(thread));
    }

    /// Forgets the setting, after all threads were restored or left to another writer.
    pub(crate) fn restored(&mut self) {
        *self = Self::default();
    }
}

/// Saves the values written to threads that have these values.
fn save_writes<V: ThreadValue, S: SaveOld>(
    goal: &Goal<V::Wanted>,
    threads: &[(LiveThread, V)],
    save: &mut S,
) -> Result<(), KnobError> {
    // A save includes new processes, whose values before Lull are known to the next one.
    let saves = if goal.is_owners { 2 } else { 1 };
    for _ in 0..saves {
        let write = |(thread, found): &(LiveThread, V)| ThreadWrite {
            thread: *thread,
            values: goal.aim(*thread, *found, &*save).fields(*found),
        };
        let planned: Vec<ThreadWrite> = threads.iter().map(write).collect();
        save.threads(&planned)?;
    }
    Ok(())
}

/// Restores the values of threads that were to be set. These are the last that Lull writes to them,
/// so they are saved as such: the ledger has the refused value already.
fn put_back<V: ThreadValue, S: SaveOld>(
    goal: &Goal<V::Wanted>,
    before: &BTreeMap<LiveThread, V>,
    means: &mut Means<'_, S>,
) {
    let back = |(thread, value): (&LiveThread, &V)| ThreadWrite {
        thread: *thread,
        values: value.fields(goal.aim(*thread, *value, means.save)),
    };
    let back: Vec<ThreadWrite> = before.iter().map(back).collect();
    // If that fails, the ledger still has Lull's values from before the refused one.
    let _ = means.save.threads(&back);
    for (thread, value) in before {
        let is_changed = V::get(thread.tid).is_ok_and(|now| now != *value);
        // One that cannot be looked up was there when Lull set it a moment ago.
        if is_changed && thread.look(means.roots).unwrap_or(true) {
            // A thread that cannot be restored now is still in the ledger.
            let _ = value.set(thread.tid);
        }
    }
}

/// Sets all threads, which Lull had set to `last` before.
fn write_all<V: ThreadValue, S: SaveOld>(
    goal: &Goal<V::Wanted>,
    last: Option<&Goal<V::Wanted>>,
    threads: &mut impl Threads,
    means: &mut Means<'_, S>,
    before: &mut BTreeMap<LiveThread, V>,
) -> Result<(), KnobError> {
    for _ in 0..LISTINGS_MAX {
        threads.refresh();
        let is_new = |thread: &LiveThread| !before.contains_key(thread);
        let new: Vec<_> = threads.list().iter().copied().filter(is_new).collect();
        if new.is_empty() {
            break;
        }
        let new: Vec<_> = values::<V>(&new).collect();
        // A thread that another program has set since it was saved gets that value back after the
        // run.
        let is_others = |(thread, found): &&(LiveThread, V)| {
            let is_at = |goal: &Goal<_>| goal.aim(*thread, *found, means.save) == *found;
            !last.is_some_and(is_at) && !is_at(goal)
        };
        let others: Vec<_> = new.iter().filter(is_others).map(|(thread, _)| *thread).collect();
        means.save.changed_threads(&others)?;
        save_writes(goal, &new, means.save)?;
        // Noted before any is written: the ledger lists all of them as set, and a failed check is
        // undone too.
        before.extend(new.iter().copied());
        for (thread, found) in new {
            write(thread, found, goal, means)?;
        }
    }
    Ok(())
}

/// Sets one thread and reads back; `None` if it has ended meanwhile.
fn write<V: ThreadValue, S: SaveOld>(
    thread: LiveThread,
    found: V,
    goal: &Goal<V::Wanted>,
    means: &Means<'_, S>,
) -> Result<Option<V>, KnobError> {
    let what = || format!("{} of thread {}", V::WHAT, thread.tid);
    let is_alive = || {
        let found = thread.look(means.roots);
        found.map_err(|source| KnobError::NoLookUp { what: what(), source })
    };
    let aim = goal.aim(thread, found, means.save);
    if aim == found {
        return Ok(Some(found));
    }
    if !is_alive()? {
        return Ok(None);
    }
    // A value that its owner set while the old one was saved on disk stays.
    if let Ok(now) = V::get(thread.tid)
        && now != found
    {
        return Ok(Some(now));
    }
    let written = aim.set(thread.tid).and_then(|()| V::get(thread.tid));
    let is_alive = is_alive();
    if !matches!(is_alive, Ok(true)) {
        // If the number is another thread's since, that thread gets its former value back.
        let _ = found.set(thread.tid);
        return is_alive.map(|_| None);
    }
    match written {
        Ok(kept) if kept == aim || V::is_within(aim, kept) => Ok(Some(kept)),
        Ok(kept) => {
            Err(KnobError::NotKept { what: what(), wanted: aim.show(), found: kept.show() })
        }
        Err(error) if is_gone(&error) => Ok(None),
        // No core from its owner is allowed now. The other threads get theirs.
        Err(error) if goal.is_owners && error.raw_os_error() == Some(libc::EINVAL) => {
            Ok(Some(found))
        }
        Err(source) => {
            Err(KnobError::Refused { what: what(), source, is_privileged: means.is_privileged })
        }
    }
}

#[cfg(test)]
mod tests;
