//! Which programs the slow tests are in.
//!
//! Slow tests are built optimised. All programs of tests built so take a
//! quarter of an hour of two cores, and most hold no slow test at all: only
//! those are built of which a source says that it has some.

use anyhow::{Context, Result};
use ignore::Walk;
use std::collections::BTreeSet;
use std::path::Path;

/// What cargo is told, beyond profile and features: which programs to build.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Programs {
    /// `--package` and `--test` of integration tests.
    pub(super) integration: Vec<String>,
    /// `--package`, `--lib` and `--bins` of tests within the code.
    pub(super) unit: Vec<String>,
}

/// Finds them below the folders of all packages at `root`.
///
/// # Errors
/// If a source cannot be read.
pub(super) fn programs(root: &Path) -> Result<Programs> {
    let (mut tests, mut units) = (BTreeSet::new(), BTreeSet::new());
    for package in packages(root)? {
        for entry in Walk::new(root.join(&package.folder)).flatten() {
            let path = entry.path();
            let is_source = path.extension().is_some_and(|end| end == "rs");
            if !is_source || !has_slow(path)? {
                continue;
            }
            let inside = path.strip_prefix(root.join(&package.folder))?;
            let mut parts = inside.iter().filter_map(|part| part.to_str());
            match (parts.next(), parts.next()) {
                (Some("tests"), Some(name)) => {
                    let name = name.strip_suffix(".rs").unwrap_or(name).to_owned();
                    tests.insert((package.name.clone(), name));
                }
                (Some("src"), _) => {
                    units.insert(package.name.clone());
                }
                _ => {}
            }
        }
    }
    let named = |packages: BTreeSet<&String>| -> Vec<String> {
        packages.into_iter().flat_map(|name| ["--package".to_owned(), name.clone()]).collect()
    };
    let mut integration = named(tests.iter().map(|(package, _)| package).collect());
    let names: BTreeSet<&String> = tests.iter().map(|(_, name)| name).collect();
    integration.extend(names.into_iter().flat_map(|name| ["--test".to_owned(), name.clone()]));
    let mut unit = named(units.iter().collect());
    unit.extend(["--lib", "--bins"].map(str::to_owned));
    Ok(Programs { integration, unit })
}

/// A package of the workspace.
struct Package {
    name: String,
    folder: String,
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let mut folders = vec!["xtask".to_owned()];
    for entry in std::fs::read_dir(root.join("crates"))? {
        folders.push(format!("crates/{}", entry?.file_name().to_string_lossy()));
    }
    folders.sort();
    folders.into_iter().map(|folder| package(root, folder)).collect()
}

fn package(root: &Path, folder: String) -> Result<Package> {
    let file = root.join(&folder).join("Cargo.toml");
    let text = std::fs::read_to_string(&file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let table: toml::Table = text.parse()?;
    let name = table.get("package").and_then(|package| package.get("name"));
    let name = name.and_then(toml::Value::as_str);
    Ok(Package { name: name.context("a package without a name")?.to_owned(), folder })
}

/// An ignored test, or a trial of a test program of its own whose name says so.
fn has_slow(path: &Path) -> Result<bool> {
    let text = std::fs::read_to_string(path)?;
    let says_so = |line: &str| line.starts_with("#[ignore") || line.starts_with("(\"slow_");
    Ok(text.lines().any(|line| says_so(line.trim_start())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_built_if_a_source_of_it_has_a_slow_test() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (folder, name) in [("crates/a", "lull-a"), ("crates/b", "lull-b"), ("xtask", "xtask")] {
            write(&format!("{folder}/Cargo.toml"), &format!("[package]\nname = \"{name}\"\n"));
        }
        let slow = "#[test]\n    #[ignore = \"slow: why\"]\n";
        write("crates/a/tests/whole/part/deep.rs", slow);
        write("crates/a/tests/quick.rs", "// #[ignore\n");
        write("crates/b/tests/alone.rs", "    (\"slow_one\", run),\n");
        write("crates/b/src/code.rs", slow);
        let found = programs(place.path()).unwrap();
        let integration =
            ["--package", "lull-a", "--package", "lull-b", "--test", "alone", "--test", "whole"];
        assert_eq!(found.integration, integration);
        assert_eq!(found.unit, ["--package", "lull-b", "--lib", "--bins"]);
    }

    #[test]
    fn every_slow_test_of_this_tree_is_in_one_of_them() {
        let found = programs(&crate::root()).unwrap();
        for name in ["e2e", "experiments", "processes"] {
            assert!(found.integration.iter().any(|word| word == name), "{name}: {found:?}");
        }
        assert!(found.unit.iter().any(|word| word == "xtask"), "{found:?}");
    }
}
