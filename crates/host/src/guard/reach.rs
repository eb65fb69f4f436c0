//! Putting back threads: which ones Lull's settings reached, and which of their fields.
//!
//! A field is written back only if Lull wrote it, and only while it holds what Lull wrote to
//! the thread, or to the thread that it inherited from. A field with another value was set by
//! another program since; it is left and listed.
//!
//! A thread made under Lull's settings has no value of its own; it gets that of its process's
//! main thread, and a process made meanwhile that of its creator. Since a thread that is not
//! restored yet may make another, passes are repeated until two in a row find nothing to do;
//! the last one has then read every field back. A thread is listed some time after it got its
//! maker's settings, and the maker may be preempted in between (by a guard of real-time
//! priority, too), so the last pass comes after a pause.
//!
//! A thread that had all cores of its cpuset is unbound by writing all ones, also if Lull has
//! given it all of them last, and then follows its cpuset as before. Any other gets the mask that
//! it had, and never more.
//!
//! Verified on Linux 6.18 by `tests/processes`.

use super::cpuset;
use super::field::{Field, FieldValue};
use super::held::Held;
use super::ledger_file::Clock;
use super::original::{Key, Original};
use super::restoration::{Restoration, Restored};
use crate::apps::{Facts, Forks, ProcessId, ProcessTable, each_thread_of};
use crate::files::unless_gone;
use crate::sys::sched;
use crate::{LiveThread, Roots};
use lull_control::CoreSet;
use lull_measure::escape::visible_line;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// Passes before giving up on apps that make processes faster than they can be restored.
const PASSES: usize = 200;
/// Ancestors of this process that are looked at; more than any tree of processes has.
const ANCESTORS_MAX: usize = 64;
/// How long threads may take to finish making a thread before the last pass.
const PAUSE: Duration = Duration::from_millis(10);

/// The outcome for one thread.
#[derive(Debug)]
struct ThreadOutcome {
    restored: Restored,
    /// The fields that other programs set since.
    left: Vec<FieldValue>,
}

