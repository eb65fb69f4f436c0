//! TOML input whose every error names file, line and key.
//!
//! Used for agent configs and for scenarios. Deserialisation errors carry a
//! byte offset; checks of our own carry a key. Both end as [`InputError`].

use crate::renamed::new_name;
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Most bytes of a file: one without an end would fill the memory.
const SIZE_MAX: u64 = 64 << 20;

/// One step of a key path: `app`, `[1]`, `name`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Key(String),
    Index(usize),
}

/// A text that was read from a file, with the positions of its keys.
#[derive(Debug, Clone)]
pub struct Located {
    path: PathBuf,
    text: String,
    /// A section, and where errors in it are reported.
    moved: Option<(String, String)>,
}

/// An error in an input file, with its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InputError {
    file: PathBuf,
    line: Option<usize>,
    key: String,
    message: String,
}

impl InputError {
    /// The file, or the name of a text that is in none.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The line, where it is known.
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// The key; empty for the file as a whole.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The message without file and line.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.message)
    }
}

/// Replaces serde's names of Rust types by words for a reader of configs. Longer names are first,
/// because they contain shorter ones.
const TYPES: [(&str, &str); 9] = [
    ("expected a nonzero u16", "expected a whole number above 0"),
    ("expected a nonzero u32", "expected a whole number above 0"),
    ("expected f64", "expected a number"),
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected u64", "expected a whole number, 0 or more"),
    ("expected usize", "expected a whole number, 0 or more"),
    ("invalid socket address syntax", "is not an IP address with a port: write 127.0.0.1:7077"),
    ("expected socket address", "expected an IP address with a port, \"127.0.0.1:7077\""),
];

/// Replaces the names of Rust's types in a message.
fn replace_type_names(message: String) -> String {
    TYPES.iter().fold(message, |message, (of_rust, plain)| message.replace(of_rust, plain))
}

impl Located {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let refuse = |message: String| InputError {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            message,
        };
        let mut text = String::new();
        let read =
            File::open(path).and_then(|file| file.take(SIZE_MAX + 1).read_to_string(&mut text));
        let bytes = read.map_err(|error| refuse(format!("cannot be read: {error}")))?;
        if bytes as u64 > SIZE_MAX {
            let most = SIZE_MAX >> 20;
            return Err(refuse(format!("has more than {most} MiB: name a file of TOML")));
        }
        Ok(Self { path: path.to_owned(), text, moved: None })
    }

    /// Wraps a text that is not in a file; errors use the given name.
    pub fn embedded(name: &str, text: &str) -> Self {
        Self { path: PathBuf::from(name), text: text.to_owned(), moved: None }
    }

    /// Reports errors in `section` as those of the section that the text has at `at`. A config of a
    /// part of the text has other indices than the text.
    #[must_use]
    pub fn section_at(self, section: &str, at: &str) -> Self {
        Self { moved: Some((section.to_owned(), at.to_owned())), ..self }
    }

    /// The name of the file, as errors show it.
    pub fn name(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Deserialises the text; the type decides whether unknown keys are errors.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, InputError> {
        toml::from_str(&self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let key = self.key_at(&span).unwrap_or_default();
            let mut message = replace_type_names(error.message().trim_end().replace('\n', ", "));
            let is_unknown = message.starts_with("unknown field");
            if let Some(now) = new_name(&key).filter(|_| is_unknown) {
                message = format!("is called {now} now");
            }
            self.error_in(Some(self.line_of(span.start)), key, message)
        })
    }

    /// An error at a key such as `app[1].name`; the nearest parent that is in
    /// the text gives the line where the key itself is not.
    pub fn error(&self, key: &str, message: impl Into<String>) -> InputError {
        let key = self.key_in_text(key);
        let segments = split(&key);
        let line = (0..=segments.len())
            .rev()
            .find_map(|length| self.span_of(&segments[..length]))
            .map(|span| self.line_of(span.start));
        self.error_in(line, key, message.into())
    }

    fn key_in_text(&self, key: &str) -> String {
        let moved = self.moved.as_ref().and_then(|(section, at)| {
            let rest = key.strip_prefix(section.as_str())?;
            (rest.is_empty() || rest.starts_with('.')).then(|| format!("{at}{rest}"))
        });
        moved.unwrap_or_else(|| key.to_owned())
    }

    fn error_in(&self, line: Option<usize>, key: String, message: String) -> InputError {
        InputError { file: self.path.clone(), line, key, message }
    }

    fn line_of(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset.min(self.text.len())].iter().filter(|b| **b == b'\n').count()
            + 1
    }

    fn span_of(&self, path: &[Segment]) -> Option<Range<usize>> {
        let mut found = None;
        self.visit(&mut |at, span| {
            if at == path {
                found = Some(span);
            }
        });
        found
    }

    /// The innermost key whose text or value covers a span.
    fn key_at(&self, wanted: &Range<usize>) -> Option<String> {
        let mut best: Option<(usize, String)> = None;
        self.visit(&mut |at, span| {
            let covers = span.start <= wanted.start && wanted.end <= span.end;
            let tighter = best.as_ref().is_none_or(|(width, _)| span.len() <= *width);
            if covers && tighter {
                best = Some((span.len(), join(at)));
            }
        });
        best.map(|(_, key)| key)
    }

    /// Visits every key and value with its path and span.
    fn visit(&self, visitor: &mut dyn FnMut(&[Segment], Range<usize>)) {
        let (table, _) = DeTable::parse_recoverable(&self.text);
        visit_table(table.get_ref(), &mut Vec::new(), visitor);
    }
}

