//! A count over time with its integral.

/// A count, such as the number of waiting threads, and its integral over time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TimeWeightedCount {
    value: u32,
    since_ns: u64,
    integral_ns: u128,
}

impl TimeWeightedCount {
    /// A count that begins with this value at time 0.
    pub(super) fn at_start(value: u32) -> Self {
        Self { value, ..Self::default() }
    }

    /// The count now.
    pub(super) fn value(&self) -> u32 {
        self.value
    }

    /// Sets the count.
    #[inline]
    pub(super) fn set(&mut self, now_ns: u64, value: u32) {
        debug_assert!(now_ns >= self.since_ns, "time never goes back");
        self.integral_ns = self.integral_at(now_ns);
        self.since_ns = now_ns;
        self.value = value;
    }

    /// Raises the level by one.
    #[inline]
    pub(super) fn increment(&mut self, now_ns: u64) {
        self.set(now_ns, self.value + 1);
    }

    /// Lowers the level by one.
    #[inline]
    pub(super) fn decrement(&mut self, now_ns: u64) {
        debug_assert!(self.value > 0, "a count is never negative");
        self.set(now_ns, self.value - 1);
    }

    /// Count times nanoseconds since the start.
    #[inline]
    pub(super) fn integral_at(&self, now_ns: u64) -> u128 {
        self.integral_ns + u128::from(now_ns - self.since_ns) * u128::from(self.value)
    }
}
