//! The crates of others that the workspace uses, as cargo resolves them.

use crate::command::read_output;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The platform that packages are built for; others need the same crates and some of Windows.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The programs and libraries that packages contain.
const SHIPPED: [&str; 4] = ["--package", "lull-cli", "--package", "lull-preload"];

/// One crate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// The licence as its manifest states it, or empty.
    pub(super) licence: String,
}

/// Returns all crates of others that building and testing the workspace takes.
pub(super) fn of_workspace(root: &Path) -> Result<Vec<Crate>> {
    tree(root, &["--workspace", "--all-features", "--edges", "normal,build,dev"])
}

/// Returns the crates of others that are part of what packages contain.
pub(super) fn shipped(root: &Path) -> Result<Vec<Crate>> {
    tree(root, &[&SHIPPED[..], &["--edges", "normal"]].concat())
}

fn tree(root: &Path, selection: &[&str]) -> Result<Vec<Crate>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["tree", "--locked", "--target", TARGET, "--prefix", "none"]);
    cargo.args(["--format", "{p}|{l}"]).args(selection);
    parse(&read_output(&mut cargo)?)
}

/// Reads lines such as `syn v2.0.1 (proc-macro)|MIT (*)`; crates of this tree name their path.
fn parse(listed: &str) -> Result<Vec<Crate>> {
    let mut crates = BTreeSet::new();
    for line in listed.lines().filter(|line| !line.is_empty() && !line.contains(" (/")) {
        let (package, licence) =
            line.split_once('|').with_context(|| format!("cargo tree prints `{line}`"))?;
        let mut words = package.split(' ');
        let (name, version) = (words.next(), words.next().and_then(|word| word.strip_prefix('v')));
        let (Some(name), Some(version)) = (name, version) else {
            anyhow::bail!("cargo tree prints `{line}`");
        };
        let licence = licence.trim_end_matches(" (*)").to_owned();
        crates.insert(Crate { name: name.to_owned(), version: version.to_owned(), licence });
    }
    Ok(crates.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_program_has_no_client_of_kubernetes() {
        let crates = shipped(&xtask::root()).unwrap();
        let has = |name: &str| crates.iter().any(|one| one.name == name);
        assert!(has("serde") && !has("kube") && !has("k8s-openapi"), "the feature fleet has them");
        assert!(of_workspace(&xtask::root()).unwrap().iter().any(|one| one.name == "kube"));
    }

    #[test]
    fn crates_of_others_are_listed_once() {
        let listed = "lull-cli v0.1.0 (/home/a/lull/crates/cli)|Apache-2.0\n\
                      syn v2.0.1 (proc-macro)|MIT OR Apache-2.0\n\
                      toml v1.2.1+spec-1.1.0|MIT\n\
                      toml v1.2.1+spec-1.1.0|MIT (*)\n";
        let crates = parse(listed).unwrap();
        let names: Vec<_> = crates.iter().map(|it| (&*it.name, &*it.version)).collect();
        assert_eq!(names, [("syn", "2.0.1"), ("toml", "1.2.1+spec-1.1.0")]);
        assert_eq!(crates[1].licence, "MIT");
        assert!(parse("syn").is_err());
    }
}
