//! One phase of the tests: what it runs, and how its outcome counts.

use super::tally::Round;
use std::path::Path;
use std::process::{Command, ExitCode};

/// A step of `cargo xtask test` with a name and a command that repeats it.
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// The arguments of `cargo`.
    arguments: Vec<String>,
    pub(super) step: Step,
}

/// A step of a phase.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// A cargo command that only succeeds or fails, with its lines shown as they come.
    Cargo,
    /// A cargo command with additions to its environment, whose `test result:` lines are summed up.
    Aside(Option<(&'static str, &'static str)>),
    /// Builds the test programs.
    Build,
    /// Runs the test programs that were built.
    Programs(Round),
    /// A task of this program.
    Here(fn(&Path) -> anyhow::Result<ExitCode>),
}

impl Phase {
    /// A phase that runs a cargo command, or that a cargo command repeats.
    pub(super) fn new(name: &'static str, arguments: &[&str], step: Step) -> Self {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        Self { name, arguments, step }
    }

    /// The command that repeats the phase.
    pub(super) fn repeat(&self) -> String {
        let flags = match self.step {
            Step::Aside(Some((variable, flags))) => format!("{variable}='{flags}' "),
            _ => String::new(),
        };
        let arguments = self.arguments.join(" ");
        format!("{flags}cargo {}", arguments.strip_suffix(" --").unwrap_or(&arguments))
    }

    pub(super) fn arguments(&self) -> Vec<&str> {
        self.arguments.iter().map(String::as_str).collect()
    }

    /// The cargo command at `root`.
    pub(super) fn command(&self, root: &Path) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(root).args(&self.arguments);
        if let Step::Aside(Some((variable, flags))) = self.step {
            command.env(variable, flags);
        }
        command
    }
}
