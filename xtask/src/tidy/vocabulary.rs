//! Words and names that a stranger to Lull would have to guess.
//!
//! Checked are comments and string literals of Rust, prose in Markdown, and all text of other
//! sources. Quotations do not count: text in backticks, in double quotes, and fenced code.
//! Names are checked where functions, modules, types, fields and variables are defined.

use super::source::Rust;
use super::tree::{File, Tree};
use super::{Report, Rule};
use syn::visit::{self, Visit};
use syn::{Field, Ident, Item, PatIdent, Signature};

pub(super) const WORDS: Rule = Rule {
    name: "words",
    about: "comments, messages and pages use plain technical words with named subjects",
    check: check_words,
};

pub(super) const NAMES: Rule = Rule {
    name: "names",
    about: "functions, modules, types, fields and variables have verbs or standard nouns as names",
    check: check_names,
};

/// Each word or phrase that is not written, and what to write.
const WORDS_BANNED: &[(&str, &str)] = &[
    ("nobody", "name the subject, as in `no process reads it`"),
    ("somebody", "name the subject"),
    ("someone", "name the subject"),
    ("whoever", "name the subject"),
    ("anybody", "name the subject"),
    ("anyone", "name the subject"),
    ("anew", "again, or rebuild"),
    ("reckon", "compute or estimate"),
    ("reckons", "computes or estimates"),
    ("reckoned", "computed or estimated"),
    ("reckoning", "computation or estimate"),
    ("foretell", "predict"),
    ("foretells", "predicts"),
    ("foretold", "predicted"),
    ("told", "reported, given, or notified"),
    ("thrifty", "name what is saved"),
    ("thriftier", "name what is saved"),
    ("thriftiest", "name what is saved"),
    ("by lot", "at random"),
    ("made way", "name what was preempted, moved or withdrawn"),
    ("makes way", "name what is preempted, moved or withdrawn"),
    ("make way", "name what is preempted, moved or withdrawn"),
    ("whose promise", "whose objective"),
    ("asked", "requested, called or queried"),
    ("came", "arrived, resulted or was measured"),
    ("said", "reported or stated"),
    ("stands", "is, holds or is listed"),
    ("tells", "reports or shows"),
];

/// Each name that no function, module or type has, in lower case.
const NAMES_BANNED: &[&str] = &[
    "of",
    "with",
    "in_words",
    "some_time",
    "beside",
    "stand",
    "custody",
    "spots",
    "spot",
    "desk",
    "kept",
    "apart",
    "reckon",
    "foretell",
    "foretold",
    "told",
    "said",
    "asked",
    "came",
];

/// Each name that no type has. A field or function may, as in `seen` and `place`.
const TYPES_BANNED: &[&str] = &[
    "Around", "Ask", "Beat", "Believed", "Berth", "Both", "By", "Crew", "Got", "Here", "How",
    "Kin", "Per", "Seen", "Took", "Useless", "What", "Where",
];

/// Each name that no field, parameter or variable has; nor is it a part of a function's name.
const VALUES_BANNED: &[&str] =
    &["asked", "came", "foretell", "foretold", "reckoned", "said", "told"];

/// This file, which has to name what it refuses.
const OWN: &str = "xtask/src/tidy/vocabulary.rs";

fn check_words(tree: &Tree, report: &mut Report) {
    for file in tree.files.iter().filter(|file| file.path != OWN) {
        for Block { line, text } in prose(file) {
            let in_one_line = text.replace('\n', " ");
            for (word, instead) in WORDS_BANNED {
                for at in places_of(&in_one_line, word) {
                    let line = line + text[..at].matches('\n').count();
                    report.add(&file.path, line, format!("`{word}`: write {instead}"));
                }
            }
        }
    }
}

/// Lines that belong together, in lower case and without their quotations.
#[derive(Clone)]
struct Block {
    line: usize,
    text: String,
}

/// Returns the text of a file that people read.
fn prose(file: &File) -> Vec<Block> {
    let others = ["py", "sh", "c", "h", "js", "css", "html", "service", "yaml", "yml"];
    if file.path.contains("/vendor/") || file.path.contains("/machines/") {
        return Vec::new();
    }
    match &file.rust {
        Some(rust) => [comments(&file.text), messages(rust)].concat(),
        None if file.is_any_of(&["md"]) => paragraphs(&file.text),
        // Quoted text in a file of keys is a value: `"nobody"` is a user of the system.
        None if file.is_any_of(&["toml"]) => {
            vec![Block { line: 1, text: without_quotations(&file.text.to_lowercase()) }]
        }
        None if file.is_any_of(&others) => vec![Block { line: 1, text: file.text.to_lowercase() }],
        None => Vec::new(),
    }
}

