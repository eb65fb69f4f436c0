//! The result of watching a running server: the input of the decision.

use lull_measure::{Missing, Nanos};
use serde::Serialize;

/// A watch of one server.
#[derive(Debug, Clone)]
pub struct Observation {
    /// How long it took.
    pub time: Nanos,
    /// Cores that the server may use.
    pub cores: usize,
    /// Those cores' use by all programs, in cores.
    pub busy_cores: f64,
    /// The server's CPU time, in cores.
    pub server_cores: f64,
    /// Time that the server's threads were runnable and not on a core, in threads.
    pub queued_threads: f64,
    /// Most TCP connections to the server at a time.
    pub connections: usize,
    /// Its queries, or why they were not seen.
    pub queries: Result<Queries, Missing>,
}

/// The queries of a watch, as eBPF programs saw them.
#[derive(Debug, Clone, Default)]
pub struct Queries {
    /// Consecutive intervals.
    pub intervals: Vec<Interval>,
    /// Sums over the answered queries.
    pub sums: Sums,
    /// Queries that no thread answered before it read from another connection.
    pub displaced: u64,
}

/// One interval of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Interval {
    /// Length of the interval.
    pub seconds: f64,
    /// Queries under way: read and not answered, on average over the interval.
    pub under_way: f64,
    /// Queries answered.
    pub answered: u64,
    /// CPU time of the threads that answered them, since their previous answers.
    pub cpu_seconds: f64,
}

/// Sums over answered queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sums {
    /// Queries answered.
    pub answered: u64,
    /// Time from the read of a query to its answer.
    pub lasted_seconds: f64,
    /// The part in which the thread could run and was not on a core.
    pub queued_seconds: f64,
    /// The part in which it slept interruptibly, as for a lock.
    pub blocked_seconds: f64,
    /// The part in which it slept uninterruptibly, as for a disk.
    pub disk_seconds: f64,
    /// CPU time of the threads, from one answer to the next.
    pub cpu_seconds: f64,
    /// How often they left a core.
    pub switches: u64,
}
