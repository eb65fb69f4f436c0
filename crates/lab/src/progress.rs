//! How far a long computation is, told to whoever wants to show it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count of parts done of parts expected, told at each change.
pub struct Progress<'a> {
    expected: AtomicU64,
    done: AtomicU64,
    tell: Box<dyn Fn(u64, u64) + Sync + 'a>,
}

impl<'a> Progress<'a> {
    /// Tells parts done and parts expected.
    pub fn new(tell: impl Fn(u64, u64) + Sync + 'a) -> Self {
        let zero = || AtomicU64::new(0);
        Self { expected: zero(), done: zero(), tell: Box::new(tell) }
    }

    /// Tells nobody.
    pub fn silent() -> Self {
        Self::new(|_, _| {})
    }

    /// Expects so many parts more.
    pub fn expect(&self, parts: u64) {
        self.expected.fetch_add(parts, Ordering::Relaxed);
        self.report();
    }

    /// One part is done.
    pub fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.report();
    }

    fn report(&self) {
        (self.tell)(self.done.load(Ordering::Relaxed), self.expected.load(Ordering::Relaxed));
    }
}
