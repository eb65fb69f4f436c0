//! The apps of a run: started or found, and which threads they have now.
//!
//! Started apps end with the agent, however it ends: on a clean end it stops
//! them, after a kill its guard does. Attached apps continue.

mod activity;
mod assigned;
mod attach;
pub mod cgroup;
mod cgroup_namespace;
mod described;
mod forks;
mod globs;
mod handle;
mod identity;
mod launch;
mod member;
mod members;
mod own;
mod pattern;
mod ready;
mod search;
mod signal;
mod slot;
mod table;
mod template;
mod terminate;

pub use assigned::CgroupSlots;
pub use attach::{AttachError, Target, above_lull};
pub use cgroup_namespace::{CgroupNamespaceError, join_host_cgroups};
pub use forks::Forks;
pub use globs::{GlobError, check_glob};
pub use handle::{AppHandle, PauseError, stop};
pub use identity::{Facts, ProcessId};
pub(crate) use identity::{each_thread_of, threads_of};
pub use launch::{Launch, Output, SETTLE, StartError};
pub use members::AppProcesses;
pub use pattern::ProcessPattern;
pub(crate) use pattern::UserGlob;
pub use ready::{Endpoint, Ready};
pub use search::{PROCESSES_MAX, SearchError};
pub(crate) use signal::{handle, handle_of_reported, has_ended, signal};
pub use slot::ProcessSlots;
pub use table::ProcessTable;
pub use terminate::{Ended, GRACE, MARK_VARIABLE};
pub(crate) use terminate::{Group, StartedTree, mark_of, terminate};
