//! The servers that a client can load, and their protocols.
//!
//! A [`Target`] writes requests; a [`Decoder`], one per connection, reads the
//! replies. Neither does I/O nor keeps time. Replies arrive in the order of the
//! requests, so that the client needs no identifiers and may pipeline; where they do not,
//! the decoder numbers the requests ([`Decoder::number`], [`Decoder::position`]).
//!
//! To a database a request is a dialogue ([`Decoder::begin`]): the decoder logs in, writes
//! one statement after another, and reports one outcome for all.

mod address;
mod cache;
mod config;
mod database;
mod endpoint;
mod error_code;
mod http;
mod http2;
mod memcached;
mod options;
mod preload;
mod redis;
mod repeated;
mod transport;

pub use address::{Address, AddressError, Protocol};
pub use cache::{Cache, CacheProtocol};
pub use config::{TargetConfig, TargetError};
pub(crate) use database::Server;
pub use database::{
    Database, DatabaseConfig, DatabaseError, ScriptError, ScriptSource, SetupError, Statements,
    TransactionName,
};
pub use endpoint::Endpoint;
pub(crate) use endpoint::Stream;
pub use error_code::ErrorCode;
pub use options::Options;
pub(crate) use preload::preload;
pub use preload::{PreloadError, Preloaded};
pub(crate) use transport::{TlsClient, Transport};
pub use transport::{TlsConfig, TlsError};

use crate::Generator;
use lull_measure::Nanos;
use serde::Serialize;
use std::fmt;

/// A server's protocol and the requests that are sent in it.
pub trait Target: Send {
    /// Appends the next request to `out` and returns its kind.
    fn encode(&mut self, rng: &mut Generator, out: &mut Vec<u8>) -> RequestKind;

    /// Returns a reader of the replies on one new connection.
    fn decoder(&self) -> Box<dyn Decoder>;
}

/// The kind of a request, where the requests of a load differ; kinds are reported separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestKind {
    /// All requests of the load are of one kind.
    #[default]
    Only,
    /// Reads a key.
    Get,
    /// Stores a value.
    Set,
    /// The transaction of this name of a script that has several.
    Transaction(TransactionName),
}

impl fmt::Display for RequestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("all"),
            Self::Get => f.write_str("get"),
            Self::Set => f.write_str("set"),
            Self::Transaction(name) => name.fmt(f),
        }
    }
}

impl Serialize for RequestKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request was answered.
    Done,
    /// The request was answered: there is no such key.
    Miss,
    /// The request was answered with an error.
    Failed,
    /// The request was answered with an error of this code.
    Error(ErrorCode),
    /// The server did not accept the request and is about to close the connection: the client sends
    /// it again on another one.
    Untaken,
    /// A try ended with an error of this code, and the request is tried again: it has not ended.
    Retried(ErrorCode),
}

/// The number of bytes that were consumed.
pub type Decoded = Result<usize, ProtocolError>;

