//! Li and others, REEF: Energy-Efficient, Application-QoS-Aware Thread
//! Processing in Oversubscribed Server Environments, SoCC 2025 (seed 000).

pub(crate) mod batch;
pub(crate) mod c6;
pub(crate) mod colocation;
pub(crate) mod ipq;
pub(crate) mod lambda;
pub(crate) mod os;
pub(crate) mod overhead;
pub(crate) mod packing;
pub(crate) mod policies;
pub(crate) mod qoswc;
pub(crate) mod steered;

mod system;

/// The server that stands for MongoDB with so many connections, all best effort.
pub(crate) fn stand_in(connections: u32) -> lull_sim::oversubscribed::ServerModel {
    system::with_connections(&system::mongo().0, connections)
}

/// The seed document.
const SEED_FILE: &str = "000_0afe52b150b02c7c.txt";
