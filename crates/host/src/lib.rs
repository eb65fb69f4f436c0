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
pub mod guard;
mod roots;
pub mod sys;

pub use roots::Roots;
