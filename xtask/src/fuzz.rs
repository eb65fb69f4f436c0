//! `cargo xtask fuzz`: the targets of `crates/fuzz` under libFuzzer, guided by coverage.
//!
//! The flags are those of cargo-fuzz without a sanitizer: they need neither a nightly compiler
//! nor an installed tool. Overflows and debug assertions are checked. What libFuzzer keeps,
//! inputs that reach new code and inputs that fail, is in `target/fuzz`, and so is the log of
//! each target. With `--record` a run is added to the sums of all runs (`runs.rs`).

mod runs;

use crate::command::read_output;
use crate::release;
use anyhow::{Context, Result, bail};
use runs::Run;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Counters at edges and comparisons, which libFuzzer reads.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

const MEMORY_MAX_MIB: u32 = 2048;
const INPUT_MAX_BYTES: u32 = 65_536;
/// Lines of a failed target's log that are printed.
const LINES_SHOWN: usize = 20;

/// The arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The targets (crates/fuzz/targets.toml); all without a name
    pub(crate) names: Vec<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u32,
    /// How many seconds all run together, in equal shares
    #[arg(long = "budget", value_name = "SECONDS", conflicts_with = "seconds")]
    pub(crate) budget_s: Option<u32>,
    /// Seconds after which an input is a hang; more than 1 where other work delays it
    #[arg(long = "hang", value_name = "SECONDS", default_value_t = 1)]
    pub(crate) hang_s: u32,
    /// Add the runs to crates/fuzz/runs.jsonl and to docs/fuzzing.md
    #[arg(long)]
    pub(crate) record: bool,
}

/// Fuzzes one target after the other and reports those that failed. The target that ran for the
/// shortest time so far is the first, so that a run that is interrupted leaves the sums even.
///
/// # Errors
/// If the program does not build, a target is unknown, or the sums cannot be read or written.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let targets = read_targets(root)?;
    let all: Vec<&str> = targets.keys().map(String::as_str).collect();
    let names = in_order(&all, &options.names, &runs::read(root)?)?;
    let seconds = options.budget_s.map_or(options.seconds, |budget| budget / names.len() as u32);
    if seconds == 0 {
        bail!("no time: {} targets need a budget of at least a second each", names.len());
    }
    // Read the commit before the first record, which changes the tree.
    let commit = commit(root)?;
    let fuzzer = Fuzzer::build(root, seconds, options.hang_s)?;
    let mut failed = Vec::new();
    for name in names {
        let target = &targets[name];
        println!("== {name}: {}, {seconds} s", target.about);
        let stats = fuzzer.fuzz(name, &target.seeds)?;
        println!("   {stats:?}");
        if stats.has_failed {
            fuzzer.show_log(name);
            failed.push(name);
        }
        if options.record {
            runs::record(root, &stats.into_run(name, &commit)?, &all)?;
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("== failed: {}; the inputs are in {}", failed.join(", "), fuzzer.found().display());
    Ok(ExitCode::FAILURE)
}

/// The targets to run, those with the shortest time so far first.
fn in_order<'a>(all: &[&'a str], wanted: &[String], runs: &[Run]) -> Result<Vec<&'a str>> {
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(&name.as_str())) {
        bail!("no fuzz target {unknown}; there are {}", all.join(", "));
    }
    let is_wanted = |name: &&str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    let seconds_of = |name: &&str| -> u64 {
        runs.iter().filter(|run| run.target == *name).map(|run| run.seconds).sum()
    };
    let mut names: Vec<&str> = all.iter().copied().filter(is_wanted).collect();
    names.sort_by_key(seconds_of);
    Ok(names)
}

/// The tree's commit, and whether it has other changes.
fn commit(root: &Path) -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["describe", "--always", "--dirty", "--abbrev=12"]);
    Ok(read_output(&mut git)?.trim().to_owned())
}

/// The statistics that libFuzzer reports of a run.
#[derive(Debug, PartialEq, Eq)]
struct Stats {
    seconds: u64,
    inputs: u64,
    slowest_input_s: u64,
    first_mib: u64,
    peak_mib: u64,
    has_failed: bool,
}

impl Stats {
    /// Reads the log of a run that took `seconds`. A run that was killed has no statistics at its
    /// end: of its inputs and its memory the last that it printed are taken.
    fn from_log(log: &str, seconds: u64, has_failed: bool) -> Self {
        let stat = |name: &str| {
            let line =
                log.lines().rev().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name));
            line.and_then(|rest| rest.trim_start_matches(':').trim().parse().ok())
        };
        let loaded = log.lines().find(|line| line.contains("INITED"));
        let inputs = |line: &str| line.strip_prefix('#')?.split_once('\t')?.0.parse().ok();
        let last = |number: &dyn Fn(&str) -> Option<u64>| log.lines().rev().find_map(number);
        Self {
            seconds,
            inputs: stat("number_of_executed_units").or_else(|| last(&inputs)).unwrap_or(0),
            slowest_input_s: stat("slowest_unit_time_sec").unwrap_or(0),
            first_mib: loaded.and_then(resident_mib).unwrap_or(0),
            peak_mib: stat("peak_rss_mb").or_else(|| last(&resident_mib)).unwrap_or(0),
            has_failed,
        }
    }

    fn into_run(self, target: &str, commit: &str) -> Result<Run> {
        let date = read_output(Command::new("date").args(["--utc", "+%F"]))?;
        Ok(Run {
            date: date.trim().to_owned(),
            commit: commit.to_owned(),
            target: target.to_owned(),
            seconds: self.seconds,
            inputs: self.inputs,
            slowest_input_s: self.slowest_input_s,
            first_mib: self.first_mib,
            peak_mib: self.peak_mib,
            has_failed: self.has_failed,
        })
    }
}

