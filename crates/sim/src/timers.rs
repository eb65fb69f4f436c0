//! One-shot timers: a heap of packed keys.
//!
//! Only think times that are not exponential, phase changes and the ends of
//! frequency transitions are timers; clocks that are re-timed are in the winner
//! tree. A radix heap is faster from about 1e5 pending timers on, but reading its
//! earliest key advances it, and here a station's event usually precedes the timer.

use crate::heap::MinHeap;
use crate::order::Key;

/// The purpose of a timer; with the index it makes a key's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimerPurpose {
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
    /// The earliest timer, cached for the comparison at every event.
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

    /// Removes the earliest timer.
    pub(crate) fn pop(&mut self) {
        let popped = self.heap.pop();
        debug_assert_eq!(popped.unwrap_or(Key::NEVER), self.first, "the cached timer is the first");
        self.first = self.heap.peek().unwrap_or(Key::NEVER);
    }

    /// Adds a timer.
    pub(crate) fn push(
        &mut self,
        time_ns: u64,
        sequence: u64,
        purpose: TimerPurpose,
        index: usize,
    ) {
        let owner = (purpose as u32) << INDEX_BITS | index as u32;
        let key = Key::new(time_ns, sequence, owner);
        self.first = self.first.min(key);
        self.heap.push(key);
    }
}

/// Returns the purpose of a timer's key, and the index of the app or lane.
pub(crate) fn owner_of(key: Key) -> (TimerPurpose, usize) {
    let index = (key.owner() & ((1 << INDEX_BITS) - 1)) as usize;
    let purpose = match key.owner() >> INDEX_BITS {
        0 => TimerPurpose::Think,
        1 => TimerPurpose::Phase,
        _ => TimerPurpose::Resume,
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
            timers.push(100, sequence, TimerPurpose::Think, index);
        }
        timers.push(50, 3, TimerPurpose::Resume, 9);
        let mut order = Vec::new();
        while timers.first() != Key::NEVER {
            order.push(owner_of(timers.first()));
            timers.pop();
        }
        let think = TimerPurpose::Think;
        assert_eq!(order, [(TimerPurpose::Resume, 9), (think, 7), (think, 3), (think, 5)]);
    }
}
