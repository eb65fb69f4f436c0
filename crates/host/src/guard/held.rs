//! The state of a ledger: the values to restore, and their owners.

use super::entry::{Entry, EntryContent, Lines};
use super::field::{Field, FieldValue, ThreadWrite};
use super::ledger_file::Clock;
use super::original::{Key, Original};
use super::restoration::Restoration;
use crate::apps::{Facts, ProcessId};
use crate::files::unless_gone;
use crate::{LiveThread, Roots};
use lull_control::CoreSet;
use std::collections::{BTreeMap, BTreeSet};

/// The content of a ledger after all its lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// The agent that wrote it.
    pub(super) agent: Option<ProcessId>,
    /// Whether everything was restored.
    pub(super) closed: bool,
    /// The restoration by the guard or a later start.
    pub(super) restored: Option<Restoration>,
    /// Number of values of another boot, which are not used.
    pub(super) other_boot: usize,
    /// The values that threads of a process have if they have none of their own.
    pub(super) inherited: BTreeMap<i32, Inherited>,
    originals: BTreeMap<Key, (u64, Original)>,
    released: BTreeSet<Key>,
    /// The values that Lull wrote to each thread, oldest first.
    written: BTreeMap<(i32, u64), Vec<Written>>,
    /// When Lull wrote to any thread first.
    first_write_ticks: Option<u64>,
    /// What Lull wrote to any thread, also to those that are gone.
    ever_written: BTreeSet<FieldValue>,
}

/// One value that Lull wrote, with the time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    at_ticks: u64,
    value: FieldValue,
}

/// How many values of each field of a thread are remembered. The last two matter for the
/// thread itself, older ones for processes that it made a moment ago.
const WRITTEN_MAX: usize = 24;
/// How long the lines of a process are kept if it ends, for the processes that it made.
const DEAD_SECONDS: u64 = 10;

/// How the threads of one process were scheduled, taken from its main thread.
#[derive(Debug, Clone)]
pub(super) struct Inherited {
    pub(super) start_ticks: u64,
    /// When it was saved; children born later got Lull's settings.
    pub(super) at_ticks: u64,
    pub(super) original: Original,
}

impl Held {
    /// Reads the values in `lines` that were written since the boot `boot`.
    pub(super) fn from_lines(lines: &Lines, boot: &str) -> Self {
        let mut held = Self::default();
        for entry in &lines.entries {
            match (&entry.what, entry.boot == boot) {
                (EntryContent::Old(_), false) => held.other_boot += 1,
                (EntryContent::Header { agent, .. }, false) => held.agent = Some(*agent),
                (EntryContent::Closed, _) => held.closed = true,
                (_, false) => {}
                (_, true) => held.take(entry),
            }
        }
        held
    }

    /// The values of the threads of some processes alone. All other processes that are known
    /// count as released, so that none of them is taken for a new child of these.
    pub(super) fn only(&self, processes: &BTreeSet<ProcessId>) -> Self {
        let mut held = self.clone();
        let is_other = |pid: &i32, one: &mut Inherited| {
            !processes.contains(&ProcessId { pid: *pid, start_ticks: one.start_ticks })
        };
        let others = held.inherited.extract_if(.., is_other);
        let others: Vec<Key> = others.map(|(pid, one)| Key::Thread(pid, one.start_ticks)).collect();
        held.released.extend(others);
        held.originals.retain(|_, (_, original)| match original {
            Original::Thread { pid, .. } => held.inherited.contains_key(pid),
            _ => false,
        });
        held
    }

    /// Adds one entry.
    pub(super) fn take(&mut self, entry: &Entry) {
        match &entry.what {
            EntryContent::Header { agent, .. } => self.agent = Some(*agent),
            EntryContent::Old(original) => self.hold(original, entry.at_ticks),
            EntryContent::Write { threads, values } => self.note(threads, values, entry.at_ticks),
            EntryContent::Released(key) => {
                self.originals.remove(key);
                self.released.insert(key.clone());
            }
            EntryContent::Dismissed(threads) => {
                threads.iter().for_each(|thread| self.forget(*thread));
            }
            EntryContent::Restored(done) => self.restored = Some(done.clone()),
            EntryContent::Closed => self.closed = true,
        }
    }

