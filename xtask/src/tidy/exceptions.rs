//! The list of exceptions with their reasons, which may only shrink.

use super::tree::Tree;
use super::{Report, Rule, size};
use std::collections::BTreeMap;
use toml::{Table, Value};

pub(super) const RULE: Rule =
    Rule { name: "exceptions", about: "an exception has a reason and is still needed", check };

/// Where the list is.
pub(super) const PATH: &str = "xtask/tidy-exceptions.toml";

/// The exceptions, each with its reason.
#[derive(Default)]
pub(super) struct Exceptions {
    files: BTreeMap<String, String>,
    commits: BTreeMap<String, String>,
    circles: BTreeMap<String, String>,
    broken: Option<String>,
}

impl Exceptions {
    /// Whether a file may have more than 500 lines.
    pub(super) fn has_file(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Whether a commit may break the form; it is listed by the start of its hash.
    pub(super) fn has_commit(&self, hash: &str) -> bool {
        self.commits.keys().any(|start| hash.starts_with(start.as_str()))
    }

    /// The directories whose modules may use each other in a circle.
    pub(super) fn circles(&self) -> impl Iterator<Item = &str> {
        self.circles.keys().map(String::as_str)
    }
}

/// Reads the list; a tree without one excuses nothing.
pub(super) fn read(tree: &Tree) -> Exceptions {
    let Some(file) = tree.file(PATH) else { return Exceptions::default() };
    match file.text.parse::<Table>() {
        Ok(table) => Exceptions {
            files: entries(&table, "file", "path"),
            commits: entries(&table, "commit", "hash"),
            circles: entries(&table, "circle", "modules"),
            broken: None,
        },
        Err(error) => Exceptions { broken: Some(error.to_string()), ..Exceptions::default() },
    }
}

fn entries(table: &Table, kind: &str, key: &str) -> BTreeMap<String, String> {
    let list = table.get(kind).and_then(Value::as_array).into_iter().flatten();
    let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    list.filter_map(|entry| Some((text(entry, key)?, text(entry, "reason").unwrap_or_default())))
        .collect()
}

fn check(tree: &Tree, report: &mut Report) {
    let list = read(tree);
    if let Some(error) = &list.broken {
        report.add(PATH, 1, format!("not TOML: {error}"));
    }
    for (what, reason) in list.files.iter().chain(&list.commits).chain(&list.circles) {
        if reason.split_whitespace().count() < 3 {
            report.add(PATH, 1, format!("{what} is excused without a reason; give one"));
        }
    }
    for path in list.files.keys() {
        if !tree.file(path).is_some_and(size::needs_exception) {
            report.add(PATH, 1, format!("{path} needs no exception any more; remove its entry"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const LIST: &str = "[[file]]\npath = \"a.rs\"\nreason = \"one long table\"\n";

    #[test]
    fn a_needed_exception_with_a_reason_passes() {
        let long = "fn a() {}\n".repeat(501);
        assert!(findings(&RULE, &[("a.rs", &long), (PATH, LIST)]).is_empty());
    }

    #[test]
    fn an_exception_is_removed_when_its_file_shrinks_or_goes() {
        for files in [&[("a.rs", "fn a() {}\n"), (PATH, LIST)][..], &[(PATH, LIST)]] {
            let found = findings(&RULE, files);
            assert!(found[0].contains("a.rs needs no exception any more"), "{found:?}");
        }
    }

    #[test]
    fn an_exception_without_a_reason_and_a_broken_list_are_found() {
        let found = findings(&RULE, &[(PATH, "[[commit]]\nhash = \"abc\"\n")]);
        assert!(found[0].contains("abc is excused without a reason"), "{found:?}");
        let found = findings(&RULE, &[(PATH, "[[commit]\n")]);
        assert!(found[0].contains("not TOML"), "{found:?}");
    }
}
