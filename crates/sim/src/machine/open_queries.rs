//! Queries at a rate: clients that do not wait for answers share the connections of a gate.
//!
//! A query that is due takes the connection that has been free for longest. If none is free it
//! waits at the client, as in `lull load`, and its latency counts from when it was due.

use super::gated::{Demands, GatedServer};
use super::model::MachineModel;
use super::parts::GateModel;
use super::source;
use crate::order::NEVER_NS;
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_workload::arrivals::Arrivals;
use std::collections::VecDeque;

/// The queries of clients at a rate.
pub(super) struct OpenQueries {
    arrivals: Box<Arrivals<Stream>>,
    works: Stream,
    /// Connections without a query, in the order in which they became free.
    free: VecDeque<u32>,
    /// Queries that wait for a connection.
    backlog: VecDeque<Demands>,
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

impl GatedServer {
    /// A query of clients at a rate is due. Returns the connection that sends it now.
    pub(super) fn due(&mut self, now_ns: u64) -> Option<usize> {
        let open = self.open.as_mut()?;
        let query = self.draws.demands(&mut open.works, now_ns);
        self.queries += 1;
        let Some(index) = open.free.pop_front() else {
            open.backlog.push_back(query);
            return None;
        };
        self.send(index as usize, query);
        Some(index as usize)
    }

    /// A connection of clients at a rate is free. Returns whether it sends a query that waited.
    pub(super) fn freed(&mut self, index: usize) -> bool {
        let Some(open) = &mut self.open else { return false };
        match open.backlog.pop_front() {
            Some(query) => {
                self.send(index, query);
                true
            }
            None => {
                open.free.push_back(index as u32);
                false
            }
        }
    }
}
