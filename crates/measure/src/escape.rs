//! Escaping of text that other programs chose, for each form in which Lull prints it.
//!
//! Names of apps, units, commands and cores, settings, and all that is read from /proc or
//! from a file may contain any character. Printed as they are, some steer a terminal (ESC,
//! C1), reorder a line (bidirectional overrides), are read as formulas by spreadsheets, or end
//! a quotation. Hidden characters are shown as `\u{1b}`, the notation of Rust.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns whether a character is not printed itself but changes how text is shown: control
/// characters, line separators, bidirectional marks and overrides, and invisible ones.
pub fn is_hidden(letter: char) -> bool {
    let is_format = matches!(
        letter,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    letter.is_control() || is_format
}

/// Escapes text of several lines for a terminal: line feeds and tabs remain.
pub fn visible(text: &str) -> Cow<'_, str> {
    replaced(text, |letter| is_hidden(letter) && !matches!(letter, '\n' | '\t'), put_hidden)
}

/// Escapes a name or a cell for a terminal, so that it stays in its line.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, put_hidden)
}

/// Escapes a whole JSON document. JSON escapes the control characters below 32 itself; any
/// other hidden character can only be within a string.
pub fn json(document: &str) -> Cow<'_, str> {
    let is_raw = |letter| is_hidden(letter) && !matches!(letter, '\n' | '\r' | '\t');
    replaced(document, is_raw, |safe, letter| {
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a text cannot fail.
            let _ = write!(safe, "\\u{unit:04x}");
        }
    })
}

/// Escapes text for the content and the attributes of HTML.
pub fn html(text: &str) -> String {
    let is_special = |letter| matches!(letter, '<' | '>' | '&' | '"' | '\'');
    let escaped = replaced(text, |letter| is_special(letter) || is_hidden(letter), put_html);
    escaped.into_owned()
}

fn put_html(safe: &mut String, letter: char) {
    match letter {
        '<' => safe.push_str("&lt;"),
        '>' => safe.push_str("&gt;"),
        '&' => safe.push_str("&amp;"),
        '"' => safe.push_str("&quot;"),
        '\'' => safe.push_str("&#39;"),
        _ => put_hidden(safe, letter),
    }
}

/// Escapes text for the value of a Prometheus label.
pub fn prometheus_label(text: &str) -> Cow<'_, str> {
    let is_special = |letter| matches!(letter, '\\' | '"') || is_hidden(letter);
    replaced(text, is_special, |safe, letter| match letter {
        '\\' => safe.push_str("\\\\"),
        '"' => safe.push_str("\\\""),
        '\n' => safe.push_str("\\n"),
        _ => {
            safe.push('\\');
            put_hidden(safe, letter);
        }
    })
}

/// Escapes text for a cell of CSV, before it is quoted. A cell that a spreadsheet would take for
/// a formula begins with an apostrophe, and so does one that begins with an apostrophe, so that
/// the first one can always be removed again. Line feeds and tabs remain.
pub fn csv_text(text: &str) -> Cow<'_, str> {
    let begins_formula = |letter| {
        matches!(letter, '=' | '+' | '-' | '@' | '\t' | '\u{ff1d}' | '\u{ff0b}')
            || matches!(letter, '\u{ff0d}' | '\u{ff20}' | '\'')
    };
    let safe = visible(text);
    if safe.starts_with(begins_formula) { format!("'{safe}").into() } else { safe }
}

fn put_hidden(safe: &mut String, letter: char) {
    let _ = write!(safe, "\\u{{{:x}}}", u32::from(letter));
}

