//! What can be set, one file each: get, set, verify by reading back, restore.
//!
//! Before the first write the old values are durable in the guard's ledger.
//! Restoring is the ledger's own: it knows every thread's value, also if this
//! process does not live to ask for it.

mod coalescing;
mod cores;
mod error;
mod frequency;
pub mod hold;
mod partitions;
mod scheduling;
mod threads;
mod throttle;

pub(crate) use coalescing::{Changed, Nics};
pub(crate) use cores::{Affinity, cores};
pub use error::KnobError;
pub(crate) use frequency::{Came, Foreign, Frequencies};
pub(crate) use partitions::{Partitions, Share, Taken};
pub(crate) use scheduling::{check as check_scheduling, scheduling};
pub(crate) use threads::{Change, Means, ThreadKnob, ThreadValue, Threads};
pub(crate) use throttle::Throttle;

use crate::guard::{Key, Ledger, LedgerError, Original};
use crate::threads::LiveThread;

/// Where old values are saved before the first write.
pub(crate) trait SaveOld {
    /// Saves how threads are scheduled now; those known already are skipped.
    fn threads(&mut self, threads: &[LiveThread]) -> Result<(), LedgerError>;
    /// Saves other values together; those known already are skipped.
    fn values(&mut self, originals: &[Original]) -> Result<(), LedgerError>;
}

impl SaveOld for Ledger {
    fn threads(&mut self, threads: &[LiveThread]) -> Result<(), LedgerError> {
        self.record_threads(threads)
    }

    fn values(&mut self, originals: &[Original]) -> Result<(), LedgerError> {
        self.record(originals)
    }
}

/// The ledger's name of how a thread is scheduled.
pub(crate) fn key_of(thread: LiveThread) -> Key {
    Key::Thread(thread.tid, thread.start_ticks)
}
