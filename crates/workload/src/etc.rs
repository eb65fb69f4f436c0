//! Facebook's ETC mix of memcached requests, as mutilate generates it.
//!
//! Key size GEV(30.7984, 8.20449, 0.078688), value size a table of the smallest
//! sizes and generalised Pareto (15, 214.476, 0.348238) beyond, from Atikoglu
//! et al., "Workload Analysis of a Large-Scale Key-Value Store", SIGMETRICS
//! 2012, with the constants of <https://github.com/leverich/mutilate>. Clipped
//! to keys of 20 to 70 bytes and values of 1 byte to 1 KB with 25 % SET, as
//! the BayOp paper states its load.

use crate::Generator;
use crate::distribution::{GeneralisedExtremeValue, GeneralisedPareto};
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

const KEY_BYTES: GeneralisedExtremeValue =
    GeneralisedExtremeValue { loc: 30.7984, scale: 8.204_49, shape: 0.078_688 };
const KEY_RANGE: RangeInclusive<usize> = 20..=70;
const VALUE_BYTES: GeneralisedPareto =
    GeneralisedPareto { loc: 15.0, scale: 214.476, shape: 0.348_238 };
const VALUE_RANGE: RangeInclusive<usize> = 1..=1024;
/// Probability of a value of exactly 0, 1, 2, ... bytes; the rest is Pareto.
const SMALL_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837,
    0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
];

/// Parameters of an ETC load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EtcConfig {
    /// Number of different keys, at least 1.
    pub records: u32,
    /// Share of requests that store, from 0 to 1; the others read.
    pub set_share: f64,
    /// How often each key is requested.
    pub popularity: Popularity,
}

impl Default for EtcConfig {
    fn default() -> Self {
        Self { records: 10_000, set_share: 0.25, popularity: Popularity::Uniform }
    }
}

/// How often each key is requested; as text `uniform` or `zipf:EXPONENT`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Popularity {
    /// All keys are equally likely.
    #[default]
    Uniform,
    /// The key of rank `i` in proportion to `i^-exponent`.
    Zipf {
        /// Skew, above 0.
        exponent: f64,
    },
}

/// Why an ETC load is not valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EtcError {
    /// There are no keys.
    #[error("records = 0: a load needs at least one key")]
    NoRecords,
    /// The share of SETs is not between 0 and 1.
    #[error("set_share = {0}: write a share from 0 to 1")]
    SetShare(f64),
    /// The text names no popularity.
    #[error("`{0}` is not a key popularity: write uniform or zipf:0.99 (exponent above 0)")]
    Popularity(String),
}

/// One request of the mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcRequest {
    /// Read a key.
    Get(u32),
    /// Store this many bytes under a key.
    Set(u32, usize),
}

/// The mix, with the size of every key decided.
#[derive(Debug, Clone)]
pub struct Etc {
    set_share: f64,
    zipf: Option<Zipf<f64>>,
    /// Length of each key; a property of the key, so that GET and SET agree.
    key_bytes: Vec<u8>,
}

impl Etc {
    /// The mix of a configuration. The same key has the same text in every run.
    ///
    /// # Errors
    /// If there are no records or a parameter is out of range.
    pub fn new(config: &EtcConfig) -> Result<Self, EtcError> {
        if config.records == 0 {
            return Err(EtcError::NoRecords);
        }
        if !(0.0..=1.0).contains(&config.set_share) {
            return Err(EtcError::SetShare(config.set_share));
        }
        let zipf = match config.popularity {
            Popularity::Uniform => None,
            Popularity::Zipf { exponent } => Some(
                Zipf::new(f64::from(config.records), exponent)
                    .map_err(|_| EtcError::Popularity(config.popularity.to_string()))?,
            ),
        };
        let mut rng = Generator::seed_from_u64(0);
        let key_bytes =
            (0..config.records).map(|_| clipped(rng.sample(KEY_BYTES), &KEY_RANGE) as u8);
        Ok(Self { set_share: config.set_share, zipf, key_bytes: key_bytes.collect() })
    }

    /// Number of different keys.
    pub fn records(&self) -> u32 {
        self.key_bytes.len() as u32
    }

    /// Draws a request.
    pub fn request(&self, rng: &mut Generator) -> EtcRequest {
        let record = self.record(rng);
        if rng.random_bool(self.set_share) {
            EtcRequest::Set(record, Self::value_bytes(rng))
        } else {
            EtcRequest::Get(record)
        }
    }

    fn record(&self, rng: &mut Generator) -> u32 {
        match &self.zipf {
            // Ranks are 1..=records.
            Some(zipf) => (rng.sample(zipf) as u32).clamp(1, self.records()) - 1,
            None => rng.random_range(0..self.records()),
        }
    }

