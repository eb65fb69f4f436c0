//! Records read again: runs, their parts by policy, and what became of each.

mod part;
mod replayed;
mod run;
mod series;

pub(crate) use part::{Found, Part, Phase, Whole};
pub(crate) use replayed::{Recorded, Wanted};
pub(crate) use run::{Database, Run, open};
pub(crate) use series::Series;
