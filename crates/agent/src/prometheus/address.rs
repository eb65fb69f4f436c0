//! The address of a Prometheus server, and the requests to it.

use crate::outbound::{Endpoint, WITHOUT_TLS};

/// The address of a Prometheus server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub(super) base: String,
}

impl Server {
    /// Parses `http://HOST:PORT` or `https://HOST:PORT`, with a path if it is served under one.
    pub fn parse(address: &str) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("`{address}` {why}"));
        let Some((scheme @ ("http" | "https"), rest)) = address.split_once("://") else {
            return refuse("is not an address: write \"prometheus:http://127.0.0.1:9090\"");
        };
        if scheme == "https" && !cfg!(feature = "tls") {
            return refuse(WITHOUT_TLS);
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

    /// Where it listens.
    pub(super) fn endpoint(&self) -> Endpoint<'_> {
        let authority = self.authority();
        let usual = if self.is_encrypted() { 443 } else { 80 };
        let port = |port: &str| port.parse().ok();
        let parts = authority.rsplit_once(':').and_then(|(host, it)| Some((host, port(it)?)));
        let (host, port) = parts.unwrap_or((authority, usual));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Endpoint { host, port, is_encrypted: self.is_encrypted() }
    }

    /// Returns a request for the result of a query, with the header of the authorization.
    ///
    /// HTTP/1.0 has no transfer in pieces, and its answers end with the connection, so that
    /// nothing of them need be understood by the thread that receives them.
    pub(super) fn request(&self, query: &str, authorization: &str) -> String {
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
        format!(
            "GET {path}/api/v1/query?query={encoded} HTTP/1.0\r\nHost: {host}\r\n{authorization}\
             Accept: application/json\r\nConnection: close\r\n\r\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_those_of_the_address() {
        let server = Server::parse("http://p:9090/x").unwrap();
        let request = server.request("up", "Authorization: Bearer abc\r\n");
        assert!(request.contains("\r\nAuthorization: Bearer abc\r\nAccept"));
        let Endpoint { host, port, is_encrypted } = server.endpoint();
        assert_eq!((host, port, is_encrypted), ("p", 9090, false));
        let server = Server::parse("http://[::1]").unwrap();
        assert_eq!((server.endpoint().host, server.endpoint().port), ("::1", 80));
    }
}
