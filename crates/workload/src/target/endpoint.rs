//! Endpoints of servers, and connections to them.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, ipproto,
    recv, send, socket_with, sockopt,
};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// The endpoint at which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// A stream socket of either family. Writing to a closed one returns an error and raises no signal.
#[derive(Debug)]
pub(crate) struct Stream(OwnedFd);

impl Endpoint {
    /// Connects, and waits until the connection is open; later reads and writes fail after
    /// `patience`.
    pub(crate) fn connect(&self, patience: Duration) -> io::Result<Stream> {
        let stream = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, Duration::from_secs(5))?;
                stream.set_nodelay(true)?;
                Stream(stream.into())
            }
            Self::Unix(_) => self.begin_connecting(SocketFlags::CLOEXEC)?,
        };
        stream.set_patience(patience)?;
        Ok(stream)
    }

    /// Begins to connect without waiting. A unix socket is connected at once, or refuses with
    /// `EAGAIN` while the server's queue is full.
    pub(crate) fn begin(&self) -> rustix::io::Result<Stream> {
        self.begin_connecting(SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
    }

    fn begin_connecting(&self, flags: SocketFlags) -> rustix::io::Result<Stream> {
        let (family, protocol) = match self {
            Self::Tcp(address) if address.is_ipv4() => (AddressFamily::INET, Some(ipproto::TCP)),
            Self::Tcp(_) => (AddressFamily::INET6, Some(ipproto::TCP)),
            Self::Unix(_) => (AddressFamily::UNIX, None),
        };
        let socket = socket_with(family, SocketType::STREAM, flags, protocol)?;
        let begun = match self {
            Self::Tcp(address) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                connect(&socket, address)
            }
            Self::Unix(path) => connect(&socket, &SocketAddrUnix::new(path.as_path())?),
        };
        match begun {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Stream(socket)),
            Err(error) => Err(error),
        }
    }
}

impl Stream {
    /// Sets how long a blocking read or write may take.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(self, timeout, Some(patience))?;
        }
        Ok(())
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    pub(crate) fn receive(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (count, _) = recv(&self.0, bytes, RecvFlags::empty())?;
        Ok(count)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl serde::Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
