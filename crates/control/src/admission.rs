//! The interface of admission controllers, which decide how many queries each
//! connection may run.
//!
//! A server with a thread for each connection lets every query that arrives
//! compete at once. A *gate* in front of its workers admits them instead (REEF,
//! Li et al. 2025, sections 3.3 and 3.4). An [`Admission`] sets the limits of the
//! gate: how many queries of each connection may be answered until the next
//! decision, how many in one turn, how many workers may hold a turn at a time, and
//! how long the gate pauses between two rounds.
//!
//! The gate is the on-call runtime of a live server or of a simulated one; the
//! interface is the same. An admission controller decides at the start of each
//! round, or at a fixed interval where the gate has no rounds ([`Pace`]). Each
//! decision receives the answers since the last one ([`GateObservation`]).

use crate::Objective;
use lull_measure::{Gauge, Nanos};

/// Queries of one connection that were answered since the last decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    /// Index of the connection.
    pub connection: u32,
    /// Time from the query's arrival to its answer; the middle of a bucket
    /// where a plant counts in buckets.
    pub latency: Nanos,
    /// How many of them.
    pub queries: u32,
}

/// How the last round went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundObservation {
    /// Connections that had a turn.
    pub turns: u32,
    /// Queries answered in it.
    pub queries: u32,
    /// Time from its start to the end of its last turn.
    pub took: Nanos,
}

/// CPU time and switches of a server over a span that ends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerTimes {
    /// The span.
    pub span: Nanos,
    /// CPU time of the server.
    pub cpu: Nanos,
    /// Time that its threads were runnable without running.
    pub run_queue: Nanos,
}

/// The observation that an admission controller decides on.
#[derive(Debug, Clone)]
pub struct GateObservation<'a> {
    /// Time since the start.
    pub now: Nanos,
    /// The queries answered since the last decision, in order.
    pub answered: &'a [Answered],
    /// Queries that wait at the gate, by connection.
    pub waiting: &'a [u32],
    /// Connections that are open.
    pub connections: Gauge<u32>,
    /// The age of each transaction whose query is at the gate or in service now, from the
    /// arrival of its first query.
    pub under_way: Gauge<&'a [Nanos]>,
    /// Share of the I/O device's throughput in use since the last decision, in [0, 1].
    pub device: Gauge<f64>,
    /// The round that has ended; `None` before the first, or without rounds.
    pub round: Option<RoundObservation>,
    /// Share of the time since the last decision in which no worker had anything to
    /// do, in stretches from which a core's deep idle state gains (C6 opportunity as
    /// the gate sees it; REEF, Li et al. 2025, equation 2), in [0, 1].
    pub rested: Gauge<f64>,
    /// The server's usage since the last such reading, with decisions that have one.
    pub server: Gauge<ServerTimes>,
}

/// The turns of one connection until the next decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Queries in all; 0: it yields its turns.
    pub queries: u32,
    /// Queries in one turn, at most.
    pub batch: u32,
    /// Whether it goes before those without.
    pub first: bool,
}

impl Allowance {
    /// Allows any number of queries, this many in a turn.
    pub const fn turns_of(batch: u32) -> Self {
        Self { queries: u32::MAX, batch, first: false }
    }
}

/// How turns follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// No gate: every query runs when it comes.
    Open {
        /// Time to the next decision.
        again: Nanos,
    },
    /// A turn begins as soon as a slot is free.
    Flow {
        /// Time to the next decision.
        again: Nanos,
    },
    /// Turns begin in rounds.
    Rounds {
        /// Connections that have a turn in one round.
        turns: u32,
        /// The ISR delay: rest between the end of a round and the next.
        pause: Nanos,
        /// Time from the start of a round to the next instead of a rest, so that
        /// rounds may overlap.
        every: Option<Nanos>,
    },
    /// Workers without a query rest, and those with a new one are called together, so that cores
    /// are undisturbed in between.
    Rests {
        /// The ISR delay: rest between the end of a round and the next call.
        pause: Nanos,
        /// Time to the next decision.
        again: Nanos,
    },
}

