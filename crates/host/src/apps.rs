//! The apps of a run: started or found, and which threads they have now.
//!
//! Started apps end with the agent, however it ends: on a clean end it stops
//! them, after a kill its guard does. Attached apps go on.

mod attach;
pub mod cgroup;
mod handle;
mod identity;
mod launch;
mod members;
mod ready;
mod signal;
mod table;
mod terminate;

pub use attach::{AttachError, Target};
pub use handle::{AppHandle, PauseError, stop};
pub(crate) use identity::threads_of;
pub use identity::{Facts, ProcessId};
pub use launch::{Launch, Output, SETTLE, StartError};
pub use members::{AppProcesses, Scope};
pub use ready::{Endpoint, Ready};
pub(crate) use signal::{handle, signal};
pub use table::ProcessTable;
pub use terminate::{Ended, GRACE, MARK_VARIABLE};
pub(crate) use terminate::{mark_of, terminate};
