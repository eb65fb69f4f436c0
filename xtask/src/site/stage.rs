//! Copies the pages, and the files they link to, to where mdBook reads them.

use super::policies;
use crate::markdown::{links_in, summary_links};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The table of contents and the settings of mdBook.
const SUMMARY: &str = "docs/SUMMARY.md";
const SETTINGS: [&str; 2] = ["docs/book.toml", "docs/site.css"];
const POLICIES: &str = "docs/policies.md";
/// Where benchmarks write their pages.
const MEASUREMENTS: &str = "bench-results";

/// Fills `book` from the repository at `root`, with a page that links to `api` if there is one.
/// Returns the number of pages.
///
/// # Errors
/// If a page that the table of contents lists is missing, or a file cannot be copied.
pub(super) fn stage(root: &Path, book: &Path, api: Option<&str>) -> Result<usize> {
    let source = book.join("src");
    std::fs::create_dir_all(&source)?;
    for file in SETTINGS {
        let name = Path::new(file).file_name().context("a file has a name")?;
        copy(&root.join(file), &book.join(name))?;
    }
    let summary = read(&root.join(SUMMARY))?;
    let measurements = measurements(root)?;
    let mut pages: BTreeSet<String> = summary_links(&summary).collect();
    pages.extend(measurements.iter().cloned());
    for page in &pages {
        let text = read(&root.join(page))?;
        copy_linked(root, &source, page, &text)?;
        write(&source.join(page), &link_indexes(&text))?;
    }
    let policies = policies::pages(root, &read(&root.join(POLICIES))?)?;
    for policy in &policies {
        let page = format!("docs/policies/{}.md", policy.name);
        copy_linked(root, &source, &page, &policy.text)?;
        write(&source.join(page), &policy.text)?;
    }
    let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
    let mut contents = contents(&summary, &names);
    contents.push_str("\n# Reference\n\n");
    for page in &measurements {
        let name = page.trim_start_matches(MEASUREMENTS).trim_matches('/').trim_end_matches(".md");
        let _ = writeln!(contents, "- [Benchmark: {name}]({page})");
    }
    if let Some(api) = api {
        contents.push_str("- [Reference of the crates](crates.md)\n");
        write(&source.join("crates.md"), &reference(root, api)?)?;
    }
    write(&source.join("SUMMARY.md"), &contents)?;
    Ok(pages.len() + policies.len() + usize::from(api.is_some()))
}

/// The pages of the benchmarks, by their paths from the root.
fn measurements(root: &Path) -> Result<Vec<String>> {
    let mut pages = Vec::new();
    for entry in root.join(MEASUREMENTS).read_dir().context(MEASUREMENTS)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        pages.extend(name.ends_with(".md").then(|| format!("{MEASUREMENTS}/{name}")));
    }
    pages.sort();
    Ok(pages)
}

/// The table of contents, with paths from the root and a line for each policy's page.
fn contents(summary: &str, policies: &[&str]) -> String {
    let mut contents = String::new();
    for line in summary.lines() {
        let Some(page) = summary_links(line).next() else {
            contents.push_str(line);
            contents.push('\n');
            continue;
        };
        let before = line.rsplit_once("](").map_or(line, |(before, _)| before);
        let _ = writeln!(contents, "{before}]({page})");
        if page == POLICIES {
            for name in policies {
                let _ = writeln!(contents, "  - [{name}](docs/policies/{name}.md)");
            }
        }
    }
    contents
}

/// Makes links to a `README.md` lead to the `index.html` that mdBook builds from it.
fn link_indexes(text: &str) -> String {
    let mut parts = text.split("](");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_at(part.find(')').unwrap_or(0));
        let _ = write!(linked, "]({}{rest}", target.replace("README.md", "index.html"));
    }
    linked
}

/// Copies the files and directories that a page links to, other than pages.
fn copy_linked(root: &Path, source: &Path, page: &str, text: &str) -> Result<()> {
    let directory = Path::new(page).parent().unwrap_or(Path::new(""));
    for link in links_in(text).into_iter().filter(|link| !link.contains("://")) {
        let file = link.split('#').next().unwrap_or_default();
        if file.is_empty() {
            continue;
        }
        let to = source.join(directory).join(file);
        let from = root.join(directory).join(file);
        if from.is_dir() {
            list_directory(&from, &to)?;
        } else if from.is_file() && from.extension().is_none_or(|end| end != "md") {
            copy(&from, &to)?;
        }
    }
    Ok(())
}

