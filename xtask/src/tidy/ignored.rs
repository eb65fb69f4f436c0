//! `#[ignore]` has one meaning, so that the second phase of the tests may run them all.

use super::tree::Tree;
use super::{Report, Rule};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

pub(super) const RULE: Rule =
    Rule { name: "ignored", about: "a test is ignored only as #[ignore = \"slow: why\"]", check };

fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        let mut ignored = Ignored::default();
        ignored.visit_file(&rust.ast);
        for line in ignored.wrong {
            let what = "write #[ignore = \"slow: why\"]; a test that needs a program of the system \
                        goes into a module needs_<program> (see CONTRIBUTING.md)";
            report.add(&file.path, line, what);
        }
    }
}

#[derive(Default)]
struct Ignored {
    wrong: Vec<usize>,
}

impl<'a> Visit<'a> for Ignored {
    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        if attribute.path().is_ident("ignore") && !is_slow(attribute) {
            self.wrong.push(attribute.pound_token.span.start().line);
        }
        visit::visit_attribute(self, attribute);
    }
}

fn is_slow(attribute: &Attribute) -> bool {
    let Meta::NameValue(pair) = &attribute.meta else { return false };
    let Expr::Lit(ExprLit { lit: Lit::Str(reason), .. }) = &pair.value else { return false };
    reason.value().strip_prefix("slow: ").is_some_and(|why| !why.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    #[test]
    fn a_test_ignored_without_saying_that_it_is_slow_is_found() {
        for attribute in ["#[ignore]", "#[ignore = \"flaky\"]", "#[ignore = \"slow: \"]"] {
            let found = in_file(&RULE, "a.rs", &format!("#[test]\n{attribute}\nfn a() {{}}\n"));
            assert_eq!(found.len(), 1, "{attribute}");
            assert!(found[0].starts_with("a.rs:2: "), "{found:?}");
        }
    }

    #[test]
    fn a_slow_test_passes() {
        let text = "#[test]\n#[ignore = \"slow: 40 s of load\"]\nfn a() {}\n";
        assert!(in_file(&RULE, "a.rs", text).is_empty());
    }
}
