//! The policies, dispatchers and admission controllers, one file each, and their registries.
//!
//! A policy is a pure function with state: observation in, plan out. Its file begins with the
//! paper, the mechanism and the differences from the paper; then follow the config with the
//! paper's constants, the state, the decision, and a test for each claim. Families have a
//! folder each: `colocation`, `frequency`, `tuning`, `dispatch` and `admission`.
//! `toolkit` holds what several policies use, [`search`] the search for numeric settings.
//!
//! To add one, write its file, its `mod` line in its family's module and its line in
//! `registry`; the compiler reports an entry in no registry as dead code. (One macro line
//! could declare module and entry, but rustfmt skips modules that a macro declares.)

pub mod admission;
mod colocation;
mod config;
mod dip;
pub mod dispatch;
mod entry;
mod frequency;
pub mod markdown;
mod registry;
pub mod search;
#[cfg(test)]
mod testing;
mod toolkit;
mod tuning;

pub use config::Key;
pub use dip::{Ability, Dip, DipError, ResourceDip, TLT, by_resource};
pub use entry::{
    Description, Entry, Family, Kind, LatencyDetail, MakePolicy, NaturalEpoch, PolicyKind,
    ReadTuning, Registry, SettingSearch, USUAL_EPOCH,
};
pub use registry::{ADMISSION_CONTROLLERS, DISPATCHERS, POLICIES};
