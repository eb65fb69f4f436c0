//! Which server to load, as one writes it: `memcached://127.0.0.1:11211`.

use super::{Http, Memcached, Options, Target};
use crate::apps::options::{Demand, DemandError};
use crate::etc::{Etc, EtcConfig, EtcError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// A server's protocol and place.
///
/// As text: `memcached://HOST[:11211]`, `http://HOST[:80][/PATH]`,
/// `options://HOST[:7300]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    protocol: Protocol,
    host: String,
    port: u16,
    /// From the first slash on; empty where the protocol has no paths.
    path: String,
}

/// A protocol that can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol.
    Memcached,
    /// HTTP/1.1 in the clear.
    Http,
    /// The built-in options server's.
    Options,
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a target: {problem}")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The host has no address.
    #[error("cannot resolve {address}: {source}")]
    Resolve {
        /// The target.
        address: Address,
        /// The system's error.
        source: std::io::Error,
    },
    /// The ETC mix is wrong.
    #[error(transparent)]
    Etc(#[from] EtcError),
    /// The demand for prices is wrong.
    #[error(transparent)]
    Demand(#[from] DemandError),
}

/// A server, and the requests that are sent to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// The server.
    pub address: Address,
    /// The requests to a memcached.
    #[serde(default)]
    pub etc: EtcConfig,
    /// The requests to the options server.
    #[serde(default)]
    pub demand: Demand,
}

impl TargetConfig {
    /// The default questions to a server.
    pub fn new(address: Address) -> Self {
        Self { address, etc: EtcConfig::default(), demand: Demand::default() }
    }

    /// The protocol's encoder.
    ///
    /// # Errors
    /// If the mix or demand is out of range.
    pub fn build(&self) -> Result<Box<dyn Target>, TargetError> {
        Ok(match self.address.protocol {
            Protocol::Memcached => Box::new(self.memcached()?),
            Protocol::Http => Box::new(Http::new(&self.address.authority(), &self.address.path)),
            Protocol::Options => {
                self.demand.check()?;
                Box::new(Options::new(self.demand))
            }
        })
    }

    pub(crate) fn memcached(&self) -> Result<Memcached, TargetError> {
        Ok(Memcached::new(Etc::new(&self.etc)?))
    }
}

impl Protocol {
    const ALL: [Self; 3] = [Self::Memcached, Self::Http, Self::Options];

    const fn scheme(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Http => "http",
            Self::Options => "options",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Memcached => 11211,
            Self::Http => 80,
            Self::Options => crate::apps::options::DEFAULT_PORT,
        }
    }
}

impl Address {
    /// The options server at a socket address.
    pub fn options(at: SocketAddr) -> Self {
        Self::at(Protocol::Options, at, "")
    }

    /// A memcached at a socket address.
    pub fn memcached(at: SocketAddr) -> Self {
        Self::at(Protocol::Memcached, at, "")
    }

    /// An HTTP server's page at a socket address.
    pub fn http(at: SocketAddr, path: &str) -> Self {
        Self::at(Protocol::Http, at, path)
    }

    fn at(protocol: Protocol, at: SocketAddr, path: &str) -> Self {
        Self { protocol, host: at.ip().to_string(), port: at.port(), path: path.to_owned() }
    }

    /// The protocol spoken there.
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Every socket address of the host, in the system's order.
    ///
    /// # Errors
    /// If the host has none.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, TargetError> {
        let wrong = |source| TargetError::Resolve { address: self.clone(), source };
        let found: Vec<_> =
            (self.host.as_str(), self.port).to_socket_addrs().map_err(wrong)?.collect();
        if found.is_empty() {
            return Err(wrong(std::io::ErrorKind::NotFound.into()));
        }
        Ok(found)
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        read(text.trim()).map_err(|problem| AddressError { text: text.to_owned(), problem })
    }
}

fn read(text: &str) -> Result<Address, &'static str> {
    let schemes = "write memcached://HOST:PORT, http://HOST:PORT/PATH or options://HOST:PORT";
    let (scheme, rest) = text.split_once("://").ok_or(schemes)?;
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.scheme() == scheme);
    let protocol = protocol.ok_or(schemes)?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = read_path(protocol, path)?;
    let (host, port) = read_authority(authority)?;
    let port = port.unwrap_or_else(|| protocol.default_port());
    Ok(Address { protocol, host, port, path })
}

fn read_path(protocol: Protocol, path: &str) -> Result<String, &'static str> {
    match (protocol, path) {
        (Protocol::Http, "") => Ok("/".to_owned()),
        (Protocol::Http, path) if path.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(path.to_owned())
        }
        (Protocol::Http, _) => Err("the path must be percent-encoded ASCII without blanks"),
        (_, "" | "/") => Ok(String::new()),
        _ => Err("only http:// has a path"),
    }
}

fn read_authority(text: &str) -> Result<(String, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or("`[` without `]`")?;
            (host, behind.strip_prefix(':').or((!behind.is_empty()).then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    let wrong = "the port must be a number from 1 to 65535 (IPv6 addresses go in brackets)";
    let port = port.map(|port| port.parse().map_err(|_| wrong)).transpose()?;
    if port == Some(0) { Err(wrong) } else { Ok((host.to_owned(), port)) }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.protocol.scheme(), self.authority(), self.path)
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_paths_have_defaults() {
        let cases = [
            ("memcached://db", "memcached://db:11211"),
            ("http://127.0.0.1", "http://127.0.0.1:80/"),
            ("http://[::1]:8080/a?b=c", "http://[::1]:8080/a?b=c"),
            ("options://localhost", "options://localhost:7300"),
        ];
        for (text, wanted) in cases {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), wanted);
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write_instead() {
        let cases = [
            ("127.0.0.1:11211", "memcached://HOST:PORT"),
            ("https://x", "memcached://HOST:PORT"),
            ("memcached://", "host is missing"),
            ("memcached://x:0", "port must be"),
            ("memcached://x:99999", "port must be"),
            ("memcached://::1", "host is missing"),
            ("memcached://fe80::1", "port must be"),
            ("memcached://[::1", "without `]`"),
            ("memcached://[::1]1", "port must be"),
            ("options://x/y", "only http"),
            ("http://x/a b", "without blanks"),
        ];
        for (text, wanted) in cases {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