/// The threads that Lull's settings reached.
pub(super) struct Reach<'a> {
    roots: &'a Roots,
    held: Held,
    forks: &'a Forks,
    clock: Option<Clock>,
    online: Vec<CoreSet>,
    /// All processes, to find descendants; listed after the known ones are restored, since the
    /// first listing of a machine with thousands takes a while.
    table: Option<ProcessTable>,
    /// Why the last listing of all processes failed.
    unlisted: String,
    /// The processes that the last pass could not read, and why: they may be there.
    unread: BTreeMap<ProcessId, String>,
    outcomes: BTreeMap<Key, Restored>,
    left: BTreeMap<Key, Vec<FieldValue>>,
    /// Threads that follow their cpuset again. Their cores may equal those that Lull wrote if the
    /// cpuset has changed to just these.
    unbound: BTreeSet<LiveThread>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(roots: &'a Roots, held: &Held, forks: &'a Forks) -> Self {
        Self {
            roots,
            held: held.clone(),
            forks,
            clock: Clock::read(roots).ok(),
            online: cpuset::online(roots).into_iter().collect(),
            table: None,
            unlisted: String::new(),
            unread: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            left: BTreeMap::new(),
            unbound: BTreeSet::new(),
        }
    }

    /// Restores the threads of the processes that are known, without a listing of all.
    pub(super) fn restore_known(&mut self) {
        self.pass();
    }

    /// Restores every thread in reach.
    pub(super) fn restore_all(mut self, total: &mut Restoration) {
        let mut quiet = 0;
        for _ in 0..PASSES {
            self.find_descendants();
            quiet = if self.pass() { 0 } else { quiet + 1 };
            match quiet {
                0 => {}
                1 => std::thread::sleep(PAUSE),
                _ => break,
            }
        }
        if quiet < 2 {
            let why = "apps make processes faster than they can be restored".to_owned();
            total.failed.push((Key::Threads, why));
        }
        total.missed = self.possibly_missed();
        for (process, why) in &self.unread {
            let why = format!("its process cannot be read: {why}");
            let main = Key::Thread(process.pid, process.start_ticks);
            self.outcomes.insert(main, Restored::Failed { why });
        }
        let unread: BTreeSet<i32> = self.unread.keys().map(|process| process.pid).collect();
        for original in self.held.originals() {
            if let Original::Thread { tid, pid, start_time_ticks, .. } = *original
                && !unread.contains(&pid)
            {
                let thread = LiveThread { pid, tid, start_ticks: start_time_ticks };
                let outcome = match self.look(thread) {
                    Ok(true) => Restored::Already,
                    Ok(false) => Restored::Gone,
                    Err(error) => Restored::Failed { why: error.to_string() },
                };
                self.outcomes.entry(original.key()).or_insert(outcome);
            }
        }
        for (key, outcome) in self.outcomes {
            total.count(key, outcome);
        }
        for (key, values) in self.left {
            total.left.extend(values.into_iter().map(|value| (key.clone(), value)));
        }
    }

    /// Restores all threads known now; returns whether it wrote anything.
    fn pass(&mut self) -> bool {
        let mut has_written = false;
        for (thread, original) in self.threads() {
            let Some(ThreadOutcome { restored, left }) = self.restore(thread, &original) else {
                continue;
            };
            let key = original.key();
            has_written |= restored == Restored::Done;
            // A thread that a former pass restored stays restored.
            let was_done = self.outcomes.get(&key) == Some(&Restored::Done);
            if !(was_done && restored == Restored::Already) {
                self.outcomes.insert(key.clone(), restored);
            }
            match left.is_empty() {
                true => drop(self.left.remove(&key)),
                false => drop(self.left.insert(key, left)),
            }
        }
        has_written
    }

    /// Restores the fields of a thread that Lull set; `None` if it set none.
    fn restore(&mut self, thread: LiveThread, original: &Original) -> Option<ThreadOutcome> {
        let mut outcome = ThreadOutcome { restored: Restored::Already, left: Vec::new() };
        let mut is_ours = false;
        for field in Field::ALL {
            let lulls = self.held.lulls(thread, field);
            let wanted = original.field(field).filter(|_| !lulls.is_empty());
            let Some(wanted) = wanted else { continue };
            is_ours = true;
            let restored = match self.look(thread) {
                Ok(true) => self.restore_field(thread, original, &wanted, &lulls),
                Ok(false) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                Err(error) => Err(error),
            };
            match restored {
                Ok(None) => {}
                Ok(Some(foreign)) if foreign == wanted => outcome.restored = Restored::Done,
                Ok(Some(foreign)) => outcome.left.push(foreign),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                    outcome.restored = Restored::Gone;
                    return Some(outcome);
                }
                Err(error) => outcome.restored = Restored::Failed { why: error.to_string() },
            }
        }
        is_ours.then_some(outcome)
    }

    /// Restores one field: `None` if it is as before, the old value if it was written back,
    /// any other value if another program set the field.
    fn restore_field(
        &mut self,
        thread: LiveThread,
        original: &Original,
        wanted: &FieldValue,
        lulls: &[FieldValue],
    ) -> io::Result<Option<FieldValue>> {
        if wanted.field() == Field::Cores {
            return self.restore_cores(thread, original, lulls);
        }
        let tid = thread.tid;
        let found = wanted.field().read(tid)?;
        if found == *wanted {
            return Ok(None);
        }
        if !lulls.contains(&found) {
            return Ok(Some(found));
        }
        wanted.write(tid)?;
        if let Original::Thread { slice_ns: slice_ns @ 1.., .. } = original
            && wanted.field() == Field::Class
        {
            // A real-time class that a former version set has kept no slice.
            sched::set_slice(tid, *slice_ns)?;
        }
        self.read_back(thread, wanted, &found).map(Some)
    }

    /// The same for the cores of a thread.
    fn restore_cores(
        &mut self,
        thread: LiveThread,
        original: &Original,
        lulls: &[FieldValue],
    ) -> io::Result<Option<FieldValue>> {
        let Original::Thread { affinity: before, follows_cpuset, .. } = original else {
            return Ok(None);
        };
        if self.unbound.contains(&thread) {
            return Ok(None);
        }
        let is_follower = *follows_cpuset == Some(true);
        let wanted = FieldValue::Cores(before.clone());
        let mut found = Field::Cores.read(thread.tid)?;
        let mut limits = self.online.clone();
        let mut allowed = None;
        if found != wanted {
            allowed = cpuset::cores_of_process(self.roots, thread.pid);
            limits.extend(allowed.clone());
            limits.push(before.clone());
            // Read again: a new program often sets its own cores while the file of its cpuset is
            // read.
            found = Field::Cores.read(thread.tid)?;
        }
        if found == wanted {
            // A write of all its cores has bound it to these.
            let has_all = |value: &FieldValue| match value {
                FieldValue::Cores(cores) => before.is_subset(cores),
                _ => false,
            };
            if is_follower && lulls.iter().any(has_all) {
                self.unbind(thread, before, &found)?;
            }
            return Ok(None);
        }
        if !lulls.iter().any(|value| found.is_of(value, &limits)) {
            // Before Linux 6.2, a change of a cpuset lets all of its threads follow it.
            let follows = is_follower && allowed.map(FieldValue::Cores).as_ref() == Some(&found);
            return Ok((!follows).then_some(found));
        }
        if is_follower {
            return self.unbind(thread, before, &found).map(|()| Some(wanted));
        }
        bind(thread.tid, before, follows_cpuset.is_none())?;
        self.read_back(thread, &wanted, &found).map(Some)
    }

    /// Lets a thread that had all cores of its cpuset follow it again. The cpuset may have changed
    /// since, and other cores be allowed now.
    fn unbind(
        &mut self,
        thread: LiveThread,
        before: &CoreSet,
        found: &FieldValue,
    ) -> io::Result<()> {
        sched::unbind(thread.tid)?;
        let now = sched::affinity_of(thread.tid)?;
        self.check_alive(thread, found)?;
        let allowed = cpuset::cores_of_process(self.roots, thread.pid);
        if now == *before || allowed.is_none_or(|allowed| now == allowed) {
            self.unbound.insert(thread);
            return Ok(());
        }
        Err(io::Error::other(format!("it has cores {now} and had {before}")))
    }

    /// Reads a field back after it was written, from the same thread; it was `found` before.
    fn read_back(
        &self,
        thread: LiveThread,
        wanted: &FieldValue,
        found: &FieldValue,
    ) -> io::Result<FieldValue> {
        let now = wanted.field().read(thread.tid)?;
        self.check_alive(thread, found)?;
        if now == *wanted {
            return Ok(now);
        }
        Err(io::Error::other(format!("it has {now} and had {wanted}")))
    }

    /// Checks that a thread lives after a write to it. If its number is another thread's since,
    /// that thread gets its former value back.
    fn check_alive(&self, thread: LiveThread, found: &FieldValue) -> io::Result<()> {
        if self.look(thread)? {
            return Ok(());
        }
        let _ = found.write(thread.tid);
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }

    /// Whether a thread is there.
    fn look(&self, thread: LiveThread) -> io::Result<bool> {
        let unknown = |error| io::Error::other(format!("it cannot be looked up: {error}"));
        thread.look(self.roots).map_err(unknown)
    }

    /// Adds processes made since: children of known processes, and where the kernel reports forks,
    /// also those whose parents have ended.
    fn find_descendants(&mut self) {
        let listed = match self.table.take() {
            None => ProcessTable::new(self.roots),
            Some(mut table) => table.refresh().map(|()| table),
        };
        // Forks are read after the listing, so that each process in it has its creator. This table
        // does not follow them, because a table takes the changes, and the agent's needs them.
        let inherited = self.held.inherited.iter();
        let saved =
            inherited.map(|(pid, one)| ProcessId { pid: *pid, start_ticks: one.start_ticks });
        let known: Vec<ProcessId> = saved.chain(self.held.started()).collect();
        self.forks.read_following(&known, self.roots);
        // Without a listing the known processes are restored all the same.
        match listed {
            Ok(table) => {
                while self.adopt(&table) {}
                self.table = Some(table);
            }
            Err(error) => self.unlisted = error.to_string(),
        }
    }

    /// Adds the processes that those in reach have made; whether there were any.
    fn adopt(&mut self, table: &ProcessTable) -> bool {
        let Some(clock) = self.clock.clone() else { return false };
        let mut found = false;
        for (pid, facts) in table.iter() {
            let process = ProcessId { pid, start_ticks: facts.start_ticks };
            let key = Key::Thread(pid, facts.start_ticks);
            if self.held.has_process(process) || self.held.is_released(&key) {
                continue;
            }
            let reported = self.forks.creator(pid).filter(|it| self.held.has_process(*it));
            let child = LiveThread { pid, tid: pid, start_ticks: facts.start_ticks };
            let creators = [Some(facts.parent), reported.map(|it| it.pid)];
            let adoption = |creator: i32| {
                if !self.held.may_adopt(creator, child) {
                    return None;
                }
                let now = Original::of_thread(child).ok()?;
                self.held.adoption(&now, child, creator, &clock)
            };
            let entries = creators.into_iter().flatten().find_map(adoption);
            for entry in entries.iter().flatten() {
                self.held.take(entry);
                self.forks.distinguish(process);
                found = true;
            }
        }
        found
    }

    /// All threads in reach now, each with the state to give it.
    fn threads(&mut self) -> Vec<(LiveThread, Original)> {
        let mut found = Vec::new();
        self.unread.clear();
        for (pid, inherited) in &self.held.inherited {
            let process = ProcessId { pid: *pid, start_ticks: inherited.start_ticks };
            let original = |thread| self.held.for_thread(thread, &inherited.original);
            let threads = live_threads(self.roots, process);
            for thread in threads.unwrap_or_else(|error| vec![Err(error)]) {
                match thread {
                    Ok(thread) => found.extend(original(thread).map(|original| (thread, original))),
                    Err(error) => drop(self.unread.insert(process, error.to_string())),
                }
            }
        }
        found
    }

    /// Processes that were made since Lull's first write, are of no known process, and have
    /// cores or a class that Lull wrote, which they need not have from Lull. Where every fork
    /// since Lull's first write was reported, these are children of the parent of a known process:
    /// `clone` with `CLONE_PARENT` makes such a child, and the kernel reports the parent as its
    /// creator.
    fn possibly_missed(&self) -> Vec<String> {
        let Some(first) = self.held.first_write_ticks() else { return Vec::new() };
        let Some(table) = &self.table else {
            return vec![format!("new processes, which cannot be listed: {}", self.unlisted)];
        };
        let complete_since = self.forks.complete_since();
        let parents = self.parents_of_known(table);
        let written = self.held.all_written();
        let is_unknown = |(pid, facts): &(i32, &Facts)| {
            let process = ProcessId { pid: *pid, start_ticks: facts.start_ticks };
            let is_given_up = self.held.is_released(&Key::Thread(*pid, facts.start_ticks));
            let is_known = self.held.has_process(process) || is_given_up;
            let is_new = facts.start_ticks >= first && !facts.is_kernels;
            // A guard that replaces another one is not informed about earlier forks.
            let is_unreported = complete_since.is_none_or(|since| facts.start_ticks <= since);
            !is_known && is_new && (is_unreported || parents.contains(&facts.parent))
        };
        let suspects = table.iter().filter(is_unknown);
        suspects.filter_map(|(pid, _)| self.suspicion(pid, written)).collect()
    }

    /// The parents of known processes, without the ancestors of this process: a shell or process 1
    /// makes processes of its own all the time.
    fn parents_of_known(&self, table: &ProcessTable) -> BTreeSet<i32> {
        let parent = |pid: i32| table.facts(pid).map(|facts| facts.parent);
        let me = std::process::id().cast_signed();
        let ancestors: BTreeSet<i32> =
            std::iter::successors(parent(me), |pid| parent(*pid)).take(ANCESTORS_MAX).collect();
        let parents = self.held.inherited.keys().filter_map(|pid| parent(*pid));
        parents.filter(|pid| *pid > 1 && !ancestors.contains(pid)).collect()
    }

    /// Returns the value of Lull's that a process has and an unsteered process does not have.
    fn suspicion(&self, pid: i32, written: &BTreeSet<FieldValue>) -> Option<String> {
        let all = cpuset::cores_of_process(self.roots, pid).map(FieldValue::Cores);
        let usual = FieldValue::Class { policy: libc::SCHED_OTHER.cast_unsigned(), rt_priority: 0 };
        let values = [Field::Cores, Field::Class].map(|field| field.read(pid).ok());
        let is_suspicious = |value: &FieldValue| {
            written.contains(value) && Some(value) != all.as_ref() && *value != usual
        };
        let value = values.into_iter().flatten().find(is_suspicious)?;
        Some(format!("{} has {value}", describe(self.roots, pid)))
    }
}

