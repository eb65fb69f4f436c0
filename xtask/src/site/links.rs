//! Checks the links of a built site: each leads to a file, and to an anchor of it.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// mdBook's page for a missing address, whose links depend on where it is served.
const MISSING: &str = "404.html";

/// Checks the pages below `site`, and returns a line for each dead link.
///
/// # Errors
/// If a page cannot be read.
pub(super) fn check(site: &Path) -> Result<Vec<String>> {
    let mut files = BTreeSet::new();
    let mut pages = BTreeMap::new();
    for entry in ignore::WalkBuilder::new(site).standard_filters(false).build() {
        let entry = entry?;
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let path = entry.path().strip_prefix(site)?.to_owned();
        // rustdoc checks its own links.
        if path.extension().is_some_and(|end| end == "html") && !path.starts_with("api") {
            let text = std::fs::read_to_string(entry.path());
            let text = text.with_context(|| format!("cannot read {}", entry.path().display()))?;
            pages.insert(path.clone(), Page::parse(&text));
        }
        files.insert(path);
    }
    let checked = pages.iter().filter(|(path, _)| *path != Path::new(MISSING));
    let links = checked.flat_map(|(path, page)| page.links.iter().map(move |link| (path, link)));
    let dead = links.filter(|(path, link)| !has_target(path, link, &files, &pages));
    Ok(dead.map(|(path, link)| format!("{}: {link}", path.display())).collect())
}

/// The links of a page, and its anchors.
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let links = [" href=\"", " src=\""].iter().flat_map(|name| values(text, name));
        let links = links.filter(|link| is_relative(link)).collect();
        Self { links, anchors: values(text, " id=\"").collect() }
    }
}

/// The values of an attribute, without the entities that mdBook writes in them.
fn values(text: &str, attribute: &str) -> impl Iterator<Item = String> {
    let values = text.split(attribute).skip(1).filter_map(|rest| rest.split('"').next());
    values.map(|value| value.replace("&amp;", "&").replace("&#x27;", "'"))
}

fn is_relative(link: &str) -> bool {
    !link.contains("://") && !["mailto:", "data:"].iter().any(|scheme| link.starts_with(scheme))
}

/// Whether a link of the page at `from` leads to a file, or to an anchor of a page.
fn has_target(
    from: &Path,
    link: &str,
    files: &BTreeSet<PathBuf>,
    pages: &BTreeMap<PathBuf, Page>,
) -> bool {
    let (address, anchor) = link.split_once('#').unwrap_or((link, ""));
    let address = address.split('?').next().unwrap_or(address);
    let mut target = match address {
        "" => from.to_owned(),
        _ => normalise(&from.parent().unwrap_or(Path::new("")).join(address)),
    };
    if !files.contains(&target) {
        target.push("index.html");
    }
    let has_anchor =
        |page: &Page| anchor.is_empty() || page.anchors.contains(anchor) || anchor == "top";
    files.contains(&target) && pages.get(&target).is_none_or(has_anchor)
}

/// Resolves `..` by name alone.
fn normalise(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::Normal(name) => normal.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_files_and_anchors_are_found_and_live_ones_are_not() {
        let site = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = site.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("index.html", "<a href=\"docs/a.html#one\"></a> <a href=\"docs/\"></a>");
        write("docs/index.html", "<a href=\"https://x.org/no\"></a> <img src=\"../p.svg?1\">");
        write("docs/a.html", "<h2 id=\"one\"></h2><a href=\"#two\"></a><a href=\"b.html\"></a>");
        write("404.html", "<a href=\"/gone.html\"></a>");
        write("api/x.html", "<a href=\"gone.html\"></a>");
        write("p.svg", "");
        assert_eq!(check(site.path()).unwrap(), ["docs/a.html: #two", "docs/a.html: b.html"]);
    }
}
