//! The servers that a client can load, and their protocols.
//!
//! A [`Target`] writes requests; a [`Decoder`], one per connection, reads the
//! replies. Neither does I/O nor keeps time. Replies arrive in the order of the
//! requests, so that the client needs no identifiers and may pipeline.

mod address;
mod http;
mod memcached;
mod options;

pub use address::{Address, AddressError, Protocol, TargetConfig, TargetError};
pub use http::Http;
pub use memcached::{Memcached, PreloadError, Preloaded, preload};
pub use options::Options;

use crate::Generator;

/// A server's protocol and the requests that are sent in it.
pub trait Target: Send {
    /// Appends the next request to `out`.
    fn encode(&mut self, rng: &mut Generator, out: &mut Vec<u8>);

    /// A reader of the replies on one new connection.
    fn decoder(&self) -> Box<dyn Decoder>;
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Done,
    /// Answered: there is no such key.
    Miss,
    /// Answered with an error.
    Failed,
}

/// Decodes one connection's replies from bytes that arrive in any portions.
pub trait Decoder: Send {
    /// Consumes what it can of `input`, appends the outcome of each reply that ends
    /// in it, and returns the number of bytes consumed. The caller keeps the other
    /// bytes and passes them again, followed by more.
    ///
    /// At most [`MAX_HEAD_BYTES`] are left unconsumed.
    ///
    /// # Errors
    /// If the bytes do not follow the protocol; the connection must then be closed.
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>)
    -> Result<usize, ProtocolError>;

    /// Called when the server has closed the connection. Returns the outcome of the
    /// reply that this completes, if any.
    fn close(&mut self) -> Option<Outcome> {
        None
    }

    /// Returns whether the server has announced that it will close this connection.
    fn is_last(&self) -> bool {
        false
    }
}

/// The longest line or header block of a reply.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Why bytes are not of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line or header block does not end.
    #[error("a reply's head exceeds {MAX_HEAD_BYTES} bytes: is this a {protocol} server?")]
    TooLong {
        /// The protocol spoken.
        protocol: &'static str,
    },
    /// The server sent something that the protocol does not allow here.
    #[error("the server sent `{got}`: is this a {protocol} server?")]
    Unexpected {
        /// The protocol spoken.
        protocol: &'static str,
        /// The beginning of the unexpected bytes.
        got: String,
    },
}

impl ProtocolError {
    fn unexpected(protocol: &'static str, got: &[u8]) -> Self {
        let got = got[..got.len().min(80)].escape_ascii().to_string();
        Self::Unexpected { protocol, got }
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
