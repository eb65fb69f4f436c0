//! The house rules as a test: what neither the compiler nor clippy can know.
//!
//! A rule is one function from the whole [`Tree`] to findings, so every rule is
//! tested on small trees in memory, with an example that breaks it. A new rule
//! is one file (or a function in a file of its family) and one line in [`RULES`].

mod book;
mod calls;
mod circles;
mod commits;
mod docs;
mod exceptions;
mod headers;
mod ignored;
mod layers;
mod manifests;
mod modules;
mod nesting;
mod recorded;
mod safety;
mod size;
mod source;
mod tree;
mod vocabulary;
mod words;

use anyhow::Result;
use std::path::Path;
use std::process::ExitCode;
use tree::Tree;

/// One rule of the house.
struct Rule {
    name: &'static str,
    /// One sentence for `--list`.
    about: &'static str,
    check: fn(&Tree, &mut Report),
}

/// All rules, in the order in which `--list` prints them.
const RULES: &[Rule] = &[
    layers::RULE,
    circles::RULE,
    manifests::RULE,
    size::FILES,
    size::FUNCTIONS,
    nesting::DEPTH,
    nesting::PARAMETERS,
    headers::RULE,
    docs::RULE,
    book::RULE,
    safety::PLACE,
    safety::ARGUMENT,
    calls::RULE,
    calls::EXPECTS,
    ignored::RULE,
    words::MARKERS,
    words::PLACES,
    vocabulary::WORDS,
    vocabulary::NAMES,
    words::WIDTH,
    words::BLANKS,
    commits::RULE,
    recorded::RULE,
    exceptions::RULE,
];

/// The findings of one rule.
#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
}

/// One breach of one rule.
struct Finding {
    at: String,
    line: usize,
    what: String,
}

impl Report {
    /// Notes a breach at a line of a file; `what` says also what to do.
    fn add(&mut self, at: &str, line: usize, what: impl Into<String>) {
        self.findings.push(Finding { at: at.to_owned(), line, what: what.into() });
    }
}

/// Prints every rule with its sentence.
pub(crate) fn list() -> ExitCode {
    for rule in RULES {
        println!("{:<12} {}", rule.name, rule.about);
    }
    ExitCode::SUCCESS
}

/// Checks the tree at `root` and prints all findings as `file:line: rule: what`.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let tree = Tree::load(root)?;
    let findings = check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    if tree.commits.is_empty() {
        println!("tidy: no full history here, so that commits are not checked");
    }
    if findings.is_empty() {
        println!("tidy: {} files, {} rules, nothing found", tree.files.len(), RULES.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} findings", findings.len());
    Ok(ExitCode::FAILURE)
}

/// All findings in a tree, by file and line.
fn check(tree: &Tree) -> Vec<String> {
    let mut all = Vec::new();
    for rule in RULES {
        let mut report = Report::default();
        (rule.check)(tree, &mut report);
        all.extend(report.findings.into_iter().map(|found| (rule.name, found)));
    }
    all.sort_by(|(_, a), (_, b)| (&a.at, a.line).cmp(&(&b.at, b.line)));
    let line = |(name, found): &(&str, Finding)| {
        format!("{}:{}: {name}: {}", found.at, found.line, found.what)
    };
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns the findings of one rule on a tree of (path, text).
    pub(super) fn findings(rule: &Rule, files: &[(&str, &str)]) -> Vec<String> {
        let mut report = Report::default();
        (rule.check)(&Tree::new(files), &mut report);
        let line = |found: &Finding| format!("{}:{}: {}", found.at, found.line, found.what);
        report.findings.iter().map(line).collect()
    }

    /// Returns the findings of one rule on one Rust file at `path`.
    pub(super) fn in_file(rule: &Rule, path: &str, text: &str) -> Vec<String> {
        findings(rule, &[(path, text)])
    }

    #[test]
    fn rules_have_distinct_names() {
        let names: BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(names.len(), RULES.len());
    }

    #[test]
    fn findings_come_sorted_with_file_line_and_rule() {
        let text = "fn a() {}  \nfn b() {} \n";
        let found = check(&Tree::new(&[("crates/measure/src/a.rs", text)]));
        let places: Vec<_> = found.iter().map(|f| f.split(": ").next().unwrap()).collect();
        let file = "crates/measure/src/a.rs";
        assert_eq!(places, [format!("{file}:1"), format!("{file}:1"), format!("{file}:2")]);
        assert!(found[0].contains(": header: "), "{found:?}");
        assert!(found[1].contains(": blanks: "), "{found:?}");
    }
}
