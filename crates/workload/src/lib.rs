//! Load generation and the built-in apps.
//!
//! [`arrivals`] computes when requests are due and [`etc`] draws their content;
//! [`target`] encodes and decodes the servers' protocols; [`client`] sends in open
//! loop and measures latency from the intended send time; [`push`] reports to the
//! agent; [`apps`] are the built-in latency-critical server and best-effort burners;
//! [`selfcheck`] measures the error of the client itself.

pub mod apps;
pub mod arrivals;
#[cfg(feature = "tls")]
pub mod authorities;
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
