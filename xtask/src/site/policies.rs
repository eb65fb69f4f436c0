//! One page for each policy: its section of `docs/policies.md`, and how it works, from its module.

use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::path::Path;

/// The crate whose modules describe the policies.
const SOURCES: &str = "crates/policies/src";

/// A policy's page.
pub(super) struct PolicyPage {
    /// The policy's name, which is also the page's.
    pub(super) name: String,
    /// The page, for the directory `docs/policies`.
    pub(super) text: String,
}

/// Returns the page of each policy in `policies`, the text of `docs/policies.md`.
///
/// # Errors
/// If a policy has no module, or modules cannot be read.
pub(super) fn pages(root: &Path, policies: &str) -> Result<Vec<PolicyPage>> {
    let modules = read_modules(&root.join(SOURCES))?;
    let mut pages = Vec::new();
    for (name, section) in sections(policies) {
        let entry = format!("name: \"{name}\"");
        let module = modules.iter().find(|text| text.contains(&entry));
        let module = module.with_context(|| format!("no module of {SOURCES} has {entry}"))?;
        // The page is one directory deeper than the section.
        let section = section.replace("](policies/", "](").replace("](design/", "](../design/");
        let mut text = format!("# {name}\n\n{}\n\n## How it works\n\n", section.trim());
        text.push_str(&header(module));
        let design = format!("design/{name}.md");
        if root.join("docs").join(&design).is_file() {
            let _ = write!(text, "\n[Results and dropped designs](../{design})\n");
        }
        let _ = write!(text, "\n[All policies](../policies.md)\n");
        pages.push(PolicyPage { name: name.to_owned(), text });
    }
    if pages.is_empty() {
        bail!("docs/policies.md has no policy; run cargo xtask docs");
    }
    Ok(pages)
}

/// The sections below headings of level three: name and text.
fn sections(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("\n### ").skip(1).filter_map(|section| {
        let (name, text) = section.split_once('\n')?;
        Some((name.trim(), text.split("\n## ").next().unwrap_or(text)))
    })
}

/// The header of a module as Markdown: links that only rustdoc resolves become code.
fn header(module: &str) -> String {
    let lines = module.lines().map_while(|line| line.strip_prefix("//!"));
    let mut text = String::new();
    for line in lines {
        let line = line.strip_prefix(' ').unwrap_or(line);
        text.push_str(&line.replace("[`", "`").replace("`]", "`"));
        text.push('\n');
    }
    text
}

/// The texts of all modules below `directory`.
fn read_modules(directory: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in ignore::WalkBuilder::new(directory).sort_by_file_name(Ord::cmp).build() {
        let entry = entry?;
        if entry.path().extension().is_some_and(|end| end == "rs") {
            texts.push(std::fs::read_to_string(entry.path())?);
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_at_the_next_heading() {
        let page = "# P\n\n## A\n\n### even\n\nDivides.\n\n### rr\n\nOrders.\n\n## B\n\ntext\n";
        let found: Vec<_> = sections(page).map(|(name, text)| (name, text.trim())).collect();
        assert_eq!(found, [("even", "Divides."), ("rr", "Orders.")]);
    }

    #[test]
    fn a_header_is_markdown_without_links_of_rustdoc() {
        let module = "//! `rr`: order ([`crate::toolkit`]).\n//!\n//! - one\n\nuse a;\n//! no\n";
        assert_eq!(header(module), "`rr`: order (`crate::toolkit`).\n\n- one\n");
    }

    #[test]
    fn each_policy_has_a_page_with_its_picture_and_its_mechanism() {
        let root = xtask::root();
        let policies = std::fs::read_to_string(root.join("docs/policies.md")).unwrap();
        let pages = pages(&root, &policies).unwrap();
        assert_eq!(pages.len(), policies.matches("\n### ").count());
        for PolicyPage { name, text } in pages {
            assert!(text.contains(&format!("]({name}.svg)")), "{name} has no picture");
            let (_, works) = text.split_once("## How it works\n\n").unwrap();
            assert!(works.len() > 200, "{name}: {works}");
        }
    }
}
