//! The apps of a run: started or found, and which threads they have now.
//!
//! Started apps end with the agent, however it ends: on a clean end it stops
//! them, after a kill its guard does. Attached apps go on.

pub mod cgroup;
mod identity;
mod members;
mod signal;
mod table;
mod terminate;

pub(crate) use identity::threads_of;
pub use identity::{Facts, ProcessId};
pub use members::{AppProcesses, Scope};
pub(crate) use signal::{handle, signal};
pub use table::ProcessTable;
pub use terminate::{Ended, GRACE, MARK_VARIABLE};
pub(crate) use terminate::{mark_of, terminate};
