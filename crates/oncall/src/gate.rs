//! The gate: who may run now, who is next, and when a slot comes free.
//!
//! There is no lock and no scheduler. Whoever arrives or ends a turn *pumps*:
//! it hands free slots to those that wait, round the ring from where the last
//! one stopped. So the state is whole after every step, whoever is killed in
//! between: a slot whose holder is gone runs out, and a waiter that was lost
//! puts itself back at its next [deadline](Gate::deadline_ns).
//!
//! What holds, and is model-checked (`tests/model.rs`): slots are numbered
//! below C, so that no more than C workers count as admitted at any instant;
//! and the step that frees a slot, or that makes somebody wait, is followed by
//! a fence and a look at the other side, so that no wake-up is lost.
//!
//! From the paper: one turn a round for each connection, N_k queries a turn
//! (none: the turn is missed), pause D between rounds, no more than C at once.
//! So many queries in all until the agent decides anew are counted here, turn by
//! turn ([`Seat::allow`]), since agents decide more seldom than turns begin.
//! Ours: the unit of admission is the transaction; a slot is on lease; with no
//! pause and nobody waiting, a free slot is taken at once; by default who
//! arrives during a round still has its turn in it.

mod ring;
#[cfg(test)]
mod tests;

use crate::control::{Control, Mode, Settings, count};
use crate::lease::Lease;
use crate::seat::{Id, Seat, State};
use crate::sync::AtomicU64;

/// Tells a worker to look at its seat again.
pub trait Wake {
    /// Wakes the worker of `id`, which sleeps on the word of its seat or is
    /// about to.
    fn wake(&self, id: Id, seat: &Seat);
}

/// Whether a worker may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// At once.
    Run,
    /// Once it is woken and [`Gate::check`] says so.
    Park,
}

/// Shortest time between two looks of a parked worker at the gate.
const TICK_NS: u64 = 25_000_000;
/// With many workers each looks more seldom, so that one looks every 2 ms.
const TICK_OF_ONE_NS: u64 = 2_000_000;
const TICK_MAX_NS: u64 = 1_000_000_000;
/// After a pause the first waiter pumps; the others look this much later each.
const BEHIND_NS: u64 = 20_000;

/// A gate over memory that others may share.
///
/// Whatever stands there, no method panics or loops for ever; an [`Id`] that
/// the memory has no seat for always runs.
#[derive(Debug, Clone, Copy)]
pub struct Gate<'a> {
    control: &'a Control,
    slots: &'a [Lease],
    waiting: &'a [AtomicU64],
    seats: &'a [Seat],
}

impl<'a> Gate<'a> {
    /// A gate of as many connections as there are seats; `waiting` has a bit for each.
    pub const fn new(
        control: &'a Control,
        slots: &'a [Lease],
        waiting: &'a [AtomicU64],
        seats: &'a [Seat],
    ) -> Self {
        Self { control, slots, waiting, seats }
    }

