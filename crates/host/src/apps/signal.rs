//! Signals that reach the meant process or none.

use super::identity::ProcessId;
use crate::Roots;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;

/// A handle of a process that no later one of the same number can inherit.
///
/// # Errors
/// `ESRCH` if the process is gone, else the kernel's error.
pub(crate) fn handle(roots: &Roots, process: ProcessId) -> io::Result<OwnedFd> {
    let handle = open(process.pid)?;
    // The number still has its owner, so the handle opened before is its too.
    process.look(roots)?.ok_or(Errno::SRCH)?;
    Ok(handle)
}

/// The same for a process of a table that follows the kernel's reports: if its number has another
/// owner by now, that is reported, too, and the next look finds it. For what waits for its end.
///
/// # Errors
/// As [`handle`]; `ESRCH` also if all its threads have ended.
pub(crate) fn handle_of_reported(process: ProcessId) -> io::Result<OwnedFd> {
    let handle = open(process.pid)?;
    if has_ended(&handle) { Err(Errno::SRCH.into()) } else { Ok(handle) }
}

fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal to a process.
///
/// # Errors
/// `ESRCH` if the process is gone, `EPERM` if it is another user's.
pub(crate) fn signal(roots: &Roots, process: ProcessId, signal: Signal) -> io::Result<()> {
    Ok(pidfd_send_signal(handle(roots, process)?, signal)?)
}

/// Whether the process of a handle has ended; whether any has, of a descriptor of several.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut end = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut end, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_process_that_cannot_be_looked_up_is_not_taken_for_gone() {
        let (tree, own) = (Tree::new(), ProcessId::own(&Roots::default()).unwrap());
        // Each read of a file below it fails, and not because there is no such file.
        tree.write("proc", "");
        let refused = handle(&tree.roots(), own).unwrap_err();
        assert_ne!(refused.raw_os_error(), Some(libc::ESRCH), "{refused}");
    }
}
