//! The bytes of a connection, in the clear or under TLS.
//!
//! TLS is by `rustls`, which does no I/O: it encrypts into a buffer, and the client's poller
//! decides when to write that. A program built without the feature `tls` has no TLS.

#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "transport/without_tls.rs"]
mod tls;

pub(crate) use tls::TlsClient;

use super::endpoint::Stream;
use rustix::fd::{AsFd, BorrowedFd};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tls::Session;

/// The TLS configuration: the trusted servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Certificates of authorities (PEM); if absent, the authorities of the system are trusted.
    pub ca: Option<PathBuf>,
    /// Whether any certificate is accepted.
    #[serde(rename = "insecure")]
    pub is_insecure: bool,
}

/// The error of TLS that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The program has no TLS.
    #[error("this program was built without TLS: build it with `--features tls`")]
    Absent,
    /// A file cannot be read, or has no certificate.
    #[error("cannot read the certificates of {}: {problem}", .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The problem of the file.
        problem: String,
    },
    /// No authority is known.
    #[error("this system has no list of authorities: give their certificates by --tls-ca FILE")]
    NoAuthorities,
    /// The name cannot be the name of a certificate.
    #[error("`{host}` is not a host name that a certificate can have")]
    Name {
        /// The host.
        host: String,
    },
}

/// A connected socket, and its TLS session if it has one.
#[derive(Debug)]
pub(crate) struct Transport {
    socket: Stream,
    session: Option<Box<Session>>,
}

impl Transport {
    /// Creates a connection in the clear.
    pub(crate) const fn new(socket: Stream) -> Self {
        Self { socket, session: None }
    }

    /// Encrypts everything from now on, behind bytes in the clear that were not written yet.
    pub(crate) fn begin_tls(&mut self, client: &TlsClient, clear: Vec<u8>) -> io::Result<()> {
        self.session = Some(Box::new(client.begin(clear)?));
        Ok(())
    }

    /// Takes bytes to be sent and returns how many. Under TLS it takes all, and [`Self::flush`]
    /// writes them.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.socket.send(bytes),
            Some(session) => session.encrypt(bytes),
        }
    }

    /// Writes what TLS has encrypted.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.session.as_mut().map_or(Ok(()), |session| session.flush(&self.socket))
    }

    /// Sends all bytes on a blocking socket.
    pub(crate) fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += uninterrupted(|| self.send(&bytes[sent..]))?;
        }
        uninterrupted(|| self.flush())
    }

    /// Receives bytes; none if the server has closed the connection.
    pub(crate) fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.socket.receive(bytes) };
        if let Some(count) = session.take(bytes)? {
            return Ok(count);
        }
        session.fill(&self.socket)?;
        session.take(bytes)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Receives bytes on a blocking socket; none if the server has closed the connection.
    pub(crate) fn wait_for_bytes(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.socket.receive(bytes) };
        loop {
            if let Some(count) = session.take(bytes)? {
                return Ok(count);
            }
            session.fill(&self.socket)?;
            // Part of a handshake requires a reply.
            uninterrupted(|| session.flush(&self.socket))?;
        }
    }

    /// Completes the handshake on a blocking socket.
    pub(crate) fn shake_hands(&mut self) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        uninterrupted(|| session.flush(&self.socket))?;
        while !session.is_open() {
            if uninterrupted(|| session.fill(&self.socket))? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            uninterrupted(|| session.flush(&self.socket))?;
        }
        Ok(())
    }

    /// Returns whether requests can be sent: no handshake is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.is_open())
    }

    /// Returns once, when the handshake of TLS is over, whether it resumed an earlier session.
    pub(crate) fn take_handshake(&mut self) -> Option<bool> {
        self.session.as_mut()?.take_handshake()
    }

    /// Returns whether bytes were received and decrypted that [`Self::receive`] has not returned.
    pub(crate) fn has_received(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_received())
    }

    /// Returns whether bytes wait for [`Self::flush`].
    pub(crate) fn has_output(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_output())
    }

    /// Sets how long a blocking read or write may take.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket.set_patience(patience)
    }
}

fn uninterrupted<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