/// Decodes one connection's replies from bytes that arrive in any portions.
pub trait Decoder: Send {
    /// Consumes as much of `input` as it can, appends the outcome of each reply that ends in it,
    /// and returns the number of bytes consumed. The caller keeps the other bytes and passes them
    /// again, followed by more.
    ///
    /// At most [`MAX_HEAD_BYTES`] are left unconsumed.
    ///
    /// # Errors
    /// If the bytes do not follow the protocol; the connection must then be closed.
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>) -> Decoded;

    /// Writes a request's number on the connection into the bytes that [`Target::encode`] has
    /// written, if requests have numbers.
    fn number(&mut self, _request: &mut [u8]) {}

    /// Returns the position, among the requests under way, of the request that the next outcome is
    /// of. Called once for each outcome that ends a request.
    fn position(&mut self) -> usize {
        0
    }

    /// Returns whether TLS begins now: everything behind the bytes that were written so far is
    /// encrypted.
    fn begins_tls(&mut self) -> bool {
        false
    }

    /// Called when the server has closed the connection. Returns the outcome of the
    /// reply that this completes, if any.
    fn close(&mut self) -> Option<Outcome> {
        None
    }

    /// Returns whether the server has announced that it will close this connection.
    fn is_last(&self) -> bool {
        false
    }

    /// Begins a request and returns `true` if requests are dialogues, which [`Decoder::proceed`]
    /// writes; returns `false` if [`Target::encode`] writes requests.
    fn begin(&mut self, _rng: &mut Generator) -> bool {
        false
    }

    /// Appends the bytes to send now. Called after connecting (the login), after each reply (the
    /// next statement) and at the end of a pause.
    fn proceed(&mut self, _now: Nanos, _outcomes: &mut Vec<Outcome>, _out: &mut Vec<u8>) {}

    /// Returns the kind of the dialogue under way.
    fn kind(&self) -> RequestKind {
        RequestKind::Only
    }

    /// Returns whether a request can begin: the login is over and no dialogue is under way.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns the end of the dialogue's pause, if it is in one.
    fn wakes_at(&self) -> Option<Nanos> {
        None
    }

    /// The server's message with the last [`Outcome::Error`] or [`Outcome::Retried`].
    fn message(&self) -> &str {
        ""
    }
}

/// The longest line or header block of a reply.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The error of bytes that do not follow the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line or header block does not end.
    #[error("a reply's head exceeds {MAX_HEAD_BYTES} bytes: is this a {protocol} server?")]
    TooLong {
        /// The protocol of the connection.
        protocol: &'static str,
    },
    /// The server sent something that the protocol does not allow here.
    #[error("the server sent `{got}`: is this a {protocol} server?")]
    Unexpected {
        /// The protocol of the connection.
        protocol: &'static str,
        /// The beginning of the unexpected bytes.
        got: String,
    },
    /// The server refuses the connection or ends it.
    #[error("the {protocol} server refuses: {code}: {message}")]
    Refused {
        /// The protocol of the connection.
        protocol: &'static str,
        /// The server's code.
        code: ErrorCode,
        /// The server's message.
        message: String,
    },
    /// The server requires something that the client does not support.
    #[error("{protocol}: {problem}")]
    Unsupported {
        /// The protocol of the connection.
        protocol: &'static str,
        /// The problem and the correction.
        problem: String,
    },
}

impl ProtocolError {
    fn unexpected(protocol: &'static str, got: &[u8]) -> Self {
        let got = got[..got.len().min(80)].escape_ascii().to_string();
        Self::Unexpected { protocol, got }
    }

    fn refused(protocol: &'static str, code: ErrorCode, message: &str) -> Self {
        Self::Refused { protocol, code, message: message.to_owned() }
    }

    fn unsupported(protocol: &'static str, problem: &str) -> Self {
        Self::Unsupported { protocol, problem: problem.to_owned() }
    }
}

/// Returns the first line of `input` without its ending, and its length with the
/// ending; `None` if the line is incomplete.
fn first_line<'a>(
    protocol: &'static str,
    input: &'a [u8],
) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
    match input.iter().take(MAX_HEAD_BYTES).position(|byte| *byte == b'\n') {
        Some(at) => {
            let line = &input[..at];
            Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), at + 1)))
        }
        None if input.len() >= MAX_HEAD_BYTES => Err(ProtocolError::TooLong { protocol }),
        None => Ok(None),
    }
}

#[cfg(test)]
mod testing {
    use super::{Decoder, Outcome, ProtocolError};

    /// Feeds `bytes` in portions of `step` bytes, as a client would.
    pub(super) fn feed(
        decoder: &mut dyn Decoder,
        bytes: &[u8],
        step: usize,
    ) -> Result<Vec<Outcome>, ProtocolError> {
        let (mut held, mut outcomes) = (Vec::new(), Vec::new());
        for portion in bytes.chunks(step) {
            held.extend_from_slice(portion);
            let used = decoder.decode(&held, &mut outcomes)?;
            held.drain(..used);
        }
        Ok(outcomes)
    }
}
