//! Queries at a rate: clients that do not wait for answers share the connections of a gate.
//!
//! A query that is due takes the connection that has been free for longest. If none is free it
//! waits at the client, as in `lull load`, and its latency counts from when it was due.

use super::model::MachineModel;
use super::parts::GateModel;
use super::source;
use crate::order::NEVER_NS;
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_workload::arrivals::Arrivals;
use std::collections::VecDeque;

/// When a query was due, and its work and its time on the device in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demands {
    pub(super) arrived_ns: u64,
    pub(super) before: f64,
    pub(super) io: f64,
    pub(super) after: f64,
}

/// The queries of clients at a rate.
pub(super) struct OpenQueries {
    arrivals: Box<Arrivals<Stream>>,
    pub(super) works: Stream,
    /// Connections without a query, in the order in which they became free.
    pub(super) free: VecDeque<u32>,
    /// Queries that wait for a connection.
    pub(super) backlog: VecDeque<Demands>,
}

impl OpenQueries {
    /// The queries at the gate of a checked model; `None` if its clients wait for answers.
    pub(super) fn new(
        model: &MachineModel,
        gate: &GateModel,
        streams: Replication,
    ) -> Option<Self> {
        let (app, described) = model.behind(gate).next().filter(|_| !gate.load.is_empty())?;
        let stream = |purpose| streams.stream(purpose, model.stream_of(app));
        let schedule = source::schedule(&gate.load).expect("the model is checked");
        let arrivals = Arrivals::new(gate.arrivals, schedule, stream(StreamPurpose::Arrivals));
        Some(Self {
            arrivals: Box::new(arrivals),
            works: stream(StreamPurpose::Work),
            free: (0..described.threads).collect(),
            backlog: VecDeque::new(),
        })
    }

    /// When the next query is due.
    pub(super) fn next_ns(&mut self) -> u64 {
        self.arrivals.next().map_or(NEVER_NS, |at| at.0)
    }

    /// When the query was due that has waited for a connection for longest.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.backlog.front().map(|query| query.arrived_ns)
    }
}
