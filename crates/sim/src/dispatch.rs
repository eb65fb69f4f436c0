//! A node whose requests are placed one by one on cores of several speeds.
//!
//! The machine of EETL (MICRO-50, seed 002): asymmetric cores, or cores each
//! with its own frequency, that serve independent sequential requests under a
//! [`Dispatcher`](lull_control::dispatcher::Dispatcher). What the tier model of
//! [`crate::model`] cannot say is said here: which core runs which request,
//! what moving it costs, and how the cores slow each other down.
//!
//! All running requests are slowed by one common factor, so their ends lie on
//! one virtual clock: a start or an end changes the clock's pace and touches no
//! other request. Dispatchers are asked at the moments of
//! [`lull_control::dispatcher`], which makes threshold crossings exact.
//!
//! Power is that of the busy cores at their types, plus a static part a core
//! in proportion to its speed; energy is integrated between changes. Moving
//! costs time without progress at the new core's full power (section 5.4).

mod model;
mod node;
mod outcome;
mod source;

#[cfg(test)]
mod tests;

pub use model::{DispatchModel, DispatchModelError, Rate, Work, top_speeds};
pub use node::Node;
pub use outcome::{BeatSeen, Outcome};
