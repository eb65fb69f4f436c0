//! Flags of `lull register`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// `lull register`.
#[derive(Debug, Args)]
pub(crate) struct RegisterArgs {
    /// The agent's socket for registrations (agent.register of its config)
    #[arg(long, value_name = "PATH", env = "LULL_REGISTER")]
    pub(crate) socket: PathBuf,
    /// The `[[match]]` of the agent's config; may be left out if the user may register with one
    /// only
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) template: Option<String>,
    /// Run the command all the same if the agent refuses or does not answer
    #[arg(long)]
    pub(crate) optional: bool,
    /// The program to become, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
