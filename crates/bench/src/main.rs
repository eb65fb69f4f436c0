//! `cargo xtask bench`: what Lull costs, measured side by side on this machine.
//!
//! A benchmark is one file with a [`Bench`] and one line in [`BENCHES`]. It runs
//! its contenders in turn ([`stats::interleave`]), so that a machine that slows
//! down slows all of them, and returns rows with the bounds they must keep.

mod agent;
mod bpf;
mod churn;
mod colocation;
mod dispatch;
mod fleet;
mod load;
mod machine;
mod measure;
mod otlp;
mod package;
mod page;
mod pinned;
mod pods;
mod policies;
mod preload;
mod process;
mod python;
mod queries;
mod reaction;
mod replay;
mod report;
mod server;
mod sim;
mod stats;
mod suggest;
mod tidy;

use anyhow::{Context as _, Result};
use clap::Parser;
use machine::Machine;
use report::Report;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use xtask::release;

/// One benchmark.
struct Bench {
    /// The name as given to `cargo xtask bench`, and of its result files.
    name: &'static str,
    /// One sentence: what is compared with what.
    about: &'static str,
    run: fn(&Context) -> Result<Report>,
}

/// All benchmarks, in the order in which they run.
const BENCHES: &[Bench] = &[
    measure::BENCH,
    tidy::BENCH,
    policies::BENCH,
    dispatch::BENCH,
    agent::BENCH,
    bpf::BENCH,
    queries::BENCH,
    load::BENCH,
    preload::BENCH,
    preload::CACHES,
    preload::BATCHING,
    preload::PROMISES,
    page::BENCH,
    sim::BENCH,
    suggest::BENCH,
    colocation::BENCH,
    replay::BENCH,
    package::BENCH,
];

/// Benchmarks that take long, or need programs that are not installed for them: they run only by
/// name.
const ON_REQUEST: &[Bench] = &[
    churn::BENCH,
    reaction::BENCH,
    pods::BENCH,
    fleet::BENCH,
    load::caches::BENCH,
    otlp::BENCH,
    preload::CLASSES,
    preload::CLIENTS,
    preload::CONTENDED,
    preload::DISPATCHED,
    preload::TPCC,
    preload::READ_WRITE,
    preload::SCRIPTS,
    preload::DISK,
    preload::POSTGRES,
    preload::MYSQL,
    preload::TLS,
];

/// Where the results of each benchmark are kept.
const RESULTS: &str = "bench-results";

/// The context of a benchmark.
struct Context {
    root: PathBuf,
    /// Whether those contenders take part that take long.
    is_full: bool,
}

/// Names a program that is built already, such as that of a package.
const PROGRAM: &str = "LULL_PROGRAM";

/// The program that is measured in place of one that is built here, if one is named.
fn named_program() -> Option<PathBuf> {
    std::env::var_os(PROGRAM).map(PathBuf::from)
}

impl Context {
    /// Builds a binary of the workspace, optimised, and returns its path. In place of `lull` it is
    /// the program that [`PROGRAM`] names.
    fn build(&self, package: &str, binary: &str) -> Result<PathBuf> {
        match named_program().filter(|_| binary == "lull") {
            Some(program) => Ok(program),
            None => release::binary(&self.root, package, binary),
        }
    }

    /// As [`Context::build`], with optional features.
    fn program_with(&self, features: &str) -> Result<PathBuf> {
        if let Some(program) = named_program() {
            return Ok(program);
        }
        let mut build = Command::new("cargo");
        build.current_dir(&self.root).args(["build", "--release", "--package", "lull-cli"]);
        process::printed(build.args(["--bin", "lull", "--features", features]))?;
        Ok(self.target().join("release/lull"))
    }

    /// The same for an example.
    fn build_example(&self, package: &str, example: &str) -> Result<PathBuf> {
        release::example(&self.root, package, example)
    }

    /// Returns cargo's target directory.
    fn target(&self) -> PathBuf {
        release::target(&self.root)
    }
}

/// The benchmarks.
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Cli {
    /// The benchmarks; all without a name
    names: Vec<String>,
    /// Print the benchmarks and run none
    #[arg(long)]
    list: bool,
    /// With all contenders, and for hours where settings of a gate are compared
    #[arg(long)]
    full: bool,
}

/// The argument with which a benchmark starts a process of its own.
const SIM_MODEL: &str = "sim-model";
const PRELOAD_MODEL: &str = "preload-model";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        [SIM_MODEL, name, seed] => sim_model(name, seed),
        [PRELOAD_MODEL] => preload::model().map(|()| ExitCode::SUCCESS),
        _ => {
            let Cli { names, list: is_list, full } = Cli::parse();
            if is_list { Ok(list()) } else { run(&xtask::root(), &names, full) }
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("cargo xtask bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs one model of the simulator in this process and prints its cost.
fn sim_model(name: &str, seed: &str) -> Result<ExitCode> {
    sim::model(name, seed.parse().context("a seed is a number")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints every benchmark with its sentence.
fn list() -> ExitCode {
    for bench in BENCHES.iter().chain(ON_REQUEST) {
        println!("{:<12} {}", bench.name, bench.about);
    }
    ExitCode::SUCCESS
}

/// Runs the named benchmarks, or all, and keeps their results.
///
/// # Errors
/// If a name is unknown, a benchmark cannot run, or a result cannot be written.
fn run(root: &Path, names: &[String], is_full: bool) -> Result<ExitCode> {
    let context = Context { root: root.to_path_buf(), is_full };
    let machine = Machine::here(root);
    let mut missed = 0;
    for bench in selected(names)? {
        eprintln!("{}: {}", bench.name, bench.about);
        let report = (bench.run)(&context).with_context(|| format!("benchmark {}", bench.name))?;
        let page = report.markdown(bench.name, bench.about, &machine);
        println!("{page}");
        let directory = root.join(RESULTS);
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join(format!("{}.md", bench.name)), page)?;
        let json = serde_json::to_string_pretty(&report.json(bench.name, &machine))?;
        std::fs::write(directory.join(format!("{}.json", bench.name)), json + "\n")?;
        missed += report.missed();
    }
    println!("results are in {RESULTS}/; {missed} bounds missed");
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn selected(names: &[String]) -> Result<Vec<&'static Bench>> {
    if names.is_empty() {
        return Ok(BENCHES.iter().collect());
    }
    let find = |name: &String| {
        let bench = BENCHES.iter().chain(ON_REQUEST).find(|bench| bench.name == name);
        bench.with_context(|| format!("no benchmark {name}; cargo xtask bench --list shows them"))
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn benchmarks_have_distinct_names() {
        let all = BENCHES.iter().chain(ON_REQUEST);
        let names: BTreeSet<_> = all.clone().map(|bench| bench.name).collect();
        assert_eq!(names.len(), all.count());
    }

    #[test]
    fn without_names_all_run_and_an_unknown_name_is_refused() {
        assert_eq!(selected(&[]).unwrap().len(), BENCHES.len());
        assert_eq!(selected(&["mysql".to_owned()]).unwrap().len(), 1);
        let error = selected(&["no-such".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("no benchmark no-such"), "{error}");
    }
}
