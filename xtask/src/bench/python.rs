//! The Python simulators, installed for the benchmark and nothing else.

use crate::bench::process::printed;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A virtual environment with the simulators, and the scripts that use it.
pub(super) struct Python {
    environment: PathBuf,
    scripts: PathBuf,
}

/// What is installed: names and versions.
const REQUIREMENTS: &str = "requirements.txt";

impl Python {
    /// Makes the environment under `target`, unless it is there and up to date.
    ///
    /// # Errors
    /// If there is no Python with `venv`, or no package index to install from.
    pub(super) fn with_simulators(root: &Path, target: &Path) -> Result<Self> {
        let scripts = root.join("xtask/src/bench/sim");
        let python = Self { environment: target.join("bench-sim-venv"), scripts };
        let wanted = std::fs::read_to_string(python.scripts.join(REQUIREMENTS))?;
        let stamp = python.environment.join(REQUIREMENTS);
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(python);
        }
        let mut make = Command::new("python3");
        printed(make.args(["-m", "venv", "--clear"]).arg(&python.environment))
            .context("no virtual environment; apt-get install python3-venv")?;
        let mut install = python.interpreter();
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        printed(install.arg("--requirement").arg(python.scripts.join(REQUIREMENTS)))
            .context("the Python simulators cannot be installed")?;
        std::fs::write(stamp, wanted)?;
        Ok(python)
    }

    fn interpreter(&self) -> Command {
        Command::new(self.environment.join("bin/python"))
    }

    /// A command that runs one of the scripts beside this file.
    pub(super) fn script(&self, name: &str) -> Command {
        let mut command = self.interpreter();
        command.arg(self.scripts.join(name));
        command
    }

    /// Interpreter and simulators in words.
    ///
    /// # Errors
    /// If the interpreter does not run.
    pub(super) fn versions(&self) -> Result<String> {
        let python = printed(self.interpreter().arg("--version"))?.text;
        let wanted = std::fs::read_to_string(self.scripts.join(REQUIREMENTS))?;
        Ok(format!("{}, {}.", python.trim(), pinned(&wanted).join(", ")))
    }
}

/// The simulators among the requirements, with their versions.
fn pinned(requirements: &str) -> Vec<String> {
    let lines = requirements.lines().filter_map(|line| line.split_once("=="));
    let simulators = lines.filter(|(name, _)| ["ciw", "simpy"].contains(name));
    simulators.map(|(name, version)| format!("{name} {version}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_is_pinned_and_both_simulators_are_among_them() {
        let requirements = include_str!("requirements.txt");
        let lines = requirements.lines().filter(|line| !line.starts_with('#'));
        assert!(lines.clone().all(|line| line.contains("==")), "{requirements}");
        let simulators = pinned(requirements);
        assert!(simulators[0].starts_with("ciw 3."), "{simulators:?}");
        assert!(simulators[1].starts_with("simpy 4."), "{simulators:?}");
    }
}