    fn hold(&mut self, original: &Original, at_ticks: u64) {
        if let Original::Thread { tid, pid, start_time_ticks: start_ticks, .. } = *original
            && tid == pid
        {
            let default = Inherited { start_ticks, at_ticks, original: original.clone() };
            self.inherited.insert(pid, default);
        }
        self.released.remove(&original.key());
        let value = (at_ticks, original.clone());
        match original.key() {
            // A thread is saved again if another program has set it since.
            key @ Key::Thread(..) => {
                self.originals.insert(key, value);
            }
            // The value is saved again together with Lull's next one.
            key => {
                let (_, saved) = self.originals.entry(key).or_insert(value);
                saved.take_ours(original);
            }
        }
    }

    /// Forgets a thread, which is saved again before its next change.
    fn forget(&mut self, (tid, start_ticks): (i32, u64)) {
        let key = Key::Thread(tid, start_ticks);
        self.originals.remove(&key);
        self.released.remove(&key);
        self.written.remove(&(tid, start_ticks));
        if self.has_process(ProcessId { pid: tid, start_ticks }) {
            self.inherited.remove(&tid);
        }
    }

    fn note(&mut self, threads: &[(i32, u64)], values: &[FieldValue], at_ticks: u64) {
        let first = self.first_write_ticks.get_or_insert(at_ticks);
        *first = at_ticks.min(*first);
        self.ever_written.extend(values.iter().cloned());
        for thread in threads {
            let all = self.written.entry(*thread).or_default();
            for value in values {
                all.push(Written { at_ticks, value: value.clone() });
                let of_field = |one: &&Written| one.value.field() == value.field();
                // Counted by field: a class that was set once outlasts many changes of cores.
                if all.iter().filter(of_field).count() > WRITTEN_MAX
                    && let Some(oldest) = all.iter().position(|one| of_field(&one))
                {
                    all.remove(oldest);
                }
            }
        }
    }

    /// When Lull wrote to any thread first.
    pub(super) const fn first_write_ticks(&self) -> Option<u64> {
        self.first_write_ticks
    }

    /// Whether the last values written to a thread are these.
    pub(super) fn has_written(&self, write: &ThreadWrite) -> bool {
        let key = (write.thread.tid, write.thread.start_ticks);
        let written = self.written.get(&key).map(Vec::as_slice).unwrap_or_default();
        let last = |field: Field| written.iter().rfind(|one| one.value.field() == field);
        write.values.iter().all(|value| last(value.field()).is_some_and(|one| one.value == *value))
    }

    /// The values that a thread has if Lull, and no other program, set this field of it: by a
    /// write to the thread, or to the process that made it when it was made.
    pub(super) fn lulls(&self, thread: LiveThread, field: Field) -> Vec<FieldValue> {
        let of_thread = self.written.get(&(thread.tid, thread.start_ticks));
        let of_field = |one: &&Written| one.value.field() == field;
        // The last write may have been cut short by a kill, so the one before counts too.
        let own = of_thread.into_iter().flatten().filter(of_field).rev().take(2);
        let mut values: Vec<FieldValue> = own.map(|one| one.value.clone()).collect();
        if values.len() < 2 && !thread.is_main() {
            values.extend(self.inherited_values(thread, field));
        }
        values
    }

    /// Returns the values of Lull that the main thread of a thread's process had when the thread
    /// was made.
    fn inherited_values(&self, thread: LiveThread, field: Field) -> Vec<FieldValue> {
        let Some(process) = self.inherited.get(&thread.pid) else { return Vec::new() };
        self.in_force((thread.pid, process.start_ticks), field, thread.start_ticks)
    }