    /// Draws the size of a value.
    pub fn value_bytes(rng: &mut Generator) -> usize {
        let mut left: f64 = rng.random();
        for (size, share) in SMALL_VALUES.iter().enumerate() {
            if left < *share {
                return size.max(*VALUE_RANGE.start());
            }
            left -= share;
        }
        clipped(rng.sample(VALUE_BYTES), &VALUE_RANGE)
    }

    /// Appends the text of a key: its number with zeros in front.
    pub fn write_key(&self, record: u32, out: &mut Vec<u8>) {
        let width = usize::from(self.key_bytes[record as usize]);
        let mut digits = [b'0'; *KEY_RANGE.end()];
        let mut left = record;
        // A record's number has at most 10 digits, which every key is longer than.
        for digit in digits[..width].iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        out.extend_from_slice(&digits[..width]);
    }
}

fn clipped(size: f64, range: &RangeInclusive<usize>) -> usize {
    (size.round() as usize).clamp(*range.start(), *range.end())
}

impl FromStr for Popularity {
    type Err = EtcError;

    fn from_str(text: &str) -> Result<Self, EtcError> {
        let refuse = || EtcError::Popularity(text.to_owned());
        match text.trim().split_once(':') {
            None if text.trim() == "uniform" => Ok(Self::Uniform),
            Some(("zipf", exponent)) => {
                let exponent: f64 = exponent.trim().parse().map_err(|_| refuse())?;
                let legal = exponent > 0.0 && exponent.is_finite();
                legal.then_some(Self::Zipf { exponent }).ok_or_else(refuse)
            }
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Popularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { exponent } => write!(f, "zipf:{exponent}"),
        }
    }
}

lull_measure::convert_as_text!(Popularity);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rng;
    use std::collections::BTreeSet;

    fn etc(popularity: &str) -> Etc {
        let popularity = popularity.parse().unwrap();
        Etc::new(&EtcConfig { records: 1000, popularity, ..EtcConfig::default() }).unwrap()
    }

    #[test]
    fn keys_are_different_and_of_the_stated_length() {
        let etc = etc("uniform");
        let keys: BTreeSet<_> = (0..1000)
            .map(|record| {
                let mut key = Vec::new();
                etc.write_key(record, &mut key);
                assert!(KEY_RANGE.contains(&key.len()));
                assert_eq!(std::str::from_utf8(&key).unwrap().parse(), Ok(record));
                key
            })
            .collect();
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn the_median_key_is_that_of_the_distribution() {
        let mut sizes = etc("uniform").key_bytes;
        sizes.sort_unstable();
        let median = KEY_BYTES.quantile(0.5);
        assert!((f64::from(sizes[500]) - median).abs() <= 1.0, "{} {median}", sizes[500]);
    }

    #[test]
    fn values_have_the_printed_shares_and_the_pareto_tail() {
        let mut rng = rng(5);
        let sizes: Vec<_> = (0..200_000).map(|_| Etc::value_bytes(&mut rng)).collect();
        let share = |wanted: fn(usize) -> bool| {
            sizes.iter().filter(|size| wanted(**size)).count() as f64 / sizes.len() as f64
        };
        let near = |got: f64, wanted: f64| assert!((got - wanted).abs() < 0.005, "{got} {wanted}");
        near(share(|size| size == 2), 0.17820);
        near(share(|size| size == 11), 0.08989);
        let head: f64 = SMALL_VALUES.iter().sum();
        near(
            share(|size| size > 15 + 214),
            (1.0 - head) * (1.0_f64 + 0.348_238 * 214.5 / 214.476).powf(-1.0 / 0.348_238),
        );
        assert!(share(|size| size == 1024) > 0.0 && sizes.iter().max() == Some(&1024));
    }

    #[test]
    fn a_quarter_of_the_requests_store() {
        let (etc, mut rng) = (etc("uniform"), rng(6));
        let sets =
            (0..100_000).filter(|_| matches!(etc.request(&mut rng), EtcRequest::Set(..))).count();
        assert!((sets as f64 / 100_000.0 - 0.25).abs() < 0.01, "{sets}");
    }

    #[test]
    fn popular_keys_are_requested_as_often_as_in_zipfs_law() {
        let (etc, mut rng) = (etc("zipf:0.99"), rng(7));
        let harmonic: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let first = (0..100_000).filter(|_| etc.record(&mut rng) == 0).count() as f64 / 1e5;
        assert!((first - 1.0 / harmonic).abs() < 0.01, "{first}");
    }

    #[test]
    fn a_mix_that_cannot_be_is_refused() {
        assert_eq!(
            Etc::new(&EtcConfig { records: 0, ..EtcConfig::default() }).unwrap_err(),
            EtcError::NoRecords
        );
        for set_share in [-0.1, 1.1, f64::NAN] {
            assert!(Etc::new(&EtcConfig { set_share, ..EtcConfig::default() }).is_err());
        }
        for text in ["", "zipf", "zipf:x", "zipf:0", "zipf:-1", "zipf:inf", "hot"] {
            assert!(text.parse::<Popularity>().is_err(), "{text}");
        }
    }
}
