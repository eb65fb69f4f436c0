//! The table of contents of the site lists every page of `docs/`, and no page twice.

use super::tree::Tree;
use super::{Report, Rule};
use crate::markdown::summary_links;
use std::collections::BTreeMap;

pub(super) const RULE: Rule = Rule {
    name: "book",
    about: "docs/SUMMARY.md lists every page of docs/ once, and only pages that exist",
    check,
};

const SUMMARY: &str = "docs/SUMMARY.md";

fn check(tree: &Tree, report: &mut Report) {
    let Some(summary) = tree.file(SUMMARY) else { return };
    let mut listed = BTreeMap::new();
    for (line, text) in (1..).zip(summary.text.lines()) {
        for page in summary_links(text) {
            if tree.file(&page).is_none() {
                report.add(SUMMARY, line, format!("{page} is not there"));
            }
            if let Some(first) = listed.insert(page.clone(), line) {
                report.add(SUMMARY, line, format!("{page} is listed in line {first} already"));
            }
        }
    }
    let is_page = |path: &str| path.starts_with("docs/") && path.ends_with(".md");
    for file in tree.files.iter().filter(|file| is_page(&file.path) && file.path != SUMMARY) {
        if !listed.contains_key(&file.path) {
            report.add(&file.path, 1, format!("not listed; add it to {SUMMARY}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    #[test]
    fn pages_that_are_missing_twice_there_or_not_listed_are_found() {
        let summary = "[A](../README.md)\n- [B](b.md)\n- [B](b.md)\n- [C](c.md)\n";
        let tree = [
            ("docs/SUMMARY.md", summary),
            ("README.md", ""),
            ("docs/b.md", ""),
            ("docs/design/d.md", ""),
            ("CHANGELOG.md", ""),
        ];
        let found = findings(&RULE, &tree);
        assert_eq!(
            found,
            [
                "docs/SUMMARY.md:3: docs/b.md is listed in line 2 already",
                "docs/SUMMARY.md:4: docs/c.md is not there",
                "docs/design/d.md:1: not listed; add it to docs/SUMMARY.md",
            ]
        );
    }
}
