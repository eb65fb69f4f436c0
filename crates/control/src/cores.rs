//! Core numbers and sets of them, written as the kernel does: `0-3,8`.

use serde::{Deserialize, Serialize};
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
///
/// A bit a core: plans are copied in every epoch, and on a machine with many
/// cores a tree of core numbers is what that copying would cost most.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CoreSet {
    /// Bit `n % 64` of word `n / 64`; the last word is not zero, so that equal sets are equal.
    words: Vec<u64>,
}

/// Why a text is not a list of cores.
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
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is no core.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether `core` is in it.
    pub fn contains(&self, core: CoreId) -> bool {
        let (word, bit) = place(core);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Adds a core.
    pub fn insert(&mut self, core: CoreId) {
        let (word, bit) = place(core);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// The cores, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = CoreId> + '_ {
        let of_word = |(index, word): (usize, &u64)| {
            let (word, first) = (*word, index as u16 * 64);
            let is_in = move |bit: &u16| word & 1 << bit != 0;
            (0..64).filter(is_in).map(move |bit| CoreId(first + bit))
        };
        self.words.iter().enumerate().flat_map(of_word)
    }

    /// Cores in either set.
    pub fn union(&self, other: &Self) -> Self {
        self.combine(other, |ours, theirs| ours | theirs)
    }

    /// Cores in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |ours, theirs| ours & theirs)
    }

    /// Cores of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(other, |ours, theirs| ours & !theirs)
    }

    /// Whether every core of this set is in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    fn combine(&self, other: &Self, bits: impl Fn(u64, u64) -> u64) -> Self {
        let word = |set: &Self, index| set.words.get(index).copied().unwrap_or(0);
        let both = 0..self.words.len().max(other.words.len());
        let mut words: Vec<_> =
            both.map(|index| bits(word(self, index), word(other, index))).collect();
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        words.truncate(used);
        Self { words }
    }
}

/// Index of a core's word, and its bit in there.
const fn place(core: CoreId) -> (usize, u64) {
    (core.0 as usize / 64, 1 << (core.0 % 64))
}

impl FromIterator<CoreId> for CoreSet {
    fn from_iter<I: IntoIterator<Item = CoreId>>(cores: I) -> Self {
        let mut set = Self::default();
        cores.into_iter().for_each(|core| set.insert(core));
        set
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
            (first..=last).map(CoreId).for_each(|core| cores.insert(core));
        }
        Ok(cores)
    }
}

lull_measure::convert_as_text!(CoreSet);

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

    type Numbers = std::collections::BTreeSet<u16>;

    fn set(numbers: &Numbers) -> CoreSet {
        numbers.iter().copied().map(CoreId).collect()
    }

    fn any_numbers() -> impl Strategy<Value = Numbers> {
        prop::collection::btree_set(0u16..300, 0..40)
    }

    proptest! {
        #[test]
        fn sets_of_cores_are_sets(a in any_numbers(), b in any_numbers(), core in 0u16..300) {
            let (ours, theirs) = (set(&a), set(&b));
            prop_assert_eq!(ours.union(&theirs), set(&(&a | &b)));
            prop_assert_eq!(ours.intersection(&theirs), set(&(&a & &b)));
            prop_assert_eq!(ours.difference(&theirs), set(&(&a - &b)));
            prop_assert_eq!(ours.is_subset(&theirs), a.is_subset(&b));
            prop_assert_eq!(ours.contains(CoreId(core)), a.contains(&core));
            prop_assert_eq!((ours.len(), ours.is_empty()), (a.len(), a.is_empty()));
            prop_assert!(ours.iter().map(|core| core.0).eq(a.iter().copied()));
            prop_assert!(ours.iter().rev().map(|core| core.0).eq(a.iter().rev().copied()));
        }

        #[test]
        fn any_set_survives_printing(cores in prop::collection::btree_set(0u16..512, 0..40)) {
            let set: CoreSet = cores.into_iter().map(CoreId).collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }
    }
}
