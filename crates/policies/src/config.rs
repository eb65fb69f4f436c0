//! Configs of policies: one declaration gives struct, defaults and help.

use lull_control::PolicyError;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// One key of a policy's config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Key {
    /// Its name below `[policy]`.
    pub name: &'static str,
    /// The effect of the key and the source of its default.
    pub help: &'static str,
}

/// A config whose keys are known at compile time.
pub(crate) trait Config: Default + Serialize + DeserializeOwned {
    /// All keys, in order.
    const KEYS: &'static [Key];

    /// Refuses values that have the right type but make no sense.
    fn check(&self) -> Result<(), PolicyError>;
}

/// Declares a config: each key with its help, type and default.
///
/// The help is the key's doc comment, so that `lull policies` and
/// docs/policies.md show the text of the source.
macro_rules! config {
    ($(#[doc = $about:literal])+ struct $config:ident checked by $check:path { $(
        $(#[doc = $help:literal])+
        $(#[serde($($serde:tt)*)])?
        $key:ident: $kind:ty = $default:expr,
    )* }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $config { $(
            $(#[doc = $help])+
            $(#[serde($($serde)*)])?
            pub(crate) $key: $kind,
        )* }

        impl Default for $config {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $crate::config::Config for $config {
            const KEYS: &'static [$crate::config::Key] = &[$($crate::config::Key {
                name: stringify!($key),
                help: concat!($($help),+),
            },)*];

            fn check(&self) -> Result<(), lull_control::PolicyError> {
                $check(self)
            }
        }
    };
}
pub(crate) use config;

config! {
    /// The config of entries without keys.
    struct NoKeys checked by accept_any {}
}

/// Returns the defaults as a user would write them.
pub(crate) fn defaults<C: Config>() -> toml::Table {
    toml::Table::try_from(C::default()).expect("a config is a struct of plain values")
}

/// Reads a config; a missing key has its default.
///
/// # Errors
/// [`PolicyError::Config`] with the key at fault.
pub(crate) fn read<C: Config>(table: &toml::Table) -> Result<C, PolicyError> {
    let config: C = serde_path_to_error::deserialize(table.clone()).map_err(|error| {
        let path = error.path().to_string();
        let key = if path == "." { String::new() } else { path };
        wrong(&key, error.inner().message().trim_end().to_owned())
    })?;
    config.check()?;
    Ok(config)
}

/// Returns a config error at `key`.
pub(crate) fn wrong(key: &str, message: String) -> PolicyError {
    PolicyError::Config { key: key.to_owned(), message }
}

/// Checks that a fraction lies in [0, 1].
///
/// # Errors
/// [`PolicyError::Config`] at `key` if it does not.
pub(crate) fn fraction(key: &str, value: f64) -> Result<(), PolicyError> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(wrong(key, format!("`{key}` is {value}: write a fraction from 0 to 1")))
}

/// Checks that a time is not zero.
///
/// # Errors
/// [`PolicyError::Config`] at `key` if it is.
pub(crate) fn positive_time(key: &str, span: lull_measure::Nanos) -> Result<(), PolicyError> {
    if span > lull_measure::Nanos::ZERO {
        return Ok(());
    }
    Err(wrong(key, format!("`{key}` is zero: write a time such as 500ms")))
}

/// Checks that a number lies in a range.
///
/// # Errors
/// [`PolicyError::Config`] at `key` if it does not.
pub(crate) fn within(key: &str, value: f64, range: RangeInclusive<f64>) -> Result<(), PolicyError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    Err(wrong(key, format!("`{key}` is {value}: write a number from {low} to {high}")))
}

/// Checks that counts are not zero.
///
/// # Errors
/// [`PolicyError::Config`] at the first key whose count is.
pub(crate) fn at_least_one(counts: &[(&str, usize)]) -> Result<(), PolicyError> {
    match counts.iter().find(|(_, count)| *count == 0) {
        Some((key, _)) => Err(wrong(key, format!("`{key}` is 0: write at least 1"))),
        None => Ok(()),
    }
}

/// Accepts every value, for configs without constraints.
pub(crate) fn accept_any<C>(_: &C) -> Result<(), PolicyError> {
    Ok(())
}

/// Serialises a quantity with its unit, as a user would write it. The unit types themselves
/// serialise as numbers.
pub(crate) fn text<T: Display, S: Serializer>(quantity: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(quantity)
}

/// Serialises a list of quantities, each with its unit.
pub(crate) fn texts<T: Display, S: Serializer>(list: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(list.iter().map(ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Nanos;

    config! {
        /// A config for these tests.
        struct Sample checked by check {
            /// How often (section 1).
            #[serde(serialize_with = "text")]
            period: Nanos = Nanos::from_millis(500),
            /// How much,
            /// in two lines.
            share: f64 = 0.1,
        }
    }

    fn check(sample: &Sample) -> Result<(), PolicyError> {
        fraction("share", sample.share)
    }

    fn refused(text: &str) -> (String, String) {
        match read::<Sample>(&text.parse().unwrap()) {
            Err(PolicyError::Config { key, message }) => (key, message),
            other => panic!("{text} gave {other:?}"),
        }
    }

    #[test]
    fn defaults_are_toml_that_reads_back() {
        let table = defaults::<Sample>();
        assert_eq!(table.to_string(), "period = \"500ms\"\nshare = 0.1\n");
        assert_eq!(read::<Sample>(&table), Ok(Sample::default()));
    }

    #[test]
    fn help_is_the_doc_comment() {
        let help: Vec<_> = Sample::KEYS.iter().map(|key| key.help.trim()).collect();
        assert_eq!(help, ["How often (section 1).", "How much, in two lines."]);
    }

    #[test]
    fn an_error_names_its_key() {
        let (key, message) = refused("perod = \"1s\"");
        assert_eq!(key, "perod");
        assert!(message.contains("period"), "{message}");
        let (key, message) = refused("period = \"1 parsec\"");
        assert_eq!(key, "period");
        assert!(message.contains("4.2ms"), "{message}");
        let (key, message) = refused("period = 500");
        assert_eq!(key, "period");
        assert!(message.contains("unit"), "{message}");
        assert_eq!(refused("share = 2").0, "share");
    }
}
