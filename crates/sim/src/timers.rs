//! One-shot timers: a heap of packed keys.
//!
//! Few things need it (think times that are not exponential, phase changes,
//! the end of a frequency transition): whatever is re-timed lives in the
//! winner tree. A radix heap would be quicker from some 1e5 pending timers on,
//! but it cannot tell its earliest key without committing to it, and here a
//! station's event usually comes first.

use crate::heap::MinHeap;
use crate::order::Key;

/// What a timer is for; with the index it makes a key's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A client of this app stops thinking.
    Think,
    /// This app's schedule moves to its next phase.
    Phase,
    /// This lane's frequency transition is over.
    Resume,
}

/// Bits of the index below the purpose.
const INDEX_BITS: u32 = 20;

/// The pending timers.
#[derive(Debug, Clone)]
pub(crate) struct Timers {
    heap: MinHeap<Key>,
    /// The earliest, at hand for the comparison at every event.
    first: Key,
}

impl Timers {
    /// No timers.
    pub(crate) fn new() -> Self {
        Self { heap: MinHeap::new(), first: Key::NEVER }
    }

    /// The earliest timer, or [`Key::NEVER`].
    #[inline(always)]
    pub(crate) fn first(&self) -> Key {
        self.first
    }

    /// Takes out the earliest timer.
    pub(crate) fn pop(&mut self) {
        self.heap.pop();
        self.first = self.heap.peek().unwrap_or(Key::NEVER);
    }

    /// Adds a timer.
    pub(crate) fn push(&mut self, time_ns: u64, sequence: u64, purpose: Purpose, index: usize) {
        let owner = (purpose as u32) << INDEX_BITS | index as u32;
        let key = Key::new(time_ns, sequence, owner);
        self.first = self.first.min(key);
        self.heap.push(key);
    }
}

/// What a timer's key is for, and the index of the app or lane.
pub(crate) fn owner_of(key: Key) -> (Purpose, usize) {
    let index = (key.owner() & ((1 << INDEX_BITS) - 1)) as usize;
    let purpose = match key.owner() >> INDEX_BITS {
        0 => Purpose::Think,
        1 => Purpose::Phase,
        _ => Purpose::Resume,
    };
    (purpose, index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_timers_fire_in_the_order_in_which_they_were_set() {
        let mut timers = Timers::new();
        for (sequence, index) in [(0, 7), (1, 3), (2, 5)] {
            timers.push(100, sequence, Purpose::Think, index);
        }
        timers.push(50, 3, Purpose::Resume, 9);
        let mut order = Vec::new();
        while timers.first() != Key::NEVER {
            order.push(owner_of(timers.first()));
            timers.pop();
        }
        let think = Purpose::Think;
        assert_eq!(order, [(Purpose::Resume, 9), (think, 7), (think, 3), (think, 5)]);
    }
}