/// The comments of a Rust file; lines below each other are one block.
fn comments(text: &str) -> Vec<Block> {
    blocks(text.lines().map(comment_of))
}

/// The comment at the end of a line, which may be all of it.
fn comment_of(line: &str) -> Option<&str> {
    let outside_strings = |at: &usize| line[..*at].matches('"').count().is_multiple_of(2);
    let at = line.match_indices("//").map(|(at, _)| at).find(outside_strings)?;
    (!line[..at].ends_with(':')).then(|| line[at..].trim_start_matches(['/', '!']))
}

/// The paragraphs of a Markdown page, without fenced code.
fn paragraphs(text: &str) -> Vec<Block> {
    let mut is_code = false;
    blocks(text.lines().map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence && !line.trim().is_empty()).then_some(line)
    }))
}

fn blocks<'a>(lines: impl Iterator<Item = Option<&'a str>>) -> Vec<Block> {
    let mut all: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (line, number) in lines.zip(1..) {
        match (line, all.last_mut().filter(|_| is_open)) {
            (Some(line), Some(block)) => block.text += &format!("\n{}", line.to_lowercase()),
            (Some(line), None) => all.push(Block { line: number, text: line.to_lowercase() }),
            (None, _) => {}
        }
        is_open = line.is_some();
    }
    all.iter_mut().for_each(|block| block.text = without_quotations(&block.text));
    all
}

/// A text with blanks for what is in backticks or double quotes.
fn without_quotations(text: &str) -> String {
    without(&without(text, '`', '`'), '"', '"')
}

/// A text with blanks for what is between two characters, and for these.
fn without(text: &str, open: char, close: char) -> String {
    let mut is_inside = false;
    let blank = |c: char| {
        let is_end = if is_inside { c == close } else { c == open };
        is_inside ^= is_end;
        if (is_inside || is_end) && c != '\n' { ' ' } else { c }
    };
    text.chars().map(blank).collect()
}

/// The string literals outside tests that are sentences: without names of variables, and
/// more than one word.
fn messages(rust: &Rust) -> Vec<Block> {
    let is_text = |text: &str| text.starts_with(['"', 'r']) && text.ends_with(['"', '#']);
    let mut all = Vec::new();
    for (at, token) in rust.tokens.iter().enumerate() {
        let is_doc = at > 1 && rust.tokens[at - 2].text == "doc";
        let is_sentence = is_text(&token.text) && token.text.contains(char::is_whitespace);
        if is_sentence && !is_doc && !rust.is_test(token.line) {
            let text = without(&token.text, '{', '}').to_lowercase();
            all.push(Block { line: token.line, text });
        }
    }
    all
}

/// Where a word or phrase is in a text, whole.
fn places_of(text: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let is_whole = |at: &usize| {
        !text[..*at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    };
    text.match_indices(word).map(|(at, _)| at).filter(is_whole).collect()
}

fn check_names(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        let mut names = Names::default();
        names.visit_file(&rust.ast);
        for (line, name) in names.banned {
            let what = format!("`{name}` does not say what it is; use a verb or a standard noun");
            report.add(&file.path, line, what);
        }
    }
}

#[derive(Default)]
struct Names {
    banned: Vec<(usize, String)>,
}

impl Names {
    fn check(&mut self, name: &Ident) {
        self.check_among(NAMES_BANNED, name, &name.to_string().to_lowercase());
    }

    fn check_type(&mut self, name: &Ident) {
        self.check(name);
        self.check_among(TYPES_BANNED, name, &name.to_string());
    }

    fn check_parts(&mut self, name: &Ident) {
        let text = name.to_string();
        let mut parts = text.split('_').filter(|_| text.contains('_'));
        if let Some(part) = parts.find(|part| VALUES_BANNED.contains(part)) {
            self.check_among(VALUES_BANNED, name, part);
        }
    }

    fn check_value(&mut self, name: &Ident) {
        self.check_among(VALUES_BANNED, name, &name.to_string());
    }

