//! The laboratory: scenarios of policies and the simulator, and the papers'
//! tables as experiments.

pub mod backlog;
mod colocation;
pub mod cycles;
pub mod experiment;
pub mod figure;
pub mod mix;
mod papers;
pub mod portrait;
pub mod progress;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod server;
mod sourced;
mod theory;
pub mod trial;
pub mod tune;
