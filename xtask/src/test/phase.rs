//! One phase of the tests: a command, and how its outcome counts.

use super::tally::{Counts, Round, Tally};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// A step of `cargo xtask test` with a name and a command that repeats it.
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// What follows `cargo`.
    arguments: Vec<String>,
    step: Step,
}

/// What a phase runs.
enum Step {
    /// A cargo command that only succeeds or fails.
    Cargo,
    /// As `Cargo`, and warnings of rustdoc are errors.
    Documentation,
    /// A cargo command whose `test result:` lines are summed up.
    Tests(Round),
    /// As `Tests`, built for the model checker.
    Model,
    /// A task of this program.
    Here(fn(&Path) -> Result<ExitCode>),
}

impl Phase {
    /// A cargo command.
    pub(super) fn cargo(name: &'static str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        Self { name, arguments, step: Step::Cargo }
    }

    /// A cargo command that runs rustdoc.
    pub(super) fn documentation(name: &'static str, arguments: &[&str]) -> Self {
        Self { step: Step::Documentation, ..Self::cargo(name, arguments) }
    }

    /// A cargo command that runs tests.
    pub(super) fn tests(name: &'static str, arguments: &[&str], round: Round) -> Self {
        Self { step: Step::Tests(round), ..Self::cargo(name, arguments) }
    }

    /// A cargo command that runs tests under every interleaving (loom).
    pub(super) fn model(name: &'static str, arguments: &[&str]) -> Self {
        Self { step: Step::Model, ..Self::cargo(name, arguments) }
    }

    /// A task of this program, which `cargo xtask TASK` runs too.
    pub(super) fn here(name: &'static str, task: &str, run: fn(&Path) -> Result<ExitCode>) -> Self {
        Self { name, arguments: vec![format!("xtask {task}")], step: Step::Here(run) }
    }

    /// The command that repeats the phase.
    pub(super) fn command(&self) -> String {
        let flags = match self.flags() {
            Some((variable, flags)) => format!("{variable}='{flags}' "),
            None => String::new(),
        };
        let arguments = self.arguments.join(" ");
        format!("{flags}cargo {}", arguments.strip_suffix(" --").unwrap_or(&arguments))
    }

    /// Runs the phase; a failure that no test explains counts as one failed test.
    pub(super) fn run(&self, root: &Path, tally: &mut Tally) -> Result<bool> {
        let failed = tally.failed;
        let good = match &self.step {
            Step::Here(task) => task(root)? == ExitCode::SUCCESS,
            Step::Tests(round) => self.stream(root, |counts| tally.add(*round, counts))?,
            Step::Model => self.stream(root, |counts| tally.add(Round::First, counts))?,
            Step::Cargo | Step::Documentation => {
                self.start(root).status().context("cannot start cargo")?.success()
            }
        };
        if !good && tally.failed == failed {
            tally.failed += 1;
        }
        Ok(good)
    }

    fn start(&self, root: &Path) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(root).args(&self.arguments).stdin(Stdio::null());
        if let Some((variable, flags)) = self.flags() {
            command.env(variable, flags);
        }
        command
    }

    /// What is set in the environment of cargo.
    const fn flags(&self) -> Option<(&'static str, &'static str)> {
        match self.step {
            Step::Documentation => Some(("RUSTDOCFLAGS", "-D warnings")),
            Step::Model => Some(("RUSTFLAGS", "--cfg loom")),
            _ => None,
        }
    }

    /// Runs tests, showing what they print and reporting each result line.
    fn stream(&self, root: &Path, mut result: impl FnMut(&Counts)) -> Result<bool> {
        let mut child =
            self.start(root).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
        let stdout = child.stdout.take().context("cargo has no output")?;
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("cannot read what the tests print")?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            if let Some(counts) = Counts::parse(&line) {
                result(&counts);
            }
        }
        Ok(child.wait()?.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_without_a_failed_test_counts_as_one() {
        let (root, mut tally) = (crate::root(), Tally::default());
        let broken = Phase::here("broken", "broken", |_| Ok(ExitCode::FAILURE));
        assert!(!broken.run(&root, &mut tally).unwrap());
        let good = Phase::cargo("version", &["--version"]);
        assert!(good.run(&root, &mut tally).unwrap());
        let unknown = Phase::tests("unknown", &["no-such-command"], Round::First);
        assert!(!unknown.run(&root, &mut tally).unwrap());
        assert_eq!(tally.to_string(), "0 passed, 2 failed");
    }
}
