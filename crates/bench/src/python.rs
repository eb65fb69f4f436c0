//! Python programs that ours are measured beside, installed for the benchmark
//! and nothing else.

use super::process::printed;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A virtual environment with other people's programs, and scripts that use them.
pub(super) struct Python {
    environment: PathBuf,
    scripts: PathBuf,
}

/// The required packages: names and versions.
const REQUIREMENTS: &str = "requirements.txt";

impl Python {
    /// Makes the environment of a benchmark, whose directory has scripts and
    /// requirements, in [`xtask::cache`], unless it is there and up to date.
    ///
    /// # Errors
    /// If there is no Python with `venv`, or no package index to install from.
    pub(super) fn install(benchmark: &str, root: &Path) -> Result<Self> {
        Self::install_without(benchmark, root, &[])
    }

    /// The same without some of its requirements, by name.
    ///
    /// # Errors
    /// As [`Python::install`].
    pub(super) fn install_without(benchmark: &str, root: &Path, names: &[&str]) -> Result<Self> {
        let scripts = root.join("crates/bench/src").join(benchmark);
        let python =
            Self { environment: xtask::cache().join(format!("bench-{benchmark}-venv")), scripts };
        let wanted = without(&std::fs::read_to_string(python.scripts.join(REQUIREMENTS))?, names);
        let stamp = python.environment.join(REQUIREMENTS);
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| has_all(&installed, &wanted)) {
            return Ok(python);
        }
        let mut make = Command::new("python3");
        printed(make.args(["-m", "venv", "--clear"]).arg(&python.environment))
            .context("no virtual environment; apt-get install python3-venv")?;
        let written = python.environment.join("wanted.txt");
        std::fs::write(&written, &wanted)?;
        let mut install = python.interpreter();
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        printed(install.arg("--requirement").arg(written))
            .context("the Python programs to compare with cannot be installed")?;
        std::fs::write(stamp, wanted)?;
        Ok(python)
    }

    /// A command that runs the interpreter.
    pub(super) fn interpreter(&self) -> Command {
        Command::new(self.environment.join("bin/python"))
    }

    /// A command that runs one of the benchmark's scripts.
    pub(super) fn script(&self, name: &str) -> Command {
        let mut command = self.interpreter();
        command.arg(self.scripts.join(name));
        command
    }

    /// Returns the version of the interpreter, and those of the named requirements.
    ///
    /// # Errors
    /// If the interpreter does not run.
    pub(super) fn versions(&self, names: &[&str]) -> Result<String> {
        let python = printed(self.interpreter().arg("--version"))?.text;
        let wanted = std::fs::read_to_string(self.scripts.join(REQUIREMENTS))?;
        Ok(format!("{}, {}.", python.trim(), pinned(&wanted, names).join(", ")))
    }
}

/// Whether all requirements were installed, alone or with others.
fn has_all(installed: &str, wanted: &str) -> bool {
    wanted.lines().all(|line| installed.lines().any(|it| it == line))
}

/// The requirements without those that are named.
fn without(requirements: &str, names: &[&str]) -> String {
    let is_named =
        |line: &&str| line.split_once("==").is_some_and(|(name, _)| names.contains(&name));
    let kept = requirements.lines().filter(|line| !is_named(line));
    kept.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the named requirements with their versions.
fn pinned(requirements: &str, names: &[&str]) -> Vec<String> {
    let lines = requirements.lines().filter_map(|line| line.split_once("=="));
    let named = lines.filter(|(name, _)| names.contains(name));
    named.map(|(name, version)| format!("{name} {version}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_is_pinned_and_what_is_compared_is_among_them() {
        let of = [
            (include_str!("sim/requirements.txt"), ["ciw", "simpy"]),
            (include_str!("suggest/requirements.txt"), ["ax-platform", "botorch"]),
            (include_str!("package/requirements.txt"), ["maturin", "polars"]),
        ];
        let (left, _) = of[1];
        assert_eq!(pinned(&without(left, &["botorch"]), &["ax-platform", "botorch"]).len(), 1);
        assert_eq!(without(left, &[]), left);
        let fewer = without(left, &["botorch"]);
        assert!(has_all(left, &fewer) && has_all(left, left) && !has_all(&fewer, left));
        let other = left.replace("botorch==", "botorch==9");
        assert!(!has_all(&other, left) && has_all(&other, &fewer));
        let fleet = include_str!("fleet/requirements.txt");
        assert_eq!(pinned(fleet, &["duckdb"]).len(), 1, "{fleet}");
        for (requirements, names) in of {
            let lines = requirements.lines().filter(|line| !line.starts_with('#'));
            assert!(lines.clone().all(|line| line.contains("==")), "{requirements}");
            assert_eq!(pinned(requirements, &names).len(), names.len(), "{names:?}");
        }
    }
}
