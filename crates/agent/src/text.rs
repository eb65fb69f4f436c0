//! Numbers as people read them.

/// A number with three significant digits: 0.0123, 1.23, 12.3, 1230.
pub fn number(value: f64) -> String {
    let digits = decimals(value, 3);
    format!("{value:.digits$}")
}

/// Returns the number of decimals that show this many significant digits of a value, at most 6.
pub fn decimals(value: f64, significant: i32) -> usize {
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
}
