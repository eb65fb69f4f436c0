//! The gate before the workers: who may run, by a regulator's admission.
//!
//! A connection whose query has come and is not admitted *waits*. One that is
//! admitted holds a *turn* for as many queries as its batch and its allowance
//! say, over its round trips, so that a synchronous client's batch is a batch.
//! A turn ends early when its next query does not come within the lease.

use lull_control::regulator::{Admission, Pace};
use std::collections::VecDeque;

/// A connection at the gate.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Queries that wait: 0 or 1, for connections are synchronous.
    waiting: u32,
    /// Queries left of the present turn; `None` without one.
    turn: Option<u32>,
    /// Queries left until the next decision.
    left: u32,
    /// Listed in the present round, its turn still to come.
    listed: bool,
    /// Whether a query of it is in service.
    served: bool,
}

/// The gate.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) admission: Admission,
    places: Vec<Place>,
    /// Where the ring goes on.
    hand: usize,
    /// Turns held now, and the most at any time.
    pub(super) running: u32,
    pub(super) most_running: u32,
    /// Connections whose turn in this round is to come.
    list: VecDeque<u32>,
    /// Queries that wait, by connection: what regulators see.
    pub(super) waiting: Vec<u32>,
    /// Turns begun and queries answered since the start of the round.
    pub(super) turns: u32,
    pub(super) answers: u32,
}

impl Gate {
    pub(super) fn new(connections: usize) -> Self {
        Self {
            admission: Admission::open(connections),
            places: vec![Place::default(); connections],
            hand: 0,
            running: 0,
            most_running: 0,
            list: VecDeque::new(),
            waiting: vec![0; connections],
            turns: 0,
            answers: 0,
        }
    }

