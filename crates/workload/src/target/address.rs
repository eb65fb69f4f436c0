//! The address of a server to load, such as `memcached://127.0.0.1:11211`.

use super::Endpoint;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A server's protocol and place.
///
/// As text: `memcached://HOST[:11211]`, `redis://HOST[:6379]`, `http://HOST[:80][/PATH]`,
/// `h2c://HOST[:80][/PATH]`, `options://HOST[:7300]`, `mysql://USER@HOST[:3306]/DATABASE`,
/// `postgres://USER@HOST[:5432]/DATABASE`. Under TLS: `memcacheds://`, `rediss://`, `https://`,
/// `h2://`, and `?tls` behind a database. A database on a unix socket is
/// `mysql://USER@/DATABASE?socket=PATH`. Passwords are not part of an address, which appears
/// in process lists and reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    protocol: Protocol,
    host: String,
    port: u16,
    /// The path from its first slash on; empty where the protocol has no paths.
    path: String,
    /// The user of a database.
    user: String,
    /// The unix socket, instead of host and port.
    socket: Option<PathBuf>,
    /// Whether the connections are encrypted.
    is_tls: bool,
}

/// The longest path that servers accept.
const PATH_BYTES_MAX: usize = 8_000;

/// A protocol that can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol.
    Memcached,
    /// The protocol of Redis, Valkey and KeyDB.
    Redis,
    /// HTTP/1.1.
    Http,
    /// HTTP/2.
    Http2,
    /// The protocol of the built-in options server.
    Options,
    /// The protocol of MySQL and MariaDB.
    Mysql,
    /// The protocol of PostgreSQL.
    Postgres,
}

/// The error of a text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a target: {problem}")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

impl Protocol {
    const ALL: [Self; 7] = [
        Self::Memcached,
        Self::Redis,
        Self::Http,
        Self::Http2,
        Self::Options,
        Self::Mysql,
        Self::Postgres,
    ];

    /// Returns whether requests read and store keys.
    pub const fn is_cache(self) -> bool {
        matches!(self, Self::Memcached | Self::Redis)
    }

    /// Returns whether requests are transactions of a script.
    pub const fn is_database(self) -> bool {
        matches!(self, Self::Mysql | Self::Postgres)
    }

    /// Returns whether requests are for a page.
    const fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2)
    }

    const fn scheme(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis",
            Self::Http => "http",
            Self::Http2 => "h2c",
            Self::Options => "options",
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
        }
    }

    /// Returns the scheme of the protocol under TLS, if it has a scheme of its own for that.
    const fn tls_scheme(self) -> Option<&'static str> {
        match self {
            Self::Memcached => Some("memcacheds"),
            Self::Redis => Some("rediss"),
            Self::Http => Some("https"),
            Self::Http2 => Some("h2"),
            Self::Options | Self::Mysql | Self::Postgres => None,
        }
    }

    /// Returns the protocol of a scheme, and whether the scheme means TLS.
    fn of_scheme(scheme: &str) -> Option<(Self, bool)> {
        Self::ALL.into_iter().find_map(|protocol| match scheme {
            _ if scheme == protocol.scheme() => Some((protocol, false)),
            _ if Some(scheme) == protocol.tls_scheme() => Some((protocol, true)),
            _ => None,
        })
    }

    const fn default_port(self, is_tls: bool) -> u16 {
        match self {
            Self::Memcached => 11211,
            Self::Redis => 6379,
            Self::Http | Self::Http2 if is_tls => 443,
            Self::Http | Self::Http2 => 80,
            Self::Options => crate::apps::options::DEFAULT_PORT,
            Self::Mysql => 3306,
            Self::Postgres => 5432,
        }
    }
}

impl Address {
    /// Returns the address of an options server at a socket address.
    pub fn options(at: SocketAddr) -> Self {
        Self::at(Protocol::Options, at, "")
    }

    /// Returns the address of a memcached at a socket address.
    pub fn memcached(at: SocketAddr) -> Self {
        Self::at(Protocol::Memcached, at, "")
    }

    /// Returns the address of a Redis at a socket address.
    pub fn redis(at: SocketAddr) -> Self {
        Self::at(Protocol::Redis, at, "")
    }

