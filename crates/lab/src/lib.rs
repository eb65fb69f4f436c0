//! The laboratory: scenarios of policies and the simulator, and the papers'
//! tables as experiments.

pub mod backlog;
pub mod figure;
pub mod progress;
pub mod report;
pub mod trial;
