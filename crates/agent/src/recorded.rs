//! Reading of records: their tables, runs, and the entropy of their parts by policy.

mod database;
mod part;
mod planned;
mod replayed;
mod run;
mod series;
mod space_time;
mod sums;
mod tables;

pub use database::{Database, open};
pub use part::{AppResult, Part, PartResult, Phase};
pub use planned::PlannedFrequency;
pub use replayed::{RecordPart, Recorded};
pub use run::Run;
pub use series::Series;
pub use space_time::SpaceTime;
pub use sums::{
    AppInstance, AppMinuteSums, Counts, DaySums, LatencyKey, MinuteSums, PodNames, RunLabel,
    SummedApp, Sums, TailObjective,
};
pub use tables::ColumnKind;
