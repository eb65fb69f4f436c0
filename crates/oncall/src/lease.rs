//! A lease: one word that holds an owner and the time since which it holds something.
//!
//! Owner and time change in one atomic step. So a lease that has expired can be taken over
//! from an owner that is stuck or dead, and an owner that releases it late finds that it is
//! no longer its own.

use crate::sync::{AtomicU64, Ordering};

/// The bits of a word that hold the owner; the others hold the time.
const OWNER_BITS: u32 = 20;
const OWNER_MASK: u64 = (1 << OWNER_BITS) - 1;
/// Time is stored in units of 1.024 us: 44 bits hold 208 days.
const TIME_SHIFT: u32 = 10;
const TIME_MASK: u64 = (1 << (64 - OWNER_BITS)) - 1;
/// The clocks of two processors may differ a little. A time further ahead was not written by
/// this program, and counts as expired.
const AHEAD_MAX: u64 = (1 << 30) >> TIME_SHIFT;

/// Owners are numbered below this.
pub const OWNERS_MAX: u32 = (1 << OWNER_BITS) - 2;

/// A lease: free, or held by one owner since a time.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Lease(AtomicU64);

/// A value that was read from a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held(u64);

impl Held {
    fn new(owner: u32, now_ns: u64) -> Self {
        debug_assert!(owner < OWNERS_MAX, "owner {owner} does not fit a lease");
        Self((u64::from(owner.min(OWNERS_MAX)) + 1) | ((now_ns >> TIME_SHIFT) << OWNER_BITS))
    }

    pub(crate) const fn is_free(self) -> bool {
        self.0 & OWNER_MASK == 0
    }

    pub(crate) fn is_held_by(self, owner: u32) -> bool {
        self.0 & OWNER_MASK == u64::from(owner) + 1
    }

    /// Whether it is free, or held for `lease_ns` or longer.
    pub(crate) const fn is_over(self, now_ns: u64, lease_ns: u64) -> bool {
        if self.is_free() {
            return true;
        }
        let now = now_ns >> TIME_SHIFT;
        let age = now.wrapping_sub(self.0 >> OWNER_BITS) & TIME_MASK;
        let is_ahead = age > TIME_MASK / 2;
        let ahead = age.wrapping_neg() & TIME_MASK;
        if is_ahead { ahead > AHEAD_MAX } else { age >= lease_ns >> TIME_SHIFT }
    }
}

impl Lease {
    pub(crate) fn read(&self) -> Held {
        Held(self.0.load(Ordering::Acquire))
    }

    /// Takes it if it still has the value that was read. Returns the value then written.
    pub(crate) fn take(&self, from: Held, owner: u32, now_ns: u64) -> Option<Held> {
        let mine = Held::new(owner, now_ns);
        let taken = self.0.compare_exchange(from.0, mine.0, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok().then_some(mine)
    }

    /// Frees it if it still has the value that was read.
    pub(crate) fn free(&self, held: Held) -> bool {
        self.0.compare_exchange(held.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Frees it if `owner` still holds it.
    pub(crate) fn release(&self, owner: u32) -> bool {
        let held = self.read();
        held.is_held_by(owner) && self.free(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE_NS: u64 = 50_000_000;

    fn held(owner: u32, since_ns: u64) -> Held {
        let lease = Lease::default();
        lease.take(lease.read(), owner, since_ns).unwrap()
    }

    #[test]
    fn a_lease_expires_when_its_time_is_up_and_not_before() {
        let held = held(7, 1_000_000_000);
        assert!(!held.is_over(1_000_000_000 + LEASE_NS - 2048, LEASE_NS));
        assert!(held.is_over(1_000_000_000 + LEASE_NS + 2048, LEASE_NS));
    }

    #[test]
    fn a_clock_that_is_a_little_behind_does_not_end_a_lease() {
        assert!(!held(7, 1_000_000_000).is_over(999_000_000, LEASE_NS));
    }

    #[test]
    fn a_time_that_this_program_cannot_have_written_is_no_lease() {
        assert!(held(7, u64::MAX / 2).is_over(1_000_000_000, LEASE_NS));
    }

    #[test]
    fn a_late_owner_does_not_release_a_lease_that_is_no_longer_its_own() {
        let lease = Lease::default();
        lease.take(lease.read(), 1, 0).unwrap();
        lease.take(lease.read(), 2, LEASE_NS).unwrap();
        assert!(!lease.release(1));
        assert!(lease.read().is_held_by(2));
        assert!(lease.release(2));
        assert!(lease.read().is_free());
    }

    proptest! {
        #[test]
        fn every_word_expires(word: u64, now_ns in 0u64..1 << 62) {
            let word = Held(word);
            // No word holds a slot for longer than lease and skew.
            let much_later = now_ns.saturating_add(LEASE_NS + (1 << 31));
            prop_assert!(word.is_over(much_later, LEASE_NS) || word.is_over(now_ns, LEASE_NS));
            prop_assert!(!word.is_free() || word.is_over(now_ns, LEASE_NS));
        }
    }
}
