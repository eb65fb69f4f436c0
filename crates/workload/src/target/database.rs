//! MySQL, MariaDB and PostgreSQL: requests that are transactions of several statements.
//!
//! One request is one pass through a script. Each statement is sent when the reply to the one
//! before it is complete, so that locks are held over round trips, as applications hold them.
//! The latency of a request is that of its whole pass, with its pauses (`\sleep`) and with
//! all tries, but without pauses behind the last statement.
//!
//! The framing of both protocols is written here and runs on the client's poller. Client
//! crates either block a thread for each connection or bring a runtime of their own; in both,
//! hundreds of connections of one process wait for each other in a scheduler, and that wait
//! would appear as latency of the server. Hashes of the logins are from crates.
//!
//! An error that the server reports ends the pass: an open transaction is rolled back, and
//! the request counts as failed, by the server's code. A deadlock or serialization failure is
//! tried again with the same parameters if [`DatabaseConfig::tries`] is above 1; each
//! repetition is counted. A connection that stalls, is reset or answers what the protocol
//! does not allow is counted as by every other target.

mod builtin;
mod expression;
mod mysql;
mod postgres;
mod rows;
mod script;
mod session;
mod setup;
mod tpcc;
mod wire;

pub use script::{ScriptError, TransactionName};
pub use setup::SetupError;

use super::{Address, Decoder, Endpoint, Protocol, RequestKind, Target, TlsClient};
use crate::Generator;
use builtin::Tables;
use mysql::Mysql;
use postgres::{Postgres, SaltedPasswords};
use script::Script;
use serde::{Deserialize, Serialize};
use session::{Session, Work};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::Login;

/// Most branches of the built-in tables: 100 million accounts.
const SCALE_MAX: u32 = 1_000;
const TRIES_MAX: u32 = 1_000;

/// The requests to a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseConfig {
    /// The script of a request.
    pub script: ScriptSource,
    /// Size of the built-in tables, and the variable `:scale` of scripts.
    pub scale: u32,
    /// Whether statements are prepared once for each connection or sent as text.
    pub statements: Statements,
    /// How often a transaction is tried that a deadlock or serialization failure ends.
    pub tries: u32,
    /// The user's password; never written to a file.
    #[serde(skip)]
    pub password: String,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        Self {
            script: ScriptSource::TpcbLike,
            scale: 1,
            statements: Statements::Prepared,
            tries: 1,
            password: String::new(),
        }
    }
}

/// A script; as text `tpcb-like`, `tpcc-like`, `hot-rows` or the path of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ScriptSource {
    /// pgbench's transaction of five statements.
    #[default]
    TpcbLike,
    /// The five transactions of TPC-C, with less data.
    TpccLike,
    /// Short transactions that contend for twelve rows.
    HotRows,
    /// A file.
    File(PathBuf),
}

/// How statements are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statements {
    /// Prepared once for each connection.
    #[default]
    Prepared,
    /// As text, with the parameters in it.
    Simple,
}

/// The error of an invalid configuration of the requests to a database.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A number is out of range.
    #[error("{key} = {value}: write a whole number from 1 to {most}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u32,
        /// The largest value.
        most: u32,
    },
    /// The file cannot be read.
    #[error("cannot read the script {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line of the script is invalid.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// The address of a database, and the TLS configuration of its connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server<'s> {
    pub(crate) endpoint: &'s Endpoint,
    pub(crate) tls: Option<&'s TlsClient>,
}

/// A database as a target.
#[derive(Debug)]
pub struct Database {
    protocol: Protocol,
    login: Login,
    work: Arc<Work>,
    salted: SaltedPasswords,
    /// The tables of a built-in script.
    tables: Option<Tables>,
}

impl ScriptSource {
    fn tables(&self) -> Option<Tables> {
        match self {
            Self::TpcbLike | Self::HotRows => Some(Tables::Accounts),
            Self::TpccLike => Some(Tables::Warehouses),
            Self::File(_) => None,
        }
    }

