//! Constants of this machine, found by measuring it: its power model
//! ([`power`]) and how long a core must sleep for sleep to pay ([`idle`]).
//!
//! Both are a plan of steps, a stand that carries a step out and says what was
//! seen, and a reckoning over all that was seen. Only the stand touches a
//! machine, so plan and reckoning are tested on simulated ones.

pub mod idle;
pub mod load;
pub mod power;
mod stand;

pub use stand::{Bench, BenchError};
