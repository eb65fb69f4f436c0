//! The input of the rules: every file that git would track, parsed once, and the history.

use super::commits::Commit;
use super::source::Rust;
use anyhow::{Context, Result};
use ignore::WalkBuilder;
use std::collections::BTreeSet;
use std::path::Path;

/// The repository as the rules see it.
pub(super) struct Tree {
    /// All text files, by path.
    pub(super) files: Vec<File>,
    /// The commits that lead to this tree; empty where the history is not there.
    pub(super) commits: Vec<Commit>,
}

/// One text file.
pub(super) struct File {
    /// The path from the root, with `/` between the parts.
    pub(super) path: String,
    pub(super) text: String,
    /// The parsed file, if it is a Rust file.
    pub(super) rust: Option<Rust>,
}

impl File {
    fn new(path: String, text: String) -> Result<Self> {
        let rust = match path.ends_with(".rs") {
            true => Some(Rust::parse(&path, &text)?),
            false => None,
        };
        Ok(Self { path, text, rust })
    }

    /// The name of the crate's directory: `measure`, or `xtask`; none outside the crates.
    pub(super) fn crate_name(&self) -> Option<&str> {
        let mut parts = self.path.split('/');
        match parts.next()? {
            "crates" => parts.next(),
            "xtask" => Some("xtask"),
            _ => None,
        }
    }

    /// Whether one of the file's extensions is among `wanted`.
    pub(super) fn is_any_of(&self, wanted: &[&str]) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit_once('.').is_some_and(|(_, extension)| wanted.contains(&extension))
    }
}

impl Tree {
    /// Reads the tree under `root`: what `.gitignore` excludes is left out.
    pub(super) fn load(root: &Path) -> Result<Self> {
        let mut walk = WalkBuilder::new(root);
        walk.hidden(false).require_git(false).filter_entry(|entry| entry.file_name() != ".git");
        let mut files = Vec::new();
        for entry in walk.sort_by_file_name(Ord::cmp).build() {
            let entry = entry?;
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                continue;
            }
            let bytes = std::fs::read(entry.path())
                .with_context(|| format!("cannot read {}", entry.path().display()))?;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let path = entry.path().strip_prefix(root)?.to_string_lossy().into_owned();
            files.push(File::new(path, text)?);
        }
        Ok(Self { files, commits: Commit::history(root) }.with_test_files_marked())
    }

    /// A tree in memory, for the tests of the rules.
    #[cfg(test)]
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let parse = |(path, text): &(&str, &str)| File::new((*path).into(), (*text).into());
        let files = files.iter().map(parse).collect::<Result<_>>().unwrap();
        Self { files, commits: Vec::new() }.with_test_files_marked()
    }

    /// The Rust files with what was parsed from them.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, &Rust)> {
        self.files.iter().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }

    /// The file at `path`.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Marks the files that a `#[cfg(test)] mod name;` elsewhere makes test code.
    fn with_test_files_marked(mut self) -> Self {
        let mut roots = BTreeSet::new();
        for (file, rust) in self.rust() {
            let home = module_directory(&file.path);
            roots.extend(rust.test_modules.iter().map(|name| format!("{home}/{name}")));
        }
        for file in &mut self.files {
            let Some(rust) = &mut file.rust else { continue };
            let stem = file.path.trim_end_matches(".rs");
            let below = |root: &String| stem.strip_prefix(root.as_str());
            if roots.iter().filter_map(below).any(|rest| rest.is_empty() || rest.starts_with('/')) {
                rust.only_tests = true;
            }
        }
        self
    }
}

/// Where the modules declared in the file at `path` lie.
fn module_directory(path: &str) -> &str {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "mod.rs" | "lib.rs" | "main.rs" => directory,
        _ => path.trim_end_matches(".rs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_declared_under_cfg_test_is_test_code() {
        let tree = Tree::new(&[
            ("crates/sim/src/lib.rs", "#[cfg(test)]\nmod proofs;\nmod proofreader;\n"),
            ("crates/sim/src/proofs.rs", ""),
            ("crates/sim/src/proofs/deep.rs", ""),
            ("crates/sim/src/proofreader.rs", ""),
        ]);
        let marked: Vec<_> = tree.rust().map(|(_, rust)| rust.only_tests).collect();
        assert_eq!(marked, [false, true, true, false]);
    }

    #[test]
    fn what_git_ignores_is_not_looked_at() {
        let tree = Tree::load(&crate::root()).unwrap();
        assert!(tree.file(".gitignore").is_some());
        assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
        assert!(tree.files.iter().all(|file| !file.path.starts_with(".git/")));
    }
}
