//! Types of a core: its configuration, its requests and its sums.

use super::model::{AppModel, NicModel, Stack};
use crate::idle::{IdleState, IdleTotals};
use crate::vector::VectorTotals;

/// Configuration that all cores share.
#[derive(Debug, Clone)]
pub(super) struct CoreConfig {
    pub(super) stack: Stack,
    pub(super) nic: NicModel,
    pub(super) app: AppModel,
    pub(super) idle: Vec<IdleState>,
}

/// A request on its way through the core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// When it reached the card.
    pub(super) arrived_ns: u64,
    /// Its work, relative to the mean.
    pub(super) work: f64,
}

/// Sums of a core since its start.
#[derive(Debug, Clone)]
pub(super) struct CoreSums {
    pub(super) card: VectorTotals,
    pub(super) cycles: f64,
    pub(super) busy_ns: u64,
    pub(super) arrived: u64,
    pub(super) answered: u64,
    pub(super) wakeups: u64,
    pub(super) idle: IdleTotals,
}

impl CoreSums {
    /// Nothing yet, on a core with this many idle states.
    pub(super) fn new(states: usize) -> Self {
        Self {
            card: VectorTotals::default(),
            cycles: 0.0,
            busy_ns: 0,
            arrived: 0,
            answered: 0,
            wakeups: 0,
            idle: IdleTotals::new(states),
        }
    }
}
