//! Core numbers and sets of them, written as the kernel does: `0-3,8`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A core's number, as the kernel counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CoreId(pub u16);

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of cores in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CoreSet(BTreeSet<CoreId>);

/// Why a text is no list of cores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of cores: write 0-3,8")]
pub struct CoreSetError(String);

impl CoreSet {
    /// The cores `0..count`.
    pub fn first(count: u16) -> Self {
        (0..count).map(CoreId).collect()
    }

    /// Number of cores.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no core.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `core` is in it.
    pub fn contains(&self, core: CoreId) -> bool {
        self.0.contains(&core)
    }

    /// Adds a core.
    pub fn insert(&mut self, core: CoreId) {
        self.0.insert(core);
    }

    /// The cores, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = CoreId> + '_ {
        self.0.iter().copied()
    }

    /// Cores in either set.
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    /// Cores in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// Cores of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// Whether every core of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<CoreId> for CoreSet {
    fn from_iter<I: IntoIterator<Item = CoreId>>(cores: I) -> Self {
        Self(cores.into_iter().collect())
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cores = self.iter().map(|core| core.0).peekable();
        let mut comma = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while let Some(next) = cores.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last {
                _ if first == last => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

impl FromStr for CoreSet {
    type Err = CoreSetError;

    fn from_str(text: &str) -> Result<Self, CoreSetError> {
        let wrong = || CoreSetError(text.to_owned());
        let mut cores = Self::default();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u16 = first.trim().parse().map_err(|_| wrong())?;
            let last: u16 = last.trim().parse().map_err(|_| wrong())?;
            if first > last {
                return Err(wrong());
            }
            cores.0.extend((first..=last).map(CoreId));
        }
        Ok(cores)
    }
}

impl TryFrom<String> for CoreSet {
    type Error = CoreSetError;

    fn try_from(text: String) -> Result<Self, CoreSetError> {
        text.parse()
    }
}

impl From<CoreSet> for String {
    fn from(cores: CoreSet) -> Self {
        cores.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_and_prints_the_kernels_lists() {
        for text in ["0", "0-3", "0-3,8", "1,3,5-7", ""] {
            assert_eq!(text.parse::<CoreSet>().unwrap().to_string(), text);
        }
        for text in ["a", "3-1", "1-", "70000"] {
            assert!(text.parse::<CoreSet>().is_err(), "{text} was accepted");
        }
    }

    proptest! {
        #[test]
        fn any_set_survives_printing(cores in prop::collection::btree_set(0u16..512, 0..40)) {
            let set: CoreSet = cores.into_iter().map(CoreId).collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }
    }
}
