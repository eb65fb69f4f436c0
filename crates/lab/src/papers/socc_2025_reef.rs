//! REEF: Li and others, Energy-Efficient, Application-QoS-Aware Thread Processing in
//! Oversubscribed Server Environments, SoCC 2025.

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

/// A model of MongoDB with this many connections, all best effort.
pub(crate) fn mongo_with_connections(
    connections: u32,
) -> lull_sim::oversubscribed::OversubscribedModel {
    system::set_connections(&system::mongo().0, connections)
}

/// File name of the paper's text among our sources.
const SEED_FILE: &str = "000_0afe52b150b02c7c.txt";
