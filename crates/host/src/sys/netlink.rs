//! A generic netlink socket that carries the kernel's own words on a refusal.

use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::io;
use std::os::fd::AsRawFd;

/// `SOL_NETLINK` and two of its options (linux/netlink.h).
const SOL_NETLINK: libc::c_int = 270;
const NETLINK_CAP_ACK: libc::c_int = 10;
const NETLINK_EXT_ACK: libc::c_int = 11;
/// `NETLINK_GENERIC`.
const GENERIC: u32 = 16;
/// Longer than any answer that is requested here.
const ANSWER_BYTES: usize = 16 << 10;

/// A socket to the kernel's generic netlink families.
#[derive(Debug)]
pub struct GenericNetlink {
    socket: OwnedFd,
}

impl GenericNetlink {
    /// Opens a socket; needs no privilege.
    ///
    /// # Errors
    /// The kernel's error, as where netlink is filtered.
    pub fn open() -> io::Result<Self> {
        let protocol = rustix::net::Protocol::from_raw(
            rustix::net::RawProtocol::new(GENERIC).expect("16 is not 0"),
        );
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(protocol),
        )?;
        for option in [NETLINK_EXT_ACK, NETLINK_CAP_ACK] {
            // A kernel that does not know them says less on a refusal.
            let _ = enable(&socket, option);
        }
        Ok(Self { socket })
    }

    /// Sends one message and answers with the next datagram.
    ///
    /// # Errors
    /// The kernel's error to either.
    pub fn ask(&self, message: &[u8]) -> io::Result<Vec<u8>> {
        send(&self.socket, message, SendFlags::empty())?;
        self.next()
    }

    /// The next datagram.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn next(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0; ANSWER_BYTES];
        let (length, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(length);
        Ok(answer)
    }
}

fn enable(socket: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let value: *const libc::c_int = &raw const on;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes at `value`, which is that long.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), SOL_NETLINK, option, value.cast(), size) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
