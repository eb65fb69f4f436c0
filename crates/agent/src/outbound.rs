//! Connections to other machines: one deadline for each request as a whole, TLS, the proof of
//! identity.
//!
//! Nothing that comes back is understood here, but for the records of TLS.

#[cfg(test)]
#[cfg(feature = "tls")]
pub(crate) mod certificates;
#[cfg(feature = "tls")]
mod tls;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
#[cfg(feature = "tls")]
use tls::Tls;

/// Longest token, in bytes.
const TOKEN_MAX: u64 = 16 * 1024;
/// The end of an error about an `https` address in a program without TLS.
pub(crate) const WITHOUT_TLS: &str = "is encrypted (TLS), which this program was built without: \
                                      use Lull's package, or build it with --features tls";

/// How an agent proves its identity to a server, and recognises the server. The files are read
/// again when they change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// Certificates of the authorities that are trusted, PEM; the system's if absent.
    pub(crate) ca: Option<PathBuf>,
    /// The agent's own certificate and its key, PEM.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// A file with a bearer token.
    pub(crate) token: Option<PathBuf>,
}

/// Where a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) is_encrypted: bool,
}

/// Opens connections to one server.
pub(crate) struct Outbound {
    access: Access,
    #[cfg(feature = "tls")]
    tls: Tls,
}

/// A connection to a server.
pub(crate) trait Connection: Read + Write {}

impl<T: Read + Write> Connection for T {}

/// A connection each of whose reads and writes ends with the deadline of the whole request, however
/// many of them a record of TLS takes.
#[derive(Debug)]
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

/// The time that is left until a deadline; an error once it has passed.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket reports a timeout as if it did not block.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.deadline)?))?;
        self.stream.read(bytes).map_err(as_timeout)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(time_left(self.deadline)?))?;
        self.stream.write(bytes).map_err(as_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Outbound {
    pub(crate) fn new(access: Access) -> Self {
        Self {
            access,
            #[cfg(feature = "tls")]
            tls: Tls::default(),
        }
    }

    /// Returns the header with the token, if there is one. It is read each time, since tokens of
    /// Kubernetes change every hour.
    pub(crate) fn authorization(&self) -> io::Result<String> {
        let Some(path) = &self.access.token else { return Ok(String::new()) };
        Ok(format!("Authorization: Bearer {}\r\n", read_token(path)?))
    }

    /// Connects to a server, which must answer before the deadline.
    pub(crate) fn connect(
        &mut self,
        to: Endpoint<'_>,
        deadline: Instant,
    ) -> io::Result<Box<dyn Connection>> {
        let mut failed = io::Error::other("the name has no address");
        for address in (to.host, to.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, time_left(deadline)?) {
                Ok(stream) => return self.wrap(Timed { stream, deadline }, to),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    #[cfg(feature = "tls")]
    fn wrap(&mut self, stream: Timed, to: Endpoint<'_>) -> io::Result<Box<dyn Connection>> {
        match to.is_encrypted {
            true => Ok(Box::new(self.tls.wrap(stream, to.host, &self.access)?)),
            false => Ok(Box::new(stream)),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn wrap(&mut self, stream: Timed, to: Endpoint<'_>) -> io::Result<Box<dyn Connection>> {
        match to.is_encrypted {
            true => Err(io::Error::other(format!("{} {WITHOUT_TLS}", to.host))),
            false => Ok(Box::new(stream)),
        }
    }
}

/// Reads a bearer token.
pub(crate) fn read_token(path: &Path) -> io::Result<String> {
    let failed = |why: String| io::Error::other(format!("token {}: {why}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(TOKEN_MAX).read_to_string(&mut text);
    read.map_err(|error| failed(error.to_string()))?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(failed("it is empty, or has blanks or other than ASCII".to_owned()));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_each_time_and_cannot_add_a_header() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        let outbound = Outbound::new(Access { token: Some(file.clone()), ..Access::default() });
        assert!(outbound.authorization().unwrap_err().to_string().contains("token"));
        for (text, token) in [("abc.def\n", "abc.def"), ("next", "next")] {
            std::fs::write(&file, text).unwrap();
            let header = format!("Authorization: Bearer {token}\r\n");
            assert_eq!(outbound.authorization().unwrap(), header);
        }
        for text in ["", "a b", "a\r\nHost: evil", "ä"] {
            std::fs::write(&file, text).unwrap();
            assert!(outbound.authorization().is_err(), "{text}");
        }
        assert_eq!(Outbound::new(Access::default()).authorization().unwrap(), "");
    }
}
