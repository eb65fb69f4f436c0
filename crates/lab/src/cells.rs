//! Cells of a comparison: one replication of one policy each, kept outside the process.
//!
//! A store lets several processes and machines share one comparison. The random numbers of a
//! replication follow from the seed of the scenario and its number, so that all policies meet
//! the same requests wherever their cells are simulated.

use serde::Serialize;

/// One figure of every replication.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantity {
    /// Its name in files and JSON, such as `p95[site]`.
    #[serde(rename = "figure")]
    pub id: String,
    /// Its name in tables.
    #[serde(skip)]
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
}

/// The values of one replication.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Indexed by quantity.
    pub values: Vec<f64>,
    /// Indexed by app: requests that arrived, and the number of them that were not answered.
    pub requests: Vec<(u64, i64)>,
}

/// One replication of one policy.
#[derive(Debug, Clone, Copy)]
pub struct ReplicationCell<'a> {
    /// Number of the policy.
    pub policy: usize,
    /// The label of the policy.
    pub label: &'a str,
    /// Number of the replication.
    pub replication: u64,
    /// The measured quantities, in the order of [`Sample::values`].
    pub quantities: &'a [Quantity],
}

/// Keeps the samples of finished cells.
pub trait CellStore: Sync {
    /// Whether this process is to have the cell.
    fn is_wanted(&self, cell: &ReplicationCell<'_>) -> bool;

    /// Returns the sample of a cell that is finished.
    ///
    /// # Errors
    /// If the stored sample cannot be read, or is not of this comparison.
    fn load(&self, cell: &ReplicationCell<'_>) -> Result<Option<Sample>, String>;

    /// Keeps the sample of a cell.
    ///
    /// # Errors
    /// If it cannot be written.
    fn save(&self, cell: &ReplicationCell<'_>, sample: &Sample) -> Result<(), String>;
}

/// A store that failed, and at a cell of which policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy `{policy}`: {message}")]
pub struct StoreError {
    /// The label of the policy.
    pub policy: String,
    /// The error.
    pub message: String,
}
