//! The process at the other end of a unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Returns a handle of the process that connected, which no later process of the same number
/// can have (`SO_PEERPIDFD`, man 7 unix). Linux 6.5.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5, `ESRCH` (`EINVAL` before Linux 6.17) if the process has
/// ended and was waited for.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `pidfd` and `length` are valid for writes during the call, and `length` is the
    // size of `pidfd`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut length,
        )
    };
    if result != 0 || pidfd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has opened this descriptor for this call, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// The process that connected, as of then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its number.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
}

/// Returns the process that connected (`SO_PEERCRED`, man 7 unix); `None` if it is in a process
/// namespace that this one does not see.
pub fn peer_credentials(socket: impl AsFd) -> Option<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` and `length` are valid for writes during the call, and `length` is the
    // size of `found`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    let libc::ucred { pid, uid, .. } = found;
    (result == 0 && pid > 0).then_some(PeerCredentials { pid, uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_is_known_by_number_and_user() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let found = peer_credentials(&ours).unwrap();
        assert_eq!(found.pid.cast_unsigned(), std::process::id());
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer_credentials(io::stdin()), None, "no unix socket");
    }

    #[test]
    fn a_peer_has_a_handle_of_its_own_or_the_kernel_has_none() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        match peer_pidfd(&ours) {
            Ok(handle) => {
                let mut end = [PollFd::new(&handle, PollFlags::IN)];
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                assert_eq!(poll(&mut end, Some(&at_once)).unwrap(), 0, "this process runs");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
    }
}
