//! The laboratory: scenarios of policies and the simulator, and the papers'
//! tables as experiments.

pub mod backlog;
pub mod bounds;
pub mod cells;
pub mod claims;
mod colocation;
pub mod cycles;
pub mod environment;
pub mod experiment;
pub mod figure;
mod limiters;
mod papers;
pub mod parquet_table;
mod policy_source;
pub mod portrait;
mod prelude;
pub mod progress;
pub mod registry;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod seeds;
pub mod server;
mod sourced;
mod theory;
pub mod trial;
pub mod tune;

pub use papers::micro_2017_eetl::core_mix as mix;
pub use papers::trios_2013_ntier::live as tiers;
pub use policy_source::{CustomPolicy, PolicySource};
