//! Unsafe code: in few leaf files, and every piece with its argument.

use super::source::{Rust, Token};
use super::tree::Tree;
use super::{Report, Rule};

pub(super) const PLACE: Rule = Rule {
    name: "unsafe-place",
    about: "unsafe stays in crates/host/src/sys, crates/preload and crates/marks/src/c.rs",
    check: check_place,
};

pub(super) const ARGUMENT: Rule = Rule {
    name: "safety",
    about: "an unsafe block or impl has a `// SAFETY:` argument, an unsafe fn a `# Safety` section",
    check: check_argument,
};

const PLACES: [&str; 3] = ["crates/host/src/sys/", "crates/preload/", "crates/marks/src/c.rs"];

fn check_place(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        if PLACES.iter().any(|place| file.path.starts_with(place)) {
            continue;
        }
        for line in rust.lines_with("unsafe") {
            let what = format!("unsafe outside {}; use rustix, or add it there", PLACES.join(", "));
            report.add(&file.path, line, what);
        }
    }
}

fn check_argument(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        let lines: Vec<&str> = file.text.lines().collect();
        for (wanted, line) in unsafe_parts(rust) {
            if !comment_above(&lines, line).any(|comment| has_argument(comment, wanted)) {
                let what = format!("unsafe without `{wanted}` above it; argue why it is sound");
                report.add(&file.path, line, what);
            }
        }
    }
}

/// Every unsafe block, impl and function: the comment that it needs, and its line.
fn unsafe_parts(rust: &Rust) -> impl Iterator<Item = (&'static str, usize)> {
    let parts = rust.tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe");
    parts.filter_map(|(at, token)| Some((wanted_comment(&rust.tokens[at + 1..])?, token.line)))
}

/// Returns the comment that the tokens after `unsafe` need; types and foreign blocks need none.
fn wanted_comment(after: &[Token]) -> Option<&'static str> {
    match text(after, 0) {
        "{" | "impl" => Some("SAFETY: "),
        "fn" if text(after, 1) != "(" => Some("# Safety"),
        "extern" if text(after, 2) == "fn" && text(after, 3) != "(" => Some("# Safety"),
        _ => None,
    }
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| &token.text)
}

/// The lines that may argue for the code at `line`: the comments and attributes
/// directly above its statement, and the statement's lines down to it.
fn comment_above<'a>(lines: &'a [&'a str], line: usize) -> impl Iterator<Item = &'a str> {
    let above = lines[..line - 1].iter().rev();
    let begun = above.clone().take_while(|text| is_unfinished(text)).count();
    let comments = above.skip(begun).take_while(|text| is_comment(text));
    comments.chain(&lines[line - 1 - begun..line]).copied()
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("#[")
}

/// Whether a statement continues after this line.
fn is_unfinished(line: &str) -> bool {
    let ends = |line: &str| line.is_empty() || line.ends_with([';', '{', '}', ',']);
    !is_comment(line) && !ends(line.trim_end())
}

fn has_argument(comment: &str, wanted: &str) -> bool {
    comment.split_once(wanted).is_some_and(|(before, _)| before.contains("//"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    const SYS: &str = "crates/host/src/sys/a.rs";

    #[test]
    fn unsafe_is_found_outside_its_places_even_in_an_attribute_or_a_test() {
        for text in [
            "fn f() { unsafe { g() } }\n",
            "#[unsafe(no_mangle)]\nextern \"C\" fn f() {}\n",
            "#[cfg(test)]\nmod tests { unsafe fn f() {} }\n",
        ] {
            for path in ["crates/host/src/a.rs", "crates/oncall/src/a.rs", "xtask/src/a.rs"] {
                assert_eq!(in_file(&PLACE, path, text).len(), 1, "{path}: {text}");
            }
            assert!(in_file(&PLACE, SYS, text).is_empty());
            assert!(in_file(&PLACE, "crates/preload/src/lib.rs", text).is_empty());
        }
    }

    #[test]
    fn unsafe_without_an_argument_is_found() {
        for text in [
            "fn f() {\n    unsafe { g() }\n}\n",
            "fn f() {\n    // SAFETY: so.\n    h();\n    unsafe { g() }\n}\n",
            "fn f() {\n    // Safe.\n    unsafe { g() }\n}\n",
            "unsafe impl Send for A {}\n",
            "/// Does it.\nunsafe fn f() {}\n",
            "/// Does it.\npub unsafe extern \"C\" fn f() {}\n",
        ] {
            assert_eq!(in_file(&ARGUMENT, SYS, text).len(), 1, "{text}");
        }
    }

    #[test]
    fn an_argument_above_or_beside_passes() {
        for text in [
            "fn f() {\n    // SAFETY: so,\n    // and so.\n    unsafe { g() }\n}\n",
            "fn f() {\n    // SAFETY: so.\n    let x =\n        unsafe { g() };\n}\n",
            "// SAFETY: A owns what it points to.\n#[cfg(unix)]\nunsafe impl Send for A {}\n",
            "type F = unsafe extern \"C\" fn(i32);\ntype G = unsafe fn();\n",
            "unsafe extern \"C\" {\n    fn f();\n}\n",
            "/// Does it.\n///\n/// # Safety\n/// Call it once.\nunsafe fn f() {}\n",
        ] {
            assert_eq!(in_file(&ARGUMENT, SYS, text), [""; 0], "{text}");
        }
    }
}
