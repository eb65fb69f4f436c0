//! Text for terminals: tables and numbers.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use lull_agent::text::decimals;
pub(crate) use lull_agent::text::number;
use lull_measure::escape::{visible, visible_line};
use lull_measure::statistics::Estimate;
use std::borrow::Cow;
use std::io::IsTerminal;

/// Width of output that is not on a terminal.
const FILE_WIDTH: u16 = 120;

/// A table without lines, wrapped to the terminal. Cells are escaped, and each stays one line,
/// before they are measured.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    escaped_table(header, rows, visible_line)
}

/// The same for texts of the program itself, of which some have several lines.
pub(crate) fn table_of_lines(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    escaped_table(header, rows, visible)
}

fn escaped_table(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    escape: fn(&str) -> Cow<'_, str>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if !std::io::stdout().is_terminal() {
        table.set_width(FILE_WIDTH);
    }
    table.set_header(header.iter().map(|name| escape(name)));
    let escaped = |cell: String| escape(&cell).into_owned();
    table.add_rows(rows.into_iter().map(|row| row.into_iter().map(escaped).collect::<Vec<_>>()));
    table.trim_fmt()
}

/// A table as Markdown. The cells must not be markup.
pub(crate) fn markdown_table(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut text = format!("| {} |\n|{}\n", header.join(" | "), " --- |".repeat(header.len()));
    for row in rows {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}

/// A mean with its interval to two digits of the interval: `1.23 ± 0.04`.
pub(crate) fn estimate(estimate: Option<Estimate>) -> String {
    match estimate {
        None => "-".to_owned(),
        Some(Estimate { mean, half_width: half, .. }) if !half.is_finite() => number(mean),
        Some(Estimate { mean, half_width: half, .. }) => {
            // An interval near zero does not limit the digits.
            let exact = half <= mean.abs() * 1e-9;
            let digits = if exact { decimals(mean, 3) } else { decimals(half, 2) };
            format!("{mean:.digits$} ± {half:.digits$}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_what_would_steer_a_terminal() {
        let text = table(&["app"], [vec!["a\u{1b}]0;b\u{9b}\u{202e}".to_owned()]]);
        assert!(text.contains("a\\u{1b}]0;b\\u{9b}\\u{202e}"), "{text:?}");
    }

    #[test]
    fn a_name_adds_no_line_to_a_table() {
        let text = table(&["app\n!"], [vec!["a\nlull: all is well\tb".to_owned()]]);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.contains("app\\u{a}!"), "{text:?}");
        assert!(text.contains("a\\u{a}lull: all is well\\u{9}b"), "{text:?}");
        assert_eq!(table_of_lines(&["a"], [vec!["b\nc".to_owned()]]).lines().count(), 3);
    }

    #[test]
    fn a_markdown_table_has_a_rule_as_wide_as_its_header() {
        let text = markdown_table(&["policy", "p99"], [vec!["tide".to_owned(), "1".to_owned()]]);
        assert_eq!(text, "| policy | p99 |\n| --- | --- |\n| tide | 1 |\n");
    }

    #[test]
    fn an_estimate_without_interval_shows_none() {
        let one = Some(Estimate { mean: 2.0, half_width: f64::INFINITY, values: 1 });
        assert_eq!(estimate(one), "2.00");
        assert_eq!(estimate(None), "-");
        let two = Some(Estimate { mean: 2.0, half_width: 0.5, values: 2 });
        assert_eq!(estimate(two), "2.00 ± 0.50");
    }
}
