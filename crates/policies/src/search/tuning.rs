//! A search as a policy's config describes it.

use super::gather::Protocol;
use super::rules::Rules;
use super::space::Space;

/// A search that a caller can run on its own.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// The settings to search.
    pub space: Space,
    /// The rules by which the search chooses and ends.
    pub rules: Rules,
    /// What a trial is.
    pub protocol: Protocol,
    /// The relative change of load after which earlier trials no longer count.
    pub load_change: f64,
}