    /// Returns the address of an HTTP server's page at a socket address.
    pub fn http(at: SocketAddr, path: &str) -> Self {
        Self::at(Protocol::Http, at, path)
    }

    /// Returns the address of a database on a unix socket; `protocol` is that of a database.
    pub fn database_on_socket(
        protocol: Protocol,
        socket: &Path,
        user: &str,
        database: &str,
    ) -> Self {
        Self {
            protocol,
            host: String::new(),
            port: protocol.default_port(false),
            path: format!("/{database}"),
            user: user.to_owned(),
            socket: Some(socket.to_owned()),
            is_tls: false,
        }
    }

    fn at(protocol: Protocol, at: SocketAddr, path: &str) -> Self {
        Self {
            protocol,
            host: at.ip().to_string(),
            port: at.port(),
            path: path.to_owned(),
            user: String::new(),
            socket: None,
            is_tls: false,
        }
    }

    /// Returns the address of the same server under TLS.
    #[must_use]
    pub fn with_tls(self) -> Self {
        Self { is_tls: true, ..self }
    }

    /// Returns whether the connections are encrypted.
    pub const fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Returns the name or address of the host; empty on a unix socket.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the user of a database.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Returns the name of the database; empty for other protocols.
    pub(crate) fn database(&self) -> &str {
        self.path.strip_prefix('/').unwrap_or_default()
    }

