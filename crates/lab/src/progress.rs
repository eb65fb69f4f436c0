//! Progress of a long computation, reported to a callback.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts finished and expected parts, and calls a function at each change.
pub struct Progress<'a> {
    expected: AtomicU64,
    done: AtomicU64,
    notify: Box<dyn Fn(u64, u64) + Sync + 'a>,
}

impl<'a> Progress<'a> {
    /// Calls `notify` with the finished and the expected parts at each change.
    pub fn new(notify: impl Fn(u64, u64) + Sync + 'a) -> Self {
        let zero = || AtomicU64::new(0);
        Self { expected: zero(), done: zero(), notify: Box::new(notify) }
    }

    /// Reports to no function.
    pub fn silent() -> Self {
        Self::new(|_, _| {})
    }

    /// Adds to the expected parts.
    pub fn expect(&self, parts: u64) {
        self.expected.fetch_add(parts, Ordering::Relaxed);
        self.report();
    }

    /// Counts one finished part.
    pub fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.report();
    }

    fn report(&self) {
        (self.notify)(self.done.load(Ordering::Relaxed), self.expected.load(Ordering::Relaxed));
    }
}
