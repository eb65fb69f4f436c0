//! The processes that other processes made, as the kernel reports them.
//!
//! `/proc` names only the present parent of a process. A process that double-forks loses
//! its parent immediately and is then a child of process 1, so a listing cannot tell which app
//! it belongs to. The process connector reports each fork, in order, also those of
//! processes that have ended since.
//!
//! To miss nothing: subscribe, then list the processes, then [`Forks::follow`] each that
//! matters, and only then [`Forks::read`] what was reported meanwhile.
//!
//! Needs `CAP_NET_ADMIN` before Linux 6.6, and the host's process namespace. Without it
//! nothing is reported, and a process that lost its parent between two listings is not found.

use super::identity::{Facts, ProcessId};
use crate::Roots;
use crate::clock::boot_ticks;
use crate::sys::netlink::{ProcessEvent, ProcessEvents};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The descendants of the processes that are followed. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Forks(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    events: Option<ProcessEvents>,
    /// When the kernel began to report forks, in clock ticks since boot.
    since_ticks: u64,
    /// Indexed by number: the processes that are followed, and their descendants.
    kin: BTreeMap<i32, Ancestry>,
    /// The process whose children may be followed later, if one is set.
    starter: Option<i32>,
    /// Indexed by number: the children of the starter that are not followed, and their descendants,
    /// each with the child that it descends from.
    expected: BTreeMap<i32, i32>,
    /// Whether the kernel ever dropped events: descendants may be unknown from then on.
    has_lost: bool,
    /// The processes that are followed since events were read last: their own forks may be among
    /// those that are read next, and not later.
    fresh: BTreeSet<i32>,
    /// Whether events were dropped since the changes were last taken.
    has_missed: bool,
    /// The processes that were made, have become others or have ended since they were last taken.
    changed: BTreeSet<i32>,
}

/// More changes than this are no quicker to read than a listing.
const CHANGED_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ancestry {
    /// The nearest ancestor that is followed; for such a process itself.
    creator: ProcessId,
    /// The first process of its app.
    first: ProcessId,
}

impl Forks {
    /// Asks the kernel to report forks from now on; returns whether it does.
    pub fn subscribe(&self) -> bool {
        let mut state = self.state();
        if state.events.is_none() {
            // Without the subscription descendants are found by listing processes alone.
            state.events = ProcessEvents::subscribe().ok();
            state.since_ticks = boot_ticks();
        }
        state.events.is_some()
    }

    /// Returns the time since which every fork was reported, in clock ticks since boot; `None` if
    /// some may be missing.
    pub fn complete_since(&self) -> Option<u64> {
        let state = self.state();
        (state.events.is_some() && !state.has_lost).then_some(state.since_ticks)
    }

    /// Notes from now on the processes that each child of this process makes, so that a child that
    /// is followed later keeps its earlier descendants: the agent starts an app before its ledger
    /// names it.
    pub(crate) fn expect_children_of(&self, starter: i32) {
        self.state().starter = Some(starter);
    }

    /// Follows a process, of the app whose first process is `first`: processes that it makes from
    /// now on, also in events that are not read yet, are its descendants, and so are earlier ones
    /// if it was expected. One that is followed already keeps its creator.
    pub fn follow(&self, process: ProcessId, first: ProcessId) {
        let mut state = self.state();
        if state.events.is_some() && !state.kin.contains_key(&process.pid) {
            state.insert(process, first);
        }
    }

    /// Makes a process the creator of its new processes from now on, because the ledger has its own
    /// values.
    pub(crate) fn distinguish(&self, process: ProcessId) {
        let mut state = self.state();
        if state.events.is_some() {
            let first = state.kin.get(&process.pid).map_or(process, |kin| kin.first);
            state.insert(process, first);
        }
    }

    /// No longer follows a process, which has ended.
    pub(crate) fn forget(&self, process: ProcessId) {
        let mut state = self.state();
        if state.kin.get(&process.pid).is_some_and(|kin| kin.creator == process) {
            state.kin.remove(&process.pid);
        }
    }

    /// Reads what the kernel has reported.
    pub fn read(&self) {
        let mut state = self.state();
        let Some(events) = state.events.take() else { return };
        // An error other than lost events keeps the events read so far; the socket is kept, since
        // the next read may succeed.
        if events.read(|event| state.take(event)).is_err() {
            state.note_loss();
        }
        state.fresh.clear();
        state.events = Some(events);
    }

    /// Reads what the kernel has reported where these processes are followed, also those that
    /// have ended since, and then forgets the ended ones.
    pub(crate) fn read_following(&self, processes: &[ProcessId], roots: &Roots) {
        let is_anothers = |process: &ProcessId| {
            let found = Facts::of_process(roots, process.pid);
            found.is_ok_and(|facts| facts.start_ticks != process.start_ticks)
        };
        let is_new = |process: &&ProcessId| self.creator(process.pid).is_none();
        for process in processes.iter().filter(is_new).filter(|process| !is_anothers(process)) {
            self.follow(*process, *process);
        }
        self.read();
        let has_ended = |process: &&ProcessId| !process.may_run(roots);
        processes.iter().filter(has_ended).for_each(|process| self.forget(*process));
    }

