//! What a ledger still holds: the values to restore, and for whom.

use super::entry::{Entry, Lines, What};
use super::ledger_file::Clock;
use super::original::{Key, Original};
use super::restore::Restoration;
use crate::apps::ProcessId;
use crate::{LiveThread, Roots};
use std::collections::{BTreeMap, BTreeSet};

/// The content of a ledger after all its lines.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The agent that wrote it.
    pub(super) agent: Option<ProcessId>,
    /// Whether everything was restored.
    pub(super) closed: bool,
    /// What the guard or a later start did.
    pub(super) restored: Option<Restoration>,
    /// How many values are of another boot, and so of no use.
    pub(super) other_boot: usize,
    /// The values that threads of a process have if they have none of their own.
    pub(super) inherited: BTreeMap<i32, Inherited>,
    originals: BTreeMap<Key, (u64, Original)>,
    released: BTreeSet<Key>,
}

/// How the threads of one process were scheduled, taken from its main thread.
#[derive(Debug, Clone)]
pub(super) struct Inherited {
    pub(super) start_ticks: u64,
    /// When it was saved; children born later got Lull's settings.
    pub(super) at_ticks: u64,
    pub(super) original: Original,
}

impl Held {
    /// What `lines` hold that were written since the boot `boot`.
    pub(super) fn from_lines(lines: &Lines, boot: &str) -> Self {
        let mut held = Self::default();
        for entry in &lines.entries {
            match (&entry.what, entry.boot == boot) {
                (What::Old(_), false) => held.other_boot += 1,
                (What::Header { agent, .. }, false) => held.agent = Some(*agent),
                (What::Closed, _) => held.closed = true,
                (_, false) => {}
                (_, true) => held.take(entry),
            }
        }
        held
    }

    /// Adds what one entry says.
    pub(super) fn take(&mut self, entry: &Entry) {
        match &entry.what {
            What::Header { agent, .. } => self.agent = Some(*agent),
            What::Old(original) => self.hold(original, entry.at_ticks),
            What::Released(key) => {
                self.originals.remove(key);
                self.released.insert(key.clone());
            }
            What::Restored(done) => self.restored = Some(done.clone()),
            What::Closed => self.closed = true,
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
        self.originals.entry(original.key()).or_insert_with(|| (at_ticks, original.clone()));
    }

    /// Whether the value is held already, or given up for good.
    pub(super) fn knows(&self, key: &Key) -> bool {
        let is_lasting = matches!(key, Key::Thread(..) | Key::File(_));
        self.originals.contains_key(key) || (is_lasting && self.released.contains(key))
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

    /// Lines that say the same without what is gone.
    pub(super) fn alive(&self, roots: &Roots, clock: &Clock) -> Vec<Entry> {
        let line = |at_ticks, what| Entry { at_ticks, ..clock.entry(what) };
        let old = |at_ticks: u64, original: &Original| line(at_ticks, What::Old(original.clone()));
        let given_up = |inherited: &&Inherited| self.released.contains(&inherited.original.key());
        let is_alive = |original: &Original| original.has_owner(roots);
        let defaults = self.inherited.values().filter(given_up);
        let mut lines: Vec<Entry> = defaults
            .map(|inherited| (inherited.at_ticks, &inherited.original))
            .chain(self.originals.values().map(|(at_ticks, original)| (*at_ticks, original)))
            .filter(|(_, original)| is_alive(original))
            .map(|(at_ticks, original)| old(at_ticks, original))
            .collect();
        lines.extend(self.released.iter().map(|key| clock.entry(What::Released(key.clone()))));
        lines
    }

    /// The values that are held, started apps left out.
    pub(super) fn values(&self) -> usize {
        self.originals.keys().filter(|key| !matches!(key, Key::Started(_))).count()
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
