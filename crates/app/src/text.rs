//! Text for terminals: tables and numbers.

use crate::blocks::Estimate;
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use std::io::IsTerminal;

/// Width of output that goes to no terminal.
const FILE_WIDTH: u16 = 120;

/// A table without lines, wrapped to the terminal.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if !std::io::stdout().is_terminal() {
        table.set_width(FILE_WIDTH);
    }
    table.set_header(header);
    table.add_rows(rows);
    table.trim_fmt()
}

/// A number with three significant digits: 0.0123, 1.23, 12.3, 1230.
pub(crate) fn number(value: f64) -> String {
    let digits = decimals(value, 3);
    format!("{value:.digits$}")
}

/// A mean with its interval to two digits of the interval: `1.23 ± 0.04`.
pub(crate) fn estimate(estimate: Option<Estimate>) -> String {
    match estimate {
        None => "-".to_owned(),
        Some(Estimate { mean, half_width: None }) => number(mean),
        Some(Estimate { mean, half_width: Some(half) }) => {
            // An interval of (almost) nothing says nothing about digits.
            let exact = half <= mean.abs() * 1e-9;
            let digits = if exact { decimals(mean, 3) } else { decimals(half, 2) };
            format!("{mean:.digits$} ± {half:.digits$}")
        }
    }
}

/// Decimals that show so many significant digits of a value, at most 6.
fn decimals(value: f64, significant: i32) -> usize {
    if value == 0.0 || !value.is_finite() {
        return 2;
    }
    let magnitude = value.abs().log10().floor() as i32;
    usize::try_from(significant - 1 - magnitude).unwrap_or(0).min(6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [(0.012_345, "0.0123"), (1.234_5, "1.23"), (12.345, "12.3"), (1234.5, "1234")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(0.0), "0.00");
        assert_eq!(number(-0.5), "-0.500");
    }

    #[test]
    fn an_estimate_without_interval_shows_none() {
        let one = Some(Estimate { mean: 2.0, half_width: None });
        assert_eq!(estimate(one), "2.00");
        assert_eq!(estimate(None), "-");
        let two = Some(Estimate { mean: 2.0, half_width: Some(0.5) });
        assert_eq!(estimate(two), "2.00 ± 0.50");
    }
}
