//! `lull completions`: scripts for shells.

use crate::cli::Cli;
use clap::CommandFactory;

pub(crate) fn run(shell: clap_complete::Shell) -> anyhow::Result<()> {
    clap_complete::generate(shell, &mut Cli::command(), "lull", &mut std::io::stdout());
    Ok(())
}
