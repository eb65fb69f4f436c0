//! Load and the apps it falls on.
//!
//! [`arrivals`] says when requests are due.
//! [`target`] speaks the servers' protocols; [`client`] sends in open loop and

pub mod arrivals;
pub mod distribution;
#[cfg(test)]
mod testing;