/// A process for messages, by its number and name.
pub(super) fn describe(roots: &Roots, pid: i32) -> String {
    let name = std::fs::read_to_string(roots.proc.join(format!("{pid}/comm"))).unwrap_or_default();
    // A program chooses its name, which may contain line feeds.
    format!("process {pid} ({})", visible_line(name.trim()))
}

/// Gives a thread the cores that it had. Where it is not known whether they were all that its
/// cpuset allowed, all ones are tried first.
fn bind(tid: i32, before: &CoreSet, may_follow: bool) -> io::Result<()> {
    if may_follow {
        sched::unbind(tid)?;
        if sched::affinity_of(tid)? == *before {
            return Ok(());
        }
    }
    sched::set_affinity(tid, before)
}

/// Each thread of a process, or why it cannot be read; none if the process is gone.
fn live_threads(roots: &Roots, process: ProcessId) -> io::Result<Vec<io::Result<LiveThread>>> {
    let facts = unless_gone(Facts::of_process(roots, process.pid))?;
    if facts.is_none_or(|facts| facts.start_ticks != process.start_ticks) {
        return Ok(Vec::new());
    }
    Ok(unless_gone(each_thread_of(roots, process.pid))?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Entry, EntryContent};
    use super::*;
    use crate::apps::threads_of;
    use crate::testing::{Sleeper, Tree};
    use std::process::Command;

    #[test]
    fn a_thread_that_has_the_number_of_one_that_has_ended_gets_back_what_it_had() {
        let (roots, forks, sleeper) = (Roots::default(), Forks::default(), Sleeper::new());
        let all = sleeper.cores();
        if all.len() < 2 {
            return lull_testing::skip("one core has no other");
        }
        let one: CoreSet = all.iter().take(1).collect();
        sched::set_affinity(sleeper.tid, &one).unwrap();
        let pid = std::process::id().cast_signed();
        let ended = LiveThread { pid, tid: sleeper.tid, start_ticks: 1 };
        let mut reach = Reach::new(&roots, &Held::default(), &forks);
        let wanted = FieldValue::Cores(all.clone());
        let lulls = [FieldValue::Cores(one.clone())];
        for follows in [Some(true), Some(false), None] {
            let mut original = Original::of_thread(ended).unwrap();
            if let Original::Thread { affinity, follows_cpuset, .. } = &mut original {
                (*affinity, *follows_cpuset) = (all.clone(), follows);
            }
            let outcome = reach.restore_field(ended, &original, &wanted, &lulls);
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::ESRCH));
            assert_eq!(sleeper.cores(), one, "{follows:?}");
        }
    }

    #[test]
    fn a_thread_that_a_changed_cpuset_has_unbound_is_as_before_and_one_that_was_bound_is_left() {
        let (roots, forks, sleeper) = (Roots::default(), Forks::default(), Sleeper::new());
        let all = sleeper.cores();
        if cpuset::cores_of_process(&roots, std::process::id().cast_signed()) != Some(all.clone()) {
            return lull_testing::skip("this test has not all cores of its cpuset");
        }
        let mut threads = threads_of(&roots, std::process::id().cast_signed()).unwrap();
        threads.retain(|thread| thread.tid == sleeper.tid);
        let absent: CoreSet = "1000".parse().unwrap();
        let before = FieldValue::Cores(all.union(&absent));
        let mut reach = Reach::new(&roots, &Held::default(), &forks);
        let mut outcome = |follows| {
            let mut original = Original::of_thread(threads[0]).unwrap();
            if let Original::Thread { affinity, follows_cpuset, .. } = &mut original {
                (*affinity, *follows_cpuset) = (all.union(&absent), follows);
            }
            let lulls = [FieldValue::Cores(absent.clone())];
            reach.restore_field(threads[0], &original, &before, &lulls).unwrap()
        };
        assert_eq!(outcome(Some(true)), None);
        assert_eq!(outcome(Some(false)), Some(FieldValue::Cores(all)));
    }

    #[test]
    fn a_thread_that_cannot_be_read_keeps_no_other_from_being_restored() {
        let (tree, sleeper) = (Tree::new(), Sleeper::new());
        let me = std::process::id().cast_signed();
        let copy = |path: &str| {
            tree.write(path, &std::fs::read_to_string(format!("/{path}")).unwrap());
        };
        copy(&format!("proc/{me}/stat"));
        copy(&format!("proc/{me}/task/{}/stat", sleeper.tid));
        // Its `stat` cannot be read, and not because there is no such file.
        tree.write(&format!("proc/{me}/task/1"), "");
        let all = threads_of(&Roots::default(), me).unwrap();
        let main = *all.iter().find(|thread| thread.is_main()).unwrap();
        let thread = *all.iter().find(|thread| thread.tid == sleeper.tid).unwrap();
        let batch = FieldValue::Class { policy: libc::SCHED_BATCH as u32, rt_priority: 0 };
        let usual = Field::Class.read(sleeper.tid).unwrap();
        let clock = Clock::read(&Roots::default()).unwrap();
        let old = EntryContent::Old(Original::of_thread(main).unwrap());
        let threads = vec![(thread.tid, thread.start_ticks)];
        let mut held = Held::default();
        for what in [old, EntryContent::Write { threads, values: vec![batch.clone()] }] {
            held.take(&clock.entry(what));
        }
        batch.write(sleeper.tid).unwrap();
        let mut total = Restoration::default();
        Reach::new(&tree.roots(), &held, &Forks::default()).restore_all(&mut total);
        assert_eq!(Field::Class.read(sleeper.tid).unwrap(), usual);
        let failed: Vec<&Key> = total.failed.iter().map(|(key, _)| key).collect();
        assert_eq!((failed, total.done), (vec![&Key::Thread(me, main.start_ticks)], 1), "{total}");
    }

    #[test]
    fn a_thread_that_cannot_be_looked_up_is_not_taken_for_gone_and_keeps_what_was_restored() {
        let (tree, forks, sleeper) = (Tree::new(), Forks::default(), Sleeper::new());
        tree.write("proc", "");
        let pid = std::process::id().cast_signed();
        let thread = LiveThread { pid, tid: sleeper.tid, start_ticks: 1 };
        let original = Original::of_thread(thread).unwrap();
        let wanted = original.field(Field::Class).unwrap();
        let batch = FieldValue::Class { policy: libc::SCHED_BATCH as u32, rt_priority: 0 };
        batch.write(sleeper.tid).unwrap();
        let (mut held, threads) = (Held::default(), vec![(thread.tid, thread.start_ticks)]);
        let written = EntryContent::Write { threads, values: vec![batch.clone()] };
        held.take(&Clock::read(&Roots::default()).unwrap().entry(written));
        let roots = tree.roots();
        let mut reach = Reach::new(&roots, &held, &forks);
        let outcome = reach.restore(thread, &original).unwrap();
        assert!(matches!(outcome.restored, Restored::Failed { .. }), "{outcome:?}");
        let written = reach.restore_field(thread, &original, &wanted, &[batch]);
        assert_ne!(written.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(Field::Class.read(sleeper.tid).unwrap(), wanted);
    }

    #[test]
    fn a_process_that_cannot_be_read_is_not_taken_for_gone() {
        let (tree, clock) = (Tree::new(), Clock::read(&Roots::default()).unwrap());
        // Each read of a file below it fails, and not because there is no such file.
        tree.write("proc", "");
        let main = LiveThread { pid: 7, tid: 7, start_ticks: 1 };
        let me = threads_of(&Roots::default(), std::process::id().cast_signed()).unwrap()[0];
        let old = EntryContent::Old(Original::of_thread(me).unwrap().for_thread(main));
        let values = vec![FieldValue::Nice(5)];
        let written = EntryContent::Write { threads: vec![(main.tid, main.start_ticks)], values };
        let mut held = Held::default();
        [old, written].into_iter().for_each(|what| held.take(&clock.entry(what)));
        let mut total = Restoration::default();
        Reach::new(&tree.roots(), &held, &Forks::default()).restore_all(&mut total);
        let failed: Vec<&Key> = total.failed.iter().map(|(key, _)| key).collect();
        assert_eq!((failed, total.gone), (vec![&Key::Thread(7, 1)], 0), "{total}");
        assert_eq!(total.missed.len(), 1, "new processes may be missed: {total}");
    }

    /// A child of `clone` with `CLONE_PARENT` is as one that the parent has made.
    #[test]
    fn a_child_of_a_steered_process_s_parent_is_suspected_where_all_forks_are_reported() {
        let (roots, forks) = (Roots::default(), Forks::default());
        if !forks.subscribe() {
            return lull_testing::skip("the kernel does not report forks here");
        }
        // The kernel names a process after its file, and such a name may have a line feed.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("sl\neep");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let sleep = |time| Command::new(&program).arg(time).spawn().unwrap();
        let mut children = ["60", "61"].map(sleep);
        let [steered, sibling] = [&children[0], &children[1]].map(|it| it.id().cast_signed());
        let main = threads_of(&roots, steered).unwrap()[0];
        let idle = FieldValue::Class { policy: libc::SCHED_IDLE as u32, rt_priority: 0 };
        let clock = Clock::read(&roots).unwrap();
        let threads = vec![(main.tid, main.start_ticks)];
        let mut held = Held::default();
        let old = EntryContent::Old(Original::of_thread(main).unwrap());
        for what in [old, EntryContent::Write { threads, values: vec![idle.clone()] }] {
            // Before both: start times count hundredths of a second.
            held.take(&Entry { at_ticks: main.start_ticks - 1, ..clock.entry(what) });
        }
        idle.write(sibling).unwrap();
        let mut total = Restoration::default();
        Reach::new(&roots, &held, &forks).restore_all(&mut total);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let name = format!("process {sibling} (sl\\u{{a}}eep) has SCHED_IDLE");
        assert!(total.missed.contains(&name), "{total}");
    }

    #[test]
    fn a_restoration_leaves_reported_changes_to_the_table_that_follows_them() {
        let (roots, forks) = (Roots::default(), Forks::default());
        if !forks.subscribe() {
            return lull_testing::skip("the kernel does not report forks here");
        }
        let mut table = ProcessTable::new(&roots).unwrap().following(forks.clone());
        // The first look after a listing without reports lists all again.
        table.refresh_changed().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut total = Restoration::default();
        Reach::new(&roots, &Held::default(), &forks).restore_all(&mut total);
        table.refresh_changed().unwrap();
        let is_known = table.facts(pid).is_some();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_known, "the restoration took the change");
        assert!(total.is_complete(), "{total}");
    }
}
