//! A server with a thread for each connection and more connections than cores.
//!
//! The machine and server of REEF (SoCC 2025): closed-loop connections, each with
//! a worker thread of its own; cores with run queues, idle states and a frequency
//! governor; one storage device with a rate limit; and a gate before the workers, at
//! which an
//! [`Admission`](lull_control::admission::Admission) controller decides whom to admit.
//!
//! The paper's figures need these parts of the model: the device serves waiting I/Os
//! in random order (in order of arrival all latencies are alike, and there is no
//! tail); it does not delay I/Os while its rate limit is not reached; the frequency
//! governor counts waiting for I/O as load; the idle governor keeps cores with I/O
//! waiters out of deep states; instructions per query grow with the queries in
//! service.
//!
//! Apps that only compute ([`CoRunner`]) may share its cores, under a scheduler with
//! time slices. A policy may set cores and frequencies ([`OversubscribedModel::plant`]),
//! independently of the admission controller.
//!
//! It is a configuration of [`crate::machine`], which [`OversubscribedModel::machine`] gives.
//!
//! Not modelled: migration costs, caches, the network's and the client's queues.

mod model;

#[cfg(test)]
mod tests;

pub use crate::machine::{
    Contention, CoreTime, Device, EnergyParts, GateClass, GateTotals, GatedTotals, Governor,
    MachinePlant, MeanThreads, Order, Polling, Power, Query, RunQueues, TurnShare,
};
pub use model::{CoRunner, ConnectionClass, Costs, Frequency, OversubscribedModel};