    /// Reads what the kernel has reported, and takes the processes that were made, have executed
    /// another program, have another user or have ended since this was last called. `None` if these
    /// are not all, or too many.
    pub(super) fn take_changed(&self) -> Option<BTreeSet<i32>> {
        self.read();
        let mut state = self.state();
        let changed = state.take_changed();
        changed.filter(|_| state.events.is_some())
    }

    /// Returns a descriptor that is readable while the kernel has reported something that was not
    /// read yet; `None` where it reports nothing.
    pub(crate) fn wakes(&self) -> Option<OwnedFd> {
        self.state().events.as_ref()?.wakes().ok()
    }

    /// Whether changes were read that were not taken yet.
    pub(crate) fn has_changes(&self) -> bool {
        let state = self.state();
        state.has_missed || !state.changed.is_empty()
    }

    /// The nearest followed ancestor of a process, if it is known to have one.
    pub fn creator(&self, pid: i32) -> Option<ProcessId> {
        self.state().kin.get(&pid).map(|kin| kin.creator)
    }

    /// Calls this with each descendant and the nearest ancestor that is followed.
    pub(crate) fn descendants(&self, mut take: impl FnMut(i32, ProcessId)) {
        let state = self.state();
        let made = state.kin.iter().filter(|(pid, kin)| **pid != kin.creator.pid);
        made.for_each(|(pid, kin)| take(*pid, kin.creator));
    }

    /// The first process of the app that a process descends from.
    pub fn first(&self, pid: i32) -> Option<ProcessId> {
        self.state().kin.get(&pid).map(|kin| kin.first)
    }

    /// Records that the kernel dropped events.
    #[cfg(test)]
    pub(super) fn note_loss(&self) {
        self.state().note_loss();
    }

    /// A panic elsewhere leaves at worst events unread.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Makes a process the creator of its new processes.
    fn insert(&mut self, process: ProcessId, first: ProcessId) {
        let kin = Ancestry { creator: process, first };
        if self.kin.insert(process.pid, kin).is_none() {
            self.fresh.insert(process.pid);
        }
        let made = self.expected.extract_if(.., |_, child| *child == process.pid);
        for (pid, _) in made {
            self.kin.entry(pid).or_insert(kin);
        }
    }

    fn take(&mut self, event: ProcessEvent) {
        if let ProcessEvent::Forked { child: pid, .. }
        | ProcessEvent::Became(pid)
        | ProcessEvent::Exited(pid) = event
            && self.changed.len() < CHANGED_MAX
        {
            self.changed.insert(pid);
        }
        match event {
            ProcessEvent::Forked { parent, child } => {
                self.take_fork(parent, child);
                self.expect(parent, child);
            }
            ProcessEvent::Became(_) => {}
            ProcessEvent::Exited(pid) => {
                self.kin.remove(&pid);
                self.expected.remove(&pid);
            }
            ProcessEvent::Lost => self.note_loss(),
        }
    }

    /// A process that is followed already, because it was found before its fork was read, stays
    /// its own creator. Otherwise, or if an end may be missing, the number is another process's.
    fn take_fork(&mut self, parent: i32, child: i32) {
        let is_fresh = self.fresh.contains(&child) && !self.has_lost;
        let is_own = |kin: &&Ancestry| kin.creator.pid == child && is_fresh;
        let followed = self.kin.get(&child).filter(is_own).map(|kin| kin.creator);
        match (self.kin.get(&parent).copied(), followed) {
            (Some(Ancestry { first, .. }), Some(creator)) => {
                self.kin.insert(child, Ancestry { creator, first });
            }
            (Some(kin), None) => drop(self.kin.insert(child, kin)),
            (None, Some(_)) => {}
            (None, None) => drop(self.kin.remove(&child)),
        }
    }

    /// Notes which child of the starter a new process is, or descends from.
    fn expect(&mut self, parent: i32, child: i32) {
        let is_start = self.starter == Some(parent);
        if is_start {
            // These descend from an earlier process of this number.
            self.expected.retain(|_, from| *from != child);
        }
        let from = if is_start { Some(child) } else { self.expected.get(&parent).copied() };
        match from.filter(|_| !self.kin.contains_key(&child)) {
            Some(from) => self.expected.insert(child, from),
            None => self.expected.remove(&child),
        };
    }

    fn note_loss(&mut self) {
        self.has_lost = true;
        self.has_missed = true;
    }

