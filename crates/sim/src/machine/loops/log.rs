//! The log of interrupts, as the `intlog` of the BayOp paper's authors has it.

use lull_measure::Nanos;
use serde::Serialize;

/// One interrupt of one vector, with the events since the one before.
///
/// The authors' log also has instructions and cache misses of the core's counters; the simulator
/// has no such thing and leaves them out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InterruptRecord {
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
