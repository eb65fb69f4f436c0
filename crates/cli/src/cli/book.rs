//! Checks the book: every link has a target, and every command parses.

use super::Cli;
use clap::Parser;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown pages for readers: those of the book and those at the root.
fn pages() -> Vec<(PathBuf, String)> {
    let mut places = vec![root(), root().join("docs")];
    let mut pages = Vec::new();
    while let Some(place) = places.pop() {
        for file in std::fs::read_dir(place).unwrap().flatten() {
            let path = file.path();
            if path.extension().is_some_and(|end| end == "md") {
                pages.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    pages.sort();
    pages
}

/// The targets of links and pictures of a page, code left out.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.starts_with("    ") {
            continue;
        }
        // Text between backticks is code, so that every second piece is prose.
        let prose: String = line.split('`').step_by(2).collect();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.map(str::to_owned));
    }
    found
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let heading = |line: &str| {
        let title = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
        Some(kept.map(|it| if it == ' ' { '-' } else { it }).collect())
    };
    text.lines().filter_map(heading).collect()
}

/// The lines of code that a reader would type to run `lull`.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut fence, mut begun) = (None::<String>, String::new());
    for line in text.lines() {
        let bare = line.trim_start();
        if let Some(language) = bare.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language.trim().to_owned()) };
            continue;
        }
        let is_shell = match &fence {
            Some(language) => matches!(language.as_str(), "" | "sh" | "console" | "bash"),
            None => line.starts_with("    "),
        };
        if !is_shell {
            continue;
        }
        let typed = bare.strip_prefix("$ ").unwrap_or(bare);
        let typed = typed.strip_prefix("sudo ").unwrap_or(typed);
        begun.push_str(typed);
        if begun.ends_with('\\') {
            begun.pop();
            continue;
        }
        found.extend(begun.starts_with("lull ").then(|| begun.clone()));
        begun.clear();
    }
    found
}

/// A command's words as a shell splits them, up to a comment, a pipe or a redirection.
fn words(command: &str) -> Vec<String> {
    let (mut all, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in command.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '&' | ';') => break,
            (None, ' ') => all.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    all.extend(word);
    all
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut dead = Vec::new();
    let mut count = 0;
    for (path, text) in pages() {
        let is_ours = |link: &String| !link.contains("://") && !link.starts_with("mailto:");
        for link in links(&text).into_iter().filter(is_ours) {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let leads = match (target.exists(), anchor) {
                (there, "") => there,
                (false, _) => false,
                (true, anchor) => {
                    let page = std::fs::read_to_string(&target).unwrap();
                    anchors(&page).iter().any(|heading| heading == anchor)
                }
            };
            if !leads {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(count > 10, "the pages are not found");
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn every_command_in_the_book_is_understood() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, text) in pages() {
        for command in commands(&text) {
            count += 1;
            if let Err(error) = Cli::try_parse_from(words(&command)) {
                let why = error.to_string();
                // A page may show a command that prints help.
                if error.use_stderr() {
                    let first = why.lines().next().unwrap_or_default().to_owned();
                    wrong.push(format!("{}: {command}\n  {first}", path.display()));
                }
            }
        }
    }
    assert!(count > 15, "the commands are not found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_are_found_where_readers_look_for_them() {
    let page = "text lull not-this\n```sh\n$ lull check  # why\nsudo lull run \\\n  x.toml\n```\n\
                ```toml\nlull no\n```\n    lull top\n";
    assert_eq!(commands(page), ["lull check  # why", "lull run x.toml", "lull top"]);
    assert_eq!(words("lull a 'b c' # d"), ["lull", "a", "b c"]);
    assert_eq!(words("lull a \"\" > b"), ["lull", "a", ""]);
    assert_eq!(links("[a](b.md) `[c](d)` ![e](f.png)\n```\n[g](h)\n```"), ["b.md", "f.png"]);
    assert_eq!(anchors("# A b, c\n## `[x]`: y"), ["a-b-c", "x-y"]);
}
