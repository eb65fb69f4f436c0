//! Units as types: nanoseconds, watts, joules, hertz.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::str::FromStr;
use std::time::Duration;

/// A span or instant in whole nanoseconds (585 years fit).
///
/// Written with a unit in config and output: `500ms`, `4.2ms`, `12us`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// Average power in watts.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Watts(pub f64);

/// Energy in joules.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Joules(pub f64);

/// A core frequency in whole hertz.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hertz(pub u64);

/// Why a text is not a quantity of the wanted unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}: write {example}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span, about 585 years.
    pub const MAX: Self = Self(u64::MAX);

    /// Whole microseconds; at most [`Self::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Whole milliseconds; at most [`Self::MAX`].
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Whole seconds; at most [`Self::MAX`].
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// The nearest whole nanosecond; negative and NaN become zero.
    pub fn from_secs_f64(secs: f64) -> Self {
        Self((secs * 1e9).round() as u64)
    }

    /// The span in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span in milliseconds.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The span in microseconds.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// `self - other`, or zero where `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self + other`, or the longest span where that overflows.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The span scaled by a non-negative factor, rounded.
    pub fn scale(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
    }
}

impl Joules {
    /// Mean power over a span; `None` over an empty span.
    pub fn over(self, span: Nanos) -> Option<Watts> {
        (span > Nanos::ZERO).then(|| Watts(self.0 / span.as_secs_f64()))
    }
}

impl Watts {
    /// Energy spent at this power over a span.
    pub fn during(self, span: Nanos) -> Joules {
        Joules(self.0 * span.as_secs_f64())
    }
}

impl Hertz {
    /// Whole kilohertz, the unit of Linux cpufreq files.
    pub const fn from_khz(khz: u64) -> Self {
        Self(khz.saturating_mul(1_000))
    }

    /// The frequency in gigahertz.
    pub fn as_ghz(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Mul<u64> for Nanos {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0 * times)
    }
}

impl Div<u64> for Nanos {
    type Output = Self;
    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

impl Sum for Nanos {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        Self(spans.map(|span| span.0).sum())
    }
}

impl Add for Joules {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Joules {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Joules {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Sum for Joules {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        Self(parts.map(|part| part.0).sum())
    }
}

/// Units of a [`Nanos`] text, largest first, with their length in nanoseconds.
const TIME_UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Units of a [`Hertz`] text, largest first.
const FREQUENCY_UNITS: [(&str, u64); 4] =
    [("GHz", 1_000_000_000), ("MHz", 1_000_000), ("kHz", 1_000), ("Hz", 1)];

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Hours and minutes read badly with decimals, so printing stops at seconds.
        print_in(f, self.0, &TIME_UNITS[2..])
    }
}

impl fmt::Display for Hertz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_in(f, self.0, &FREQUENCY_UNITS)
    }
}

impl fmt::Display for Watts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*} W", f.precision().unwrap_or(2), self.0)
    }
}

impl fmt::Display for Joules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*} J", f.precision().unwrap_or(2), self.0)
    }
}

/// Prints `value` in the largest unit that it fills, exactly unless the
/// formatter has a precision.
fn print_in(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let last = units.len() - 1;
    let (name, size) = units.iter().find(|(_, size)| value >= *size).unwrap_or(&units[last]);
    let scaled = value as f64 / *size as f64;
    match f.precision() {
        Some(digits) => f.pad_integral(true, "", &format!("{scaled:.digits$}{name}")),
        None => f.pad_integral(true, "", &format!("{scaled}{name}")),
    }
}

/// Reads `<number><unit>`; a blank between them is allowed.
fn read_in(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let (_, size) = units.iter().find(|(name, _)| *name == unit)?;
    let number = number.trim_end();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*size);
    }
    let value = number.parse::<f64>().ok()? * *size as f64;
    (value.is_finite() && value >= 0.0 && value < u64::MAX as f64).then(|| value.round() as u64)
}

impl FromStr for Nanos {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let example = "a number and a unit, such as 4.2ms, 500us, 30s, 10min";
        // "10m" is what many people write; it is minutes everywhere on a command line.
        let minutes = text.strip_suffix('m').map(|number| format!("{number}min"));
        let read = read_in(minutes.as_deref().unwrap_or(text), &TIME_UNITS);
        read.map(Self).ok_or(UnitError { text: text.to_owned(), what: "duration", example })
    }
}

impl FromStr for Hertz {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let example = "a number and a unit, such as 2.26GHz or 800MHz";
        let read = read_in(text, &FREQUENCY_UNITS);
        read.map(Self).ok_or(UnitError { text: text.to_owned(), what: "frequency", example })
    }
}

/// Serialises as a text with its unit in human-readable formats, and as the number in binary ones.
macro_rules! serde_as_text {
    ($unit:ident, $format:literal) => {
        /// A text with its unit, as people write it in a config.
        impl schemars::JsonSchema for $unit {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $format.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": $format })
            }
        }

        impl Serialize for $unit {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(to)
            }
        }

        impl<'de> Deserialize<'de> for $unit {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Quantity;
                impl serde::de::Visitor<'_> for Quantity {
                    type Value = $unit;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a quantity with its unit, in quotes")
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$unit, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, base: u64) -> Result<$unit, E> {
                        Ok($unit(base))
                    }
                }
                from.deserialize_any(Quantity)
            }
        }
    };
}

serde_as_text!(Nanos, "time");
serde_as_text!(Hertz, "frequency");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_units_people_write() {
        let cases = [
            ("4.2ms", 4_200_000),
            ("500us", 500_000),
            ("30s", 30_000_000_000),
            ("10m", 600_000_000_000),
            ("10min", 600_000_000_000),
            ("1h", 3_600_000_000_000),
            ("7 ns", 7),
        ];
        for (text, nanos) in cases {
            assert_eq!(text.parse(), Ok(Nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn refuses_a_number_without_unit_and_nonsense() {
        for text in ["4", "", "ms", "-1ms", "4.2 parsecs", "NaNms", "infs", "1e300s"] {
            assert!(text.parse::<Nanos>().is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn a_number_that_a_kernel_file_could_have_does_not_overflow() {
        let from: [fn(u64) -> Nanos; 3] =
            [Nanos::from_micros, Nanos::from_millis, Nanos::from_secs];
        assert_eq!(from.map(|from| from(u64::MAX)), [Nanos::MAX; 3]);
        assert_eq!(Hertz::from_khz(u64::MAX), Hertz(u64::MAX));
    }

    #[test]
    fn prints_the_largest_unit_that_fits() {
        assert_eq!(Nanos(4_200_000).to_string(), "4.2ms");
        assert_eq!(Nanos(0).to_string(), "0ns");
        assert_eq!(format!("{:.2}", Nanos(1_234_567)), "1.23ms");
        assert_eq!(Hertz::from_khz(2_260_000).to_string(), "2.26GHz");
    }

    #[test]
    fn power_and_energy_are_inverse() {
        assert_eq!(Watts(3.0).during(Nanos::from_secs(2)), Joules(6.0));
        assert_eq!(Joules(6.0).over(Nanos::from_secs(2)), Some(Watts(3.0)));
        assert_eq!(Joules(6.0).over(Nanos::ZERO), None);
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanos in 0u64..1 << 50) {
            // Beyond 13 days a double no longer holds every nanosecond of its seconds.
            prop_assert_eq!(Nanos(nanos).to_string().parse::<Nanos>(), Ok(Nanos(nanos)));
        }
    }
}