    fn read(&self) -> Result<(String, String), DatabaseError> {
        let text = match self {
            Self::TpcbLike => builtin::TPCB_LIKE.to_owned(),
            Self::TpccLike => tpcc::script(),
            Self::HotRows => builtin::HOT_ROWS.to_owned(),
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|source| DatabaseError::Read { path: path.clone(), source })?,
        };
        Ok((self.to_string(), text))
    }
}

impl Database {
    /// Checks the configuration and reads the script.
    ///
    /// # Errors
    /// If a number is out of range, or the script cannot be read or is wrong.
    pub fn new(address: &Address, config: &DatabaseConfig) -> Result<Self, DatabaseError> {
        let ranges = [("scale", config.scale, SCALE_MAX), ("tries", config.tries, TRIES_MAX)];
        for (key, value, most) in ranges {
            if !(1..=most).contains(&value) {
                return Err(DatabaseError::Range { key, value, most });
            }
        }
        let (name, text) = config.script.read()?;
        let work = Work {
            script: Script::parse(&name, &text, config.scale)?,
            scale: config.scale,
            prepares: config.statements == Statements::Prepared,
            tries_max: config.tries,
        };
        let login = Login {
            user: address.user().to_owned(),
            database: address.database().to_owned(),
            password: config.password.clone(),
            is_unix: address.socket().is_some(),
            is_tls: address.is_tls(),
        };
        Ok(Self {
            protocol: address.protocol(),
            login,
            work: Arc::new(work),
            salted: SaltedPasswords::default(),
            tables: config.script.tables(),
        })
    }

    /// Logs in once and prepares the statements, so that a refusal of the server is an error before
    /// the run. Creates the tables of a built-in script first if `creates` is set and they are
    /// missing, incomplete or of another scale.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses the login or refuses a statement.
    pub fn set_up(
        &self,
        server: &Endpoint,
        creates: bool,
        stop: &AtomicBool,
    ) -> Result<(), SetupError> {
        self.set_up_at(&Server { endpoint: server, tls: None }, creates, stop)
    }

    /// The same at one endpoint, under TLS if `server` has a TLS configuration.
    pub(crate) fn set_up_at(
        &self,
        server: &Server<'_>,
        creates: bool,
        stop: &AtomicBool,
    ) -> Result<(), SetupError> {
        let (work, tables) = (&self.work, self.tables.filter(|_| creates));
        match self.protocol {
            Protocol::Postgres => setup::run(self.postgres(), server, work, tables, stop),
            _ => setup::run(self.mysql(), server, work, tables, stop),
        }
    }

    fn mysql(&self) -> Mysql {
        Mysql::new(self.login.clone())
    }

    fn postgres(&self) -> Postgres {
        Postgres::new(self.login.clone(), Arc::clone(&self.salted))
    }
}

impl Target for Database {
    /// Requests depend on their connection: [`Decoder::begin`] writes them.
    fn encode(&mut self, _: &mut Generator, _: &mut Vec<u8>) -> RequestKind {
        RequestKind::Only
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        let work = Arc::clone(&self.work);
        match self.protocol {
            Protocol::Postgres => Box::new(Session::new(self.postgres(), work)),
            _ => Box::new(Session::new(self.mysql(), work)),
        }
    }
}

impl FromStr for ScriptSource {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.to_owned().into())
    }
}

impl From<String> for ScriptSource {
    fn from(text: String) -> Self {
        match text.as_str() {
            "tpcb-like" => Self::TpcbLike,
            "tpcc-like" => Self::TpccLike,
            "hot-rows" => Self::HotRows,
            _ => Self::File(text.into()),
        }
    }
}

impl From<ScriptSource> for String {
    fn from(source: ScriptSource) -> Self {
        source.to_string()
    }
}

impl fmt::Display for ScriptSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TpcbLike => f.write_str("tpcb-like"),
            Self::TpccLike => f.write_str("tpcc-like"),
            Self::HotRows => f.write_str("hot-rows"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
