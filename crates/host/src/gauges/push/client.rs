//! One connection of a client.

use crate::sys::peer::peer_credentials;
use lull_measure::push::{Fill, LineReader, MAX_LINE_BYTES, Message};
use std::fmt;
use std::os::unix::net::UnixStream;

/// Bytes taken from one client at a time, so that one cannot starve the rest.
const TURN_BYTES: usize = 4 * MAX_LINE_BYTES;
/// Messages taken from one client at a time, few enough that one client cannot fill the room that
/// all share before the others have had their turns.
pub(super) const TURN_MESSAGES: usize = 128;

/// A client, in messages to users and in tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientId {
    /// Counts the connections of a source.
    pub number: u64,
    /// The process that has connected, if the kernel says.
    pub pid: Option<i32>,
}

/// A client and the received part of its next line.
#[derive(Debug)]
pub(super) struct PushClient {
    id: ClientId,
    stream: UnixStream,
    lines: LineReader,
}

/// The state of a connection after a turn.
#[derive(Debug)]
pub(super) enum Drained {
    /// Its turn is over, and more may be there.
    More,
    /// More may come.
    Open,
    /// The client has closed it.
    Closed,
    /// The client broke the protocol; the text says how.
    Bad(String),
}

impl PushClient {
    /// A client that has connected by a stream, which must not block.
    pub(super) fn new(number: u64, stream: UnixStream) -> Self {
        let pid = peer_credentials(&stream).map(|peer| peer.pid);
        Self { id: ClientId { number, pid }, stream, lines: LineReader::new(MAX_LINE_BYTES) }
    }

    /// Returns the client.
    pub(super) const fn id(&self) -> ClientId {
        self.id
    }

    /// Hands every whole message to `take` until nothing is left to read, or its turn is over.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Message) -> Result<(), String>) -> Drained {
        let (mut bytes, mut messages) = (TURN_BYTES, TURN_MESSAGES);
        loop {
            if let Err(why) = self.take_lines(&mut messages, &mut take) {
                return Drained::Bad(why);
            }
            if bytes == 0 || messages == 0 {
                return Drained::More;
            }
            match self.lines.fill(&mut self.stream) {
                Ok(Fill::Read(count)) => bytes = bytes.saturating_sub(count),
                Ok(Fill::WouldBlock) => return Drained::Open,
                Ok(Fill::End) => return Drained::Closed,
                Err(error) => return Drained::Bad(error.to_string()),
            }
        }
    }

    /// Takes at most `left` lines of the received bytes.
    fn take_lines(
        &mut self,
        left: &mut usize,
        take: &mut impl FnMut(Message) -> Result<(), String>,
    ) -> Result<(), String> {
        while *left > 0
            && let Some(line) = self.lines.next_line()
        {
            let line = line.map_err(|error| error.to_string())?;
            take(Message::decode(line).map_err(|error| error.to_string())?)?;
            *left -= 1;
        }
        Ok(())
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "push client of process {pid}"),
            None => write!(f, "push client {}", self.number),
        }
    }
}
