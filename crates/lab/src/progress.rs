//! Progress of a long computation: reported to a callback, which may also stop it, and kept in
//! a store of finished cells.

use crate::cells::CellStore;
use lull_measure::Nanos;
use lull_sim::stats::Failure;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Parts of a replication, between which the caller may stop it.
const PARTS: u64 = 256;

/// Returns the ends of the parts of a span that begins at an instant.
pub(crate) fn parts(from: Nanos, span: Nanos) -> impl Iterator<Item = Nanos> {
    let end = move |part| Nanos(span.0 / PARTS * part + span.0 % PARTS * part / PARTS);
    (1..=PARTS).map(move |part| from.saturating_add(end(part)))
}

/// Counts finished and expected parts, and calls a function at each change.
pub struct Progress<'a> {
    expected: AtomicU64,
    done: AtomicU64,
    notify: Box<dyn Fn(u64, u64) + Sync + 'a>,
    stop: Option<&'a AtomicBool>,
    store: Option<&'a dyn CellStore>,
}

impl<'a> Progress<'a> {
    /// Calls `notify` with the finished and the expected parts at each change.
    pub fn new(notify: impl Fn(u64, u64) + Sync + 'a) -> Self {
        let zero = || AtomicU64::new(0);
        Self { expected: zero(), done: zero(), notify: Box::new(notify), stop: None, store: None }
    }

    /// Stops the computation soon after another thread has set `stop`.
    #[must_use]
    pub fn until(self, stop: &'a AtomicBool) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Keeps the finished cells of a comparison in a store, and takes those that it has.
    #[must_use]
    pub fn keeping(self, store: &'a dyn CellStore) -> Self {
        Self { store: Some(store), ..self }
    }

    pub(crate) fn store(&self) -> Option<&'a dyn CellStore> {
        self.store
    }

    /// Whether the computation may continue.
    ///
    /// # Errors
    /// [`Failure::Cancelled`] if the caller has stopped it.
    pub fn check(&self) -> Result<(), Failure> {
        let is_stopped = self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        if is_stopped { Err(Failure::Cancelled) } else { Ok(()) }
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
