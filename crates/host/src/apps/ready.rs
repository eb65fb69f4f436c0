//! When a started app counts as running: it answers at its endpoint, or it
//! has not exited for a while.

use crate::plant::Stop;
use rustix::io::Errno;
use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where an app accepts connections once it is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `host:port`.
    Tcp(String),
    /// A unix stream socket.
    Unix(PathBuf),
}

/// How to tell that an app is ready.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Where it accepts connections then.
    pub endpoint: Endpoint,
    /// How long it may take.
    pub timeout: Duration,
    /// Ends the wait.
    pub stop: Option<Stop>,
}

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Ready {
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::is_requested)
    }
}

impl Endpoint {
    /// Whether a process accepts connections there now.
    pub fn accepts(&self) -> bool {
        match self {
            Self::Tcp(address) => address.to_socket_addrs().is_ok_and(|mut addresses| {
                addresses
                    .any(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
            }),
            // A full backlog shows that a process listens.
            Self::Unix(path) => match UnixStream::connect(path) {
                Ok(_) => true,
                Err(error) => error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_listener_accepts_and_its_address_alone_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
        assert!(endpoint.accepts());
        drop(listener);
        // A child of another test may hold the listener until it executes its program.
        while endpoint.accepts() {
            std::thread::yield_now();
        }
        assert!(!Endpoint::Tcp("no port".to_owned()).accepts());

        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        assert!(Endpoint::Unix(path.clone()).accepts());
        drop(listener);
        assert!(path.exists());
        while Endpoint::Unix(path.clone()).accepts() {
            std::thread::yield_now();
        }
    }
}
