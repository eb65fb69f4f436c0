//! The gate before the workers: the on-call gate of live servers, and its agent.
//!
//! [`lull_oncall::Gate`], the code that runs inside live servers, decides which
//! connections wait, which hold a slot, whose turn is next and when a turn ends. This
//! module does what the agent does there: it writes the limits of the admission
//! controller into the gate's settings and entries. A connection whose query has arrived
//! and is not admitted *waits*. An admitted one holds a *turn* for as many queries as
//! its batch and its allowance permit, across its round trips. Rounds are formed here:
//! connections listed in a round have a batch, the others have none.
//!
//! Clients may be of several classes: then the gate's own code chooses the class that has the
//! next turn. In rounds it orders the turns of those that are listed.
//!
//! The gate's clock does not advance. How long a turn outlasts its last answer is the
//! model's lease, and rounds and pauses are events of the server; the gate's own
//! leases and pauses are not simulated.

use lull_control::admission::{Pace, RoundLimits};
use lull_oncall::sync::{AtomicU32, AtomicU64};
use lull_oncall::{
    CLIENT_CLASSES, ClassShare, ClientClasses, Control, Decision, GateEntry, Id, Lease, Mode,
    Settings, Wake,
};
use std::cell::RefCell;
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// The gate's time, which does not advance in the simulation.
const NOW_NS: u64 = 0;

/// The agent's state of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct ConnectionState {
    /// Listed in the present round; its turn has not begun.
    listed: bool,
    /// Whether a query of it is in service.
    served: bool,
}

/// The memory of the on-call gate, this server's own.
#[derive(Debug)]
struct Memory {
    control: Control,
    slots: Vec<Lease>,
    waiting: Vec<AtomicU64>,
    entries: Vec<GateEntry>,
    client_classes: ClientClasses,
    /// The queues of the classes; none without classes.
    tickets: Vec<AtomicU32>,
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
    connections: Vec<ConnectionState>,
    /// The connection at which the next round's list begins.
    hand: usize,
    /// Connections listed whose turns have not begun.
    listed: u32,
    /// Turns held now, and the most at any time.
    pub(super) running: u32,
    pub(super) most_running: u32,
    /// Connections that may run and that `admit` has not returned yet.
    ready: VecDeque<u32>,
    /// Queries that wait, by connection: what admission controllers see.
    pub(super) waiting: Vec<u32>,
    /// Turns begun and queries answered since the start of the round.
    pub(super) turns: u32,
    pub(super) answers: u32,
}

impl Wake for Woken {
    fn wake(&self, id: Id, _: &GateEntry) {
        self.0.borrow_mut().push(id.0);
    }
}

impl Memory {
    fn new(connections: usize) -> Self {
        let memory = Self {
            control: Control::default(),
            slots: (0..connections).map(|_| Lease::default()).collect(),
            waiting: (0..connections.div_ceil(64)).map(|_| AtomicU64::default()).collect(),
            entries: (0..connections).map(|_| GateEntry::default()).collect(),
            client_classes: ClientClasses::default(),
            tickets: Vec::new(),
            woken: Woken::default(),
        };
        memory.control.beat(NOW_NS);
        memory
    }

    fn gate(&self) -> lull_oncall::Gate<'_> {
        lull_oncall::Gate::new(&self.control, &self.slots, &self.waiting, &self.entries)
            .with_classes(&self.client_classes, &self.tickets)
    }
}

