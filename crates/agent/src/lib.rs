//! The agent as a library: watches apps, lets a policy decide, and writes the knobs.
//!
//! [`Agent`] starts a run from a [`config::Config`]; the [`session::Session`] that it
//! returns yields an epoch at a time (what was observed, what was decided) and restores
//! every knob when it is closed. `examples/embed.rs` is a whole program.
//!
//! Nothing here prints, ends the process, handles signals or reads arguments: messages go
//! to [`Agent::notify`], and a [`Stop`] ends a run. Two more processes run the `lull` program
//! ([`Agent::program`]): the guard restores the knobs if this one dies, and the front end
//! ([`frontend`]) parses what clients, viewers and Prometheus servers send.
//!
//! The other modules are the parts of a run that programs use on their own: records
//! ([`record`], [`recorded`]), cells of long computations ([`cells`]), the search's findings
//! ([`tuning_store`]), sweeps ([`sweep`]) and their profiles ([`profile`]), comparisons
//! ([`blocks`], [`proof`]), gates ([`admission`], [`library`]),
//! areas of cores for their clients ([`areas`]), the search for a server's load
//! knee ([`load_knee`]), databases on temporary directories ([`temporary_database`]), and words
//! for people ([`status`], [`text`]).

pub mod admission;
pub mod advice;
pub mod areas;
pub mod blocks;
pub mod cells;
pub mod config;
pub mod discovery;
pub mod dispatched;
pub mod error;
pub mod frontend;
pub mod guarded;
pub mod library;
mod limited;
pub mod live;
pub mod load_knee;
pub mod located;
pub mod machine_file;
#[doc(hidden)]
pub mod otlp;
mod outbound;
pub mod power_file;
pub mod profile;
mod prometheus;
pub mod proof;
pub mod record;
pub mod recorded;
mod renamed;
pub mod scenario_file;
pub mod scratch;
pub mod session;
pub mod simulated;
pub mod status;
pub mod sweep;
pub mod temporary_database;
pub mod text;
pub mod tuning_store;

pub use lull_host::plant::Stop;
#[doc(hidden)]
pub use prometheus::parse as parse_prometheus_reply;
pub use session::Agent;

/// The commit of this build, or `unknown` where it was built outside a git work tree.
pub const COMMIT: &str = env!("LULL_COMMIT");

/// Version and commit, as every record states them.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("LULL_COMMIT"), ")");
