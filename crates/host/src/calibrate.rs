//! Constants of this machine, found by measuring it: its power model
//! ([`power`]) and how long a core must sleep for sleep to pay ([`idle`]).
//!
//! Both are a plan of steps, a stand that carries a step out and says what was
//! seen, and an analysis of all readings. Only the test bench touches a
//! machine, so plan and analysis are tested on simulated machines.

mod bench;
pub mod idle;
pub mod load;
pub mod power;

pub use bench::{Bench, BenchError};
