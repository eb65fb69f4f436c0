//! Requests that a server marks itself, placed on cores of several speeds.
//!
//! Joins a file that names cores and placer ([`Config`]), the placers of
//! `lull-policies`, which are those that the simulator drives, and the live
//! side in `lull_host::placing`. Servers in Rust hold a [`Placing`] and call
//! [`Placing::begin`]; others use the C interface of `include/lull.h` ([`c`]).

pub mod c;
mod config;

pub use config::{Config, ConfigError, CoreType, OpenError};
pub use lull_host::placing::{Mark, Placing};
