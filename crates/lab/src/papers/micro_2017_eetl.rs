//! EETL: Haque and others, Exploiting Heterogeneity for Tail Latency and Energy
//! Efficiency, MICRO 2017.

pub(crate) mod amp;
pub(crate) mod clairvoyant;
pub mod core_mix;
pub(crate) mod dvfs;
pub(crate) mod gains;
pub(crate) mod mix;
pub(crate) mod noncpu;
pub(crate) mod octopus;
pub(crate) mod power;
pub(crate) mod spikes;
pub(crate) mod targets;
pub(crate) mod types;

mod blind;
#[cfg(test)]
mod claim;
mod curves;
pub(crate) mod system;

/// File name of the paper's text among our sources.
const SEED_FILE: &str = "002_3834209c253861d3.txt";