    /// Takes the changes that were read; `None` if events were dropped since this was last called,
    /// or if there are too many.
    fn take_changed(&mut self) -> Option<BTreeSet<i32>> {
        let is_complete = !std::mem::take(&mut self.has_missed);
        let changed = std::mem::take(&mut self.changed);
        (is_complete && changed.len() < CHANGED_MAX).then_some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: i32) -> ProcessId {
        ProcessId { pid, start_ticks: 1 }
    }

    #[test]
    fn a_descendant_keeps_its_creator_when_all_between_have_ended() {
        let mut state = State::default();
        state.kin.insert(7, Ancestry { creator: id(7), first: id(5) });
        let forked = |parent, child| ProcessEvent::Forked { parent, child };
        for event in [
            forked(7, 8),
            forked(8, 9),
            ProcessEvent::Exited(8),
            ProcessEvent::Exited(7),
            forked(9, 10),
            // The number of a process that has ended, for one of another program.
            forked(3, 8),
            ProcessEvent::Became(11),
        ] {
            state.take(event);
        }
        assert_eq!(state.kin.keys().copied().collect::<Vec<_>>(), [9, 10]);
        assert!(state.kin.values().all(|kin| *kin == Ancestry { creator: id(7), first: id(5) }));
        assert_eq!(state.changed, BTreeSet::from([7, 8, 9, 10, 11]));
        assert!(!state.has_lost);
        state.take(ProcessEvent::Lost);
        assert!(state.has_lost);
    }

    #[test]
    fn a_process_that_is_followed_before_its_fork_is_read_keeps_its_descendants() {
        let mut state = State::default();
        let own = |pid, first| Ancestry { creator: id(pid), first: id(first) };
        [5, 7, 8].into_iter().for_each(|pid| state.insert(id(pid), id(pid)));
        let forked = |parent, child| ProcessEvent::Forked { parent, child };
        // The first one was made by a process that is not followed, the second by another one.
        [forked(1, 7), forked(7, 9), forked(5, 8)].into_iter().for_each(|event| state.take(event));
        assert_eq!(state.kin[&7], own(7, 7));
        assert_eq!(state.kin[&9], own(7, 7));
        assert_eq!(state.kin[&8], own(8, 5), "it is of the app of its parent");
        state.take(ProcessEvent::Lost);
        state.take(forked(1, 7));
        assert!(!state.kin.contains_key(&7), "its end may be among the lost reports");
    }

    #[test]
    fn a_child_of_the_starter_that_is_followed_late_has_what_it_made_before() {
        let mut state = State { starter: Some(2), ..State::default() };
        let forked = |parent, child| ProcessEvent::Forked { parent, child };
        let exited = ProcessEvent::Exited;
        // The daemon 9 is the child of 8, which has ended; 12 is of another child.
        let made = [forked(2, 7), forked(7, 8), forked(8, 9), exited(8), forked(3, 10)];
        made.into_iter().chain([forked(2, 11), forked(11, 12)]).for_each(|it| state.take(it));
        state.insert(id(7), id(7));
        assert_eq!(state.kin.keys().copied().collect::<Vec<_>>(), [7, 9]);
        assert!(state.kin.values().all(|kin| *kin == Ancestry { creator: id(7), first: id(7) }));
        // Process 11 has ended, and the starter makes another of its number.
        [exited(11), forked(2, 11)].into_iter().for_each(|it| state.take(it));
        state.insert(id(11), id(11));
        assert_eq!(state.kin.keys().copied().collect::<Vec<_>>(), [7, 9, 11]);
        // A process that a child makes once it is followed is noted there alone.
        state.take(forked(11, 13));
        assert!(state.expected.is_empty() && state.kin.contains_key(&13));
    }

    #[test]
    fn a_number_that_is_given_again_is_followed_no_longer() {
        let mut state = State::default();
        // A child that waits to be waited for is followed again after its end was reported.
        state.kin.insert(7, Ancestry { creator: id(7), first: id(5) });
        state.take(ProcessEvent::Forked { parent: 1, child: 7 });
        assert!(!state.kin.contains_key(&7));
    }

    #[test]
    fn dropped_events_are_reported_once_and_later_changes_are_complete_again() {
        let mut state = State::default();
        state.take(ProcessEvent::Became(7));
        state.take(ProcessEvent::Lost);
        state.take(ProcessEvent::Became(8));
        assert_eq!(state.take_changed(), None);
        state.take(ProcessEvent::Became(9));
        assert_eq!(state.take_changed(), Some(BTreeSet::from([9])));
        assert!(state.has_lost, "forks are missing for good");
        (0..CHANGED_MAX as i32).for_each(|pid| state.take(ProcessEvent::Exited(pid)));
        assert_eq!(state.take_changed(), None, "too many");
        assert_eq!(state.take_changed(), Some(BTreeSet::new()));
    }
}
