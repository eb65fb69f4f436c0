//! One connection of a client.

use lull_measure::push::{Fill, LineReader, MAX_LINE_BYTES, Message};
use rustix::net::sockopt::socket_peercred;
use std::fmt;
use std::os::unix::net::UnixStream;

/// Bytes taken from one client at a time, so that one cannot starve the rest.
const TURN_BYTES: usize = 4 * MAX_LINE_BYTES;

/// A client and what it has sent of its next line.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: u64,
    stream: UnixStream,
    lines: LineReader,
    pid: Option<i32>,
    has_ignored: bool,
}

/// The state of a connection after a turn.
#[derive(Debug)]
pub(super) enum Drained {
    /// More may come.
    Open,
    /// The client has closed it.
    Closed,
    /// It broke the protocol, and how.
    Bad(String),
}

impl Client {
    pub(super) fn new(id: u64, stream: UnixStream) -> Self {
        let pid = socket_peercred(&stream).ok().map(|peer| peer.pid.as_raw_nonzero().get());
        Self { id, stream, lines: LineReader::new(MAX_LINE_BYTES), pid, has_ignored: false }
    }

    /// Hands every whole message to `take` until nothing is left to read.
    pub(super) fn drain(&mut self, mut take: impl FnMut(Message) -> Result<(), String>) -> Drained {
        let mut left = TURN_BYTES;
        loop {
            let fill = self.lines.fill(&mut self.stream);
            if let Err(why) = self.take_lines(&mut take) {
                return Drained::Bad(why);
            }
            match fill {
                Ok(Fill::Read(count)) if count < left => left -= count,
                Ok(Fill::Read(_) | Fill::WouldBlock) => return Drained::Open,
                Ok(Fill::End) => return Drained::Closed,
                Err(error) => return Drained::Bad(error.to_string()),
            }
        }
    }

    /// Whether this is the first time it sends what must be ignored.
    pub(super) fn is_first_ignored(&mut self) -> bool {
        !std::mem::replace(&mut self.has_ignored, true)
    }

    fn take_lines(
        &mut self,
        take: &mut impl FnMut(Message) -> Result<(), String>,
    ) -> Result<(), String> {
        while let Some(line) = self.lines.next_line() {
            let line = line.map_err(|error| error.to_string())?;
            take(Message::decode(line).map_err(|error| error.to_string())?)?;
        }
        Ok(())
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "push client of process {pid}"),
            None => write!(f, "push client {}", self.id),
        }
    }
}
