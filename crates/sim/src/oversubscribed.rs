//! A server with a thread for each connection and more connections than cores.
//!
//! The machine and server of REEF (SoCC'25, seed 000): closed-loop connections,
//! each with a worker thread of its own; cores with run queues, idle states and
//! a frequency governor; one storage device behind a limit on its rate; and a
//! gate before the workers, which a
//! [`Admission`](lull_control::admission controller::Admission controller) tells whom to admit.
//!
//! What the paper's shapes turned out to need, and is therefore here: the
//! device serves those who wait in random order (in order of arrival all
//! latencies are alike, and there is no tail to cure); it is quick as long as
//! its rate is not used up; the frequency governor takes waiting for I/O for
//! load; the idle governor keeps cores with I/O waiters out of deep states;
//! instructions a query grow with the queries in service.
//!
//! Beside it may run apps that only compute ([`CoRunner`]), under a scheduler
//! with time slices; and a policy may hold cores and frequencies
//! ([`ServerPlant`]), whatever the admission controller does.
//!
//! Not modelled: migration costs, caches, the network's and the client's queues.

mod cores;
mod counts;
mod device;
mod gate;
mod model;
mod plant;
mod schedule;
mod server;

#[cfg(test)]
mod tests;

pub use counts::{ClassServed, Energy, GateServed, Served, Spent, Threads};
pub use model::{
    CoRunner, ConnectionClass, Contention, Costs, Device, Frequency, Governor, Order, Power, Query,
    Scheduler, ServerModel, ServerModelError,
};
pub use plant::ServerPlant;
pub use server::Server;
