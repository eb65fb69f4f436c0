//! `cargo xtask supply` and `cargo xtask notices`: the third-party code in Lull.
//!
//! The first checks each dependency against `deny.toml`: its licence, where it is fetched
//! from, and that no further crate is there in two versions. The file is cargo-deny's; the
//! check is repeated here because it then takes a second and no network, so that each test run
//! can have it. The second writes what packages carry along: the licence texts of all crates
//! that are part of the programs, and a list of them in CycloneDX.

mod graph;
mod licence;
mod notices;

use anyhow::{Context, Result};
use graph::Crate;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use toml::{Table, Value};

pub(crate) use notices::write;

/// Checks all dependencies of the workspace and prints what `deny.toml` does not allow.
///
/// # Errors
/// If cargo cannot list the dependencies, or `deny.toml` cannot be read.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let rules = Rules::read(&root.join("deny.toml"))?;
    let crates = graph::of_workspace(root)?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("no Cargo.lock")?;
    let mut findings = rules.check(&crates);
    findings.extend(rules.check_sources(&lock));
    findings.iter().for_each(|finding| println!("{finding}"));
    if findings.is_empty() {
        println!("supply: {} crates of others, nothing found", crates.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("supply: {} findings; see deny.toml", findings.len());
    Ok(ExitCode::FAILURE)
}

/// Writes notices and the list of parts to `target/package`.
///
/// # Errors
/// As [`write`].
pub(crate) fn run_notices(root: &Path) -> Result<ExitCode> {
    let place = crate::release::target(root).join("package");
    write(root, &place)?.iter().for_each(|file: &PathBuf| println!("{}", file.display()));
    Ok(ExitCode::SUCCESS)
}

/// The rules of `deny.toml`.
struct Rules {
    licences: Vec<String>,
    /// `name@version`, of which one more version is allowed.
    skipped: Vec<String>,
    registries: Vec<String>,
}

impl Rules {
    fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file);
        Self::parse(&text.with_context(|| format!("cannot read {}", file.display()))?)
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse().context("deny.toml is not TOML")?;
        let list = |section: &str, key: &str| {
            let list = table.get(section).and_then(|section| section.get(key));
            let list = list.and_then(Value::as_array);
            list.with_context(|| format!("deny.toml has no {section}.{key}"))
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let skipped = list("bans", "skip")?.iter().filter_map(|skip| skip.get("crate"));
        Ok(Self {
            licences: list("licenses", "allow")?.iter().map(text).collect(),
            skipped: skipped.map(text).collect(),
            registries: list("sources", "allow-registry")?.iter().map(text).collect(),
        })
    }

    /// Returns a line for each crate with a licence that is not allowed, each that is there in
    /// several versions, and each exception that is no longer needed.
    fn check(&self, crates: &[Crate]) -> Vec<String> {
        let mut findings = Vec::new();
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for Crate { name, version, licence } in crates {
            if !licence::is_allowed(licence, &self.licences) {
                let what = if licence.is_empty() { "no licence" } else { licence };
                findings.push(format!("{name} {version}: {what} is not in licenses.allow"));
            }
            versions.entry(name).or_default().push(version);
        }
        let is_skipped = |name: &str, version: &str| {
            let mut skipped = self.skipped.iter().filter_map(|skip| skip.split_once('@'));
            skipped.any(|(crate_name, prefix)| {
                let rest = version.strip_prefix(prefix);
                name == crate_name
                    && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        for (name, versions) in &versions {
            let left: Vec<&str> =
                versions.iter().copied().filter(|version| !is_skipped(name, version)).collect();
            if left.len() > 1 {
                let left = left.join(", ");
                findings.push(format!("{name}: versions {left}; take one, or add to bans.skip"));
            }
        }
        let is_needed = |skip: &&String| {
            let name = skip.split('@').next().unwrap_or_default();
            versions.get(name).is_some_and(|versions| versions.len() > 1)
        };
        let stale = self.skipped.iter().filter(|skip| !is_needed(skip));
        findings.extend(stale.map(|skip| format!("{skip} in bans.skip has one version only")));
        findings
    }

    /// Returns a line for each source of `Cargo.lock` that is not an allowed registry.
    fn check_sources(&self, lock: &str) -> Vec<String> {
        let sources = lock.lines().filter_map(|line| line.strip_prefix("source = "));
        let is_allowed = |source: &&str| {
            let registry = source.trim_matches('"').strip_prefix("registry+");
            registry.is_some_and(|url| self.registries.iter().any(|allowed| allowed == url))
        };
        let foreign = sources.filter(|source| !is_allowed(source));
        foreign.map(|source| format!("Cargo.lock: {source} is not in sources")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0"]
        [bans]
        skip = [{ crate = "syn@2", reason = "others" }]
        [sources]
        allow-registry = ["https://github.com/rust-lang/crates.io-index"]
    "#;

    fn part(name: &str, version: &str, licence: &str) -> Crate {
        Crate { name: name.into(), version: version.into(), licence: licence.into() }
    }

    fn check(crates: &[Crate]) -> Vec<String> {
        Rules::parse(RULES).unwrap().check(crates)
    }

    #[test]
    fn an_allowed_tree_has_no_findings() {
        let tree = [
            part("syn", "2.0.1", "MIT OR Apache-2.0"),
            part("syn", "3.0.9", "MIT"),
            part("csv", "1.4.0", "Unlicense/MIT"),
        ];
        assert_eq!(check(&tree), [""; 0]);
    }

    #[test]
    fn licences_duplicates_and_stale_exceptions_are_found() {
        let syn = [part("syn", "2.0.1", "MIT"), part("syn", "3.0.9", "MIT")];
        let with = |further: &[Crate]| {
            let all = syn.iter().chain(further);
            let all = all.map(|it| part(&it.name, &it.version, &it.licence));
            check(&all.collect::<Vec<_>>())
        };
        assert_eq!(with(&[part("a", "1.0.0", "GPL-3.0")]).len(), 1);
        assert!(with(&[part("a", "1.0.0", "")])[0].contains("no licence"));
        let found = with(&[part("b", "1.0.0", "MIT"), part("b", "2.0.0", "MIT")]);
        assert_eq!(found, ["b: versions 1.0.0, 2.0.0; take one, or add to bans.skip"]);
        assert_eq!(with(&[part("syn", "20.0.0", "MIT")]).len(), 1, "20 is not 2");
        assert!(check(&[part("syn", "3.0.9", "MIT")])[0].contains("one version only"));
    }

    #[test]
    fn sources_other_than_the_registry_are_found() {
        let rules = Rules::parse(RULES).unwrap();
        let good = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
        assert_eq!(rules.check_sources(good), [""; 0]);
        for bad in ["git+https://example.org/x#1", "registry+https://example.org/index"] {
            assert_eq!(rules.check_sources(&format!("{good}source = \"{bad}\"")).len(), 1);
        }
    }

    #[test]
    fn the_file_of_this_repository_has_these_sections() {
        let rules = Rules::read(&xtask::root().join("deny.toml")).unwrap();
        assert!(rules.licences.len() > 3 && !rules.registries.is_empty());
    }
}
