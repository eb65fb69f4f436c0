//! A machine whose requests are dispatched one by one to cores of several speeds.
//!
//! The machine of EETL (MICRO-50, 2017): asymmetric cores, or cores each with its
//! own frequency, that serve independent sequential requests under a
//! [`Dispatcher`](lull_control::dispatcher::Dispatcher). It is a configuration of
//! [`crate::machine`]: cores of several types, one app with a thread a core, and arrivals that
//! are counted in requests.
//!
//! Power is that of the busy cores by type, plus a static part for each core in
//! proportion to its speed.

mod model;
mod outcome;
mod simulation;
mod source;

#[cfg(test)]
mod tests;

pub use crate::machine::MeasurementRecord;
pub use model::{CORES_MAX, DispatchModel, RateStep, RequestWork, top_speeds};
pub use outcome::DispatchTotals;
pub use simulation::DispatchSimulation;
