//! Checks the book: every link has a target, every command parses, and its files are there.

use super::Cli;
use clap::Parser;
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown pages for readers: those at the root, and those of the book at any depth.
fn pages() -> Vec<(PathBuf, String)> {
    let mut places = vec![root().join("docs")];
    let mut files: Vec<PathBuf> = entries(&root()).filter(|path| path.is_file()).collect();
    while let Some(place) = places.pop() {
        let (directories, more): (Vec<_>, Vec<_>) = entries(&place).partition(|path| path.is_dir());
        places.extend(directories);
        files.extend(more);
    }
    files.retain(|path| path.extension().is_some_and(|end| end == "md"));
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

fn entries(place: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(place).unwrap().flatten().map(|entry| entry.path())
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

/// The lines that a reader would type at a shell, continued lines joined.
fn shell_lines(text: &str) -> Vec<String> {
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
        begun.push_str(bare.strip_prefix("$ ").unwrap_or(bare));
        if begun.ends_with('\\') {
            begun.pop();
            continue;
        }
        found.push(std::mem::take(&mut begun));
    }
    found
}

/// The commands of a page that run `lull`, also behind `sudo`, `!`, a variable or another command.
fn commands(text: &str) -> Vec<String> {
    let lines = shell_lines(text);
    let parts = lines.iter().flat_map(|line| line.split(" && ").flat_map(|part| part.split("; ")));
    parts.filter_map(lull_in).map(str::to_owned).collect()
}

/// The part of a command that begins with `lull`.
fn lull_in(command: &str) -> Option<&str> {
    let mut rest = command.trim_start();
    loop {
        let (word, after) = rest.split_once(' ')?;
        match word {
            "lull" => return Some(rest),
            "sudo" | "!" => rest = after,
            _ if word.contains('=') && !word.starts_with('-') => rest = after,
            _ => return None,
        }
    }
}

/// Returns commands within sentences, which may leave out arguments.
fn inline_commands(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if !is_code {
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(quoted.filter(|code| code.starts_with("lull ")).map(str::to_owned));
        }
    }
    found
}

/// The files of the repository that a shell line names.
fn files(line: &str) -> Vec<String> {
    const DIRECTORIES: [&str; 5] = ["crates/", "docs/", "examples/", "packaging/", "traces/"];
    let words = line.split([' ', '"', '\'', '=']);
    let words = words.map(|word| word.trim_start_matches("./").trim_end_matches([';', ')']));
    let is_file = |word: &&str| {
        DIRECTORIES.iter().any(|start| word.starts_with(start)) && !word.contains(['*', '$'])
    };
    words.filter(is_file).map(str::to_owned).collect()
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
fn every_command_within_a_sentence_has_subcommands_and_options_that_there_are() {
    let mut wrong = Vec::new();
    let mut count = 0;
    // A changelog names commands that have other names by now.
    let current = pages().into_iter().filter(|(path, _)| !path.ends_with("CHANGELOG.md"));
    for (path, text) in current {
        for command in inline_commands(&text) {
            count += 1;
            let Err(error) = Cli::try_parse_from(words(&command)) else { continue };
            let kinds = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
            if kinds.contains(&error.kind()) {
                let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                wrong.push(format!("{}: {command}\n  {first}", path.display()));
            }
        }
    }
    assert!(count > 100, "the commands are not found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_of_the_repository_that_a_command_names_is_there() {
    let mut missing = Vec::new();
    let mut count = 0;
    for (path, text) in pages() {
        for file in shell_lines(&text).iter().flat_map(|line| files(line)) {
            count += 1;
            if !root().join(&file).exists() {
                missing.push(format!("{}: {file}", path.display()));
            }
        }
    }
    assert!(count > 10, "the files are not found");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn commands_are_found_where_readers_look_for_them() {
    let page = "text lull not-this\n```sh\n$ lull check  # why\nsudo lull run \\\n  x.toml\n```\n\
                ```toml\nlull no\n```\n    lull top\n";
    assert_eq!(commands(page), ["lull check  # why", "lull run x.toml", "lull top"]);
    let behind = "```\nA=1 lull a && ! lull b c; sudo lull d\necho lull\n```\n";
    assert_eq!(commands(behind), ["lull a", "lull b c", "lull d"]);
    assert_eq!(inline_commands("a `lull b c` `d`\n```\n`lull e`\n```"), ["lull b c"]);
    let line = "cp ./examples/a.toml \"docs/b\" --to=traces/c.csv docs/* out/examples/d";
    assert_eq!(files(line), ["examples/a.toml", "docs/b", "traces/c.csv"]);
    assert_eq!(words("lull a 'b c' # d"), ["lull", "a", "b c"]);
    assert_eq!(words("lull a \"\" > b"), ["lull", "a", ""]);
    assert_eq!(links("[a](b.md) `[c](d)` ![e](f.png)\n```\n[g](h)\n```"), ["b.md", "f.png"]);
    assert_eq!(anchors("# A b, c\n## `[x]`: y"), ["a-b-c", "x-y"]);
}
