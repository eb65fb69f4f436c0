//! Statistics of simulation output: intervals, warm-up, batches, replications.

mod experiment;
mod interval;
mod warmup;

pub use experiment::{Experiment, Failure, Precision, Runs, Warmup};
pub use interval::{Estimate, batch_means, paired};
pub use warmup::mser5;
