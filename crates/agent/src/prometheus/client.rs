//! Sending queries: connections with a deadline, TLS, the token.

use super::address::{Access, Server};
#[cfg(feature = "tls")]
use super::tls::Tls;
use lull_measure::Nanos;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for an answer.
pub(super) const TIMEOUT: Nanos = Nanos::from_secs(1);
/// Longest answer that is read, in bytes.
const BYTES_MAX: usize = 64 * 1024;
/// Longest token, in bytes.
const TOKEN_MAX: u64 = 16 * 1024;

/// Queries one server.
pub(super) struct Client {
    server: Server,
    access: Access,
    #[cfg(feature = "tls")]
    tls: Tls,
}

/// A connection over which an answer is read.
trait Connection: Read + Write {
    fn socket(&self) -> &TcpStream;
}

impl Connection for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

#[cfg(feature = "tls")]
impl Connection for super::tls::Encrypted {
    fn socket(&self) -> &TcpStream {
        self.get_ref()
    }
}

/// The time that is left of a request; an error once it is over.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl Client {
    pub(super) fn new(server: Server, access: Access) -> Self {
        Self {
            server,
            access,
            #[cfg(feature = "tls")]
            tls: Tls::default(),
        }
    }

    /// Sends a query and returns all that comes back until the server closes.
    pub(super) fn fetch(&mut self, query: &str) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + Duration::from(TIMEOUT);
        let token = self.access.token.as_deref().map(read_token).transpose()?;
        let request = self.server.request(query, token.as_deref());
        let socket = self.connect(deadline)?;
        let mut connection = self.connection(socket, deadline)?;
        connection.socket().set_write_timeout(Some(time_left(deadline)?))?;
        connection.write_all(request.as_bytes())?;
        connection.flush()?;
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        loop {
            connection.socket().set_read_timeout(Some(time_left(deadline)?))?;
            match connection.read(&mut part) {
                Ok(0) => return Ok(all),
                Ok(count) => all.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A server may answer and keep the connection, or cut it.
                Err(_) if !all.is_empty() => return Ok(all),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
            if all.len() > BYTES_MAX {
                return Err(io::Error::other("the answer exceeds the limit of 64 KiB"));
            }
        }
    }

    fn connect(&self, deadline: Instant) -> io::Result<TcpStream> {
        let mut failed = io::Error::other("the name has no address");
        for address in self.server.host_and_port().to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, time_left(deadline)?) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    #[cfg(feature = "tls")]
    fn connection(
        &mut self,
        socket: TcpStream,
        deadline: Instant,
    ) -> io::Result<Box<dyn Connection>> {
        if !self.server.is_encrypted() {
            return Ok(Box::new(socket));
        }
        socket.set_read_timeout(Some(time_left(deadline)?))?;
        socket.set_write_timeout(Some(time_left(deadline)?))?;
        let (host, _) = self.server.host_and_port();
        Ok(Box::new(self.tls.wrap(socket, host, &self.access)?))
    }

    #[cfg(not(feature = "tls"))]
    fn connection(&mut self, socket: TcpStream, _: Instant) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(socket))
    }
}

/// Reads the token before each query, since tokens of Kubernetes change every hour.
fn read_token(path: &Path) -> io::Result<String> {
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
    fn a_token_is_read_anew_and_cannot_add_a_header() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        assert!(read_token(&file).unwrap_err().to_string().contains("token"));
        for (text, token) in [("abc.def\n", Some("abc.def")), ("next", Some("next"))] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read_token(&file).ok().as_deref(), token);
        }
        for text in ["", "a b", "a\r\nHost: evil", "ä"] {
            std::fs::write(&file, text).unwrap();
            assert!(read_token(&file).is_err(), "{text}");
        }
        let server = Server::parse("http://p:9090/x").unwrap();
        assert!(server.request("up", Some("abc")).contains("\r\nAuthorization: Bearer abc\r\n"));
        assert!(!server.request("up", None).contains("Authorization"));
        assert_eq!(server.host_and_port(), ("p", 9090));
        assert_eq!(Server::parse("http://[::1]").unwrap().host_and_port(), ("::1", 80));
    }
}