fn visit_table(
    table: &DeTable<'_>,
    path: &mut Vec<Segment>,
    visitor: &mut dyn FnMut(&[Segment], Range<usize>),
) {
    for (key, value) in table {
        path.push(Segment::Key(key.get_ref().to_string()));
        // The value first: where a path has two spans the key's is the one to show.
        visitor(path, value.span());
        visit_value(value.get_ref(), path, visitor);
        visitor(path, key.span());
        path.pop();
    }
}

fn visit_value(
    value: &DeValue<'_>,
    path: &mut Vec<Segment>,
    visitor: &mut dyn FnMut(&[Segment], Range<usize>),
) {
    match value {
        DeValue::Table(table) => visit_table(table, path, visitor),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(Segment::Index(index));
                visitor(path, item.span());
                visit_value(item.get_ref(), path, visitor);
                path.pop();
            }
        }
        _ => {}
    }
}

fn split(key: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    for part in key.split('.').filter(|part| !part.is_empty()) {
        let (name, rest) = part.split_once('[').unwrap_or((part, ""));
        segments.push(Segment::Key(name.to_owned()));
        let indices = rest.split('[').map(|index| index.trim_end_matches(']'));
        segments.extend(indices.filter_map(|index| index.parse().ok()).map(Segment::Index));
    }
    segments
}

fn join(path: &[Segment]) -> String {
    let mut key = String::new();
    for segment in path {
        match segment {
            Segment::Key(name) if key.is_empty() => key.push_str(name),
            Segment::Key(name) => key.push_str(&format!(".{name}")),
            Segment::Index(index) => key.push_str(&format!("[{index}]")),
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[expect(dead_code, reason = "only its absence or presence is tested")]
        item: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[expect(dead_code, reason = "only its type is tested")]
        count: u32,
    }

    const TEXT: &str = "[[item]]\ncount = 1\n\n[[item]]\ncount = 2\nextra = true\n";

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = Located::embedded("a.toml", TEXT).parse::<Outer>().unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("a.toml:6: item[1].extra: unknown field `extra`"), "{text}");
    }

    #[test]
    fn a_wrong_type_is_named_with_its_line() {
        let text = TEXT.replace("count = 2\nextra = true", "count = \"two\"");
        let error = Located::embedded("a.toml", &text).parse::<Outer>().unwrap_err().to_string();
        assert!(error.starts_with("a.toml:5: item[1].count: invalid type"), "{error}");
        assert!(error.ends_with("expected a whole number from 0 to 4294967295"), "{error}");
    }

    #[test]
    fn broken_toml_still_has_a_line() {
        let error = Located::embedded("a.toml", "[[item]]\ncount = = 1\n").parse::<Outer>();
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with("a.toml:2:"), "{text}");
    }

    #[test]
    fn a_check_of_ours_finds_the_line_of_its_key_or_parent() {
        let located = Located::embedded("a.toml", TEXT);
        assert!(located.error("item[1].count", "no").to_string().starts_with("a.toml:5:"));
        assert!(located.error("item[1].absent", "no").to_string().starts_with("a.toml:4:"));
        assert_eq!(located.error("nowhere", "no").to_string(), "a.toml: nowhere: no");
    }

    #[test]
    fn errors_in_a_section_that_was_taken_out_have_the_key_and_line_of_the_text() {
        let located = Located::embedded("a.toml", TEXT).section_at("item[0]", "item[1]");
        let error = |key: &str| located.error(key, "no").to_string();
        assert_eq!(error("item[0].count"), "a.toml:5: item[1].count: no");
        assert_eq!(error("item[0]"), "a.toml:4: item[1]: no");
        assert_eq!(error("items"), "a.toml: items: no");
    }

    #[test]
    fn a_missing_file_is_reported() {
        let error = Located::read(Path::new("/nonexistent/x.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/x.toml: cannot be read"), "{error}");
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = Located::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero: has more than 64 MiB: name a file of TOML");
    }
}
