//! The addresses of the two ends of a socket.

use lull_oncall::Peer;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The two ends of a socket.
pub(crate) struct Ends {
    pub(super) peer: Peer,
    /// The client's address, if it has one.
    pub(crate) address: Option<IpAddr>,
    pub(crate) local_port: u16,
    pub(crate) is_unix: bool,
}

impl Ends {
    pub(crate) fn of_socket(fd: c_int) -> Self {
        let End { address, port, is_unix } = End::of_socket(fd, libc::getpeername);
        let local = End::of_socket(fd, libc::getsockname);
        // A server that listens on `::` has IPv4 clients whose addresses are mapped.
        let ipv4 = match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => address.to_bits(),
            _ => 0,
        };
        Self { peer: Peer { ipv4, port }, address, local_port: local.port, is_unix }
    }
}

type GetName = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// One end of a socket.
struct End {
    address: Option<IpAddr>,
    port: u16,
    is_unix: bool,
}

impl End {
    fn of_socket(fd: c_int, get_name: GetName) -> Self {
        // SAFETY: all zeros are a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: the storage may be written, and `length` is its size.
        unsafe { get_name(fd, (&raw mut storage).cast(), &raw mut length) };
        let at = &raw const storage;
        let (address, port) = match c_int::from(storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the storage is large enough and aligned for every address, and
                // the family states that it holds one of this kind.
                let internet = unsafe { &*at.cast::<libc::sockaddr_in>() };
                let address = Ipv4Addr::from_bits(u32::from_be(internet.sin_addr.s_addr));
                (Some(address.into()), u16::from_be(internet.sin_port))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let internet = unsafe { &*at.cast::<libc::sockaddr_in6>() };
                let address = Ipv6Addr::from(internet.sin6_addr.s6_addr);
                (Some(address.into()), u16::from_be(internet.sin6_port))
            }
            _ => (None, 0),
        };
        let is_unix = c_int::from(storage.ss_family) == libc::AF_UNIX;
        Self { address, port, is_unix }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn an_ipv4_client_of_a_server_on_ipv6_has_its_ipv4_address() {
        // A machine without IPv6 has no such server.
        let Ok(server) = TcpListener::bind("[::]:0") else { return };
        let port = server.local_addr().unwrap().port();
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (accepted, _) = server.accept().unwrap();
        let ends = Ends::of_socket(accepted.as_raw_fd());
        assert_eq!((ends.peer.ipv4, ends.local_port), (0x7f00_0001, port));
        assert!(ends.address.is_some() && !ends.is_unix);
    }
}