    /// Returns the values that Lull had set a field of `thread` to at a time. Start times and lines
    /// of the ledger are not ordered within a second.
    fn in_force(&self, thread: (i32, u64), field: Field, at_ticks: u64) -> Vec<FieldValue> {
        let second = rustix::param::clock_ticks_per_second();
        let written: Vec<&Written> = self.written.get(&thread).map_or_else(Vec::new, |all| {
            all.iter().filter(|one| one.value.field() == field).collect()
        });
        let ends = written.iter().skip(1).map(|next| next.at_ticks).chain([u64::MAX]);
        let was_in_force = |(one, ends): &(&&Written, u64)| {
            one.at_ticks <= at_ticks + second && ends.saturating_add(second) >= at_ticks
        };
        let found = written.iter().zip(ends).filter(was_in_force);
        found.map(|(one, _)| one.value.clone()).collect()
    }

    /// The lines about a process that another process of the ledger made under Lull's
    /// settings, where `now` is the state of its main thread. A field that has what Lull
    /// wrote to the creator had, before Lull, what the creator had; any other field is as its
    /// owner wants it. `None` if the creator is unknown, or had its own values at that time.
    ///
    /// The lines are of the time at which the process was made, so that processes which it
    /// made before it was seen are covered too.
    pub(super) fn adoption(
        &self,
        now: &Original,
        child: LiveThread,
        creator: i32,
        clock: &Clock,
    ) -> Option<Vec<Entry>> {
        let parent = self.inherited.get(&creator)?;
        if !parent.covers(child.start_ticks) {
            return None;
        }
        let at_ticks = child.start_ticks;
        let born = |what| Entry { at_ticks, ..clock.entry(what) };
        let key = (creator, parent.start_ticks);
        let inherited = |field| self.in_force(key, field, at_ticks);
        let values: Vec<FieldValue> = Field::ALL.into_iter().flat_map(inherited).collect();
        let original = now.before(&values, &parent.original);
        let mut entries = vec![born(EntryContent::Old(original))];
        if !values.is_empty() {
            let threads = vec![(child.tid, child.start_ticks)];
            entries.push(born(EntryContent::Write { threads, values }));
        }
        Some(entries)
    }

    /// The line that saves a thread again if another program has set a field of it since it was
    /// saved, where `now` is its state. `None` if no field was set.
    pub(super) fn changed(
        &self,
        thread: LiveThread,
        now: &Original,
        limits: &[CoreSet],
        clock: &Clock,
    ) -> Option<Entry> {
        let (at_ticks, saved) = self.originals.get(&now.key())?;
        let own = self.own(thread, now, limits)?;
        (own != *saved)
            .then(|| Entry { at_ticks: *at_ticks, ..clock.entry(EntryContent::Old(own)) })
    }

    /// Returns the state of a thread without Lull's settings, where `now` is its state and `main`
    /// the main thread of its process. A field keeps the saved value of the main thread if it shows
    /// that value, or one that Lull wrote to either thread, of which the kernel leaves out cores
    /// beyond `limits`. Any other field was set by another program. `None` if `main` is not saved.
    pub(super) fn own(
        &self,
        main: LiveThread,
        now: &Original,
        limits: &[CoreSet],
    ) -> Option<Original> {
        let Key::Thread(tid, start_ticks) = now.key() else { return None };
        let (_, saved) = self.originals.get(&Key::Thread(main.tid, main.start_ticks))?;
        let mut limits = limits.to_vec();
        if let Some(FieldValue::Cores(cores)) = saved.field(Field::Cores) {
            limits.push(cores);
        }
        // All that was written: a process may have what its creator had some writes ago.
        let threads = [(tid, start_ticks), (main.tid, main.start_ticks)];
        let written: Vec<&Written> =
            threads.iter().filter_map(|thread| self.written.get(thread)).flatten().collect();
        let is_kept = |found: &FieldValue| {
            let is_of = |value: &FieldValue| found.is_of(value, &limits);
            saved.field(found.field()).as_ref().is_some_and(is_of)
                || written.iter().any(|one| is_of(&one.value))
        };
        let found = Field::ALL.into_iter().filter_map(|field| now.field(field));
        let kept: Vec<FieldValue> = found.filter(is_kept).collect();
        Some(now.before(&kept, saved))
    }

