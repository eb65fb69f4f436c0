//! How the kernel's knobs are read and written, without any notion of a run.
//!
//! Knobs use it to set and guards to put back, so that both speak to the
//! kernel in the same way.

pub mod cgroup;
pub mod cpufreq;
pub(crate) mod cpuidle;
pub mod ethtool;
pub(crate) mod resctrl;
pub mod systemd;
pub(crate) mod text;
pub(crate) mod texts;

pub use text::FileError;

/// The outcome of restoring a value that other programs may have set since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PutBack {
    /// The value was restored.
    Done,
    /// The value was in force already.
    Already,
    /// The owner of the value is gone.
    Gone,
    /// Another program has set the value since.
    Left {
        /// The present value.
        found: String,
    },
}
