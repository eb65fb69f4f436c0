//! Requests that a server marks itself, placed on cores of several speeds.
//!
//! Joins a file that names cores and dispatcher ([`Config`]), the dispatchers of
//! `lull-policies`, which are those that the simulator drives, and the live
//! side in `lull_host::dispatch`. Servers in Rust hold a [`Dispatch`] and call
//! [`Dispatch::begin`]; others use the C interface of `include/lull.h` ([`c`]).

pub mod c;
mod config;

pub use config::{Config, ConfigError, CoreType, OpenError};
pub use lull_host::dispatch::{Dispatch, Mark};
