//! Search for the numeric settings that use least power while a tail bound holds.
//!
//! A [`Space`] holds the settings that a plant offers; a [`Search`] proposes the next
//! candidate and returns the best one found, with the evidence that it meets the bound
//! (`evidence.rs`). Both are pure: the caller measures, and passes
//! readings and a generator of random numbers. [`response`] is the paper's model of a
//! server's response to its settings. A [`Gather`] makes one reading out of several epochs.

mod cards;
mod evidence;
mod front;
mod gates;
mod gather;
mod hardware;
mod level;
mod prior;
mod reading;
mod refusal;
pub mod response;
mod rules;
mod separate;
mod space;
mod trials;
mod tuning;

pub use cards::CardRefusals;
pub use evidence::evidence_of;
pub(crate) use evidence::is_refuted;
pub(crate) use gather::first_tail;
pub use gather::{Gather, Gathered, Protocol};
pub use level::Level;
pub use prior::PriorMean;
pub use reading::Reading;
pub use refusal::{Refusal, has_level, refused_levels};
pub use rules::{Method, Rules, UnknownMethod, UnsafeMethod};
pub(crate) use space::NUMERIC;
pub use space::{Dimension, SearchPoint, Space, SpaceError};
pub use trials::{Choice, FrontSetting, NextTrial, Prediction, Search, Trial, penalty};
pub use tuning::{Tuning, of_another_load};
