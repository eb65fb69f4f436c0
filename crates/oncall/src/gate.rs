//! The gate: it admits waiting workers to slots, round by round.
//!
//! There is no lock and no scheduler. A worker that arrives or ends its turn *pumps* the
//! gate: it assigns free slots to waiting workers, round the ring from where the last pump
//! stopped. The state is consistent after every step, so that a worker may be killed between
//! any two: the lease of a slot whose holder is dead expires, and a waiting worker that was
//! lost puts itself back at its next [deadline](Gate::deadline_ns).
//!
//! Two invariants are model-checked (`tests/model.rs`). Slots are numbered below C, so that
//! at most C workers count as admitted at any instant. And a step that frees a slot, or that
//! makes a worker wait, is followed by a fence and a read of the other side, so that no
//! wake-up is lost.
//!
//! From the paper (REEF, SoCC'25, section 3.3): a connection has one turn a round of N_k
//! queries (0: it misses its turns), rounds are a pause D apart, and at most C workers run at
//! once. An agent may also limit the queries until its next decision; they are counted here
//! turn by turn ([`GateEntry::allow`]), since an agent decides less often than turns begin.
//!
//! A gate may have classes of clients (`classes`): then slots go to the class that is next, and
//! within a class to the connection that waits longest, instead of round the ring.
//!
//! Differences: the unit of admission is the transaction; a slot is held on lease; without a
//! pause and without waiting workers a free slot is taken immediately; and by default a worker
//! that arrives during a round has a turn in it.

mod ring;
#[cfg(test)]
mod tests;

use crate::classes::{ClassQueues, ClientClasses};
use crate::control::{Control, Mode, Settings, count};
use crate::gate_entry::{GateEntry, Id, SLOTS_MAX, State};
use crate::lease::{Lease, OWNERS_MAX};
use crate::sync::{AtomicU32, AtomicU64};
use ring::Search;

/// Wakes workers, which then look at their entries.
pub trait Wake {
    /// Wakes the worker of `id`, which sleeps on the word of its entry or is about to.
    fn wake(&self, id: Id, entry: &GateEntry);
}

/// Whether a worker may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The worker may run immediately.
    Run,
    /// The worker waits until [`Gate::check`] returns `Run`.
    Park,
}

/// The shortest time between two checks of a parked worker.
const TICK_NS: u64 = 25_000_000;
/// With many parked workers each checks less often, so that one of them checks every 2 ms.
const TICK_OF_ONE_NS: u64 = 2_000_000;
const TICK_MAX_NS: u64 = 1_000_000_000;
/// After a pause the first waiting worker pumps; each further one checks this much later.
const BEHIND_NS: u64 = 20_000;

/// A gate over memory that others may share.
///
/// No content of that memory makes a method panic or loop without end, debug assertions
/// included, and no count in it decides whether a worker waits: a worker that waits reads the
/// ring itself. An [`Id`] without an entry always runs.
#[derive(Debug, Clone, Copy)]
pub struct Gate<'a> {
    control: &'a Control,
    slots: &'a [Lease],
    waiting: &'a [AtomicU64],
    entries: &'a [GateEntry],
    /// The queues of classes of clients, for a gate that may have them.
    queues: Option<ClassQueues<'a>>,
}

impl<'a> Gate<'a> {
    /// Returns a gate with one entry for each connection; `waiting` has a bit for each.
    ///
    /// # Panics
    /// If `waiting` has not exactly the words that the entries need, or an entry's or a slot's
    /// number does not fit the words that hold it.
    #[inline]
    pub const fn new(
        control: &'a Control,
        slots: &'a [Lease],
        waiting: &'a [AtomicU64],
        entries: &'a [GateEntry],
    ) -> Self {
        assert!(waiting.len() == entries.len().div_ceil(64), "a bit for each entry");
        assert!(entries.len() < OWNERS_MAX as usize, "a lease holds the number of an entry");
        assert!(slots.len() <= SLOTS_MAX, "an entry holds the number of a slot");
        Self { control, slots, waiting, entries, queues: None }
    }

    /// Returns the gate with classes of clients, whose queues lie in `tickets`: two for each entry
    /// and class suffice.
    #[must_use]
    #[inline]
    pub const fn with_classes(
        mut self,
        classes: &'a ClientClasses,
        tickets: &'a [AtomicU32],
    ) -> Self {
        self.queues = Some(ClassQueues::new(classes, tickets));
        self
    }