    fn check_among(&mut self, banned: &[&str], name: &Ident, text: &str) {
        if banned.contains(&text) {
            self.banned.push((name.span().start().line, name.to_string()));
        }
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_signature(&mut self, signature: &'a Signature) {
        self.check(&signature.ident);
        self.check_parts(&signature.ident);
        visit::visit_signature(self, signature);
    }

    fn visit_field(&mut self, field: &'a Field) {
        field.ident.iter().for_each(|name| self.check_value(name));
        visit::visit_field(self, field);
    }

    fn visit_pat_ident(&mut self, pattern: &'a PatIdent) {
        self.check_value(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_item(&mut self, item: &'a Item) {
        match item {
            Item::Enum(item) => self.check_type(&item.ident),
            Item::Mod(item) => self.check(&item.ident),
            Item::Struct(item) => self.check_type(&item.ident),
            Item::Trait(item) => self.check_type(&item.ident),
            Item::Type(item) => self.check_type(&item.ident),
            _ => {}
        }
        visit::visit_item(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    #[test]
    fn each_word_is_found_in_comments_messages_and_pages() {
        for (word, _) in WORDS_BANNED {
            for (path, text) in [
                ("a.rs", format!("fn a() {{}}\n// One.\n/// Two {word}.\nfn b() {{}}\n")),
                ("a.rs", format!("//! A.\n\nfn a() {{ f(\"is {word}\"); }}\n")),
                ("a.md", format!("# A\n\nIs {}.\n", word.to_uppercase())),
                ("a.py", format!("a = 1\n\n# {word}\n")),
            ] {
                let found = in_file(&WORDS, path, &text);
                assert_eq!(found.len(), 1, "{text}");
                assert!(found[0].starts_with(&format!("{path}:3: `{word}`: write ")), "{found:?}");
            }
        }
    }

    #[test]
    fn quotations_code_tests_and_longer_words_pass() {
        for (path, text) in [
            ("a.rs", "// Says `nobody` and \"was\n// told\", untold.\nfn asked_for(told: u8) {}\n"),
            ("a.rs", "#[cfg(test)]\nmod tests { fn f() { f(\"nobody\"); } }\n"),
            ("a.rs", "fn f() { f(\"http://a\", \"untold\"); }\n"),
            ("a.md", "The \"reply that\ncame\", `nobody`.\n\n```text\nnobody\n```\n"),
            ("web/vendor/a.js", "// nobody\n"),
        ] {
            assert_eq!(in_file(&WORDS, path, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_phrase_over_two_lines_is_found_where_it_begins() {
        let found = in_file(&WORDS, "a.md", "# A\n\nOne.\nIt is by\nlot.\n");
        assert!(found[0].starts_with("a.md:4: `by lot`"), "{found:?}");
    }

    #[test]
    fn each_name_is_found_where_it_is_defined_and_not_where_it_is_used() {
        for name in NAMES_BANNED {
            let text = format!("fn a() {{ {name}(b); }}\nimpl A {{\n    fn {name}() {{}}\n}}\n");
            let found = in_file(&NAMES, "a.rs", &text);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!("a.rs:3: `{name}`")), "{found:?}");
        }
        assert_eq!(in_file(&NAMES, "a.rs", "mod spots;\nenum Desk {}\nstruct Post;\n").len(), 2);
    }

    #[test]
    fn names_of_types_and_values_are_checked_where_they_are_defined() {
        for name in TYPES_BANNED {
            let found = in_file(&NAMES, "a.rs", &format!("type A = {name};\nstruct {name};\n"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!("a.rs:2: `{name}`")), "{found:?}");
        }
        for name in VALUES_BANNED {
            let text = format!(
                "struct A {{\n    {name}: u8,\n}}\nfn a({name}: u8) {{ let {name} = {name}; }}\n"
            );
            assert_eq!(in_file(&NAMES, "a.rs", &text).len(), 3, "{name}");
            let text = format!("fn it_is_{name}_once() {{}}\nfn un{name}() {{}}\n");
            assert_eq!(in_file(&NAMES, "a.rs", &text).len(), 1, "{name}");
        }
        assert_eq!(in_file(&NAMES, "a.rs", "fn a(seen: u8) { a.asked.a(told) }\n"), [""; 0]);
    }
}
