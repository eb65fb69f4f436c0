//! Commands for the files in an agent's state directory.

use clap::Args;
use std::path::PathBuf;

/// `lull restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Directory of the agent's state
    #[arg(long)]
    pub(crate) state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull reload`.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Directory of the agent's state
    #[arg(long)]
    pub(crate) state: Option<PathBuf>,
}