impl Pace {
    /// Returns the same pace for a gate at which workers wait with their query and never
    /// rest without one: a round of all waiting workers, and the pause after it.
    #[must_use]
    pub const fn of_waiting(self) -> Self {
        match self {
            Self::Rests { pause, .. } => Self::Rounds { turns: u32::MAX, pause, every: None },
            other => other,
        }
    }
}

/// The settings of the gate until the next decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundLimits {
    /// One allowance a connection.
    pub allow: Vec<Allowance>,
    /// Workers that may hold a turn at a time, at least 1.
    pub cap: u32,
    /// How turns follow each other.
    pub pace: Pace,
}

impl RoundLimits {
    /// An open gate before this many connections.
    pub fn open(connections: usize) -> Self {
        Self {
            allow: vec![Allowance::turns_of(u32::MAX); connections],
            cap: u32::MAX,
            pace: Pace::Open { again: Nanos::from_secs(1) },
        }
    }
}

/// The limits of a gate; they hold until the next decision changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateLimits {
    /// C: workers that may hold a turn at a time, at least 1.
    pub cap: u32,
    /// N: queries (transactions) in one turn, at least 1.
    pub batch: u32,
    /// D: the rest between two rounds; none hands turns on immediately.
    pub delay: Nanos,
}

/// Decides what a gate admits: pure, with state.
///
/// It uses no clock and no I/O: time is in its observation, and random numbers follow from the seed
/// that it was built with.
pub trait Admission: Send {
    /// Decides the settings of the gate from now on. `admission` holds the last decision, or an
    /// open gate before the first; it is changed in place, because this runs at every round.
    fn decide(&mut self, seen: &GateObservation<'_>, admission: &mut RoundLimits);

    /// Returns the last decision with its evidence, in words, if there was one since the last
    /// call. A controller that changes its settings with every decision has none to report.
    fn take_decision(&mut self) -> Option<String> {
        None
    }

    /// Returns whether the controller compares settings of the gate, or would begin to as soon as
    /// it may. On a machine one gate at a time is surveyed, because each changes what the others
    /// measure.
    fn wants_survey(&self) -> bool {
        false
    }

    /// Called before a `decide` with whether this gate is the one that may be surveyed. A
    /// controller that is not called may survey at any time.
    fn allow_survey(&mut self, _: bool) {}

    /// Called before the next `decide` when another knob of the machine was set, an app arrived or
    /// departed, or the gate had other settings during a pause or a bypass: measurements across
    /// that instant belong to no setting.
    fn machine_changed(&mut self) {}

    /// Called when objectives change but the set of connections does not. Returns
    /// `false` if the controller must be rebuilt because its learned state no longer
    /// applies.
    fn retarget(&mut self, _: &[Option<Objective>]) -> bool {
        false
    }

    /// The numbers at the gate, if it does nothing but keep them: then a policy
    /// may set them. One that chooses them itself has none to lend, since two
    /// would act on one gate.
    fn numbers(&mut self) -> Option<&mut GateLimits> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_gate_delays_no_worker() {
        let gate = RoundLimits::open(3);
        assert_eq!((gate.allow.len(), gate.cap), (3, u32::MAX));
        assert!(matches!(gate.pace, Pace::Open { .. }));
        assert!(gate.allow.iter().all(|one| one.queries == u32::MAX && !one.first));
    }

    #[test]
    fn where_no_worker_rests_a_rest_is_the_pause_between_rounds_of_all() {
        let pause = Nanos::from_millis(2);
        let rests = Pace::Rests { pause, again: Nanos::from_secs(1) };
        let rounds = Pace::Rounds { turns: u32::MAX, pause, every: None };
        assert_eq!((rests.of_waiting(), rounds.of_waiting()), (rounds, rounds));
    }
}