    /// Returns the unix socket, if the server is on one.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns the protocol of the server.
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns every endpoint of the host, in the system's order.
    ///
    /// # Errors
    /// The system's error if the host has none.
    pub fn resolve(&self) -> io::Result<Vec<Endpoint>> {
        if let Some(socket) = &self.socket {
            return Ok(vec![Endpoint::Unix(socket.clone())]);
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs()?;
        let found: Vec<_> = found.map(Endpoint::Tcp).collect();
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn authority(&self) -> String {
        if self.socket.is_some() {
            return String::new();
        }
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
    let schemes = "write memcached://HOST:PORT, memcacheds://HOST:PORT under TLS, redis:// or \
                   rediss://HOST:PORT, http://, https://, \
                   h2:// or h2c://HOST:PORT/PATH, options://HOST:PORT, \
                   mysql://USER@HOST:PORT/DATABASE or postgres://USER@HOST:PORT/DATABASE";
    let (scheme, rest) = text.split_once("://").ok_or(schemes)?;
    let (protocol, is_tls) = Protocol::of_scheme(scheme).ok_or(schemes)?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if protocol.is_database() {
        return read_database(protocol, authority, path);
    }
    let path = read_path(protocol, path)?;
    let (host, port) = read_authority(authority)?;
    let port = port.unwrap_or_else(|| protocol.default_port(is_tls));
    Ok(Address { protocol, host, port, path, user: String::new(), socket: None, is_tls })
}

/// Parses `USER@HOST:PORT` and `/DATABASE` or `/DATABASE?tls`, or `USER@` and
/// `/DATABASE?socket=PATH`.
fn read_database(protocol: Protocol, authority: &str, path: &str) -> Result<Address, &'static str> {
    let wrong = "write USER@HOST/DATABASE, USER@HOST/DATABASE?tls for TLS, or \
                 USER@/DATABASE?socket=PATH for a unix socket";
    let (user, place) = authority.split_once('@').ok_or(wrong)?;
    if user.contains(':') {
        return Err("no password goes here, where process lists and reports show it: set \
                    MYSQL_PWD or PGPASSWORD in the environment");
    }
    let (database, query) = path.split_once('?').unwrap_or((path, ""));
    let database = database.strip_prefix('/').filter(|name| !name.is_empty()).ok_or(wrong)?;
    let is_plain = |name: &str| {
        name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'))
    };
    if user.is_empty() || !is_plain(user) || !is_plain(database) {
        return Err("user and database are letters, digits, _, -, . and $");
    }
    let is_tls = query == "tls";
    let socket = match query {
        "" | "tls" => None,
        _ => Some(query.strip_prefix("socket=").filter(|path| path.starts_with('/')).ok_or(wrong)?),
    };
    let (host, port) = match socket {
        Some(_) if place.is_empty() => (String::new(), None),
        Some(_) => return Err("a unix socket has no host: write USER@/DATABASE?socket=PATH"),
        None => read_authority(place)?,
    };
    Ok(Address {
        protocol,
        host,
        port: port.unwrap_or_else(|| protocol.default_port(is_tls)),
        path: format!("/{database}"),
        user: user.to_owned(),
        socket: socket.map(PathBuf::from),
        is_tls,
    })
}

fn read_path(protocol: Protocol, path: &str) -> Result<String, &'static str> {
    match (protocol, path) {
        (protocol, "") if protocol.is_http() => Ok("/".to_owned()),
        (protocol, path) if protocol.is_http() && path.len() > PATH_BYTES_MAX => {
            Err("the path is longer than 8000 bytes")
        }
        (protocol, path) if protocol.is_http() && path.bytes().all(|b| b.is_ascii_graphic()) => {
            Ok(path.to_owned())
        }
        (protocol, _) if protocol.is_http() => {
            Err("the path must be percent-encoded ASCII without blanks")
        }
        (_, "" | "/") => Ok(String::new()),
        _ => Err("only http://, https://, h2:// and h2c:// have a path"),
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
        let at = if self.protocol.is_database() { "@" } else { "" };
        let (user, authority) = (&self.user, self.authority());
        let scheme = self.protocol.tls_scheme().filter(|_| self.is_tls);
        let scheme = scheme.unwrap_or_else(|| self.protocol.scheme());
        write!(f, "{scheme}://{user}{at}{authority}{}", self.path)?;
        match &self.socket {
            Some(socket) => write!(f, "?socket={}", socket.display()),
            None if self.is_tls && self.protocol.is_database() => f.write_str("?tls"),
            None => Ok(()),
        }
    }
}

lull_measure::convert_as_text!(Address);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_paths_have_defaults() {
        let cases = [
            ("memcached://db", "memcached://db:11211"),
            ("redis://db", "redis://db:6379"),
            ("http://127.0.0.1", "http://127.0.0.1:80/"),
            ("http://[::1]:8080/a?b=c", "http://[::1]:8080/a?b=c"),
            ("memcacheds://db", "memcacheds://db:11211"),
            ("rediss://db", "rediss://db:6379"),
            ("https://web/a", "https://web:443/a"),
            ("h2://web", "h2://web:443/"),
            ("h2c://web:8080/a", "h2c://web:8080/a"),
            ("options://localhost", "options://localhost:7300"),
            ("mysql://root@db/test?tls", "mysql://root@db:3306/test?tls"),
            ("mysql://root@db/test", "mysql://root@db:3306/test"),
            ("postgres://p@[::1]:5433/test", "postgres://p@[::1]:5433/test"),
            ("postgres://p@/x?socket=/run/.s.PGSQL.5", "postgres://p@/x?socket=/run/.s.PGSQL.5"),
        ];
        for (text, wanted) in cases {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), wanted);
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write_instead() {
        let cases = [
            ("127.0.0.1:11211", "memcached://HOST:PORT"),
            ("ftp://x", "memcached://HOST:PORT"),
            ("memcachedtls://x", "memcached://HOST:PORT"),
            ("memcached://", "host is missing"),
            ("memcached://x:0", "port must be"),
            ("memcached://x:99999", "port must be"),
            ("memcached://::1", "host is missing"),
            ("memcached://fe80::1", "port must be"),
            ("memcached://[::1", "without `]`"),
            ("memcached://[::1]1", "port must be"),
            ("options://x/y", "only http"),
            ("postgres://p@/x?tls", "host is missing"),
            ("http://x/a b", "without blanks"),
            ("mysql://db/test", "USER@HOST/DATABASE"),
            ("mysql://root@db", "USER@HOST/DATABASE"),
            ("mysql://root:secret@db/test", "MYSQL_PWD"),
            ("mysql://ro ot@db/test", "are letters"),
            ("postgres://p@db/x?socket=/s", "has no host"),
            ("postgres://p@/x?sock=/s", "?socket=PATH"),
            ("postgres://p@/x", "host is missing"),
        ];
        for (text, wanted) in cases {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
