//! Builds, checks and measures Lull: `cargo xtask --help` lists the tasks.

mod docs;
mod test;
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
    /// Run everything that must hold: format, lints, tidy, generated pages, all tests
    Test {
        /// Leave out the slow tests
        #[arg(long)]
        quick: bool,
        /// Optimise the first round of tests too (the slow ones always are)
        #[arg(long)]
        release: bool,
    },
    /// Write the pages under docs/ that the binary prints
    Docs {
        /// Only compare, and fail if a page is stale
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Tidy { list: true } => Ok(tidy::list()),
        Task::Tidy { list: false } => tidy::run(&root()),
        Task::Test { quick, release } => test::run(&root(), &test::Options { quick, release }),
        Task::Docs { check } => docs::run(&root(), check),
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

/// Whether the workspace has the binary already.
fn has_app(root: &Path) -> bool {
    root.join("crates/app/Cargo.toml").exists()
}
