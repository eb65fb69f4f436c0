//! How the kernel's knobs are read and written, without any notion of a run.
//!
//! Knobs use it to set and guards to put back, so that both speak to the
//! kernel in the same way.

pub mod cpufreq;
pub mod ethtool;
pub(crate) mod resctrl;
pub(crate) mod text;
pub(crate) mod texts;

pub use text::FileError;
