//! `cargo xtask fuzz`: the targets of `crates/fuzz` under libFuzzer, guided by coverage.
//!
//! The flags are those of cargo-fuzz without a sanitizer: they need neither a nightly compiler
//! nor an installed tool. Overflows and debug assertions are checked. What libFuzzer keeps,
//! inputs that reach new code and inputs that fail, is in `target/fuzz`.

use crate::release;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Counters at edges and comparisons, which libFuzzer reads.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// An input that takes longer is a hang.
const HANG_S: u32 = 1;
const MEMORY_MAX_MIB: u32 = 2048;
const INPUT_MAX_BYTES: u32 = 65_536;

/// What to fuzz, and for how long.
pub(crate) struct Options {
    /// Names of targets; all without a name.
    pub(crate) names: Vec<String>,
    /// How long each target runs.
    pub(crate) seconds: u32,
}

/// Fuzzes one target after the other and reports those that failed.
///
/// # Errors
/// If the program does not build or a target is unknown.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let targets = read_targets(root)?;
    let names: Vec<&str> = targets.keys().map(String::as_str).collect();
    if let Some(unknown) = options.names.iter().find(|name| !targets.contains_key(*name)) {
        bail!("no fuzz target {unknown}; there are {}", names.join(", "));
    }
    let is_wanted =
        |name: &str| options.names.is_empty() || options.names.iter().any(|it| it == name);
    let fuzzer = Fuzzer::build(root)?;
    let mut failed = Vec::new();
    for (name, target) in targets.iter().filter(|(name, _)| is_wanted(name)) {
        println!("== {name}: {}, {} s", target.about, options.seconds);
        if !fuzzer.fuzz(name, &target.seeds, options.seconds)? {
            failed.push(name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("== failed: {}; the inputs are in {}", failed.join(", "), fuzzer.found().display());
    Ok(ExitCode::FAILURE)
}

struct Fuzzer {
    root: PathBuf,
    target: PathBuf,
    program: PathBuf,
}

impl Fuzzer {
    fn build(root: &Path) -> Result<Self> {
        let target = release::target(root).join("fuzz");
        let triple = release::host_triple()?;
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["build", "--release", "--package", "lull-fuzz"]);
        // With --target the flags are not those of build scripts and macros.
        cargo.args(["--target", &triple]).arg("--target-dir").arg(&target);
        cargo.env("RUSTFLAGS", FLAGS);
        cargo.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
        cargo.env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
        if !cargo.status().context("cannot start cargo")?.success() {
            bail!("the fuzz targets do not build");
        }
        let program = target.join(triple).join("release/lull-fuzz");
        Ok(Self { root: root.to_owned(), target, program })
    }

    fn found(&self) -> PathBuf {
        self.target.join("found")
    }

    /// Runs a target; returns whether no input failed.
    fn fuzz(&self, name: &str, seeds: &[String], seconds: u32) -> Result<bool> {
        let corpus = self.target.join("corpus").join(name);
        for directory in [&corpus, &self.found()] {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let mut program = Command::new(&self.program);
        program.current_dir(&self.root).env("LULL_FUZZ_TARGET", name);
        program.args([
            format!("-max_total_time={seconds}"),
            format!("-timeout={HANG_S}"),
            format!("-rss_limit_mb={MEMORY_MAX_MIB}"),
            format!("-max_len={INPUT_MAX_BYTES}"),
            format!("-artifact_prefix={}/{name}-", self.found().display()),
            "-print_final_stats=1".to_owned(),
        ]);
        let status = program.arg(&corpus).args(seeds).status();
        Ok(status.context("cannot start the fuzz target")?.success())
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
