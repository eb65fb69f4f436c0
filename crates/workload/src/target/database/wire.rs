//! The interface of a database's client protocol, which the interpreter of scripts uses.

use super::super::{ErrorCode, ProtocolError};

/// One connection's side of a client protocol: bytes out, replies in, no I/O.
pub(super) trait Wire: Send {
    /// Name of the protocol, for errors.
    const PROTOCOL: &'static str;
    /// Whether statements without parameters are prepared too. MySQL does not prepare every
    /// statement; those without parameters are sent as text there.
    const PREPARES_ALL: bool;

    /// Writes the placeholder of a parameter, counted from 1.
    fn placeholder(number: usize) -> String;

    /// Appends the first bytes of the client on a new connection. A reply follows.
    fn open(&mut self, out: &mut Vec<u8>);

    /// Returns whether the server has agreed to TLS since the last call: all bytes are encrypted
    /// from now on. Appends the client's next bytes.
    fn begins_tls(&mut self, out: &mut Vec<u8>) -> bool;

    /// Appends a statement as text. A reply follows.
    fn query(&mut self, sql: &str, out: &mut Vec<u8>);

    /// Appends a statement to prepare under a number. A reply follows.
    fn prepare(&mut self, statement: usize, sql: &str, out: &mut Vec<u8>);

    /// Appends the execution of a prepared statement. A reply follows.
    fn execute(&mut self, statement: usize, values: &[i64], out: &mut Vec<u8>);

    /// Reads the beginning of `input` and returns the bytes consumed, 0 if more are needed,
    /// and the reply that ends in them. Answers of the login are appended to `out`.
    ///
    /// # Errors
    /// If the bytes do not follow the protocol, or the server refuses the connection.
    fn read(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Reply>), ProtocolError>;
}

/// A complete reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reply {
    /// The error, if the server reported one.
    pub(super) error: Option<ServerError>,
    /// Whether a transaction is open after it.
    pub(super) in_transaction: bool,
}

/// An error that a server reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerError {
    pub(super) code: ErrorCode,
    pub(super) message: String,
}

/// User, database and password of a login.
#[derive(Debug, Clone, Default)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) database: String,
    pub(super) password: String,
    /// Whether the connection is a unix socket, on which a password may be sent as it is.
    pub(super) is_unix: bool,
    /// Whether TLS is requested; under TLS a password may be sent as it is, too.
    pub(super) is_tls: bool,
}

/// The longest part of a message that is read; the rest is skipped.
pub(super) const HEAD_BYTES: usize = 4096;

/// Skips bytes of `input` that are to be skipped. Returns their number, or `None` if there are
/// none.
pub(super) fn skip(left: &mut usize, input: &[u8]) -> Option<usize> {
    let skipped = (*left).min(input.len());
    let is_skipping = *left > 0;
    *left -= skipped;
    is_skipping.then_some(skipped)
}

/// Returns the bytes before the first zero byte, and those behind it.
pub(super) fn split_at_nul(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}