    /// [`Held::own`], if it differs from the saved state of the main thread.
    pub(super) fn differing(
        &self,
        main: LiveThread,
        now: &Original,
        limits: &[CoreSet],
    ) -> Option<Original> {
        let own = self.own(main, now, limits)?;
        let (_, saved) = self.originals.get(&Key::Thread(main.tid, main.start_ticks))?;
        let is_different = |field: &Field| own.field(*field) != saved.field(*field);
        Field::ALL.iter().any(is_different).then_some(own)
    }

    /// Whether a process of the ledger had Lull's settings when `child` was made.
    pub(super) fn may_adopt(&self, creator: i32, child: LiveThread) -> bool {
        self.inherited.get(&creator).is_some_and(|parent| parent.covers(child.start_ticks))
    }

    /// Whether this process, and no earlier one of the same number, is in the ledger.
    pub(super) fn has_process(&self, process: ProcessId) -> bool {
        let known = self.inherited.get(&process.pid);
        known.is_some_and(|known| known.start_ticks == process.start_ticks)
    }

    /// The threads of some processes of which the ledger holds anything, where `live` are the
    /// threads that these processes have now.
    pub(super) fn known_threads(
        &self,
        processes: &BTreeSet<ProcessId>,
        live: &[LiveThread],
    ) -> Vec<(i32, u64)> {
        let saved = |original: &Original| {
            let Original::Thread { tid, pid, start_time_ticks, .. } = *original else {
                return None;
            };
            let start_ticks = self.inherited.get(&pid)?.start_ticks;
            let is_theirs = processes.contains(&ProcessId { pid, start_ticks });
            is_theirs.then_some((tid, start_time_ticks))
        };
        let mains = processes.iter().filter(|process| self.has_process(**process));
        let live = live.iter().map(|thread| (thread.tid, thread.start_ticks));
        let is_held = |thread: &(i32, u64)| {
            self.written.contains_key(thread)
                || self.released.contains(&Key::Thread(thread.0, thread.1))
        };
        let all: BTreeSet<(i32, u64)> = self
            .originals()
            .filter_map(saved)
            .chain(mains.map(|process| (process.pid, process.start_ticks)))
            .chain(live.filter(is_held))
            .collect();
        all.into_iter().collect()
    }

    /// Every value that Lull wrote to any thread.
    pub(super) const fn all_written(&self) -> &BTreeSet<FieldValue> {
        &self.ever_written
    }

    /// Whether the value is held already, or given up for good.
    pub(super) fn knows(&self, key: &Key) -> bool {
        let is_lasting = matches!(key, Key::Thread(..) | Key::File(_));
        self.originals.contains_key(key) || (is_lasting && self.released.contains(key))
    }

    /// Returns the part of a value to save before its next change: all of it, or if it is held, the
    /// held one with Lull's next value. `None` if nothing is new, or if it was given up.
    pub(super) fn unsaved(&self, next: &Original) -> Option<Original> {
        let key = next.key();
        match self.originals.get(&key) {
            Some((_, saved)) => {
                let mut saved = saved.clone();
                saved.take_ours(next).then_some(saved)
            }
            None => (!self.knows(&key)).then(|| next.clone()),
        }
    }

    /// Whether the value was given up.
    pub(super) fn is_released(&self, key: &Key) -> bool {
        self.released.contains(key)
    }

    /// The values by key.
    pub(super) fn originals(&self) -> impl Iterator<Item = &Original> {
        self.originals.values().map(|(_, original)| original)
    }

    /// The value to give a thread of a process whose default is `default`;
    /// `None` if it was given up.
    pub(super) fn for_thread(&self, thread: LiveThread, default: &Original) -> Option<Original> {
        let key = Key::Thread(thread.tid, thread.start_ticks);
        if self.released.contains(&key) {
            return None;
        }
        let own = self.originals.get(&key).map(|(_, original)| original.clone());
        Some(own.unwrap_or_else(|| default.for_thread(thread)))
    }

    /// The apps that were started.
    pub(super) fn started(&self) -> Vec<ProcessId> {
        let started = |original: &Original| match original.key() {
            Key::Started(process) => Some(process),
            _ => None,
        };
        self.originals().filter_map(started).collect()
    }

