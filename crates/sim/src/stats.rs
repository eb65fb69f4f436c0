//! Statistics of simulation output: intervals, warm-up, replications.

mod experiment;
mod warmup;

pub use experiment::{Experiment, Failure, Precision, Runs, Warmup};
pub use lull_measure::statistics::{Estimate, paired_difference};
pub use warmup::mser5;
