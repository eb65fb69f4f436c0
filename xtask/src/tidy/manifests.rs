//! Every crate's Cargo.toml inherits the settings of the workspace.

use super::tree::{File, Tree};
use super::{Report, Rule};
use toml::{Table, Value};

pub(super) const RULE: Rule = Rule {
    name: "manifests",
    about: "a Cargo.toml inherits package fields, lints and versions from the workspace",
    check,
};

/// The keys that `[package]` inherits.
const INHERITED: [&str; 5] = ["version", "edition", "rust-version", "license", "publish"];

/// One crate's Cargo.toml.
pub(super) struct Manifest<'a> {
    pub(super) file: &'a File,
    /// The crate's directory under `crates/`, or `xtask`.
    pub(super) crate_name: &'a str,
    table: Result<Table, toml::de::Error>,
}

/// One dependency of a crate, of any kind.
pub(super) struct Dependency {
    /// The name it has in the manifest.
    pub(super) key: String,
    /// The name of its package.
    pub(super) package: String,
    inherited: bool,
}

/// The manifests of all crates of the workspace.
pub(super) fn all(tree: &Tree) -> impl Iterator<Item = Manifest<'_>> {
    let crates = tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    crates.filter_map(|file| {
        let crate_name = file.crate_name()?;
        Some(Manifest { file, crate_name, table: file.text.parse::<Table>() })
    })
}

impl Manifest<'_> {
    /// Normal, dev and build dependencies, for any target.
    pub(super) fn dependencies(&self) -> Vec<Dependency> {
        let Ok(table) = &self.table else { return Vec::new() };
        let targets = table.get("target").and_then(Value::as_table);
        let targets = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
        let sections = [table].into_iter().chain(targets).flat_map(|level| {
            let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
            kinds.map(|kind| level.get(kind).and_then(Value::as_table))
        });
        sections.flatten().flatten().map(|(key, value)| dependency(key, value)).collect()
    }

    /// The first line that begins with `key`, or the first line.
    pub(super) fn line_of(&self, key: &str) -> usize {
        let lines = self.file.text.lines();
        lines.zip(1..).find(|(line, _)| line.starts_with(key)).map_or(1, |(_, number)| number)
    }
}

fn dependency(key: &str, value: &Value) -> Dependency {
    let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
    let inherited = inherits(Some(value));
    Dependency { key: key.to_owned(), package: package.to_owned(), inherited }
}

/// Whether a value says `workspace = true`.
fn inherits(value: Option<&Value>) -> bool {
    value.and_then(|value| value.get("workspace")).and_then(Value::as_bool) == Some(true)
}

fn check(tree: &Tree, report: &mut Report) {
    for manifest in all(tree) {
        let path = &manifest.file.path;
        match &manifest.table {
            Ok(table) => check_table(&manifest, table, report),
            Err(error) => report.add(path, 1, format!("not TOML: {}", error.message())),
        }
    }
}

fn check_table(manifest: &Manifest, table: &Table, report: &mut Report) {
    let path = &manifest.file.path;
    let package = table.get("package");
    for field in INHERITED {
        if !inherits(package.and_then(|package| package.get(field))) {
            report.add(path, manifest.line_of(field), format!("write {field}.workspace = true"));
        }
    }
    if !inherits(table.get("lints")) {
        report.add(path, manifest.line_of("[lints"), "write [lints] workspace = true");
    }
    let name = package.and_then(|package| package.get("name")).and_then(Value::as_str);
    let wanted = match manifest.crate_name {
        "xtask" => "xtask".to_owned(),
        directory => format!("lull-{directory}"),
    };
    if name != Some(wanted.as_str()) {
        report.add(path, manifest.line_of("name"), format!("the package's name must be {wanted}"));
    }
    // A crate that turns on its own feature for its tests names itself by path.
    let is_foreign = |dependency: &&Dependency| dependency.package != wanted;
    let dependencies = manifest.dependencies();
    for dependency in dependencies.iter().filter(is_foreign).filter(|one| !one.inherited) {
        let what = format!(
            "give {}'s version in the root's [workspace.dependencies] and write workspace = true",
            dependency.key
        );
        report.add(path, manifest.line_of(&dependency.key), what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const GOOD: &str = r#"[package]
name = "lull-sim"
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license.workspace = true
publish.workspace = true

[lints]
workspace = true

[dependencies]
serde = { workspace = true, features = ["rc"] }

[dev-dependencies]
lull-sim = { path = ".", features = ["faults"] }
"#;

    fn check(manifest: &str) -> Vec<String> {
        findings(&RULE, &[("crates/sim/Cargo.toml", manifest)])
    }

    #[test]
    fn a_manifest_that_inherits_passes() {
        assert_eq!(check(GOOD), [""; 0]);
    }

    #[test]
    fn an_own_edition_missing_lints_a_version_and_a_foreign_name_are_found() {
        let broken = [
            ("edition.workspace = true", "edition = \"2021\"", ":4: write edition.workspace"),
            ("[lints]\nworkspace = true", "", ":1: write [lints]"),
            ("{ workspace = true, features = [\"rc\"] }", "\"1\"", ":13: give serde's version"),
            ("\"lull-sim\"", "\"sim\"", ":2: the package's name must be lull-sim"),
            ("[package]", "[package", ":1: not TOML"),
        ];
        for (good, bad, wanted) in broken {
            let found = check(&GOOD.replace(good, bad));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(wanted), "{found:?}");
        }
    }
}