/// Copies the files of a directory, and writes a page that lists them: links to a directory lead
/// to `index.html`. Of a page, the list has the page that is built from it.
fn list_directory(from: &Path, to: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in from.read_dir().with_context(|| from.display().to_string())? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        match name.strip_suffix(".md") {
            Some(page) => names.push(format!("{page}.html")),
            None => {
                copy(&entry.path(), &to.join(&name))?;
                names.push(name);
            }
        }
    }
    names.sort();
    let title = from.file_name().unwrap_or_default().to_string_lossy();
    let mut list = format!("<!doctype html>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n");
    let _ = writeln!(list, "<h1>{title}</h1>\n<ul>");
    for name in names {
        let _ = writeln!(list, "<li><a href=\"{name}\">{name}</a></li>");
    }
    list.push_str("</ul>\n");
    write(&to.join("index.html"), &list)
}

/// A page that lists the references of our crates, each with its description.
fn reference(root: &Path, api: &str) -> Result<String> {
    let mut page = format!("# Reference of the crates\n\n[Begin with the agent]({api}).\n\n");
    page.push_str("| crate | is |\n|---|---|\n");
    let mut directories: Vec<PathBuf> =
        root.join("crates").read_dir()?.flatten().map(|entry| entry.path()).collect();
    directories.sort();
    for directory in directories {
        let manifest: toml::Table = read(&directory.join("Cargo.toml"))?.parse()?;
        let package = &manifest["package"];
        let text = |key: &str| package.get(key).and_then(toml::Value::as_str).unwrap_or_default();
        let library = manifest.get("lib").and_then(|lib| lib.get("name")?.as_str());
        let is_library = directory.join("src/lib.rs").is_file();
        let module = library.unwrap_or(text("name")).replace('-', "_");
        if is_library {
            let (name, about) = (text("name"), text("description"));
            let _ = writeln!(page, "| [`{name}`](api/{module}/index.html) | {about} |");
        }
    }
    Ok(page)
}

/// Copies a directory with all that is below it.
///
/// # Errors
/// If a file cannot be read or written.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in ignore::WalkBuilder::new(from).standard_filters(false).build() {
        let entry = entry?;
        if entry.file_type().is_some_and(|kind| kind.is_file()) {
            copy(entry.path(), &to.join(entry.path().strip_prefix(from)?))?;
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    make_parent(file)?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    let copied = std::fs::copy(from, to);
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn make_parent(file: &Path) -> Result<()> {
    let parent = file.parent().context("a file is in a directory")?;
    std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_have_paths_from_the_root_and_each_policy() {
        let summary = "# Summary\n\n[Lull](../README.md)\n\n- [Policies](policies.md)\n";
        let wanted = "# Summary\n\n[Lull](README.md)\n\n- [Policies](docs/policies.md)\n  \
                      - [rr](docs/policies/rr.md)\n";
        assert_eq!(contents(summary, &["rr"]), wanted);
    }

    #[test]
    fn a_link_to_a_readme_leads_to_an_index() {
        let page = "README.md [a](../README.md#b) ![c](d.svg) [e](f.md)";
        let wanted = "README.md [a](../index.html#b) ![c](d.svg) [e](f.md)";
        assert_eq!(link_indexes(page), wanted);
    }

    #[test]
    fn every_page_and_every_file_that_a_page_links_to_is_copied() {
        let place = tempfile::tempdir().unwrap();
        let root = xtask::root();
        let count = stage(&root, place.path(), None).unwrap();
        let source = place.path().join("src");
        let contents = read(&source.join("SUMMARY.md")).unwrap();
        let pages: Vec<&str> = contents
            .lines()
            .filter_map(|line| line.rsplit_once("](")?.1.strip_suffix(')'))
            .collect();
        assert_eq!(pages.len(), count);
        for page in pages {
            let directory = source.join(page).parent().unwrap().to_owned();
            for link in links_in(&read(&source.join(page)).unwrap()) {
                let file = link.split('#').next().unwrap().replace("index.html", "README.md");
                let is_there = link.contains("://") || directory.join(file).exists();
                assert!(is_there || link.starts_with("mailto:"), "{page}: {link}");
            }
        }
    }
}
