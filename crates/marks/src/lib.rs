//! Marks for servers that report their own requests, which Lull dispatches to cores of several
//! speeds.
//!
//! [`Config`] reads a file that names the cores and a dispatcher of `lull-policies`, which the
//! simulator drives, too; `lull_host::dispatch` moves the threads. Servers in Rust hold a
//! [`Dispatch`] and call [`Dispatch::begin`]; others use the C interface of `include/lull.h`
//! ([`c`]).
//!
//! [`register`] makes the calling process an app of a running agent, by a template of the
//! agent's config.

pub mod c;
mod config;

pub use config::{Config, ConfigError, CoreType, OpenError};
pub use lull_host::dispatch::{Dispatch, Mark};
pub use lull_host::register::{RegisterError, Registration, register};
