//! The restore guard: old values saved durably, and restored whatever happens.
//!
//! ```text
//!   agent ── 1 record, fsync ──▶ ledger ◀── 3 read when the agent is gone ── guard
//!     └───── 2 write ──▶ knobs ◀── 4 safe state, saved state, 5 close ────────┘
//! ```
//!
//! Restoring survives every death: the agent restores on a clean end, the guard if the
//! agent dies; the agent starts a new guard if the guard dies; if both die, the next agent
//! (or `lull restore`) reads the ledger. An agent that is stopped or stuck is treated as a dead
//! one: it beats (`heartbeat.rs`), and the guard ends an agent that does not.

mod cpuset;
mod entry;
mod field;
mod heartbeat;
mod held;
mod ledger;
mod ledger_file;
mod lock;
mod original;
mod process;
mod reach;
mod recovery;
mod reread;
mod restoration;
mod restore;
mod state_dir;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use cpuset::{cores_of_process, online};
pub use field::{Field, FieldValue, ThreadWrite};
pub use heartbeat::Patience;
pub use ledger::{Ledger, LedgerError, Opened};
pub use lock::running_agent;
pub use original::{Key, Original};
pub use process::{GuardArgs, GuardEnd, GuardError, run};
pub use recovery::{Recovery, RecoveryAction, restore_stale};
#[doc(hidden)]
pub use reread::reread_lines;
pub use restoration::{Restoration, Restored};
pub use state_dir::StateDir;
pub use watch::{GuardCommand, GuardHandle, GuardState, spawn};
