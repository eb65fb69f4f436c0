//! The gate before the workers: the on-call gate of live servers, and its agent.
//!
//! Who waits, who holds a slot, whose turn is next, when a turn is over and how
//! many queries are left for more is decided by [`lull_oncall::Gate`], the code
//! that runs inside servers. What is here is what the agent does there: it writes
//! an admission controller's admission into the gate's settings and seats. A connection whose
//! query has come and is not admitted *waits*. One that is admitted holds a
//! *turn* for as many queries as its batch and its allowance say, over its round
//! trips, so that a synchronous client's batch is a batch. Rounds are made here:
//! those that are listed have a batch and the others none.
//!
//! The gate's clock stands still. How long a turn outlasts its last answer is
//! the model's lease, and rounds and rests are the server's events; so the
//! gate's own leases and pauses are no part of a simulation.

use lull_control::admission::{Pace, RoundLimits};
use lull_oncall::sync::AtomicU64;
use lull_oncall::{Control, Decision, Id, Lease, Mode, Seat, Settings, Wake};
use std::cell::RefCell;
use std::collections::VecDeque;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

/// What the gate's clock says, always.
const NOW_NS: u64 = 0;

/// A connection, as the gate's agent knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Listed in the present round, its turn still to come.
    listed: bool,
    /// Whether a query of it is in service.
    served: bool,
}

/// What the on-call gate keeps, in memory of this server's own.
#[derive(Debug)]
struct Memory {
    control: Control,
    slots: Vec<Lease>,
    waiting: Vec<AtomicU64>,
    seats: Vec<Seat>,
    woken: Woken,
}

/// Workers that were woken, in order.
#[derive(Debug, Default)]
struct Woken(RefCell<Vec<u32>>);

/// The gate and its agent.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) admission: RoundLimits,
    memory: Memory,
    places: Vec<Place>,
    /// Whom the next round's list begins with.
    hand: usize,
    /// Connections listed, their turns still to come.
    listed: u32,
    /// Turns held now, and the most at any time.
    pub(super) running: u32,
    pub(super) most_running: u32,
    /// Connections that may run and were not told yet.
    ready: VecDeque<u32>,
    /// Queries that wait, by connection: what admission controllers see.
    pub(super) waiting: Vec<u32>,
    /// Turns begun and queries answered since the start of the round.
    pub(super) turns: u32,
    pub(super) answers: u32,
}

impl Wake for Woken {
    fn wake(&self, id: Id, _: &Seat) {
        self.0.borrow_mut().push(id.0);
    }
}

impl Memory {
    fn new(connections: usize) -> Self {
        let memory = Self {
            control: Control::default(),
            slots: (0..connections).map(|_| Lease::default()).collect(),
            waiting: (0..connections.div_ceil(64)).map(|_| AtomicU64::default()).collect(),
            seats: (0..connections).map(|_| Seat::default()).collect(),
            woken: Woken::default(),
        };
        memory.control.beat(NOW_NS);
        memory
    }

    fn gate(&self) -> lull_oncall::Gate<'_> {
        lull_oncall::Gate::new(&self.control, &self.slots, &self.waiting, &self.seats)
    }
}

impl Gate {
    pub(super) fn new(connections: usize) -> Self {
        Self {
            admission: RoundLimits::open(connections),
            memory: Memory::new(connections),
            places: vec![Place::default(); connections],
            hand: 0,
            listed: 0,
            running: 0,
            most_running: 0,
            ready: VecDeque::new(),
            waiting: vec![0; connections],
            turns: 0,
            answers: 0,
        }
    }

