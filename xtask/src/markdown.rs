//! Links of Markdown pages, as the tasks read them.

/// The pages that a table of contents in `docs/` links to, by their paths from the root.
pub(crate) fn summary_links(text: &str) -> impl Iterator<Item = String> {
    links_in(text).into_iter().map(|link| match link.strip_prefix("../") {
        Some(from_root) => from_root.to_owned(),
        None => format!("docs/{link}"),
    })
}

/// The targets of links and pictures in Markdown, code left out.
pub(crate) fn links_in(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        // Text between backticks is code, so that every second piece is prose.
        let prose: String = line.split('`').step_by(2).collect();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_no_links() {
        let page = "[a](b.md) `[c](d)` ![e](f.png)\n```\n[g](h)\n```";
        assert_eq!(links_in(page), ["b.md", "f.png"]);
    }

    #[test]
    fn pages_of_the_contents_are_named_from_the_root() {
        let found: Vec<_> = summary_links("[A](../A.md)\n- [b](design/b.md)\n").collect();
        assert_eq!(found, ["A.md", "docs/design/b.md"]);
    }
}
