//! A binary heap for keys that are plain numbers.
//!
//! Which child is the smallest cannot be predicted, and a wrong guess costs as
//! much as twenty instructions. So a pop walks down to a leaf without
//! any other decision (Wegener, Bottom-up heapsort, 1993), and the key that
//! fills the gap climbs back the step or two that it has to. With ten to a
//! hundred keys this is quicker than the general heaps of the libraries.

use std::hint::select_unpredictable;

/// Children of a key.
const WAYS: usize = 4;

/// The smallest of a set of keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct MinHeap<K> {
    keys: Vec<K>,
}

impl<K: Copy + Ord> MinHeap<K> {
    /// Creates an empty heap.
    pub(crate) const fn new() -> Self {
        Self { keys: Vec::new() }
    }

    /// Returns the smallest key.
    pub(crate) fn peek(&self) -> Option<K> {
        self.keys.first().copied()
    }

    /// Adds a key.
    #[inline]
    pub(crate) fn push(&mut self, key: K) {
        self.keys.push(key);
        climb(&mut self.keys, key);
    }

    /// Removes and returns the smallest key.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<K> {
        let last = self.keys.pop()?;
        let keys = self.keys.as_mut_slice();
        let Some(first) = keys.first().copied() else { return Some(last) };
        let mut gap = 0;
        while let Some(children) = keys.get(WAYS * gap + 1..WAYS * gap + 1 + WAYS) {
            let child = WAYS * gap + 1 + least_of(children);
            keys[gap] = keys[child];
            gap = child;
        }
        // The last parent may have fewer than `WAYS` children.
        let children = keys.get(WAYS * gap + 1..).unwrap_or_default();
        if let Some((which, least)) = children.iter().copied().enumerate().min_by_key(|one| one.1) {
            keys[gap] = least;
            gap = WAYS * gap + 1 + which;
        }
        climb(&mut keys[..=gap], last);
        Some(first)
    }

    /// Keeps only some keys.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&K) -> bool) {
        self.keys.retain(keep);
        // A sorted list is a heap.
        self.keys.sort_unstable();
    }

    /// All keys, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &K> {
        self.keys.iter()
    }
}

/// Returns the index of the least of four, without a branch.
#[inline(always)]
fn least_of<K: Ord>(four: &[K]) -> usize {
    let low = usize::from(four[1] < four[0]);
    let high = 2 + usize::from(four[3] < four[2]);
    select_unpredictable(four[high] < four[low], high, low)
}

/// Writes `key` to the last position and moves it up past greater parents.
#[inline(always)]
fn climb<K: Copy + Ord>(keys: &mut [K], key: K) {
    let mut at = keys.len() - 1;
    while at > 0 {
        let parent = (at - 1) / WAYS;
        if keys[parent] <= key {
            break;
        }
        keys[at] = keys[parent];
        at = parent;
    }
    keys[at] = key;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    proptest! {
        #[test]
        fn keys_come_out_in_order_whatever_the_pushes_and_pops(
            moves in prop::collection::vec(prop::option::of(0u32..50), 0..300),
        ) {
            let (mut ours, mut theirs) = (MinHeap::new(), BinaryHeap::new());
            for key in moves {
                match key {
                    Some(key) => {
                        ours.push(key);
                        theirs.push(Reverse(key));
                    }
                    None => prop_assert_eq!(ours.pop(), theirs.pop().map(|key| key.0)),
                }
                prop_assert_eq!(ours.peek(), theirs.peek().map(|key| key.0));
            }
            ours.retain(|key| key % 3 != 0);
            theirs.retain(|key| key.0 % 3 != 0);
            while let Some(Reverse(key)) = theirs.pop() {
                prop_assert_eq!(ours.pop(), Some(key));
            }
            prop_assert_eq!(ours.pop(), None);
        }
    }
}
