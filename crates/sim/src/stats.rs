//! Statistics of simulation output: intervals, warm-up, batches, replications.

mod experiment;
mod interval;
mod warmup;

pub use experiment::{Experiment, Failure, Precision, Runs, Warmup};
pub use interval::batch_means;
pub use lull_measure::statistics::{Estimate, paired_difference};
pub use warmup::mser5;