    /// Returns equivalent lines without owners that are gone. A process that was recorded a moment
    /// ago stays even if it has ended, since one that it made may not have been seen yet.
    pub(super) fn alive(&self, roots: &Roots, clock: &Clock) -> Vec<Entry> {
        let line = |at_ticks, what| Entry { at_ticks, ..clock.entry(what) };
        let old = |at_ticks: u64, original: &Original| {
            line(at_ticks, EntryContent::Old(original.clone()))
        };
        let given_up = |inherited: &&Inherited| self.released.contains(&inherited.original.key());
        let second = rustix::param::clock_ticks_per_second();
        let recent =
            clock.entry(EntryContent::Closed).at_ticks.saturating_sub(DEAD_SECONDS * second);
        let stays = |(at_ticks, original): &(u64, &Original)| {
            let is_main = matches!(original, Original::Thread { tid, pid, .. } if tid == pid);
            // An owner that cannot be read counts as present.
            (is_main && *at_ticks >= recent) || original.has_owner(roots).unwrap_or(true)
        };
        let defaults = self.inherited.values().filter(given_up);
        let kept: Vec<(u64, &Original)> = defaults
            .map(|inherited| (inherited.at_ticks, &inherited.original))
            .chain(self.originals.values().map(|(at_ticks, original)| (*at_ticks, original)))
            .filter(stays)
            .collect();
        let mut lines: Vec<Entry> = kept.iter().map(|(at, original)| old(*at, original)).collect();
        let keys: BTreeSet<Key> = kept.iter().map(|(_, original)| original.key()).collect();
        let lives = |thread: &(i32, u64)| {
            keys.contains(&Key::Thread(thread.0, thread.1)) || may_live(*thread, roots)
        };
        lines.extend(self.writes_of(lives, clock));
        // An unknown process may have inherited a value from one that is gone.
        let values: Vec<FieldValue> = self.ever_written.iter().cloned().collect();
        let written = EntryContent::Write { threads: Vec::new(), values };
        lines.extend(self.first_write_ticks.map(|at_ticks| line(at_ticks, written)));
        lines.extend(
            self.released.iter().map(|key| clock.entry(EntryContent::Released(key.clone()))),
        );
        lines
    }

    /// Returns the lines about writes to the threads that `lives` accepts, oldest first, one for
    /// all the threads that got a value at once. The last values of a thread count, so those of one
    /// tick stay in order.
    fn writes_of(&self, lives: impl Fn(&(i32, u64)) -> bool, clock: &Clock) -> Vec<Entry> {
        let mut writes: BTreeMap<(u64, usize, FieldValue), Vec<(i32, u64)>> = BTreeMap::new();
        for (thread, written) in self.written.iter().filter(|(thread, _)| lives(thread)) {
            for (index, one) in written.iter().enumerate() {
                let before = written[..index].iter();
                let rank = before.filter(|other| other.at_ticks == one.at_ticks).count();
                writes.entry((one.at_ticks, rank, one.value.clone())).or_default().push(*thread);
            }
        }
        let line = |((at_ticks, _, value), threads)| {
            let what = EntryContent::Write { threads, values: vec![value] };
            Entry { at_ticks, ..clock.entry(what) }
        };
        writes.into_iter().map(line).collect()
    }

    /// The values that are held, started apps left out.
    pub(super) fn values(&self) -> usize {
        self.originals.keys().filter(|key| !matches!(key, Key::Started(_))).count()
    }
}

/// Whether a thread, main or not, may live: one that cannot be read may.
fn may_live((tid, start_ticks): (i32, u64), roots: &Roots) -> bool {
    match unless_gone(Facts::of_process(roots, tid)) {
        Ok(facts) => facts.is_some_and(|facts| facts.start_ticks == start_ticks),
        Err(_) => true,
    }
}

impl Inherited {
    /// Whether a child process born at `start_ticks` got its settings from
    /// Lull. A second is allowed for children made while the value was saved.
    pub(super) fn covers(&self, start_ticks: u64) -> bool {
        let second = rustix::param::clock_ticks_per_second();
        start_ticks >= self.start_ticks && start_ticks + second >= self.at_ticks
    }
}
