//! What only the kernel sees as it happens: programs that it runs at its own
//! tracepoints (eBPF), and what they count.
//!
//! ```text
//!   cpu_idle ──────────────▶ sleep ──▶ histogram of sleeps ─┐ one record a core,
//!   sched_wakeup ──────────▶ wake ──▶ who waits since when  │ read as memory
//!   sched_switch ──────────▶ switch ─▶ histogram of waits ──┘ at an epoch's end
//!   irq_handler_*, napi_poll, cpu_idle ──▶ a record an event ──▶ ring buffer
//!   sock_recv_length, sock_send_length ──▶ a server's queries (`queries.rs`)
//! ```
//!
//! The programs are a few dozen instructions each, written with
//! `assembler.rs` and loaded as they are: nothing is compiled on the way. But for
//! sockets, nothing of the kernel's types has to be known, since the arguments of
//! raw tracepoints are enough. The kernel checks each program before it runs it,
//! and stops running it when the process ends, however it ends.
//!
//! Needed are Linux 5.18 or later (the state of the thread that makes way is an
//! argument of `sched_switch` since then), `CAP_BPF` and `CAP_PERFMON`.

mod assembler;
mod buckets;
mod core_time;
mod interrupts;
mod kernel_types;
mod log_rows;
mod programs;
mod queries;
mod watch;

pub use buckets::{Beyond, Histogram};
pub use core_time::{CoreTime, Division, Opportunity};
pub use interrupts::{Event, InterruptLog, Kind};
pub use log_rows::{LogRows, Row};
pub use queries::{QueriesSeen, QueryWatch};
pub use watch::{CoreSeen, Seen, Watch};

use crate::sys::bpf::{self, Instruction, Point};
use lull_measure::Missing;
use rustix::thread::CapabilitySet;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

/// Why the kernel does not run our programs.
#[derive(Debug)]
pub struct BpfError {
    what: String,
    error: io::Error,
    /// What its verifier said.
    verifier: String,
}

impl BpfError {
    fn new(what: impl Into<String>, error: io::Error) -> Self {
        Self { what: what.into(), error, verifier: String::new() }
    }

    /// What stands in the way, where the kernel's answer lets it be guessed.
    fn hint(&self) -> String {
        match self.error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if self.verifier.is_empty() => forbidden(),
            Some(libc::ENOENT) => "this kernel has no such tracepoint".to_owned(),
            Some(libc::ENOSYS) => "this kernel was built without eBPF".to_owned(),
            Some(libc::EINVAL) if self.verifier.is_empty() => {
                "the kernel is too old; Linux 5.18 is the first that is known to do".to_owned()
            }
            _ if !self.verifier.is_empty() => format!("its verifier says: {}", self.verifier),
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

impl std::error::Error for BpfError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<BpfError> for Missing {
    fn from(error: BpfError) -> Self {
        Self::because(error.to_string())
    }
}

/// Who forbids: a missing capability, or else somebody above capabilities.
fn forbidden() -> String {
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
    "the capabilities are there: a container's seccomp filter, its user namespace or a security \
     module forbids it"
        .to_owned()
}

/// A program at its tracepoint, while this lives.
#[derive(Debug)]
struct Attached {
    program: OwnedFd,
    _link: OwnedFd,
}

impl Attached {
    fn new(name: &str, code: &[Instruction], tracepoint: &CStr) -> Result<Self, BpfError> {
        let program = load(name, code, Point::Raw)?;
        let link = bpf::attach(&program, tracepoint);
        let what = || format!("cannot watch {}", tracepoint.to_string_lossy());
        let link = link.map_err(|error| BpfError::new(what(), error))?;
        Ok(Self { program, _link: link })
    }

    /// At the tracepoint whose type in the kernel has this number.
    fn typed(name: &str, code: &[Instruction], type_id: u32) -> Result<Self, BpfError> {
        let program = load(name, code, Point::Typed(type_id))?;
        let link = bpf::attach_typed(&program);
        let what = || format!("the kernel does not attach the program {name}");
        let link = link.map_err(|error| BpfError::new(what(), error))?;
        Ok(Self { program, _link: link })
    }

    fn id(&self) -> io::Result<u32> {
        bpf::id(&self.program)
    }
}

fn load(name: &str, code: &[Instruction], point: Point) -> Result<OwnedFd, BpfError> {
    bpf::load(name, code, point).map_err(|refused| BpfError {
        what: format!("the kernel does not take the program {name}"),
        error: refused.error,
        verifier: refused.verifier,
    })
}

fn map(made: io::Result<OwnedFd>) -> Result<OwnedFd, BpfError> {
    made.map_err(|error| BpfError::new("the kernel gives no memory for programs", error))
}

#[cfg(test)]
mod tests;
