//! The agent as a library: watches apps, lets a policy decide, and writes the knobs.

pub mod admission;
pub mod blocks;
pub mod config;
pub mod dispatched;
pub mod error;
pub mod guarded;
pub mod library;
pub mod live;
pub mod located;
pub mod power_file;
mod prometheus;
pub mod proof;
pub mod record;
pub mod recorded;
mod renamed;
pub mod session;
pub mod signals;
pub mod spots;
pub mod status;
pub mod text;

/// The commit of this build, or `unknown` where it was built outside a git work tree.
pub const COMMIT: &str = env!("LULL_COMMIT");

/// Version and commit, as every record states them.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("LULL_COMMIT"), ")");
