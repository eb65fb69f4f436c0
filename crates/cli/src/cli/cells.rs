//! Arguments that divide a command among processes and machines.

use clap::Args;
use lull_agent::cells::CellChoice;
use lull_agent::error::UsageError;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// `--parts` and `--cells`.
#[derive(Debug, Args)]
pub(crate) struct CellArgs {
    /// Directory of finished cells, a file each: those in it are not run again, and without
    /// --cells all of them become one result
    #[arg(long, value_name = "DIR")]
    pub(crate) parts: Option<PathBuf>,
    /// Run only these cells into --parts: `K/N` for the K-th of N equal parts, or numbers from 1
    /// such as `3,7,9-12`
    #[arg(long, value_name = "CELLS", requires = "parts")]
    pub(crate) cells: Option<CellChoice>,
}

impl CellArgs {
    /// Returns the numbers, from 0, of the cells out of `total` that this process is to have;
    /// `None` without `--cells`.
    pub(crate) fn wanted(&self, total: u64) -> Result<Option<BTreeSet<u64>>, UsageError> {
        let chosen = self.cells.as_ref().map(|cells| cells.choose(total)).transpose();
        chosen.map_err(|problem| UsageError(format!("--cells: {problem}")))
    }
}