    /// Whether every query runs when it comes.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.admission.pace, Pace::Open { .. })
    }

    /// A query has come; whether it runs at once.
    pub(super) fn offer(&mut self, connection: u32) -> bool {
        let open = self.is_open();
        let place = &mut self.places[connection as usize];
        if place.turn.is_some() || open {
            place.served = true;
            return true;
        }
        place.waiting += 1;
        self.waiting[connection as usize] += 1;
        false
    }

    /// A query was answered; whether its connection keeps the turn for the next.
    pub(super) fn answered(&mut self, connection: u32) -> bool {
        self.answers += 1;
        let place = &mut self.places[connection as usize];
        place.served = false;
        let Some(left) = place.turn else { return false };
        if left > 1 {
            place.turn = Some(left - 1);
            return true;
        }
        self.end_turn(connection);
        false
    }

    /// The lease of a turn is over: it ends unless a query of it is in service.
    pub(super) fn lapse(&mut self, connection: u32) -> bool {
        let place = self.places[connection as usize];
        let idle = place.turn.is_some() && !place.served;
        if idle {
            self.end_turn(connection);
        }
        idle
    }

    fn end_turn(&mut self, connection: u32) {
        self.places[connection as usize].turn = None;
        self.running -= 1;
    }

    /// Takes over a new decision: allowances start afresh.
    pub(super) fn refill(&mut self) {
        for (place, allow) in self.places.iter_mut().zip(&self.admission.allow) {
            place.left = allow.queries;
        }
    }

    /// Starts a round: lists those who wait, from the ring's hand on, those who
    /// go first before the others; how many there are.
    pub(super) fn start_round(&mut self, turns: u32) -> u32 {
        self.turns = 0;
        self.answers = 0;
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
        let place = &self.places[index];
        place.waiting > 0 && place.left > 0 && place.turn.is_none() && !place.listed
    }

    /// Whether all turns of the round have ended.
    pub(super) fn round_is_over(&self) -> bool {
        self.list.is_empty() && self.running == 0
    }

    /// The next connection whose turn begins now, if there is a slot.
    pub(super) fn admit(&mut self) -> Option<u32> {
        if self.is_open() {
            // What waited when the gate was opened.
            let index = self.places.iter().position(|place| place.waiting > 0)?;
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
        let count = self.places.len();
        let start = self.hand;
        let find = |first: bool| {
            let mut ring = (0..count).map(|step| (start + step) % count);
            ring.find(|index| self.admission.allow[*index].first == first && self.may_list(*index))
        };
        let first = find(true);
        let index = first.or_else(|| find(false))?;
        if first.is_none() {
            self.hand = (index + 1) % count;
        }
        Some(index)
    }

    fn begin_turn(&mut self, index: usize) {
        let batch = self.admission.allow[index].batch.max(1);
        let place = &mut self.places[index];
        place.listed = false;
        let queries = batch.min(place.left);
        // What the turn does not use comes back with the next decision.
        place.left = if place.left == u32::MAX { u32::MAX } else { place.left - queries };
        place.turn = Some(queries);
        self.running += 1;
        self.turns += 1;
        self.most_running = self.most_running.max(self.running);
        self.take(index);
    }

    /// Takes a waiting query off the gate.
    fn take(&mut self, index: usize) {
        let place = &mut self.places[index];
        place.waiting -= 1;
        place.served = true;
        self.waiting[index] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::regulator::Allowance;
    use lull_measure::Nanos;

    fn gate(connections: usize, cap: u32, batch: u32, pace: Pace) -> Gate {
        let mut gate = Gate::new(connections);
        gate.admission =
            Admission { allow: vec![Allowance::turns_of(batch); connections], cap, pace };
        gate.refill();
        gate
    }

    fn admitted(gate: &mut Gate) -> Vec<u32> {
        std::iter::from_fn(|| gate.admit()).collect()
    }

    fn rounds(turns: u32) -> Pace {
        Pace::Rounds { turns, pause: Nanos::ZERO, every: None }
    }

    fn flow() -> Pace {
        Pace::Flow { again: Nanos::from_millis(1) }
    }

    #[test]
    fn an_open_gate_lets_everything_through() {
        let mut gate = Gate::new(2);
        assert!(gate.offer(0) && gate.offer(1));
        assert!(!gate.answered(0), "nobody holds a turn");
        assert_eq!(gate.running, 0);
    }

    #[test]
    fn no_more_turns_are_held_than_the_cap() {
        let mut gate = gate(5, 2, 1, flow());
        (0..5).for_each(|connection| assert!(!gate.offer(connection)));
        assert_eq!(admitted(&mut gate), [0, 1]);
        gate.answered(1);
        assert_eq!(admitted(&mut gate), [2], "the ring goes on");
        assert_eq!((gate.running, gate.most_running), (2, 2));
    }

    #[test]
    fn a_batch_is_kept_over_round_trips_and_ends_when_used_up_or_idle() {
        let mut gate = gate(2, 1, 2, flow());
        gate.offer(0);
        gate.offer(1);
        assert_eq!(admitted(&mut gate), [0]);
        assert!(gate.answered(0), "one of two is left");
        assert!(gate.offer(0), "the next query of a turn runs at once");
        assert!(!gate.lapse(0), "not while it is in service");
        assert!(!gate.answered(0));
        assert_eq!(admitted(&mut gate), [1]);
        assert!(gate.answered(1));
        assert!(gate.lapse(1), "its next query does not come");
        assert_eq!(gate.running, 0);
    }

    #[test]
    fn a_round_gives_each_one_turn_and_the_next_goes_on_where_it_ended() {
        let mut gate = gate(5, 5, 1, rounds(3));
        (0..5).for_each(|connection| assert!(!gate.offer(connection)));
        assert_eq!(gate.start_round(3), 3);
        assert_eq!(admitted(&mut gate), [0, 1, 2]);
        for connection in 0..3 {
            gate.answered(connection);
            assert!(!gate.offer(connection), "no second turn in a round");
        }
        assert!(gate.round_is_over());
        assert_eq!((gate.turns, gate.answers), (3, 3));
        assert_eq!(gate.start_round(3), 3);
        assert_eq!(admitted(&mut gate), [3, 4, 0]);
    }

    #[test]
    fn those_who_go_first_do_and_those_without_allowance_do_not() {
        let mut gate = gate(3, 1, 1, flow());
        gate.admission.allow[0].queries = 0;
        gate.admission.allow[2].first = true;
        gate.refill();
        (0..3).for_each(|connection| assert!(!gate.offer(connection)));
        assert_eq!(admitted(&mut gate), [2]);
        gate.answered(2);
        assert_eq!(admitted(&mut gate), [1]);
        gate.answered(1);
        assert_eq!(admitted(&mut gate), [0; 0]);
        gate.refill();
        assert_eq!(admitted(&mut gate), [0; 0], "its allowance is still none");
    }

    #[test]
    fn opening_the_gate_frees_those_who_wait() {
        let mut gate = gate(3, 1, 1, flow());
        (0..3).for_each(|connection| assert!(!gate.offer(connection)));
        gate.admission = Admission::open(3);
        assert_eq!(admitted(&mut gate), [0, 1, 2]);
    }
}
