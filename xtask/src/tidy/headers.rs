//! Every Rust file begins with its purpose.

use super::tree::Tree;
use super::{Report, Rule};

pub(super) const RULE: Rule = Rule {
    name: "header",
    about: "a Rust file begins with a `//!` header that says what it is for",
    check,
};

fn check(tree: &Tree, report: &mut Report) {
    for (file, _) in tree.rust() {
        let begins = |line: &&str| !line.trim().is_empty() && !line.starts_with("#!/");
        let first = file.text.lines().find(begins).unwrap_or("");
        if first.strip_prefix("//!").is_none_or(|words| words.trim().is_empty()) {
            report.add(&file.path, 1, "no header; begin with `//! What this file is for.`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    #[test]
    fn a_file_without_a_header_or_with_an_empty_one_is_found() {
        for text in ["", "fn a() {}\n", "//!\n", "// Not a header.\nfn a() {}\n", "use a::b;\n"] {
            assert_eq!(in_file(&RULE, "a.rs", text).len(), 1, "{text:?}");
        }
    }

    #[test]
    fn a_header_passes_even_below_an_interpreter_line() {
        for text in ["//! Says it.\nfn a() {}\n", "#!/usr/bin/env cargo\n//! Says it.\n"] {
            assert!(in_file(&RULE, "a.rs", text).is_empty(), "{text:?}");
        }
    }
}
