//! The two kinds of work.

use super::BurnerError;
use crate::Generator;
use crate::apps::options::Demand;
use crate::apps::options::Walk;
use rand::SeedableRng;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The kind of work of a burner.
///
/// As text: `compute`, `memory`, or `memory:SIZE` with the size of all arrays of all threads
/// together in KiB, MiB or GiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Work {
    /// Arithmetic that stays in the first-level cache.
    #[default]
    Compute,
    /// Streams through memory.
    Memory {
        /// Size of all arrays together.
        bytes: u64,
    },
}

/// Why a text does not name a burner's work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a burner's work: write compute, memory or memory:256MiB")]
pub struct WorkError {
    text: String,
}

/// Paths between two checks of the stop flag: about a millisecond.
const PATHS: u64 = 256;
/// Elements between two checks: half a megabyte in each array.
const ELEMENTS: usize = 64 * 1024;
/// Two elements read and one written.
const BYTES_AN_ELEMENT: u64 = 24;

impl Work {
    /// Streams through arrays that this machine's caches cannot hold.
    pub fn memory() -> Self {
        Self::Memory { bytes: default_buffer_bytes() }
    }

    /// Returns the unit that it counts.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Compute => "paths",
            Self::Memory { .. } => "bytes",
        }
    }

    pub(super) const fn thread_name(self) -> &'static str {
        match self {
            Self::Compute => "burn-cpu",
            Self::Memory { .. } => "burn-mem",
        }
    }

    /// Does one thread's share of the work, until `over`.
    pub(super) fn burn(
        self,
        threads: usize,
        count: &AtomicU64,
        over: &AtomicBool,
    ) -> Result<(), BurnerError> {
        match self {
            Self::Compute => compute(count, over),
            Self::Memory { bytes } => return stream(bytes / threads as u64, count, over),
        }
        Ok(())
    }
}

fn compute(count: &AtomicU64, over: &AtomicBool) {
    let call = Demand::default().draw(&mut Generator::seed_from_u64(0));
    let mut walk = Walk::new(&call);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..PATHS {
            black_box(walk.mean(&call));
        }
        count.fetch_add(PATHS, Ordering::Relaxed);
    }
}

fn stream(bytes: u64, count: &AtomicU64, over: &AtomicBool) -> Result<(), BurnerError> {
    let elements = (bytes / BYTES_AN_ELEMENT).max(1);
    let (mut a, b, c) = (array(elements, 0.0)?, array(elements, 1.0)?, array(elements, 2.0)?);
    let scale = black_box(3.0);
    while !over.load(Ordering::Relaxed) {
        let sources = b.chunks(ELEMENTS).zip(c.chunks(ELEMENTS));
        for (to, (from, scaled)) in a.chunks_mut(ELEMENTS).zip(sources) {
            for ((to, from), scaled) in to.iter_mut().zip(from).zip(scaled) {
                *to = from + scale * scaled;
            }
            black_box(&*to);
            count.fetch_add(to.len() as u64 * BYTES_AN_ELEMENT, Ordering::Relaxed);
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    Ok(())
}

/// Allocates an array and writes all of it, so that its pages are mapped.
fn array(elements: u64, value: f64) -> Result<Vec<f64>, BurnerError> {
    let refused = || BurnerError::Memory { bytes: elements.saturating_mul(BYTES_AN_ELEMENT) };
    let length = usize::try_from(elements).map_err(|_| refused())?;
    let mut array = Vec::new();
    array.try_reserve_exact(length).map_err(|_| refused())?;
    array.resize(length, value);
    Ok(array)
}

const MIB: u64 = 1 << 20;

/// Returns twice the size of the last-level cache, at least 64 MiB and at most
/// 512 MiB; 256 MiB where the kernel does not report cache sizes.
pub fn default_buffer_bytes() -> u64 {
    let sizes = (0..8).filter_map(|index| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().strip_suffix('K')?.parse::<u64>().ok()
    });
    sizes.max().map_or(256 * MIB, |kib| (2 * kib * 1024).clamp(64 * MIB, 512 * MIB))
}

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)];

impl FromStr for Work {
    type Err = WorkError;

    fn from_str(text: &str) -> Result<Self, WorkError> {
        let refuse = || WorkError { text: text.to_owned() };
        match text.trim().split_once(':') {
            None if text.trim() == "compute" => Ok(Self::Compute),
            None if text.trim() == "memory" => Ok(Self::memory()),
            Some(("memory", size)) => {
                let bytes = read_size(size.trim()).ok_or_else(refuse)?;
                Ok(Self::Memory { bytes })
            }
            _ => Err(refuse()),
        }
    }
}

fn read_size(text: &str) -> Option<u64> {
    let (number, unit) =
        UNITS.iter().find_map(|(name, size)| Some((text.strip_suffix(name)?, *size)))?;
    let number: u64 = number.trim_end().parse().ok()?;
    number.checked_mul(unit).filter(|bytes| *bytes > 0)
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute => f.write_str("compute"),
            Self::Memory { bytes } => {
                let exact = UNITS.iter().find(|(_, size)| bytes % size == 0);
                match exact {
                    Some((name, size)) => write!(f, "memory:{}{name}", bytes / size),
                    None => write!(f, "memory:{}KiB", bytes.div_ceil(1 << 10)),
                }
            }
        }
    }
}

lull_measure::convert_as_text!(Work);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_prints_as_it_is_read() {
        for text in ["compute", "memory:256MiB", "memory:3GiB", "memory:12KiB"] {
            assert_eq!(text.parse::<Work>().unwrap().to_string(), text);
        }
        let Ok(Work::Memory { bytes }) = "memory".parse() else { panic!("not memory") };
        assert!((64 * MIB..=512 * MIB).contains(&bytes));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "cpu",
            "memory:",
            "memory:5",
            "memory:0MiB",
            "memory:-1MiB",
            "memory:99999999999GiB",
            "compute:3",
        ] {
            assert!(text.parse::<Work>().is_err(), "{text} was accepted");
        }
    }
}
