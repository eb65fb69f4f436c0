//! Advice before the first restart under the gate: whether a concurrency limit is likely to
//! help a server that runs without one.
//!
//! ```text
//!   running server ──▶ ServerWatch ──▶ Observation ──▶ decide ──▶ Decision
//!                      eBPF, /proc     by interval     cost.rs    verdict, gain, next step
//! ```
//!
//! [`ServerWatch`] changes nothing of the server. [`decide`] is a pure function.

mod cost;
mod decision;
mod observation;
mod watch;

pub use decision::{Decision, Gain, NextStep, UNDER_WAY_PER_CORE, Verdict, decide};
pub use observation::{Interval, Observation, Queries, Sums};
pub use watch::ServerWatch;

#[cfg(test)]
mod tests;
