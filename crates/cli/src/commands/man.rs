//! `lull man`: a manual page for each command, from the same texts as `--help`.

use crate::cli::Cli;
use anyhow::Context;
use clap::CommandFactory;
use std::path::Path;

pub(crate) fn run(directory: &Path) -> anyhow::Result<()> {
    let write = || {
        std::fs::create_dir_all(directory)?;
        clap_mangen::generate_to(Cli::command(), directory)
    };
    write().with_context(|| format!("cannot write manual pages to {}", directory.display()))
}
