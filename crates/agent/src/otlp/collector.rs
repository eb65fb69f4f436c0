//! The OpenTelemetry collector that the agent's own metrics go to.

use crate::outbound::{Endpoint, Outbound, WITHOUT_TLS};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Longest time of an export.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The port of OTLP over HTTP.
const USUAL_PORT: u16 = 4318;
const USUAL_PATH: &str = "v1/metrics";

/// The address of a collector.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Collector {
    is_encrypted: bool,
    /// Host, and port if it is given.
    authority: String,
    path: String,
}

impl TryFrom<String> for Collector {
    type Error = String;

    /// Parses `http://HOST:PORT` or `https://HOST:PORT`, with the path of the metrics if it is not
    /// the usual one.
    fn try_from(address: String) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("`{address}` {why}"));
        let Some((scheme @ ("http" | "https"), rest)) = address.split_once("://") else {
            return refuse("is not an address of a collector: write \"http://127.0.0.1:4318\"");
        };
        let is_encrypted = scheme == "https";
        if is_encrypted && !cfg!(feature = "tls") {
            return refuse(WITHOUT_TLS);
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
        if address.contains(is_odd) || authority.is_empty() || authority.starts_with(':') {
            return refuse("names no host: write \"http://127.0.0.1:4318\"");
        }
        let path = if path.is_empty() { USUAL_PATH } else { path };
        Ok(Self { is_encrypted, authority: authority.to_owned(), path: format!("/{path}") })
    }
}

impl Collector {
    /// Whether the connection is encrypted.
    pub(crate) const fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Host, and port if it is given.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    fn endpoint(&self) -> Endpoint<'_> {
        let parts = self.authority.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts.unwrap_or((&self.authority, USUAL_PORT));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Endpoint { host, port, is_encrypted: self.is_encrypted }
    }

    /// Sends an export and checks the status of the reply, of which only the three digits are read.
    pub(super) fn post(&self, outbound: &mut Outbound, body: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let authorization = outbound.authorization()?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(body)?;
        let packed = packed.finish()?;
        let Self { authority, path, .. } = self;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {authority}\r\n{authorization}\
             Content-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            packed.len()
        );
        let mut connection = outbound.connect(self.endpoint(), deadline)?;
        connection.write_all(head.as_bytes())?;
        connection.write_all(&packed)?;
        connection.flush()?;
        let mut reply = [0; 12];
        connection.read_exact(&mut reply)?;
        match &reply[9..] {
            [b'2', _, _] => Ok(()),
            status => Err(io::Error::other(format!("status {}", status.escape_ascii()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        let of = |text: &str| Collector::try_from(text.to_owned());
        for wrong in ["ftp://x:1", "http://", "x:4318", "http://:4318", "http://a b"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let collector = of("http://[::1]/own/path").unwrap();
        let Endpoint { host, port, is_encrypted } = collector.endpoint();
        assert_eq!((host, port, is_encrypted), ("::1", USUAL_PORT, false));
        assert_eq!(collector.path, "/own/path");
        assert_eq!(of("http://c:9").unwrap().endpoint().port, 9);
        let encrypted = of("https://c");
        assert_eq!(encrypted.is_ok_and(|it| it.is_encrypted()), cfg!(feature = "tls"));
    }
}
