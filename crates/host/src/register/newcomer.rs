//! One connection at the socket at which processes register.

use super::LINES_MAX;
use crate::apps::ProcessId;
use crate::sys::peer::peer_credentials;
use lull_measure::Nanos;
use lull_measure::push::{Fill, LineReader};
use lull_measure::register::{Answer, MAX_LINE_BYTES};
use std::fmt;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Fills of the line buffer in one turn, so that a connection cannot starve the rest.
const FILLS_MAX: u32 = 4;

/// A connection, registered or not.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    lines: LineReader,
    lines_left: u32,
    /// Whether a line was sent to be parsed and is not answered yet.
    is_sent: bool,
    /// The process that has connected, as of then. Its number may be another's by now.
    pid: i32,
    uid: u32,
    /// When it was accepted.
    pub(super) since: Nanos,
    /// The slot that it has, if it is registered.
    pub(super) slot: Option<TakenSlot>,
    /// The registered process, which becomes readable when it ends.
    process: Option<OwnedFd>,
}

/// A slot that a connection has.
#[derive(Debug)]
pub(super) struct TakenSlot {
    /// The number of the template.
    pub(super) template: usize,
    /// The number of the slot.
    pub(super) index: usize,
    /// The process that has it.
    pub(super) process: ProcessId,
    /// The name of the app.
    pub(super) app: String,
}

/// The content that a connection has sent.
pub(super) enum Turn {
    /// A whole line.
    Line(Vec<u8>),
    /// No whole line yet.
    Part,
    /// The connection is closed, or has sent too much.
    Over,
}

impl Connection {
    /// `None` if the process cannot be identified: it is in a namespace that this one does not
    /// see, or has ended.
    pub(super) fn new(stream: UnixStream, since: Nanos) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let peer = peer_credentials(&stream)?;
        Some(Self {
            pid: peer.pid,
            uid: peer.uid,
            stream,
            lines: LineReader::new(MAX_LINE_BYTES),
            lines_left: LINES_MAX,
            is_sent: false,
            since,
            slot: None,
            process: None,
        })
    }

    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) const fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) const fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the name of its app.
    pub(super) fn app(&self) -> Option<String> {
        self.slot.as_ref().map(|slot| slot.app.clone())
    }

    /// Keeps the handle of the registered process.
    pub(super) fn keep(&mut self, process: Option<OwnedFd>) {
        self.process = process.or(self.process.take());
    }

    /// Notes that one of its lines is being parsed.
    pub(super) const fn note_sent(&mut self) {
        self.is_sent = true;
    }

    /// Notes that its line was parsed; returns false if none was sent.
    pub(super) fn take_sent(&mut self) -> bool {
        std::mem::take(&mut self.is_sent)
    }

    /// Whether one of its lines is being parsed.
    pub(super) const fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Returns the next line of the received bytes.
    pub(super) fn read(&mut self) -> Turn {
        for _ in 0..FILLS_MAX {
            if let Some(turn) = self.next_line() {
                return turn;
            }
            match self.lines.fill(&mut self.stream) {
                Ok(Fill::Read(_)) => {}
                Ok(Fill::WouldBlock) => return Turn::Part,
                Ok(Fill::End) | Err(_) => return Turn::Over,
            }
        }
        self.next_line().unwrap_or(Turn::Part)
    }

    /// Returns the next line of the received bytes; `None` without a whole one.
    fn next_line(&mut self) -> Option<Turn> {
        let line = self.lines.next_line()?;
        let (Ok(line), Some(left)) = (line, self.lines_left.checked_sub(1)) else {
            return Some(Turn::Over);
        };
        self.lines_left = left;
        Some(Turn::Line(line.to_vec()))
    }

    /// Writes an answer; returns whether there was room for it, which there is unless the process
    /// does not read earlier answers.
    pub(super) fn answer(&mut self, answer: &Answer) -> bool {
        let line = answer.to_line();
        self.stream.write(line.as_bytes()).is_ok_and(|count| count == line.len())
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.uid)
    }
}
