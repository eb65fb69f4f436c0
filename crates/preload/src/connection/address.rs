//! The addresses of the two ends of a socket.

use lull_oncall::Peer;
use std::ffi::c_int;

/// The two ends of a socket.
pub(super) struct Ends {
    pub(super) peer: Peer,
    pub(super) local_port: u16,
    pub(super) is_unix: bool,
}

impl Ends {
    pub(super) fn of_socket(fd: c_int) -> Self {
        let (peer, is_unix) = address(fd, libc::getpeername);
        let (local, _) = address(fd, libc::getsockname);
        Self { peer, local_port: local.port, is_unix }
    }
}

type GetName = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// Returns one end's address, and whether it is a unix socket's.
fn address(fd: c_int, get_name: GetName) -> (Peer, bool) {
    // SAFETY: all zeros are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the storage may be written, and `length` is its size.
    unsafe { get_name(fd, (&raw mut storage).cast(), &raw mut length) };
    let family = c_int::from(storage.ss_family);
    let at = &raw const storage;
    let peer = match family {
        libc::AF_INET => {
            // SAFETY: the storage is large enough and aligned for every address, and
            // the family states that it holds one of this kind.
            let internet = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ipv4 = u32::from_be(internet.sin_addr.s_addr);
            Peer { ipv4, port: u16::from_be(internet.sin_port) }
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let internet = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            Peer { ipv4: 0, port: u16::from_be(internet.sin6_port) }
        }
        _ => Peer::default(),
    };
    (peer, family == libc::AF_UNIX)
}
