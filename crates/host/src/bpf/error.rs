//! Why the kernel does not run our programs, and what to do about it.

use aya::programs::ProgramError;
use lull_measure::Missing;
use rustix::thread::CapabilitySet;
use std::error::Error;
use std::fmt;
use std::io;

/// Lines of the verifier's log that are shown: it gives its reason last.
const VERIFIER_LINES: usize = 6;

/// The reason why the kernel does not run our programs.
#[derive(Debug)]
pub struct BpfError {
    what: String,
    error: io::Error,
    /// The end of the verifier's log; empty if the verifier did not run.
    verifier: String,
}

impl BpfError {
    /// An error without a verifier's log.
    pub(super) fn new(what: impl Into<String>, error: io::Error) -> Self {
        Self { what: what.into(), error, verifier: String::new() }
    }

    /// Extracts the system call's error and the verifier's log from an error of `aya`.
    pub(super) fn from_aya(what: impl Into<String>, error: &(dyn Error + 'static)) -> Self {
        let causes = || std::iter::successors(Some(error), |&error| error.source());
        let code = |cause: &(dyn Error + 'static)| {
            cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)
        };
        let log = |cause: &(dyn Error + 'static)| match cause.downcast_ref() {
            Some(ProgramError::LoadError { verifier_log, .. }) => Some(verifier_log.to_string()),
            _ => None,
        };
        let other = || io::Error::other(error.to_string());
        Self {
            what: what.into(),
            error: causes().find_map(code).map_or_else(other, io::Error::from_raw_os_error),
            verifier: causes().find_map(log).map_or_else(String::new, |log| last_lines(&log)),
        }
    }

    /// The error code of the system call that failed.
    pub(super) fn raw_os_error(&self) -> Option<i32> {
        self.error.raw_os_error()
    }

    /// Whether this kernel lacks what the programs need.
    #[cfg(test)]
    pub(super) fn is_unsupported(&self) -> bool {
        self.error.kind() == io::ErrorKind::Unsupported
    }

    /// The likely cause and its remedy, where the error code indicates one.
    fn hint(&self) -> String {
        match self.error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if self.verifier.is_empty() => permission_hint(),
            Some(libc::ENOENT) => "this kernel has no such tracepoint".to_owned(),
            Some(libc::ENOSYS) => "this kernel was built without eBPF".to_owned(),
            Some(libc::EINVAL) if self.verifier.is_empty() => {
                "the kernel is too old; Linux 5.18 is the first that is known to work".to_owned()
            }
            _ if !self.verifier.is_empty() => format!("its verifier reports: {}", self.verifier),
            _ => String::new(),
        }
    }
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "eBPF: {}: {}", self.what, self.error)?;
        let hint = self.hint();
        if hint.is_empty() { Ok(()) } else { write!(f, "; {hint}") }
    }
}

impl Error for BpfError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl From<BpfError> for Missing {
    fn from(error: BpfError) -> Self {
        Self::because(error.to_string())
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.trim_end().lines().collect();
    lines[lines.len().saturating_sub(VERIFIER_LINES)..].join("; ")
}

/// Returns the likely cause of a refused permission: a missing capability, or else a mechanism
/// above capabilities.
fn permission_hint() -> String {
    let held = rustix::thread::capabilities(None)
        .map_or_else(|_| CapabilitySet::empty(), |sets| sets.effective);
    let needed = [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::PERFMON, "CAP_PERFMON")];
    let lacking: Vec<_> =
        needed.into_iter().filter(|(one, _)| !held.contains(*one)).map(|(_, name)| name).collect();
    if !lacking.is_empty() && !held.contains(CapabilitySet::SYS_ADMIN) {
        return format!("run as root or give {}", lacking.join(" and "));
    }
    let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        return "the kernel is locked down to keep its confidentiality".to_owned();
    }
    "the capabilities are present: a container's seccomp filter, its user namespace or a security \
     module forbids it"
        .to_owned()
}
