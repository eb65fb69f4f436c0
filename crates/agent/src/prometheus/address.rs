//! The address of a Prometheus server, and the requests to it.

use std::path::PathBuf;

/// The address of a Prometheus server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub(super) base: String,
}

/// How an agent proves to a server who it is, and recognises the server. The files are read
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

impl Server {
    /// Parses `http://HOST:PORT` or `https://HOST:PORT`, with a path if it is served under one.
    pub fn parse(address: &str) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("`{address}` {why}"));
        let Some((scheme @ ("http" | "https"), rest)) = address.split_once("://") else {
            return refuse("is no address: write \"prometheus:http://127.0.0.1:9090\"");
        };
        if scheme == "https" && !cfg!(feature = "tls") {
            return refuse(
                "is encrypted (TLS), which this program was built without: use Lull's package, \
                 or build it with --features tls",
            );
        }
        if rest.contains(['?', '#']) {
            return refuse("has a query: write it in `query`");
        }
        let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
        if rest.is_empty() || rest.starts_with(['/', ':']) || rest.contains(is_odd) {
            return refuse("names no host: write \"prometheus:http://127.0.0.1:9090\"");
        }
        Ok(Self { base: address.trim_end_matches('/').to_owned() })
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.base.starts_with("https://")
    }

    fn rest(&self) -> &str {
        self.base.split_once("://").map_or("", |(_, rest)| rest)
    }

    /// Host and port, if there is one.
    fn authority(&self) -> &str {
        self.rest().split_once('/').map_or(self.rest(), |(host, _)| host)
    }

    /// Host and port to connect to.
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        let authority = self.authority();
        let usual = if self.is_encrypted() { 443 } else { 80 };
        let port = |port: &str| port.parse().ok();
        let parts = authority.rsplit_once(':').and_then(|(host, it)| Some((host, port(it)?)));
        let (host, port) = parts.unwrap_or((authority, usual));
        (host.trim_start_matches('[').trim_end_matches(']'), port)
    }

    /// Returns a request for the result of a query.
    ///
    /// HTTP/1.0 has no transfer in pieces, and its answers end with the connection, so that
    /// nothing of them need be understood by the thread that receives them.
    pub(super) fn request(&self, query: &str, token: Option<&str>) -> String {
        let path = self.rest().split_once('/');
        let path = path.map_or(String::new(), |(_, path)| format!("/{path}"));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        let encoded: String = query
            .bytes()
            .map(|byte| match is_plain(byte) {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02X}"),
            })
            .collect();
        let host = self.authority();
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        format!(
            "GET {path}/api/v1/query?query={encoded} HTTP/1.0\r\nHost: {host}\r\n{token}\
             Accept: application/json\r\nConnection: close\r\n\r\n"
        )
    }
}
