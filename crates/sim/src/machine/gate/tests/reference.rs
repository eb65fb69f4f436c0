//! A reference model of the gate, with which the tests compare the on-call gate.

use lull_control::admission::{Pace, RoundLimits};
use std::collections::VecDeque;

/// A connection at the gate.
#[derive(Debug, Clone, Copy, Default)]
struct ConnectionState {
    /// Queries that wait: 0 or 1, for connections are synchronous.
    waiting: u32,
    /// Queries left of the present turn; `None` without one.
    turn: Option<u32>,
    /// Queries left until the next decision.
    left: u32,
    /// Listed in the present round; its turn has not begun.
    listed: bool,
    /// Whether a query of it is in service.
    served: bool,
}

/// The plain gate.
#[derive(Debug, Clone)]
pub(super) struct Plain {
    pub(super) admission: RoundLimits,
    connections: Vec<ConnectionState>,
    /// Where the ring continues.
    hand: usize,
    /// Turns held now, and the most at any time.
    pub(super) running: u32,
    pub(super) most_running: u32,
    /// Connections whose turn in this round has not begun.
    list: VecDeque<u32>,
    /// Queries that wait, by connection: what admission controllers see.
    pub(super) waiting: Vec<u32>,
    /// The connection that arrived while no other waited: it takes a free slot and the
    /// ring does not advance.
    alone: Option<usize>,
}

impl Plain {
    pub(super) fn new(connections: usize) -> Self {
        Self {
            admission: RoundLimits::open(connections),
            connections: vec![ConnectionState::default(); connections],
            hand: 0,
            running: 0,
            most_running: 0,
            list: VecDeque::new(),
            waiting: vec![0; connections],
            alone: None,
        }
    }

    /// Returns whether every query runs when it arrives.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.admission.pace, Pace::Open { .. })
    }

    /// A query arrives. Returns whether it runs at once.
    pub(super) fn offer(&mut self, connection: u32) -> bool {
        let open = self.is_open();
        let state = &mut self.connections[connection as usize];
        if state.turn.is_some() || open {
            state.served = true;
            return true;
        }
        state.waiting += 1;
        let none_waits = self.waiting.iter().all(|queries| *queries == 0);
        self.alone = none_waits.then_some(connection as usize);
        self.waiting[connection as usize] += 1;
        false
    }

    /// A query was answered; whether its connection keeps the turn for the next.
    pub(super) fn answered(&mut self, connection: u32) -> bool {
        let state = &mut self.connections[connection as usize];
        state.served = false;
        let Some(left) = state.turn else { return false };
        if left > 1 {
            state.turn = Some(left - 1);
            return true;
        }
        self.end_turn(connection);
        false
    }

    /// The lease of a turn is over: it ends unless a query of it is in service.
    pub(super) fn end_lease(&mut self, connection: u32) -> bool {
        let state = self.connections[connection as usize];
        let idle = state.turn.is_some() && !state.served;
        if idle {
            self.end_turn(connection);
        }
        idle
    }

    fn end_turn(&mut self, connection: u32) {
        self.connections[connection as usize].turn = None;
        self.running -= 1;
    }

    /// Takes over a new decision: allowances start afresh.
    pub(super) fn refill(&mut self) {
        for (state, allow) in self.connections.iter_mut().zip(&self.admission.allow) {
            state.left = allow.queries;
        }
    }

    /// Starts a round: lists waiting connections from the ring's hand on, those marked
    /// `first` before the others. Returns their number.
    pub(super) fn start_round(&mut self, turns: u32) -> u32 {
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
                    self.list.push_back(index as u32);
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
        let state = &self.connections[index];
        state.waiting > 0 && state.left > 0 && state.turn.is_none() && !state.listed
    }

    /// Whether all turns of the round have ended.
    pub(super) fn round_is_over(&self) -> bool {
        self.list.is_empty() && self.running == 0
    }

    /// The next connection whose turn begins now, if there is a slot.
    pub(super) fn admit(&mut self) -> Option<u32> {
        let admitted = self.next();
        self.alone = None;
        admitted
    }

    fn next(&mut self) -> Option<u32> {
        if self.is_open() {
            // Those that waited when the gate was opened run first.
            let index = self.connections.iter().position(|state| state.waiting > 0)?;
            self.take(index);
            return Some(index as u32);
        }
        if self.running >= self.admission.cap.max(1) {
            return None;
        }
        let index = match self.admission.pace {
            Pace::Flow { .. } => self.next_in_ring()?,
            _ => self.list.pop_front()? as usize,
        };
        self.begin_turn(index);
        Some(index as u32)
    }

    fn next_in_ring(&mut self) -> Option<usize> {
        let count = self.connections.len();
        let start = self.hand;
        let find = |first: bool| {
            let mut ring = (0..count).map(|step| (start + step) % count);
            ring.find(|index| self.admission.allow[*index].first == first && self.may_list(*index))
        };
        let first = find(true);
        let index = first.or_else(|| find(false))?;
        if first.is_none() && self.alone != Some(index) {
            self.hand = (index + 1) % count;
        }
        Some(index)
    }

    fn begin_turn(&mut self, index: usize) {
        let batch = self.admission.allow[index].batch.max(1);
        let state = &mut self.connections[index];
        state.listed = false;
        let queries = batch.min(state.left);
        // The next decision restores the allowance that the turn does not use.
        state.left = if state.left == u32::MAX { u32::MAX } else { state.left - queries };
        state.turn = Some(queries);
        self.running += 1;
        self.most_running = self.most_running.max(self.running);
        self.take(index);
    }

    /// Takes a waiting query off the gate.
    fn take(&mut self, index: usize) {
        let state = &mut self.connections[index];
        state.waiting -= 1;
        state.served = true;
        self.waiting[index] -= 1;
    }
}
