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
    /// The version of the program that was measured, if it is not built from this tree here, but
    /// named.
    named_program: Option<String>,
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
            named_program: super::named_program().map(|path| version(&path)),
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
            "program": self.named_program,
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
        if let Some(version) = &self.named_program {
            writeln!(out, "- program: {version}, named by `{}`", super::PROGRAM)?;
        }
        writeln!(out, "- commit: {}{dirty}", self.commit)
    }
}

/// Returns the first line of `PROGRAM --version`, which names the commit.
fn version(program: &Path) -> String {
    let text = run(Path::new("."), &[&program.to_string_lossy(), "--version"]);
    text.as_deref().and_then(|text| text.lines().next()).unwrap_or(UNKNOWN).to_owned()
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