fn replaced(
    text: &str,
    is_replaced: impl Fn(char) -> bool,
    put: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.contains(&is_replaced) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_replaced(letter) { put(&mut safe, letter) } else { safe.push(letter) }
    }
    safe.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Text in which every second character is one that matters to some writer.
    fn hostile() -> impl Strategy<Value = String> {
        let special = proptest::sample::select(vec![
            '\u{1b}',
            '\u{9b}',
            '\u{7f}',
            '\0',
            '\r',
            '\n',
            '\t',
            '\u{202e}',
            '\u{2066}',
            '\u{feff}',
            '\u{e0041}',
            '=',
            '+',
            '-',
            '@',
            '\'',
            '"',
            ',',
            '<',
            '&',
            '\\',
            '|',
            '{',
        ]);
        let letter = prop_oneof![special, any::<char>()];
        proptest::collection::vec(letter, 0..40).prop_map(|letters| letters.into_iter().collect())
    }

    /// Reads HTML text back: the entities that this module writes.
    fn html_text(html: &str) -> String {
        assert!(!html.contains(['<', '>', '"', '\'']), "{html}");
        let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'")];
        assert_eq!(
            html.matches('&').count(),
            html.matches("&amp;").count() + {
                entities.iter().map(|(entity, _)| html.matches(entity).count()).sum::<usize>()
            }
        );
        let read = entities
            .iter()
            .fold(html.to_owned(), |text, (entity, letter)| text.replace(entity, letter));
        read.replace("&amp;", "&")
    }

    /// Reads a label back by the rules of the exposition format.
    fn label_text(label: &str) -> String {
        let (mut text, mut letters) = (String::new(), label.chars());
        while let Some(letter) = letters.next() {
            text.push(match letter {
                '\\' => match letters.next() {
                    Some('n') => '\n',
                    Some(escaped @ ('\\' | '"')) => escaped,
                    other => panic!("{label:?} has a stray backslash before {other:?}"),
                },
                '"' => panic!("{label:?} ends its quotation"),
                other => other,
            });
        }
        text
    }

    proptest! {
        #[test]
        fn no_form_has_hidden_characters(text in hostile()) {
            let document = serde_json::to_string(&text).unwrap();
            let one_line = [
                visible_line(&text).into_owned(), html(&text), prometheus_label(&text).into_owned(),
                json(&document).into_owned(),
            ];
            for safe in one_line {
                prop_assert!(!safe.contains(is_hidden), "{safe:?}");
            }
            for safe in [visible(&text), csv_text(&text)] {
                let is_kept = |letter| matches!(letter, '\n' | '\t');
                prop_assert!(!safe.contains(|it| is_hidden(it) && !is_kept(it)), "{safe:?}");
            }
        }

        #[test]
        fn each_form_is_read_back_by_its_rules(text in hostile()) {
            let document = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(&serde_json::from_str::<String>(&json(&document)).unwrap(), &text);
            prop_assert_eq!(html_text(&html(&text)), visible_line(&text).into_owned());
            let is_shown = |letter| letter != '\n' && is_hidden(letter);
            let shown = |text: &str| replaced(text, is_shown, put_hidden).into_owned();
            prop_assert_eq!(label_text(&prometheus_label(&text)), shown(&text));
            let cell = csv_text(&text);
            prop_assert_eq!(cell.strip_prefix('\'').unwrap_or(&cell), &*visible(&text));
            prop_assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r']), "{cell:?}");
        }
    }

    #[test]
    fn usual_text_stays_as_it_is() {
        for text in ["memcached", "größer than 5 ms", "数据库", "👩‍💻", "a\\b"] {
            assert_eq!((visible(text), visible_line(text)), (text.into(), text.into()));
            assert_eq!(csv_text(text), text);
        }
        assert_eq!(visible("a\x1b[31m\u{9b}\u{202e}b\n"), "a\\u{1b}[31m\\u{9b}\\u{202e}b\n");
        assert_eq!(csv_text("=1+1"), "'=1+1");
        assert_eq!(csv_text("'=1"), "''=1");
        assert_eq!(prometheus_label("a\"b\\c\nd\x1b"), "a\\\"b\\\\c\\nd\\\\u{1b}");
    }
}
