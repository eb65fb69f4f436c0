//! The policies, one file each, and their registry.
//!
//! A policy is a pure function with state: observation in, plan out. Each
//! file reads like an essay: the paper and its mechanism, where this differs
//! and why, then the config with the paper's numbers, the state, the decision
//! and a test for each claim. What they share is in `toolkit`. [`dispatchers`] and
//! [`admission_controllers`] stand beside them, with registries of the same kind.
//!
//! A new policy is its own file, its `mod` line here and its line in
//! [`registry::ALL`]; the compiler calls an entry that is in no registry dead
//! code. (One macro line could say both, but rustfmt does not see the files
//! of modules that a macro declares.)

pub mod admission;
pub mod beside;
mod config;
mod dip;
pub mod dispatchers;
pub mod registry;
#[cfg(test)]
mod testing;
mod toolkit;
pub mod tuning;

mod adaptive_dvfs;
mod arq;
mod bayop;
mod clite;
mod co_pi;
mod conservative;
mod demeter;
mod even;
mod full_speed;
mod heracles;
mod lc_first;
mod linux_default;
mod ondemand;
mod parties;
mod performance;
mod powersave;
mod qos_wc;
mod rr;
mod satori;
mod schedutil;
mod static_setting;
mod step_dvfs;
mod tide;
mod unmanaged;

pub use config::Key;
pub use dip::{Ability, Dip, DipError, ResourceDip, TLT, by_resource};
pub use registry::{Description, Entry, Family};
