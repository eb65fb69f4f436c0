//! Which process has connected.
//!
//! Where the kernel has it (Linux 6.5), a pidfd of the process that called `connect` proves that
//! the number and start time read here are those of that process, however long ago it connected.
//! Before, a process that has ended since the connection was made, and whose number another
//! process has by now, would be taken for that other one; it must not have started after the
//! connection was accepted, and must be of the user who has connected.

use super::newcomer::Connection;
use super::refuse;
use crate::Roots;
use crate::apps::{ProcessId, handle, has_ended};
use crate::clock::read as now;
use crate::sys::peer::peer_pidfd;
use lull_measure::Nanos;
use lull_measure::register::{Reason, Refusal};
use rustix::time::ClockId;
use std::io;
use std::os::fd::OwnedFd;

/// The process that has connected.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) process: ProcessId,
    /// A handle of it.
    pub(super) handle: OwnedFd,
}

/// Finds the process that has connected.
///
/// # Errors
/// If it has ended, or may be another process of the same number.
pub(super) fn identify(connection: &Connection, roots: &Roots) -> Result<Peer, Refusal> {
    let ended = |_: io::Error| Refusal {
        reason: Reason::Process,
        message: "the process that has connected has ended".to_owned(),
    };
    let process = ProcessId::lookup(roots, connection.pid()).map_err(ended)?;
    match peer_pidfd(connection.stream()) {
        Ok(handle) if has_ended(&handle) => {
            refuse(Reason::Process, "the process that has connected has ended")
        }
        // The process runs now, after the look-up, so the number was its own at that time.
        Ok(handle) => Ok(Peer { process, handle }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            by_start_time(process, connection, roots)
        }
        Err(error) => Err(ended(error)),
    }
}

/// Opens a handle by number, if the process is older than the connection and of its user.
fn by_start_time(
    process: ProcessId,
    connection: &Connection,
    roots: &Roots,
) -> Result<Peer, Refusal> {
    let age = now(ClockId::Monotonic).saturating_sub(connection.since);
    let accepted = now(ClockId::Boottime).saturating_sub(age);
    if started(process) > accepted {
        return refuse(Reason::Process, "the process that has connected has ended");
    }
    let handle = handle(roots, process).map_err(|error| Refusal {
        reason: Reason::Process,
        message: format!("the process cannot be followed: {error}"),
    })?;
    if user_of(roots, process) != Some(connection.uid()) {
        let message = "the process that has connected has ended, or has changed its user";
        return refuse(Reason::Process, message);
    }
    Ok(Peer { process, handle })
}

/// The effective user of a process.
fn user_of(roots: &Roots, process: ProcessId) -> Option<u32> {
    // The status is read rather than the owner of the directory, which is root if the process
    // denies others to read it.
    let status = std::fs::read_to_string(roots.proc.join(format!("{}/status", process.pid)));
    let status = status.ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// When a process started, since boot, to a clock tick.
fn started(process: ProcessId) -> Nanos {
    let ticks_per_s = rustix::param::clock_ticks_per_second().max(1);
    Nanos(process.start_ticks.saturating_mul(1_000_000_000 / ticks_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn without_a_handle_from_the_kernel_a_process_younger_than_its_connection_is_refused() {
        let roots = Roots::default();
        let own = ProcessId::own(&roots).unwrap();
        let accepted = |since| {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let connection = Connection::new(ours, since).unwrap();
            by_start_time(own, &connection, &roots)
        };
        assert_eq!(accepted(now(ClockId::Monotonic)).unwrap().process, own);
        let refusal = accepted(Nanos::ZERO).unwrap_err();
        assert_eq!(refusal.reason, Reason::Process);
    }

    #[test]
    fn the_user_of_a_process_is_its_effective_one() {
        let roots = Roots::default();
        let own = ProcessId::own(&roots).unwrap();
        assert_eq!(user_of(&roots, own), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(user_of(&roots, ProcessId { pid: -1, ..own }), None);
    }
}
