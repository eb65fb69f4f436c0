//! `lull completions`: scripts for shells.

use crate::cli::Cli;
use anyhow::Context;
use clap::CommandFactory;
use std::io::Write;

pub(crate) fn run(shell: clap_complete::Shell) -> anyhow::Result<()> {
    // Into memory, because it panics on an output that takes nothing more.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lull", &mut script);
    std::io::stdout().write_all(&script).context("cannot print the result")
}
