//! A live Linux machine as a plant.
//!
//! ```text
//!   /proc /sys perf_event push socket ──▶ gauges ──▶ HostPlant::observe
//!   sched_setaffinity sched_setattr /proc/sys ◀── knobs ◀── HostPlant::apply
//!                                            │ old values, before the first write
//!                                            ▼
//!                                   guard: ledger, guard process, restore
//! ```
//!
//! Every kernel interface is behind a root in [`Roots`], so that each driver
//! is tested on a tree of files first and on a real kernel after. `unsafe`
//! code lives in [`sys`] and nowhere else.

pub mod apps;
pub mod bpf;
pub mod calibrate;
mod clock;
pub mod dispatch;
pub mod drivers;
pub mod emulate;
mod files;
pub mod gauges;
pub mod guard;
pub mod knobs;
pub mod listener;
pub mod oncall;
pub mod own_directory;
pub mod plant;
pub mod probe;
pub mod register;
mod roots;
pub mod sandbox;
pub mod service;
pub mod sys;
#[cfg(test)]
mod testing;
mod threads;

pub use clock::monotonic;
pub use plant::{HostApp, HostConfig, HostError, HostPlant, LatencyFrom, ProgressFrom, Stop};
pub use roots::Roots;
pub use threads::LiveThread;
