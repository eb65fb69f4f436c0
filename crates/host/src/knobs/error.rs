//! Why a knob could not be set, and what would help.

use crate::drivers::FileError;
use crate::drivers::ethtool::EthtoolError;
use crate::drivers::systemd::SystemdError;
use crate::guard::LedgerError;
use std::io;

/// Why a knob could not be set. Nothing was changed, or it was restored; the ledger has what could
/// not be restored.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// The old values are not safe, so nothing may be written.
    #[error(transparent)]
    Unsaved(#[from] LedgerError),
    /// A file of the kernel could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Interrupt coalescing could not be read or set.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// systemd did not set a limit of a unit.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The kernel refused.
    #[error("cannot set {what}: {source}{}", remedy(.source, .is_privileged))]
    Refused {
        /// The knob and whose it is: `cores of thread 4711`.
        what: String,
        /// The error of the kernel.
        source: io::Error,
        /// Whether this process holds `CAP_SYS_NICE`.
        is_privileged: bool,
    },
    /// A thread cannot be looked up, so its number may be another thread's.
    #[error("cannot set {what}, which cannot be looked up: {source}{}", more_files(.source))]
    NoLookUp {
        /// The knob and whose it is.
        what: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Reading back returns another value than was written.
    #[error("{what} was set to {wanted} and reads back as {found}: another program may set it")]
    NotKept {
        /// The knob and whose it is.
        what: String,
        /// The requested value.
        wanted: String,
        /// The present value.
        found: String,
    },
    /// The change could not be undone, so it is not made.
    #[error(
        "{what} could be set but not restored: the process may not lower its nice value to {nice}; \
         run as root, give CAP_SYS_NICE, or raise its RLIMIT_NICE to {limit}"
    )]
    NoWayBack {
        /// The knob and its owner.
        what: String,
        /// The nice value to return to.
        nice: i32,
        /// The limit that would allow it.
        limit: i32,
    },
    /// The value makes no sense on this machine.
    #[error("{0}")]
    Nonsense(String),
}

/// Returns what a user can do about the kernel's error.
fn remedy(error: &io::Error, is_privileged: &bool) -> &'static str {
    match (error.raw_os_error(), is_privileged) {
        (Some(libc::EPERM | libc::EACCES), false) => {
            "; run as root, or give CAP_SYS_NICE (setcap cap_sys_nice+ep)"
        }
        (Some(libc::EPERM), true) => {
            "; with CAP_SYS_NICE held, a container forbids it or the cgroup has no real-time \
             budget (cpu.rt_runtime_us)"
        }
        (Some(libc::EINVAL), _) => "; no requested core is both online and in the app's cpuset",
        (Some(libc::EROFS), _) => "; /proc/sys is mounted read-only here",
        _ => "",
    }
}

/// Returns what a user can do where no more files can be opened.
fn more_files(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            "; Lull needs more open files: raise `ulimit -n`, or LimitNOFILE= of its unit"
        }
        Some(libc::ENFILE) => "; the machine needs more open files: raise fs.file-max",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_would_help() {
        let text = |code, is_privileged| {
            let source = io::Error::from_raw_os_error(code);
            let what = "cores of thread 7".to_owned();
            KnobError::Refused { what, source, is_privileged }.to_string()
        };
        assert!(text(libc::EPERM, false).contains("give CAP_SYS_NICE"));
        assert!(text(libc::EPERM, true).contains("cpu.rt_runtime_us"));
        assert!(text(libc::EINVAL, true).contains("cpuset"));
        assert!(text(libc::EPERM, false).starts_with("cannot set cores of thread 7: "));
        let what = "cores of thread 7".to_owned();
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        let text = KnobError::NoLookUp { what, source }.to_string();
        assert!(text.contains("looked up: Too many open files") && text.contains("ulimit -n"));
    }
}