impl Gate {
    pub(super) fn new(connections: usize) -> Self {
        Self {
            admission: RoundLimits::open(connections),
            memory: Memory::new(connections),
            connections: vec![ConnectionState::default(); connections],
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

    /// Returns the gate with classes of clients: how each shares the turns, that of all other
    /// clients first, and the class of each connection. Without shares, turns go round.
    pub(super) fn with_classes(mut self, shares: &[ClassShare], of: &[u32]) -> Self {
        debug_assert_eq!(of.len(), self.connections.len(), "a class for each connection");
        if !shares.is_empty() {
            let tickets = CLIENT_CLASSES * (2 * of.len()).next_power_of_two();
            self.memory.tickets = (0..tickets).map(|_| AtomicU32::default()).collect();
            self.memory.client_classes.set(shares);
        }
        for (entry, class) in self.memory.entries.iter().zip(of) {
            entry.set_client_class(*class);
        }
        self
    }

    /// Returns whether every query runs when it arrives.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.admission.pace, Pace::Open { .. })
    }

    fn has_turn(&self, connection: u32) -> bool {
        self.memory.entries[connection as usize].is_admitted()
    }

    /// A query arrives. Returns whether it runs at once, without beginning a turn.
    pub(super) fn offer(&mut self, connection: u32) -> bool {
        let index = connection as usize;
        let passes = self.has_turn(connection) || self.is_open();
        let woken = &self.memory.woken;
        let decision = self.memory.gate().arrive(Id(connection), false, NOW_NS, woken);
        if passes {
            self.connections[index].served = true;
            return true;
        }
        self.waiting[index] += 1;
        let is_known = woken.0.borrow().contains(&connection);
        if decision == Decision::Run && !is_known {
            // The waiter found a free slot: a turn like any other begins.
            woken.0.borrow_mut().push(connection);
        }
        self.begin_turns((decision == Decision::Run).then_some(connection));
        false
    }

    /// A query is answered. Returns whether its connection keeps the turn.
    pub(super) fn answered(&mut self, connection: u32) -> bool {
        self.answers += 1;
        self.connections[connection as usize].served = false;
        let had = self.has_turn(connection);
        let woken = &self.memory.woken;
        self.memory.gate().answered(Id(connection), false, NOW_NS, woken);
        self.after_turn(connection, had);
        self.has_turn(connection)
    }

    /// The lease of a turn is over: it ends unless a query of it is in service.
    pub(super) fn end_lease(&mut self, connection: u32) -> bool {
        let had = self.has_turn(connection);
        let served = self.connections[connection as usize].served;
        let woken = &self.memory.woken;
        self.memory.gate().idle(Id(connection), served, NOW_NS, woken);
        self.after_turn(connection, had);
        had && !self.has_turn(connection)
    }

    /// Counts a turn that has just ended, if one has, and those that it made room for.
    fn after_turn(&mut self, connection: u32, had: bool) {
        let ended = had && !self.has_turn(connection);
        debug_assert!(!ended || self.running > 0, "a turn that ends was held");
        self.running -= u32::from(ended);
        self.begin_turns(None);
    }

    /// Woken connections check the gate, and their turns begin. `has_looked` is the
    /// connection that was admitted when its query arrived and need not check again.
    fn begin_turns(&mut self, has_looked: Option<u32>) {
        for connection in self.memory.woken.0.take() {
            if has_looked != Some(connection) {
                let woken = &self.memory.woken;
                let decision = self.memory.gate().check(Id(connection), NOW_NS, woken);
                debug_assert_eq!(decision, Decision::Run, "every woken connection may run");
            }
            if self.has_turn(connection) {
                self.begin_turn(connection as usize);
            }
            self.ready.push_back(connection);
        }
    }

    fn begin_turn(&mut self, index: usize) {
        if std::mem::take(&mut self.connections[index].listed) {
            self.listed -= 1;
            self.memory.entries[index].set_budget(Some(self.batch(index)));
        }
        self.running += 1;
        self.turns += 1;
        self.most_running = self.most_running.max(self.running);
    }

    /// How long a connection's next turn may be; in a round only those that are
    /// listed have one.
    fn batch(&self, index: usize) -> u32 {
        let in_rounds = matches!(self.admission.pace, Pace::Rounds { .. });
        let has_turn = !in_rounds || self.connections[index].listed;
        if has_turn { self.admission.allow[index].batch.max(1) } else { 0 }
    }

    /// Takes over a new decision: allowances start afresh.
    pub(super) fn decided(&mut self) {
        let in_rounds = matches!(self.admission.pace, Pace::Rounds { .. });
        let mut ranks = false;
        for (index, allow) in self.admission.allow.iter().enumerate() {
            self.connections[index].listed &= in_rounds;
            ranks |= allow.first;
            let queries = Some(allow.queries).filter(|queries| *queries != u32::MAX);
            let entry = &self.memory.entries[index];
            entry.set_first(allow.first);
            entry.allow(Some(self.batch(index)), queries);
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

    /// Lets the gate admit connections under its present settings.
    fn pump(&mut self) {
        self.memory.gate().pump(NOW_NS, &self.memory.woken);
        self.begin_turns(None);
    }

    /// Starts a round: lists waiting connections from the ring's hand on, those marked
    /// `first` before the others. Returns their number.
    pub(super) fn start_round(&mut self, turns: u32) -> u32 {
        self.turns = 0;
        self.answers = 0;
        let listed = self.list(turns);
        self.pump();
        listed
    }

    fn list(&mut self, turns: u32) -> u32 {
        let count = self.connections.len();
        let start = self.hand;
        let mut listed = 0;
        for first in [true, false] {
            for step in 0..count {
                if listed >= turns {
                    return listed;
                }
                let index = (start + step) % count;
                if self.admission.allow[index].first == first && self.may_list(index) {
                    self.connections[index].listed = true;
                    self.memory.entries[index].set_budget(Some(self.batch(index)));
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
        let entry = &self.memory.entries[index];
        entry.is_waiting() && entry.left() != Some(0) && !self.connections[index].listed
    }

    /// Whether all turns of the round have ended.
    pub(super) fn round_is_over(&self) -> bool {
        self.listed == 0 && self.running == 0
    }

    /// Returns the next connection that may run.
    pub(super) fn admit(&mut self) -> Option<u32> {
        let connection = self.ready.pop_front()?;
        self.connections[connection as usize].served = true;
        debug_assert!(self.waiting[connection as usize] > 0, "an admitted query waited");
        self.waiting[connection as usize] -= 1;
        Some(connection)
    }
}
