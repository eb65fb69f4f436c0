//! The tables of a report as Markdown.

use super::RecordedRun;
use super::summary::{Summary, Table};
use lull_measure::escape::is_hidden;
use std::fmt::Write;

/// The page.
pub(super) fn page(all: &[RecordedRun], summary: &Summary) -> String {
    let mut page = format!("{}\n{}", table(&summary.runs), table(&summary.parts));
    for recorded in all {
        let Some(proof) = &recorded.proof else { continue };
        let figures = table(&Table::of_proof(proof));
        let _ = write!(page, "\nProof in {}\n\n{figures}", cell(&recorded.name));
        proof.notes().iter().for_each(|note| {
            let _ = write!(page, "\n{}\n", cell(note));
        });
    }
    page
}

fn table(table: &Table) -> String {
    let mut text = format!("| | {} |\n", escaped(&table.columns).join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(table.columns.len()));
    for (name, cells) in &table.rows {
        let _ = writeln!(text, "| {} | {} |", cell(name), escaped(cells).join(" | "));
    }
    text
}

fn escaped(cells: &[String]) -> Vec<String> {
    cells.iter().map(|text| cell(text)).collect()
}

/// Escapes a text for a Markdown cell, so that it is neither markup nor HTML.
fn cell(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' => {
                safe.push('\\');
                safe.push(letter);
            }
            _ if letter.is_whitespace() => safe.push(' '),
            _ if is_hidden(letter) => safe.extend(letter.escape_unicode()),
            _ => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_text_whatever_it_contains() {
        assert_eq!(cell("a|b\n<i>`*_[x](y)"), "a\\|b &lt;i&gt;\\`\\*\\_\\[x\\](y)");
        assert_eq!(cell("a\u{1b}\u{202e}"), "a\\u{1b}\\u{202e}");
    }

    #[test]
    fn a_row_has_as_many_cells_as_its_header() {
        let table = table(&Table {
            columns: vec!["one".to_owned(), "two".to_owned()],
            rows: vec![("E_S".to_owned(), vec!["0.1".to_owned(), "-".to_owned()])],
        });
        let bars = |line: &str| line.matches('|').count();
        assert!(table.lines().all(|line| bars(line) == 4), "{table}");
    }
}
