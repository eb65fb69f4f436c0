//! A Rust file as tokens and as a syntax tree, and which of its lines are tests.
//!
//! Rules about names and calls look at tokens, because the arguments of macros
//! (`assert!`, `format!`, `proptest!`) are tokens only; rules about items look at
//! the syntax tree.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use std::ops::RangeInclusive;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, Item};

/// A parsed Rust file.
pub(super) struct Rust {
    pub(super) ast: syn::File,
    pub(super) tokens: Vec<Token>,
    /// Modules in other files that are declared under `#[cfg(test)]` here.
    pub(super) test_modules: Vec<String>,
    /// The whole file is test code.
    pub(super) only_tests: bool,
    test_lines: Vec<RangeInclusive<usize>>,
}

/// A leaf of the token tree, or a bracket.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
    /// For an opening bracket, the index of its closing one.
    pub(super) close: Option<usize>,
}

impl Rust {
    /// Parses `text`; `path` decides whether the file as a whole is test code.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self> {
        let wrong = |line: usize, why: &dyn std::fmt::Display| {
            anyhow!("{path}:{line}: not Rust: {why}; run cargo check")
        };
        let ast = syn::parse_file(text).map_err(|why| wrong(why.span().start().line, &why))?;
        let mut tokens = Vec::new();
        // A "#!" line is not a token; syn has accepted it above.
        let code = if text.starts_with("#!/") { format!("//{text}") } else { text.to_owned() };
        flatten(code.parse().map_err(|why| wrong(1, &why))?, &mut tokens);
        let mut tests = TestLines::default();
        tests.visit_file(&ast);
        let only_tests = path.split('/').any(|part| ["tests", "benches"].contains(&part));
        let (test_lines, test_modules) = (tests.lines, tests.modules);
        Ok(Self { ast, tokens, test_modules, only_tests, test_lines })
    }

    /// Whether a line belongs to test code.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.only_tests || self.test_lines.iter().any(|range| range.contains(&line))
    }

    /// The lines on which `pattern`, itself Rust tokens, begins.
    pub(super) fn lines_with(&self, pattern: &str) -> Vec<usize> {
        let wanted: Vec<String> = tokens_of(pattern).into_iter().map(|token| token.text).collect();
        let same = |window: &&[Token]| window.iter().map(|token| &token.text).eq(wanted.iter());
        let windows = self.tokens.windows(wanted.len());
        windows.filter(same).map(|window| window[0].line).collect()
    }
}

/// The tokens of a piece of Rust that need not be a whole file.
fn tokens_of(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    flatten(code.parse().expect("patterns are constant Rust tokens"), &mut tokens);
    tokens
}

fn flatten(stream: TokenStream, into: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let TokenTree::Group(group) = tree else {
            into.push(Token { text: tree.to_string(), line, close: None });
            continue;
        };
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        let opening = into.len();
        into.push(Token { text: open.into(), line, close: None });
        flatten(group.stream(), into);
        into[opening].close = Some(into.len());
        let line = group.span_close().start().line;
        into.push(Token { text: close.into(), line, close: None });
    }
}

#[derive(Default)]
struct TestLines {
    lines: Vec<RangeInclusive<usize>>,
    modules: Vec<String>,
}

impl<'a> Visit<'a> for TestLines {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes = attributes_of(item);
        if !attributes.iter().any(is_test_attribute) {
            return visit::visit_item(self, item);
        }
        self.lines.push(lines_of(attributes, item.span()));
        if let Item::Mod(module) = item
            && module.content.is_none()
        {
            self.modules.push(module.ident.to_string());
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a ImplItemFn) {
        if function.attrs.iter().any(is_test_attribute) {
            self.lines.push(lines_of(&function.attrs, function.span()));
        }
    }
}

/// Returns the lines from the first attribute (a doc comment is one) to the end of an item.
fn lines_of(attributes: &[Attribute], item: Span) -> RangeInclusive<usize> {
    let start = attributes.first().map_or(item, Spanned::span).start().line;
    start..=item.end().line
}

/// Whether an attribute makes its item test code: `#[test]` or `#[cfg(test)]`.
///
/// A condition that mixes `test` with features counts as product code.
fn is_test_attribute(attribute: &Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let condition = attribute.parse_args::<syn::Path>();
    attribute.path().is_ident("cfg") && condition.is_ok_and(|path| path.is_ident("test"))
}

/// The attributes of any item.
pub(super) fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Rust {
        Rust::parse("crates/measure/src/a.rs", text).unwrap()
    }

    #[test]
    fn a_pattern_is_found_inside_a_macro_and_not_inside_text_or_comments() {
        let rust = parse(
            "// Instant::now()\nfn a() {\n    f!(Instant :: now());\n    \"Instant::now\";\n}\n",
        );
        assert_eq!(rust.lines_with("Instant::now"), [3]);
    }

    #[test]
    fn test_modules_and_test_functions_are_distinguished_from_the_product() {
        let rust = parse("fn a() {}\n/// Doc.\n#[cfg(test)]\nmod tests {\n}\nfn b() {}\n");
        let tests: Vec<_> = (1..=6).filter(|line| rust.is_test(*line)).collect();
        assert_eq!(tests, [2, 3, 4, 5]);
    }

    #[test]
    fn a_method_for_tests_is_test_code_in_an_impl_of_the_product() {
        let rust = parse("impl A {\n    fn a() {}\n    #[cfg(test)]\n    fn b() {}\n}\n");
        let tests: Vec<_> = (1..=5).filter(|line| rust.is_test(*line)).collect();
        assert_eq!(tests, [3, 4]);
    }

    #[test]
    fn a_condition_with_a_feature_is_product_code() {
        let rust = parse("#[cfg(any(test, feature = \"x\"))]\nmod tests {\n}\n");
        assert!(!rust.is_test(2));
    }

    #[test]
    fn a_file_that_does_not_parse_is_named_with_its_line() {
        let error = Rust::parse("a.rs", "fn a() {}\nfn ( {}\n").err().unwrap().to_string();
        assert!(error.starts_with("a.rs:2: "), "{error}");
    }
}
