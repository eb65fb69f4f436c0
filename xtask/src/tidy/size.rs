//! Files and functions that fit into a head.

use super::tree::{File, Tree};
use super::{Report, Rule, exceptions, source::Rust, source::Token};

pub(super) const FILES: Rule = Rule {
    name: "file-size",
    about: "at most 500 lines a file without its tests (else give the reason), 800 with them",
    check: check_files,
};

pub(super) const FUNCTIONS: Rule = Rule {
    name: "fn-size",
    about: "at most 70 lines a function, tests included",
    check: check_functions,
};

const FILE_LINES_MAX: usize = 500;
/// No reason lifts a file above this.
const FILE_LINES_HARD: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// The files that are written by hand and have a size to speak of.
const SOURCES: [&str; 9] = ["rs", "py", "sh", "c", "h", "js", "ts", "css", "html"];

fn check_files(tree: &Tree, report: &mut Report) {
    let excused = exceptions::read(tree);
    for file in tree.files.iter().filter(|file| file.is_any_of(&SOURCES)) {
        let (all, code) = (file.text.lines().count(), code_lines(file));
        if all > FILE_LINES_HARD {
            let what = format!("{all} lines, more than {FILE_LINES_HARD}; split the file");
            report.add(&file.path, FILE_LINES_HARD + 1, what);
        } else if code > FILE_LINES_MAX && !excused.has_file(&file.path) {
            let what = format!(
                "{code} lines without tests, more than {FILE_LINES_MAX}; split the file, \
                 or list it with a reason in {}",
                exceptions::PATH
            );
            report.add(&file.path, FILE_LINES_MAX + 1, what);
        }
    }
}

/// Lines outside tests.
fn code_lines(file: &File) -> usize {
    let is_test = |line| file.rust.as_ref().is_some_and(|rust| rust.is_test(line));
    (1..=file.text.lines().count()).filter(|line| !is_test(*line)).count()
}

/// Whether a file needs its exception still.
pub(super) fn needs_exception(file: &File) -> bool {
    code_lines(file) > FILE_LINES_MAX
}

fn check_functions(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        for (name, first, last) in functions(rust) {
            let lines = last - first + 1;
            if lines > FUNCTION_LINES_MAX {
                let what = format!(
                    "{name} has {lines} lines, more than {FUNCTION_LINES_MAX}; \
                     split it where it changes its subject"
                );
                report.add(&file.path, first, what);
            }
        }
    }
}

/// Every function with a body, inside macros too: name, first and last line.
fn functions(rust: &Rust) -> impl Iterator<Item = (&str, usize, usize)> {
    let heads = rust.tokens.windows(2).enumerate();
    heads.filter_map(|(at, pair)| {
        let is_head = pair[0].text == "fn" && is_name(&pair[1].text);
        let last = is_head.then(|| last_line(&rust.tokens, at + 2)).flatten()?;
        Some((pair[1].text.as_str(), pair[0].line, last))
    })
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The line on which the body of a signature ends; none for a declaration.
fn last_line(tokens: &[Token], mut at: usize) -> Option<usize> {
    while let Some(token) = tokens.get(at) {
        match (token.text.as_str(), token.close) {
            (";" | ")" | "]" | "}", _) => return None,
            ("{", Some(close)) => return Some(tokens[close].line),
            (_, Some(close)) => at = close + 1,
            (_, None) => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::{findings, in_file};
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_seventy_lines_passes_and_one_more_fails() {
        assert!(in_file(&FUNCTIONS, "a.rs", &function(70)).is_empty());
        let found = in_file(&FUNCTIONS, "a.rs", &format!("\n{}", function(71)));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:2: long has 71 lines"), "{found:?}");
    }

    #[test]
    fn tests_and_functions_in_macros_are_no_shelter() {
        for (before, after) in [("#[cfg(test)]\nmod tests {\n", "}"), ("proptest! {\n", "}")] {
            let text = format!("{before}{}{after}\n", function(71));
            assert_eq!(in_file(&FUNCTIONS, "a.rs", &text).len(), 1, "{before}");
        }
    }

    #[test]
    fn a_declaration_or_a_type_has_no_body() {
        let text =
            format!("trait T {{\n fn a(f: fn(u8));\n}}\nconst X: u8 = {{{}}};\n", "\n".repeat(80));
        assert!(in_file(&FUNCTIONS, "a.rs", &text).is_empty());
    }

    #[test]
    fn tests_do_not_count_towards_a_file_of_500_lines() {
        let code = "fn a() {}\n".repeat(499);
        let text = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(in_file(&FILES, "a.rs", &text).len(), 1, "1001 lines in all are too many");
        let text = format!("{code}#[cfg(test)]\nmod tests {{\n{}}}\n", "fn a() {}\n".repeat(200));
        assert!(in_file(&FILES, "a.rs", &text).is_empty());
    }

    #[test]
    fn a_reason_excuses_501_lines_but_not_801() {
        let list = format!("[[file]]\npath = \"a.rs\"\nreason = \"one {}\"\n", "long table");
        for (lines, excused, wanted) in
            [(500, false, 0), (501, false, 1), (501, true, 0), (800, true, 0), (801, true, 1)]
        {
            let text = "fn a() {}\n".repeat(lines);
            let list = if excused { list.as_str() } else { "" };
            let found = findings(&FILES, &[("a.rs", &text), (exceptions::PATH, list)]);
            assert_eq!(found.len(), wanted, "{lines} {excused} {found:?}");
        }
    }

    #[test]
    fn a_page_or_a_script_has_a_size_too_and_data_has_not() {
        let text = "x\n".repeat(801);
        assert_eq!(in_file(&FILES, "crates/agent/web/page.js", &text).len(), 1);
        assert!(in_file(&FILES, "traces/load.csv", &text).is_empty());
    }
}
