//! What one interrupt brought: the per-interrupt log of the authors' `intlog`.

use lull_measure::Nanos;
use serde::Serialize;

/// One interrupt of one vector, with what happened since the one before.
///
/// The authors' log also has instructions and cache misses of the core's
/// counters; the simulator has no such thing and leaves them out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Interrupt {
    /// When the handler began.
    pub time: Nanos,
    /// Frames received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Cycles of the core.
    pub cycles: f64,
    /// Time in each idle state.
    pub idle: Vec<Nanos>,
    /// The ITR delay that this interrupt starts.
    pub delay: Nanos,
}

/// The interrupts of a core, up to a bound.
#[derive(Debug, Clone)]
pub(super) struct Log {
    entries: Vec<Interrupt>,
    most: usize,
}

impl Log {
    /// Keeps at most so many.
    pub(super) fn new(most: usize) -> Self {
        Self { entries: Vec::new(), most }
    }

    pub(super) fn push(&mut self, entry: Interrupt) {
        if self.entries.len() < self.most {
            self.entries.push(entry);
        }
    }

    pub(super) fn entries(&self) -> &[Interrupt] {
        &self.entries
    }
}
