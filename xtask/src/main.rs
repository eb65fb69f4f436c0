//! Builds, checks and measures Lull: `cargo xtask --help` lists the tasks.

mod bpf;
mod command;
mod debian;
mod dispatch;
mod docs;
mod fuzz;
mod kubernetes;
mod live;
mod markdown;
mod miri;
mod nightly;
mod package;
mod python;
mod rig;
mod servers;
mod site;
mod supply;
mod test;
mod tidy;
mod tiers;
mod tsan;
mod validate;
mod walk;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use xtask::{here, packages, release, root};

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
    Test(test::Options),
    /// Write the pages under docs/ that the binary prints
    Docs {
        /// Only compare, and fail if a page is stale
        #[arg(long)]
        check: bool,
    },
    /// Compile the eBPF programs of crates/host/bpf
    Bpf {
        /// Only compare with the committed objects, and fail if one is stale
        #[arg(long)]
        check: bool,
    },
    /// Boot real kernels in QEMU and run the host's tests in them
    Rig(rig::Options),
    /// Run the agent at a real Kubernetes API server, built from the Go module proxy once
    Kubernetes,
    /// Fetch servers and libraries for the tests, once: PostgreSQL 17 and 18, OpenSSL 1.1, wolfSSL
    Servers,
    /// Run the fuzz targets of crates/fuzz under libFuzzer
    Fuzz(fuzz::Options),
    /// Run what Miri can of the gate, its page and the host's system calls; needs nightly Rust
    Miri(miri::Options),
    /// Run the tests of the gate and of the preloaded library under ThreadSanitizer; needs
    /// nightly Rust
    Tsan,
    /// Build the pages of docs/ as a site with a search, in target/site
    Site {
        /// Leave out the references of the crates
        #[arg(long)]
        no_api: bool,
    },
    /// Make a static program, a Debian package and their notices under target/package
    Package(package::Options),
    /// Run the commands of docs/quickstart.md in a fresh Debian 12, and measure their time; root
    Walk {
        /// A Debian package of Lull, in place of one of this tree
        #[arg(long, value_name = "FILE")]
        package: Option<PathBuf>,
    },
    /// Build the wheel of the Python package into target/package, and test it
    Python(python::Options),
    /// Check licences, sources and duplicates of all dependencies against deny.toml
    Supply,
    /// Write the licence texts of dependencies, and their list in CycloneDX, to target/package
    Notices,
    /// Compare policies on real servers of this machine, and write docs/live-colocation.md
    Live(live::Options),
    /// Compare dispatchers on a slow (emulated) and a fast core, and write docs/live-dispatch.md
    Place(dispatch::Options),
    /// Compare frequency policies on Tomcat in front of MariaDB, whose cores play P-states, and
    /// write docs/live-tiers.md; root
    Tiers(tiers::Options),
    /// Predict policies on real servers by `lull replay`, run them, and write how they compare
    Validate(validate::Options),
    /// Measure side by side and keep the results under bench-results/
    Bench {
        /// The benchmarks; all without a name
        names: Vec<String>,
        /// Print the benchmarks and run none
        #[arg(long)]
        list: bool,
        /// With all contenders: `preload` takes 50 minutes more, for PostgreSQL, a database
        /// that waits for its disk, and other scripts from 8 connections on
        #[arg(long)]
        full: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Tidy { list: true } => Ok(tidy::list()),
        Task::Tidy { list: false } => tidy::run(&root()),
        Task::Test(options) => test::run(&root(), &options),
        Task::Docs { check } => docs::run(&root(), check),
        Task::Bpf { check } => bpf::run(&root(), check),
        Task::Rig(options) if options.list => Ok(rig::list()),
        Task::Rig(options) => rig::run(&root(), &options),
        Task::Kubernetes => kubernetes::run(&root()),
        Task::Servers => Ok(servers::run()),
        Task::Fuzz(options) => fuzz::run(&root(), &options),
        Task::Miri(options) if options.list => Ok(miri::list()),
        Task::Miri(options) => miri::run(&root(), &options),
        Task::Tsan => tsan::run(&root()),
        Task::Site { no_api } => site::run(&root(), !no_api),
        Task::Package(options) => package::run(&root(), &options),
        Task::Walk { package } => walk::run(&root(), package),
        Task::Python(options) => python::run(&root(), &options),
        Task::Supply => supply::run(&root()),
        Task::Notices => supply::run_notices(&root()),
        Task::Live(options) => live::run(&root(), &options),
        Task::Place(options) => dispatch::run(&root(), &options),
        Task::Tiers(options) => tiers::run(&root(), &options),
        Task::Validate(options) => validate::run(&root(), &options),
        Task::Bench { names, list, full } => bench(&root(), &names, list, full),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("cargo xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs benchmarks with `crates/bench`, built optimised: the tasks build without our crates, so
/// that they run, and report faults, when our crates do not build.
fn bench(root: &Path, names: &[String], list: bool, full: bool) -> Result<ExitCode> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["run", "--quiet", "--release", "--package", "lull-bench", "--"]);
    cargo.args(names);
    for (flag, is_set) in [("--list", list), ("--full", full)] {
        cargo.args(is_set.then_some(flag));
    }
    let status = cargo.status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
