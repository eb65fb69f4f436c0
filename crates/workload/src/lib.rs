//! Load and the apps it falls on.
//!
//! [`arrivals`] says when requests are due and [`etc`] what they ask for;
//! [`target`] speaks the servers' protocols; [`client`] sends in open loop and
//! measures from the intended send time; [`push`] reports to the agent;
//! [`apps`] are the built-in latency-critical server and best-effort burners;
//! [`selfcheck`] measures the client itself.

pub mod apps;
pub mod arrivals;
pub mod client;
pub mod clock;
pub mod distribution;
pub mod etc;
mod poller;
pub mod push;
pub mod selfcheck;
mod summary;
pub mod target;
#[cfg(test)]
mod testing;

pub use summary::Summary;

/// The random numbers of loads and apps: seeded, fast, the same on every machine.
pub type Generator = rand_xoshiro::Xoshiro256PlusPlus;
