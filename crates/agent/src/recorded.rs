//! Records read again: runs, their parts by policy, and what became of each.

mod part;
mod replayed;
mod run;
mod series;

pub use part::{Found, Part, Phase, Whole};
pub use replayed::{Recorded, Wanted};
pub use run::{Database, Run, open};
pub use series::Series;