    /// Whether every query runs when it comes.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.admission.pace, Pace::Open { .. })
    }

    fn has_turn(&self, connection: u32) -> bool {
        self.memory.seats[connection as usize].is_admitted()
    }

    /// A query has come; whether it runs at once, without a turn of its own.
    pub(super) fn offer(&mut self, connection: u32) -> bool {
        let index = connection as usize;
        let passes = self.has_turn(connection) || self.is_open();
        let woken = &self.memory.woken;
        let decision = self.memory.gate().arrive(Id(connection), false, NOW_NS, woken);
        if passes {
            self.places[index].served = true;
            return true;
        }
        self.waiting[index] += 1;
        let is_known = woken.0.borrow().contains(&connection);
        if decision == Decision::Run && !is_known {
            // It found a free slot: a turn like any other begins.
            woken.0.borrow_mut().push(connection);
        }
        self.begin_turns((decision == Decision::Run).then_some(connection));
        false
    }

    /// A query was answered; whether its connection keeps the turn for the next.
    pub(super) fn answered(&mut self, connection: u32) -> bool {
        self.answers += 1;
        self.places[connection as usize].served = false;
        let had = self.has_turn(connection);
        let woken = &self.memory.woken;
        self.memory.gate().answered(Id(connection), false, NOW_NS, woken);
        self.after_turn(connection, had);
        self.has_turn(connection)
    }

    /// The lease of a turn is over: it ends unless a query of it is in service.
    pub(super) fn lapse(&mut self, connection: u32) -> bool {
        let had = self.has_turn(connection);
        let served = self.places[connection as usize].served;
        let woken = &self.memory.woken;
        self.memory.gate().idle(Id(connection), served, NOW_NS, woken);
        self.after_turn(connection, had);
        had && !self.has_turn(connection)
    }

    /// Counts a turn that has just ended, if one has, and those that it made room for.
    fn after_turn(&mut self, connection: u32, had: bool) {
        self.running -= u32::from(had && !self.has_turn(connection));
        self.begin_turns(None);
    }

    /// Those that were woken look at the gate, and their turns begin; who was told
    /// to run as its query came has looked.
    fn begin_turns(&mut self, has_looked: Option<u32>) {
        for connection in self.memory.woken.0.take() {
            if has_looked != Some(connection) {
                let woken = &self.memory.woken;
                let decision = self.memory.gate().check(Id(connection), NOW_NS, woken);
                debug_assert_eq!(decision, Decision::Run, "nobody is woken in vain");
            }
            if self.has_turn(connection) {
                self.begin_turn(connection as usize);
            }
            self.ready.push_back(connection);
        }
    }

    fn begin_turn(&mut self, index: usize) {
        if std::mem::take(&mut self.places[index].listed) {
            self.listed -= 1;
            self.memory.seats[index].set_budget(Some(self.batch(index)));
        }
        self.running += 1;
        self.turns += 1;
        self.most_running = self.most_running.max(self.running);
    }

    /// How long a connection's next turn may be; in a round only those that are
    /// listed have one.
    fn batch(&self, index: usize) -> u32 {
        let in_rounds = matches!(self.admission.pace, Pace::Rounds { .. });
        let has_turn = !in_rounds || self.places[index].listed;
        if has_turn { self.admission.allow[index].batch.max(1) } else { 0 }
    }

    /// Takes over a new decision: allowances start afresh.
    pub(super) fn decided(&mut self) {
        let in_rounds = matches!(self.admission.pace, Pace::Rounds { .. });
        let mut ranks = false;
        for (index, allow) in self.admission.allow.iter().enumerate() {
            self.places[index].listed &= in_rounds;
            ranks |= allow.first;
            let queries = Some(allow.queries).filter(|queries| *queries != u32::MAX);
            let seat = &self.memory.seats[index];
            seat.set_first(allow.first);
            seat.allow(Some(self.batch(index)), queries);
        }
        if !in_rounds {
            self.listed = 0;
        }
        self.memory.control.set(&Settings {
            mode: if self.is_open() { Mode::Stats } else { Mode::Post },
            cap: self.admission.cap.max(1),
            ranks,
            ..Settings::default()
        });
        self.pump();
    }

    /// The gate looks whom it may admit by what it was told since.
    fn pump(&mut self) {
        self.memory.gate().pump(NOW_NS, &self.memory.woken);
        self.begin_turns(None);
    }

    /// Starts a round: lists those who wait, from the ring's hand on, those who
    /// go first before the others; how many there are.
    pub(super) fn start_round(&mut self, turns: u32) -> u32 {
        self.turns = 0;
        self.answers = 0;
        let listed = self.list(turns);
        self.pump();
        listed
    }

    fn list(&mut self, turns: u32) -> u32 {
        let count = self.places.len();
        let start = self.hand;
        let mut listed = 0;
        for first in [true, false] {
            for step in 0..count {
                if listed >= turns {
                    return listed;
                }
                let index = (start + step) % count;
                if self.admission.allow[index].first == first && self.may_list(index) {
                    self.places[index].listed = true;
                    self.memory.seats[index].set_budget(Some(self.batch(index)));
                    self.listed += 1;
                    listed += 1;
                    if !first {
                        self.hand = (index + 1) % count;
                    }
                }
            }
        }
        listed
    }

    fn may_list(&self, index: usize) -> bool {
        let seat = &self.memory.seats[index];
        seat.is_waiting() && seat.left() != Some(0) && !self.places[index].listed
    }

    /// Whether all turns of the round have ended.
    pub(super) fn round_is_over(&self) -> bool {
        self.listed == 0 && self.running == 0
    }

    /// The next connection that may run and was not told yet.
    pub(super) fn admit(&mut self) -> Option<u32> {
        let connection = self.ready.pop_front()?;
        self.places[connection as usize].served = true;
        self.waiting[connection as usize] -= 1;
        Some(connection)
    }
}
