//! A machine whose requests are dispatched one by one to cores of several speeds.
//!
//! The machine of EETL (MICRO-50, 2017): asymmetric cores, or cores each with its
//! own frequency, that serve independent sequential requests under a
//! [`Dispatcher`](lull_control::dispatcher::Dispatcher). Unlike the tiers of
//! [`crate::model`], it models which core runs which request, the cost of a
//! migration, and how the cores slow each other down.
//!
//! All running requests are slowed by one common factor, so that one virtual clock
//! has the ends of them all: a start or an end changes the clock's pace and touches
//! no other request. The dispatcher is called at the instants that
//! [`lull_control::dispatcher`] lists, so that threshold crossings are exact.
//!
//! Power is that of the busy cores by type, plus a static part for each core in
//! proportion to its speed; energy is integrated between changes. A migration takes
//! time without progress at the full power of the new core (EETL, section 5.4).

mod model;
mod node;
mod outcome;
mod source;

#[cfg(test)]
mod tests;

pub use model::{DispatchModel, DispatchModelError, RateStep, RequestWork, top_speeds};
pub use node::DispatchSimulation;
pub use outcome::{BeatRecord, DispatchTotals};