    /// What the agent sets and the gate keeps.
    pub const fn control(&self) -> &'a Control {
        self.control
    }

    /// A connection's seat.
    pub fn seat(&self, id: Id) -> Option<&'a Seat> {
        self.seats.get(id.index())
    }

    /// A new connection has this seat.
    pub fn open_seat(&self, id: Id) {
        if let Some(seat) = self.seat(id) {
            self.forget(id);
            seat.reset();
        }
    }

    /// The connection is closed, by its worker or somebody else.
    pub fn close_seat(&self, id: Id, now_ns: u64, wake: &impl Wake) {
        self.expel(id, wake);
        self.end_turn(id, now_ns, wake);
    }

    /// A worker has a query.
    ///
    /// `passes` is for one that must not wait: it is in a transaction, or a
    /// rule exempts its connection. One that holds a slot keeps it.
    pub fn arrive(&self, id: Id, passes: bool, now_ns: u64, wake: &impl Wake) -> Decision {
        let Some(seat) = self.seat(id) else { return Decision::Run };
        if passes || seat.is_admitted() || !self.control.is_closed(now_ns) {
            return Decision::Run;
        }
        let settings = self.control.settings();
        // One without queries misses its turns, whether anybody else waits or not.
        let has_turn = settings.pause_ns() == 0 && seat.has_queries();
        let is_free = has_turn && self.control.waiters() == 0;
        if is_free && self.takes_turn(id, seat, &settings, now_ns) {
            return Decision::Run;
        }
        seat.wait_from(now_ns, self.past_round(&settings));
        self.remember(id);
        self.check(id, now_ns, wake)
    }

    /// A worker takes a free slot and begins its turn, if there is one.
    fn takes_turn(&self, id: Id, seat: &Seat, settings: &Settings, now_ns: u64) -> bool {
        let Some((slot, held)) = self.take_slot(id, settings, now_ns) else { return false };
        let begins = seat.begin_turn(settings.batch);
        if begins {
            seat.take(slot);
            count(&self.control.counts.admissions);
        } else if let Some(lease) = self.slots.get(slot) {
            // The agent took its queries away meanwhile. It waits, and so looks
            // whom the slot is for.
            lease.free(held);
        }
        begins
    }

    /// A parked worker looks: it was woken, or its [deadline](Self::deadline_ns) has come.
    pub fn check(&self, id: Id, now_ns: u64, wake: &impl Wake) -> Decision {
        let Some(seat) = self.seat(id) else { return Decision::Run };
        if seat.is_waiting() {
            self.remember(id);
            self.pump(now_ns, wake);
        }
        match seat.state() {
            State::Resting => return Decision::Park,
            State::Waiting if !self.is_expired(seat, now_ns) || !self.leave(id) => {
                return Decision::Park;
            }
            State::Waiting => count(&self.control.counts.expired),
            State::Admitted { slot } if !seat.begin_turn(self.control.settings().batch) => {
                self.put_back(id, seat, slot, now_ns, wake);
                return Decision::Park;
            }
            State::Admitted { .. } => count(&self.control.counts.parks),
            State::LetGo => seat.clear(),
            State::Idle => {}
        }
        // It may have been put back among those that wait as it was told to run.
        self.forget(id);
        Decision::Run
    }

    /// An admitted worker has no queries for a turn: whoever admitted it had
    /// looked before its last turn, or before the agent took them away. The
    /// slot is somebody else's, and it waits on from when it asked.
    fn put_back(&self, id: Id, seat: &Seat, slot: usize, now_ns: u64, wake: &impl Wake) {
        if let Some(lease) = self.slots.get(slot) {
            lease.give_back(id.0);
        }
        seat.wait_on();
        self.remember(id);
        self.pump(now_ns, wake);
    }

    /// A worker has nothing to do: whether it may rest instead of waiting for
    /// its client. It is to arm whatever tells of its next query
    /// ([`Gate::came`]), and then to [sleep](Self::sleep).
    pub fn rest(&self, id: Id, now_ns: u64) -> bool {
        let Some(seat) = self.seat(id) else { return false };
        let calls = self.control.mode() == Mode::Epoll && self.control.is_closed(now_ns);
        // One that holds a slot is in a transaction, and answered at once.
        let may = calls && !seat.is_admitted();
        if may {
            seat.rest();
        }
        may
    }

    /// A query, or the end, has come for a worker: one that rests waits for a
    /// slot from now on. Whoever says so [pumps](Self::pump) the gate after,
    /// once for all that have come.
    pub fn came(&self, id: Id, now_ns: u64, wake: &impl Wake) {
        let Some(seat) = self.seat(id) else { return };
        if seat.ask(now_ns, self.past_round(&self.control.settings())) {
            count(&self.control.counts.calls);
            self.remember(id);
        } else {
            // If it sleeps all the same, its seat was overwritten: it is to look.
            wake.wake(id, seat);
        }
    }

    /// A resting worker rests no more, by its own wish; `false` if it waits, was
    /// admitted or let go meanwhile.
    pub(crate) fn rise(&self, id: Id) -> bool {
        self.seat(id).is_some_and(Seat::rise)
    }

    /// When a worker that parks now must look again though nobody woke it.
    ///
    /// This is what ends leases, pauses and the trust in a silent agent when
    /// nothing else moves. Workers look at different times: the more of them
    /// wait, the more seldom each looks.
    pub fn deadline_ns(&self, id: Id, now_ns: u64) -> u64 {
        let waiters = u64::from(self.control.waiters().min(self.seats.len() as u32)).max(1);
        let period = (waiters * TICK_OF_ONE_NS).clamp(TICK_NS, TICK_MAX_NS);
        // Multiples of the golden ratio spread evenly, however many there are.
        let share = u64::from(id.0.wrapping_mul(0x9e37_79b9));
        let phase = (share * period) >> 32;
        let mut tick = (now_ns - now_ns % period).saturating_add(phase);
        while tick <= now_ns.saturating_add(period / 8) {
            tick = tick.saturating_add(period);
        }
        let pause_ns = self.control.settings().pause_ns();
        match self.control.ring.turn().pause_until(now_ns, pause_ns) {
            Some(begins_ns) => tick.min(begins_ns + (waiters - 1) * BEHIND_NS),
            None => tick,
        }
    }

    /// A waiting worker goes, by its own wish; `false` if it was admitted or
    /// let go meanwhile and is to [check](Self::check).
    pub fn leave(&self, id: Id) -> bool {
        let has_left = self.seat(id).is_some_and(Seat::give_up);
        if has_left {
            self.forget(id);
        }
        has_left
    }

    /// Lets somebody else's waiting or resting worker run without a slot, since
    /// its connection ends.
    pub fn expel(&self, id: Id, wake: &impl Wake) {
        let Some(seat) = self.seat(id) else { return };
        if seat.let_go() {
            self.forget(id);
            wake.wake(id, seat);
        }
    }

    /// A worker has answered a query. Inside a transaction it keeps its slot;
    /// else it has spent a token, and after the last its turn is over.
    pub fn answered(&self, id: Id, in_transaction: bool, now_ns: u64, wake: &impl Wake) {
        let Some(seat) = self.seat(id) else { return };
        if !in_transaction && seat.is_admitted() && !seat.spend() {
            self.end_turn(id, now_ns, wake);
        }
    }

    /// A worker has no query at hand: its turn is over, whatever it has left,
    /// but not within a transaction.
    pub fn idle(&self, id: Id, in_transaction: bool, now_ns: u64, wake: &impl Wake) {
        if !in_transaction {
            self.end_turn(id, now_ns, wake);
        }
    }

    /// Ends a worker's turn, if it has one.
    pub fn end_turn(&self, id: Id, now_ns: u64, wake: &impl Wake) {
        let Some(seat) = self.seat(id) else { return };
        let State::Admitted { slot } = seat.state() else { return };
        seat.clear();
        if let Some(lease) = self.slots.get(slot) {
            lease.give_back(id.0);
        }
        self.pump(now_ns, wake);
    }

    /// Slots that count against C now.
    pub fn active(&self, now_ns: u64) -> usize {
        let lease_ns = self.control.settings().slot_lease_ns;
        self.slots.iter().filter(|slot| !slot.read().is_over(now_ns, lease_ns)).count()
    }

    fn is_expired(&self, seat: &Seat, now_ns: u64) -> bool {
        let waited_ns = now_ns.saturating_sub(seat.asked_ns());
        waited_ns >= self.control.settings().park_max_ns
    }

    /// The last round that is past for one that arrives now.
    fn past_round(&self, settings: &Settings) -> u32 {
        let turn = self.control.ring.turn();
        let is_past = turn.has_begun() && !settings.joins;
        if is_past { turn.round() } else { turn.round().wrapping_sub(1) }
    }
}
