//! Where a figure was measured: machine, kernel, compiler, commit.

use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::process::Command;
use xtask::here;

/// The properties of the machine on which a figure depends.
pub(super) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    /// The frequency governor; none where the kernel offers no frequencies.
    governor: Option<String>,
    compiler: String,
    commit: String,
    /// The tree differs from the commit, results apart.
    dirty: bool,
    /// Whether the program that was measured is not built from this tree here, but named.
    is_named: bool,
}

const UNKNOWN: &str = "unknown";

impl Machine {
    /// This machine, and the commit of the tree at `root`.
    pub(super) fn here(root: &Path) -> Self {
        let results = format!(":!{}", super::RESULTS);
        let changes = run(root, &["git", "status", "--porcelain", "--", ".", &results]);
        let commit = run(root, &["git", "rev-parse", "--short=12", "HEAD"]);
        let compiler = run(root, &["rustc", "--version"]);
        Self {
            cpu: here::cpu_model().unwrap_or_else(|| UNKNOWN.to_owned()),
            cores: here::cores(),
            kernel: here::kernel().unwrap_or_else(|| UNKNOWN.to_owned()),
            governor: here::read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            compiler: compiler.unwrap_or_else(|| UNKNOWN.to_owned()),
            commit: commit.unwrap_or_else(|| UNKNOWN.to_owned()),
            dirty: changes.is_none_or(|changes| !changes.is_empty()),
            is_named: std::env::var_os(super::PROGRAM).is_some(),
        }
    }

    /// The machine for programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "kernel": self.kernel,
            "governor": self.governor,
            "compiler": self.compiler,
            "commit": self.commit,
            "dirty": self.dirty,
            "named_program": self.is_named,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let governor = self.governor.as_deref().unwrap_or("none, the kernel offers no frequencies");
        let dirty = if self.dirty { ", with changes" } else { "" };
        writeln!(out, "- machine: {}, {} cores", self.cpu, self.cores)?;
        writeln!(out, "- kernel: {}, governor: {governor}", self.kernel)?;
        writeln!(out, "- compiler: {}", self.compiler)?;
        if self.is_named {
            writeln!(out, "- program: the one that `{}` named", super::PROGRAM)?;
        }
        writeln!(out, "- commit: {}{dirty}", self.commit)
    }
}

fn run(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new(words[0]).current_dir(root).args(&words[1..]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_without_history_has_no_commit_and_counts_as_changed() {
        let machine = Machine::here(Path::new("/proc/self"));
        assert_eq!(machine.commit, UNKNOWN);
        assert!(machine.dirty);
        assert!(machine.to_string().ends_with("commit: unknown, with changes\n"), "{machine}");
    }
}
