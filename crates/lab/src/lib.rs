//! The laboratory: scenarios of policies and the simulator, and the papers'
//! tables as experiments.

pub mod backlog;
pub mod experiment;
pub mod figure;
mod papers;
pub mod progress;
pub mod report;
mod theory;
pub mod trial;
