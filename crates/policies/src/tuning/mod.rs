//! Black-box search for the settings that save most while a bound holds.
//!
//! A [`Space`] is what a plant offers, a [`Search`] says where to look next
//! and what is best. Both are pure: who measures hands in readings and a
//! generator. [`response`] is the paper's model of how a server answers to its
//! settings. A [`Gather`] makes a reading out of epochs.

mod apart;
mod gates;
mod gather;
mod prior;
pub mod response;
mod search;
mod space;

pub use crate::bayop::{Tuning, tuning};
pub(crate) use gather::first_tail;
pub use gather::{Gather, Gathered, Protocol};
pub use prior::PriorMean;
pub use search::{Believed, Choice, Method, Next, Reading, Rules, Search, Trial, penalty};
pub use space::{Dimension, Level, Place, Space, SpaceError};