    /// Returns the queues of its classes, if it has any now.
    fn queues(&self) -> Option<ClassQueues<'a>> {
        self.queues.filter(ClassQueues::are_used)
    }

    /// Returns the shared words of the gate.
    pub const fn control(&self) -> &'a Control {
        self.control
    }

    /// Returns the entry of a connection.
    #[inline]
    pub fn entry(&self, id: Id) -> Option<&'a GateEntry> {
        self.entries.get(id.index())
    }

    /// Resets an entry for a new connection.
    pub fn open_connection(&self, id: Id) {
        if let Some(entry) = self.entry(id) {
            self.dequeue(id);
            entry.reset();
        }
    }

    /// Frees an entry, and the slot of its worker, when the connection is closed.
    pub fn close_connection(&self, id: Id, now_ns: u64, wake: &impl Wake) {
        self.evict(id, wake);
        self.end_turn(id, now_ns, wake);
    }

    /// Decides on a worker that has read a query. `passes` marks one that must not wait: it is
    /// in a transaction, or a rule exempts its connection. A worker that holds a slot keeps
    /// it.
    pub fn arrive(&self, id: Id, passes: bool, now_ns: u64, wake: &impl Wake) -> Decision {
        let Some(entry) = self.entry(id) else { return Decision::Run };
        if passes || entry.is_admitted() || !self.control.is_closed(now_ns) {
            return Decision::Run;
        }
        let settings = self.control.settings();
        // A connection without queries misses its turns, even when no other waits.
        let has_turn = settings.pause_ns() == 0 && entry.has_queries();
        let is_free = has_turn && self.control.waiters() == 0;
        if is_free && self.try_turn(id, entry, &settings, now_ns) {
            return Decision::Run;
        }
        entry.wait_from(now_ns, self.past_round(&settings));
        self.enqueue(id);
        self.check(id, now_ns, wake)
    }

    /// Takes a free slot and begins the worker's turn, if there is one.
    fn try_turn(&self, id: Id, entry: &GateEntry, settings: &Settings, now_ns: u64) -> bool {
        let Some((slot, held)) = self.take_slot(id, settings, now_ns) else { return false };
        let begins = entry.begin_turn(settings.batch);
        if begins {
            entry.take(slot);
            count(&self.control.counts.admissions);
            if let Some(queues) = self.queues() {
                queues.classes.count_turn(entry);
            }
        } else if let Some(lease) = self.slots.get(slot) {
            // The agent withdrew its queries meanwhile. It waits, and so pumps the gate,
            // which finds a worker for the slot.
            lease.free(held);
        }
        begins
    }

    /// Decides again on a parked worker that was woken or has reached its
    /// [deadline](Self::deadline_ns).
    pub fn check(&self, id: Id, now_ns: u64, wake: &impl Wake) -> Decision {
        let Some(entry) = self.entry(id) else { return Decision::Run };
        if entry.is_waiting() {
            self.enqueue(id);
            self.pump(now_ns, wake);
        }
        match entry.state() {
            State::Resting => return Decision::Park,
            State::Waiting if !self.is_expired(entry, now_ns) || !self.leave(id) => {
                return Decision::Park;
            }
            State::Waiting => count(&self.control.counts.expired),
            State::Admitted { slot } if !entry.begin_turn(self.control.settings().batch) => {
                self.return_slot(id, entry, slot, now_ns, wake);
                return Decision::Park;
            }
            State::Admitted { .. } => count(&self.control.counts.parks),
            State::LetGo => entry.clear(),
            State::Idle => {}
        }
        // The connection may have been enqueued again while it was admitted.
        self.dequeue(id);
        Decision::Run
    }

    /// Makes an admitted worker that has no queries for a turn wait again, from when it began
    /// to wait, and passes its slot on. The thread that admitted it had read its queries before
    /// its last turn, or before the agent withdrew them.
    fn return_slot(&self, id: Id, entry: &GateEntry, slot: usize, now_ns: u64, wake: &impl Wake) {
        if let Some(lease) = self.slots.get(slot) {
            lease.release(id.0);
        }
        entry.keep_waiting();
        self.enqueue(id);
        self.pump(now_ns, wake);
    }

    /// Whether idle workers rest now: in mode epoll, while the gate is closed.
    pub fn has_rests(&self, now_ns: u64) -> bool {
        self.control.mode() == Mode::Epoll && self.control.is_closed(now_ns)
    }

    /// Makes a worker rest that has nothing to do, in mode epoll. Returns `false` if it must
    /// wait for its client instead. The caller then arranges for [`Gate::query_arrived`] to be
    /// called, and [sleeps](Self::sleep).
    pub fn rest(&self, id: Id, now_ns: u64) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        // A worker that holds a slot is in a transaction, whose next query must not wait.
        let may_rest = self.has_rests(now_ns) && !entry.is_admitted();
        if may_rest {
            entry.rest();
        }
        may_rest
    }

    /// Makes a resting worker wait for a slot, since a query or the end of its connection has
    /// arrived. The caller [pumps](Self::pump) the gate afterwards, once for all arrivals.
    pub fn query_arrived(&self, id: Id, now_ns: u64, wake: &impl Wake) {
        let Some(entry) = self.entry(id) else { return };
        if entry.end_rest_by_query(now_ns, self.past_round(&self.control.settings())) {
            count(&self.control.counts.calls);
            self.enqueue(id);
        } else {
            // If the worker sleeps although it does not rest, its entry was overwritten: it must
            // check.
            wake.wake(id, entry);
        }
    }

    /// Ends a worker's rest, by the worker itself. Returns `false` if it waits, was admitted or
    /// was let go meanwhile.
    pub(crate) fn end_rest(&self, id: Id) -> bool {
        self.entry(id).is_some_and(GateEntry::end_rest)
    }

    /// Returns when a worker that parks now must check again, if it is not woken before.
    ///
    /// These checks end expired leases, pauses and the lease of a silent agent when nothing
    /// else happens. Workers check at different times, and the more of them wait, the less
    /// often each does.
    pub fn deadline_ns(&self, id: Id, now_ns: u64) -> u64 {
        let waiters = u64::from(self.count_waiters()).max(1);
        let period = (waiters * TICK_OF_ONE_NS).clamp(TICK_NS, TICK_MAX_NS);
        // Multiples of the golden ratio spread evenly for any number of workers.
        let share = u64::from(id.0.wrapping_mul(0x9e37_79b9));
        let phase = (share * period) >> 32;
        let mut tick = (now_ns - now_ns % period).saturating_add(phase);
        while tick <= now_ns.saturating_add(period / 8) {
            tick = tick.saturating_add(period);
        }
        let pause_ns = self.control.settings().pause_ns();
        let check_ns = match self.control.ring.turn().pause_until(now_ns, pause_ns) {
            Some(begins_ns) => tick.min(begins_ns + (waiters - 1) * BEHIND_NS),
            None => tick,
        };
        check_ns.min(self.wait_ends_ns(id, now_ns))
    }

    /// Returns when the worker has waited for the longest time allowed. A time before `now_ns` was
    /// not written by this program, and must not make the worker check without a pause.
    fn wait_ends_ns(&self, id: Id, now_ns: u64) -> u64 {
        let since_ns = self.entry(id).map_or(now_ns, GateEntry::waiting_since_ns);
        let ends_ns = since_ns.saturating_add(self.control.settings().park_max_ns);
        if ends_ns > now_ns { ends_ns } else { u64::MAX }
    }

    /// Ends a worker's wait, by the worker itself. Returns `false` if it was admitted or let go
    /// meanwhile and must [check](Self::check).
    pub fn leave(&self, id: Id) -> bool {
        let has_left = self.entry(id).is_some_and(GateEntry::stop_waiting);
        if has_left {
            self.dequeue(id);
        }
        has_left
    }

    /// Lets another thread's waiting or resting worker run without a slot, since its
    /// connection ends.
    pub fn evict(&self, id: Id, wake: &impl Wake) {
        let Some(entry) = self.entry(id) else { return };
        if entry.let_go() {
            self.dequeue(id);
            wake.wake(id, entry);
        }
    }

    /// Notes that a worker has replied to a query. Inside a transaction it keeps its slot. Else
    /// it has used one query of its turn, and the turn ends after the last.
    pub fn answered(&self, id: Id, in_transaction: bool, now_ns: u64, wake: &impl Wake) {
        let Some(entry) = self.entry(id) else { return };
        if !in_transaction && entry.is_admitted() && !entry.spend_token() {
            self.end_turn(id, now_ns, wake);
        }
    }

    /// Notes that a worker found no query: its turn ends, even if queries are left of it,
    /// except inside a transaction.
    pub fn idle(&self, id: Id, in_transaction: bool, now_ns: u64, wake: &impl Wake) {
        if !in_transaction {
            self.end_turn(id, now_ns, wake);
        }
    }

    /// Ends a worker's turn, if it has one.
    pub fn end_turn(&self, id: Id, now_ns: u64, wake: &impl Wake) {
        let Some(entry) = self.entry(id) else { return };
        let State::Admitted { slot } = entry.state() else { return };
        entry.clear();
        if let Some(lease) = self.slots.get(slot) {
            lease.release(id.0);
        }
        self.pump_by(Search::Counted, now_ns, wake);
    }

    /// Returns the number of slots that count against C now.
    pub fn active(&self, now_ns: u64) -> usize {
        let lease_ns = self.control.settings().slot_lease_ns;
        self.slots.iter().filter(|slot| !slot.read().is_over(now_ns, lease_ns)).count()
    }

    fn is_expired(&self, entry: &GateEntry, now_ns: u64) -> bool {
        // A time far in the future was not written by this program, and must not make it wait.
        let waited_ns = now_ns.abs_diff(entry.waiting_since_ns());
        waited_ns >= self.control.settings().park_max_ns
    }

    /// Returns the last round in which a worker that arrives now has no turn.
    fn past_round(&self, settings: &Settings) -> u32 {
        let turn = self.control.ring.turn();
        let is_past = turn.has_begun() && !settings.joins;
        if is_past { turn.round() } else { turn.round().wrapping_sub(1) }
    }
}
