//! Builds, checks and measures Lull: `cargo xtask --help` lists the tasks.

mod tidy;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the rules that compiler and clippy do not know
    Tidy {
        /// Print the rules and check nothing
        #[arg(long)]
        list: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Tidy { list: true } => Ok(tidy::list()),
        Task::Tidy { list: false } => tidy::run(&root()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("cargo xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// The repository's root.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the root").to_path_buf()
}
