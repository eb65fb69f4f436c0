//! A winner tree (tournament) over clocks that are set repeatedly.
//!
//! Every station and source has one leaf with the key of its next event. A
//! change costs one path to the root and stops early where the winner stays,
//! and the next event of all is the root. A heap with lazy deletion is about
//! as quick for a few clocks and slower from 80 on, where most entries are stale.

use crate::order::Key;

/// Levels from the leaf in which a change of the winner is likely.
const UNSURE_LEVELS: u32 = 3;

/// The earliest of a fixed number of clocks.
#[derive(Debug, Clone)]
pub(crate) struct WinnerTree {
    /// The root, which is node 1.
    first: Key,
    /// The other nodes by twos, those of one parent together: nodes 2 and 3 in
    /// the second place, and so on. The leaves are the last of them.
    pairs: Vec<[Key; 2]>,
}

impl WinnerTree {
    /// A tree over `clocks` clocks, all unset.
    pub(crate) fn new(clocks: usize) -> Self {
        Self { first: Key::NEVER, pairs: vec![[Key::NEVER; 2]; clocks] }
    }

    /// The earliest key.
    #[inline(always)]
    pub(crate) fn first(&self) -> Key {
        self.first
    }

    /// Whether clock `leaf` is set.
    #[inline(always)]
    pub(crate) fn is_set(&self, leaf: usize) -> bool {
        let at = leaf + self.pairs.len();
        self.pairs[at >> 1][at & 1] != Key::NEVER
    }

    /// Sets clock `leaf`; [`Key::NEVER`] stops it.
    #[inline(always)]
    pub(crate) fn set(&mut self, leaf: usize, key: Key) {
        // There are as many leaves as pairs, so leaf `i` is node `pairs.len() + i`.
        let mut at = leaf + self.pairs.len();
        let mut winner = key;
        // Stopping where the winner stays pays only further up: near the leaf
        // it is a coin toss, which the branch predictor loses.
        let mut levels = 0;
        while at > 1 {
            let pair = &mut self.pairs[at >> 1];
            if levels > UNSURE_LEVELS && pair[at & 1] == winner {
                return;
            }
            pair[at & 1] = winner;
            winner = winner.earlier(pair[at & 1 ^ 1]);
            at >>= 1;
            levels += 1;
        }
        self.first = winner;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_root_is_always_the_earliest_leaf(
            clocks in 1usize..40,
            sets in prop::collection::vec((0usize..40, prop::option::of(0u64..100)), 1..200),
        ) {
            let mut tree = WinnerTree::new(clocks);
            let mut flat = vec![Key::NEVER; clocks];
            for (sequence, (leaf, time)) in sets.into_iter().enumerate() {
                let leaf = leaf % clocks;
                let key = time.map_or(Key::NEVER, |t| Key::new(t, sequence as u64, leaf as u32));
                tree.set(leaf, key);
                flat[leaf] = key;
                prop_assert_eq!(tree.first(), *flat.iter().min().unwrap());
            }
        }
    }
}
