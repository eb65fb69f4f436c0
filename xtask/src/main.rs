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

/// Blocks a policy in each scene of `cargo xtask live`, and their length: 70 minutes in all.
const LIVE_ROUNDS: u32 = 5;
const LIVE_BLOCK_S: u32 = 30;

/// The same of `cargo xtask validate`: nine minutes in all, and three around them.
const VALIDATE_ROUNDS: u32 = 6;
const VALIDATE_BLOCK_S: u32 = 10;

/// The same of `cargo xtask place`: sixteen minutes in all.
const PLACE_ROUNDS: u32 = 8;
const PLACE_BLOCK_S: u32 = 30;

/// The same of `cargo xtask tiers`: twelve minutes in all, and two around them.
const TIERS_ROUNDS: u32 = 4;
const TIERS_BLOCK_S: u32 = 12;

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
        /// Leave out the rig, whose machines take some minutes
        #[arg(long)]
        no_rig: bool,
        /// Build as a release is built
        #[arg(long)]
        release: bool,
    },
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
    Rig {
        /// The machines; without a name those of CI
        names: Vec<String>,
        /// All machines
        #[arg(long)]
        all: bool,
        /// Only tests whose name contains this
        #[arg(long)]
        filter: Option<String>,
        /// A Debian package of Lull, in place of one of this tree
        #[arg(long, value_name = "FILE")]
        package: Option<PathBuf>,
        /// Print the machines and boot none
        #[arg(long)]
        list: bool,
    },
    /// Run the agent at a real Kubernetes API server, built from the Go module proxy once
    Kubernetes,
    /// Fetch servers and libraries for the tests, once: PostgreSQL 17 and 18, OpenSSL 1.1, wolfSSL
    Servers,
    /// Run the fuzz targets of crates/fuzz under libFuzzer
    Fuzz {
        /// The targets (crates/fuzz/targets.toml); all without a name
        names: Vec<String>,
        /// How long each target runs
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// How many seconds all run together, in equal shares
        #[arg(long, value_name = "SECONDS", conflicts_with = "seconds")]
        budget: Option<u32>,
        /// Seconds after which an input is a hang; more than 1 where other work delays it
        #[arg(long, value_name = "SECONDS", default_value_t = 1)]
        hang: u32,
        /// Add the runs to crates/fuzz/runs.jsonl and to docs/fuzzing.md
        #[arg(long)]
        record: bool,
    },
    /// Run what Miri can of the gate, its page and the host's system calls; needs nightly Rust
    Miri {
        /// Schedules of each test with threads
        #[arg(long, default_value_t = 16)]
        seeds: u32,
        /// Cases of each property
        #[arg(long, default_value_t = 8)]
        cases: u32,
        /// Print the tests that are left out, and why, and run nothing
        #[arg(long)]
        list: bool,
    },
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
    Package {
        /// Make the static program only
        #[arg(long = "static", conflicts_with = "rpm")]
        only_static: bool,
        /// Make an RPM of the static program as well
        #[arg(long)]
        rpm: bool,
        /// Make an image of the static program as well
        #[arg(long)]
        image: bool,
        /// Make the static program for arm64, and nothing else
        #[arg(long, conflicts_with_all = ["only_static", "rpm", "image"])]
        arm64: bool,
    },
    /// Run the commands of docs/quickstart.md in a fresh Debian 12, and measure their time; root
    Walk {
        /// A Debian package of Lull, in place of one of this tree
        #[arg(long, value_name = "FILE")]
        package: Option<PathBuf>,
    },
    /// Build the wheel of the Python package into target/package, and test it
    Python {
        /// Test what `cargo xtask test` has built, without a wheel
        #[arg(long)]
        staged: bool,
        /// Build as a release is built
        #[arg(long)]
        release: bool,
        /// Build the reference, with the notebooks, into target/python-docs instead
        #[arg(long, conflicts_with = "staged")]
        docs: bool,
        /// Test sweeps on a Ray cluster of this machine instead; `LULL_SWEEP_CELLS` is the size of
        /// the one that loses a worker, a raylet and its driver
        #[arg(long, conflicts_with_all = ["staged", "docs"])]
        ray: bool,
    },
    /// Check licences, sources and duplicates of all dependencies against deny.toml
    Supply,
    /// Write the licence texts of dependencies, and their list in CycloneDX, to target/package
    Notices,
    /// Compare policies on real servers of this machine, and write docs/live-colocation.md
    Live {
        /// Blocks a policy in each scene
        #[arg(long, default_value_t = LIVE_ROUNDS)]
        rounds: u32,
        /// Length of a block in seconds
        #[arg(long, default_value_t = LIVE_BLOCK_S)]
        block_s: u32,
        /// Write the page here instead
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// Compare dispatchers on a slow (emulated) and a fast core, and write docs/live-dispatch.md
    Place {
        /// Blocks a dispatcher
        #[arg(long, default_value_t = PLACE_ROUNDS)]
        rounds: u32,
        /// Length of a block in seconds
        #[arg(long, default_value_t = PLACE_BLOCK_S)]
        block_s: u32,
        /// The core that is made slow
        #[arg(long, default_value_t = 1)]
        slow: u16,
        /// The fast one
        #[arg(long, default_value_t = 0)]
        fast: u16,
        /// Write the page here instead
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// Compare frequency policies on Tomcat in front of MariaDB, whose cores play P-states, and
    /// write docs/live-tiers.md; root
    Tiers {
        /// Blocks a policy under each burst cycle
        #[arg(long, default_value_t = TIERS_ROUNDS)]
        rounds: u32,
        /// Length of a block in seconds
        #[arg(long, default_value_t = TIERS_BLOCK_S)]
        block_s: u32,
        /// Write the page here instead
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// Predict policies on real servers by `lull replay`, run them, and write how they compare
    Validate {
        /// Blocks a policy in each scene
        #[arg(long, default_value_t = VALIDATE_ROUNDS)]
        rounds: u32,
        /// Length of a block in seconds
        #[arg(long, default_value_t = VALIDATE_BLOCK_S)]
        block_s: u32,
        /// Write the page here instead
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
        /// Predict from the record of an earlier run instead of measuring a scene
        #[arg(long = "record", value_name = "SCENE=FILE")]
        records: Vec<String>,
    },
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
        Task::Test { quick, no_rig, release } => {
            test::run(&root(), &test::Options { quick, rig: !no_rig, release })
        }
        Task::Docs { check } => docs::run(&root(), check),
        Task::Bpf { check } => bpf::run(&root(), check),
        Task::Rig { list: true, .. } => Ok(rig::list()),
        Task::Rig { names, all, filter, package, .. } => {
            rig::run(&root(), &rig::Options { names, all, filter, package })
        }
        Task::Kubernetes => kubernetes::run(&root()),
        Task::Servers => Ok(servers::run()),
        Task::Fuzz { names, seconds, budget: budget_s, hang: hang_s, record } => {
            fuzz::run(&root(), &fuzz::Options { names, seconds, budget_s, hang_s, record })
        }
        Task::Miri { list: true, .. } => Ok(miri::list()),
        Task::Miri { seeds, cases, .. } => miri::run(&root(), &miri::Options { seeds, cases }),
        Task::Tsan => tsan::run(&root()),
        Task::Site { no_api } => site::run(&root(), !no_api),
        Task::Package { only_static, rpm: with_rpm, image: with_image, arm64: for_arm64 } => {
            let options = package::Options { only_static, with_rpm, with_image, for_arm64 };
            package::run(&root(), options)
        }
        Task::Walk { package } => walk::run(&root(), package),
        Task::Python { staged, release, docs, ray } => {
            python::run(&root(), &python::Options { staged, release, docs, ray })
        }
        Task::Supply => supply::run(&root()),
        Task::Notices => supply::run_notices(&root()),
        Task::Live { rounds, block_s, page } => {
            live::run(&root(), &live::Options { rounds, block_s, page })
        }
        Task::Place { rounds, block_s, slow, fast, page } => {
            dispatch::run(&root(), &dispatch::Options { rounds, block_s, slow, fast, page })
        }
        Task::Tiers { rounds, block_s, page } => {
            tiers::run(&root(), &tiers::Options { rounds, block_s, page })
        }
        Task::Validate { rounds, block_s, page, records } => {
            validate::run(&root(), &validate::Options { rounds, block_s, page, records })
        }
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