/// The memory in a line of libFuzzer's log.
fn resident_mib(line: &str) -> Option<u64> {
    line.split_once("rss: ")?.1.split_once("Mb")?.0.parse().ok()
}

struct Fuzzer {
    root: PathBuf,
    target: PathBuf,
    program: PathBuf,
    seconds: u32,
    hang_s: u32,
}

impl Fuzzer {
    fn build(root: &Path, seconds: u32, hang_s: u32) -> Result<Self> {
        let target = release::target(root).join("fuzz");
        let triple = release::host_triple()?;
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["build", "--release", "--package", "lull-fuzz"]);
        // With --target the flags do not apply to build scripts and macros.
        cargo.args(["--target", &triple]).arg("--target-dir").arg(&target);
        cargo.env("RUSTFLAGS", FLAGS);
        cargo.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
        cargo.env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
        if !cargo.status().context("cannot start cargo")?.success() {
            bail!("the fuzz targets do not build");
        }
        let program = target.join(triple).join("release/lull-fuzz");
        Ok(Self { root: root.to_owned(), target, program, seconds, hang_s })
    }

    fn found(&self) -> PathBuf {
        self.target.join("found")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.target.join("logs").join(format!("{name}.log"))
    }

    /// Runs a target to the end of its time, or to the first input that fails.
    fn fuzz(&self, name: &str, seeds: &[String]) -> Result<Stats> {
        let corpus = self.target.join("corpus").join(name);
        for directory in [&corpus, &self.found(), &self.target.join("logs")] {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let path = self.log(name);
        let log = File::create(&path).with_context(|| path.display().to_string())?;
        let mut program = Command::new(&self.program);
        program.current_dir(&self.root).env("LULL_FUZZ_TARGET", name);
        program.stdout(log.try_clone()?).stderr(log);
        program.args([
            format!("-max_total_time={}", self.seconds),
            format!("-timeout={}", self.hang_s),
            format!("-rss_limit_mb={MEMORY_MAX_MIB}"),
            format!("-max_len={INPUT_MAX_BYTES}"),
            format!("-artifact_prefix={}/{name}-", self.found().display()),
            "-print_final_stats=1".to_owned(),
        ]);
        let begun = Instant::now();
        let status = program.arg(&corpus).args(seeds).status();
        let status = status.context("cannot start the fuzz target")?;
        if !status.success() {
            println!("   it ended with {status}");
        }
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        Ok(Stats::from_log(&text, begun.elapsed().as_secs(), !status.success()))
    }

    /// Prints the end of a target's log.
    fn show_log(&self, name: &str) {
        let text = std::fs::read(self.log(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES_SHOWN)..] {
            println!("   {line}");
        }
    }
}

/// The targets and the directories of their seeds.
fn read_targets(root: &Path) -> Result<BTreeMap<String, Target>> {
    let file = root.join("crates/fuzz/targets.toml");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    toml::from_str(&text).with_context(|| file.display().to_string())
}

#[derive(Deserialize)]
struct Target {
    about: String,
    seeds: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "#2\tREAD units: 2\n\
        #3\tINITED cov: 412 ft: 500 corp: 2/77b exec/s: 0 rss: 39Mb\n\
        #70144\tNEW    cov: 413 ft: 501 corp: 3/80b lim: 4 exec/s: 70144 rss: 41Mb L: 3/77 MS: 1\n\
        Done 7543713 runs in 541 second(s)\n\
        stat::number_of_executed_units: 7543713\n\
        stat::average_exec_per_sec:     13944\n\
        stat::new_units_added:          812\n\
        stat::slowest_unit_time_sec:    0\n\
        stat::peak_rss_mb:              44\n";

    #[test]
    fn inputs_time_and_memory_are_read_of_the_log() {
        let expected = Stats {
            seconds: 541,
            inputs: 7_543_713,
            slowest_input_s: 0,
            first_mib: 39,
            peak_mib: 44,
            has_failed: false,
        };
        assert_eq!(Stats::from_log(LOG, 541, false), expected);
        assert_eq!(Stats::from_log("", 3, true).inputs, 0, "it ended before it began");
    }

    #[test]
    fn a_run_that_was_killed_counts_what_it_printed_last() {
        let (killed, _) = LOG.split_once("Done").unwrap();
        let stats = Stats::from_log(killed, 32, true);
        assert_eq!((stats.inputs, stats.first_mib, stats.peak_mib), (70_144, 39, 41));
    }

    #[test]
    fn the_target_with_the_shortest_time_is_the_first() {
        let run = |target: &str, seconds| {
            let stats = Stats::from_log(LOG, seconds, false);
            stats.into_run(target, "0123456789ab").unwrap()
        };
        let runs = [run("config", 60), run("page", 20), run("page", 20)];
        let all = ["config", "page", "push"];
        assert_eq!(in_order(&all, &[], &runs).unwrap(), ["push", "page", "config"]);
        let wanted = ["config".to_owned(), "page".to_owned()];
        assert_eq!(in_order(&all, &wanted, &runs).unwrap(), ["page", "config"]);
        assert!(in_order(&all, &["none".to_owned()], &runs).is_err());
    }
}
