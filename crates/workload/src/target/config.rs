//! The configuration of a load: its server, and the requests.

use super::{
    Address, Cache, CacheProtocol, Database, DatabaseConfig, DatabaseError, Options, Protocol,
    Target, TlsClient, TlsConfig, TlsError, http, http2,
};
use crate::apps::options::{Demand, DemandError};
use crate::etc::{Etc, EtcConfig, EtcError};
use serde::{Deserialize, Serialize};

/// The error of a target that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The host has no address.
    #[error("cannot resolve {address}: {source}; check the host name")]
    Resolve {
        /// The target.
        address: Address,
        /// The system's error.
        source: std::io::Error,
    },
    /// The configuration of the ETC mix is invalid.
    #[error(transparent)]
    Etc(#[from] EtcError),
    /// The demand for prices is invalid.
    #[error(transparent)]
    Demand(#[from] DemandError),
    /// The configuration of the requests to a database is invalid.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server, and the requests that the client sends to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// The server.
    pub address: Address,
    /// The requests to a cache.
    #[serde(default)]
    pub etc: EtcConfig,
    /// The requests to the options server.
    #[serde(default)]
    pub demand: Demand,
    /// The requests to a database.
    #[serde(default)]
    pub database: DatabaseConfig,
    /// The trusted servers under TLS.
    #[serde(default)]
    pub tls: TlsConfig,
    /// The password of a Redis; empty if it requires none.
    #[serde(skip)]
    pub redis_password: String,
}

impl TargetConfig {
    /// Returns the default requests to a server.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            etc: EtcConfig::default(),
            demand: Demand::default(),
            database: DatabaseConfig::default(),
            tls: TlsConfig::default(),
            redis_password: String::new(),
        }
    }

    /// Returns the protocol's encoder.
    ///
    /// # Errors
    /// If the mix or demand is out of range.
    pub fn build(&self) -> Result<Box<dyn Target>, TargetError> {
        Ok(match self.address.protocol() {
            Protocol::Memcached | Protocol::Redis => Box::new(self.cache()?),
            Protocol::Http => Box::new(http::get(&self.address.authority(), self.address.path())),
            Protocol::Http2 => {
                let (host, path) = (self.address.authority(), self.address.path());
                Box::new(http2::get(&host, path, self.address.is_tls()))
            }
            Protocol::Options => {
                self.demand.check()?;
                Box::new(Options::new(self.demand))
            }
            Protocol::Mysql | Protocol::Postgres => Box::new(self.database()?),
        })
    }

    /// Returns the client of TLS sessions; `None` for connections in the clear.
    ///
    /// # Errors
    /// If the program has no TLS, or no authority is known.
    pub(crate) fn tls(&self) -> Result<Option<TlsClient>, TargetError> {
        if !self.address.is_tls() {
            return Ok(None);
        }
        let (offered, is_required): (Option<&'static [u8]>, _) = match self.address.protocol() {
            Protocol::Http => (Some(b"http/1.1"), false),
            Protocol::Http2 => (Some(b"h2"), true),
            _ => (None, false),
        };
        Ok(Some(TlsClient::new(&self.tls, self.address.host(), offered, is_required)?))
    }

    pub(crate) fn database(&self) -> Result<Database, TargetError> {
        Ok(Database::new(&self.address, &self.database)?)
    }

    pub(crate) fn cache(&self) -> Result<Cache, TargetError> {
        let protocol = match self.address.protocol() {
            Protocol::Redis => CacheProtocol::Redis { password: self.redis_password.clone() },
            _ => CacheProtocol::Memcached,
        };
        Ok(Cache::new(protocol, Etc::new(&self.etc)?))
    }
}
