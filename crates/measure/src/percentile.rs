//! A percentile, written `p95` or `p99.9`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A percentile strictly between 0 and 100.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Percentile(f64);

/// Why a text or number is not a percentile.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("`{text}` is not a percentile: write p50, p95, p99 or p99.9 (above 0, below 100)")]
pub struct PercentileError {
    text: String,
}

impl Percentile {
    /// The median.
    pub const P50: Self = Self(50.0);
    /// The 95th percentile, used for every table of Ah-Q (Liu et al. 2024, section VII-A).
    pub const P95: Self = Self(95.0);
    /// The 99th percentile.
    pub const P99: Self = Self(99.0);
    /// The 99.9th percentile.
    pub const P999: Self = Self(99.9);

    /// A percentile from its number in percent.
    ///
    /// # Errors
    /// If `percent` is not strictly between 0 and 100.
    pub fn new(percent: f64) -> Result<Self, PercentileError> {
        if percent > 0.0 && percent < 100.0 {
            Ok(Self(percent))
        } else {
            Err(PercentileError { text: percent.to_string() })
        }
    }

    /// The number in percent, in (0, 100).
    pub const fn percent(self) -> f64 {
        self.0
    }

    /// The fraction in (0, 1).
    pub fn fraction(self) -> f64 {
        self.0 / 100.0
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

impl FromStr for Percentile {
    type Err = PercentileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || PercentileError { text: text.to_owned() };
        let digits = text.strip_prefix('p').ok_or_else(wrong)?;
        let percent = digits.parse().map_err(|_| wrong())?;
        Self::new(percent).map_err(|_| wrong())
    }
}

crate::convert_as_text!(Percentile);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_the_usual_ones() {
        for text in ["p50", "p95", "p99", "p99.9", "p99.99"] {
            assert_eq!(text.parse::<Percentile>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_has_no_tail() {
        for text in ["95", "p0", "p100", "p-1", "pNaN", "p", "P95", "p1e3"] {
            assert!(text.parse::<Percentile>().is_err(), "{text} was accepted");
        }
    }
}
