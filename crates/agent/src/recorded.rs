//! Reading of records: runs, and the entropy of their parts by policy.

mod part;
mod replayed;
mod run;
mod series;

pub use part::{Found, Part, Phase, Whole};
pub use replayed::{Recorded, Wanted};
pub use run::{Database, Run, open};
pub use series::Series;
