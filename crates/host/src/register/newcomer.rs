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
    /// Lines that were sent to be parsed and have not come back.
    sent: u32,
    /// The process that has connected, as of then. Its number may be another's by now.
    pid: i32,
    uid: u32,
    /// When it was accepted.
    pub(super) since: Nanos,
    /// The seat that it has, if it is registered.
    pub(super) seat: Option<TakenSeat>,
    /// The registered process, which becomes readable when it ends.
    process: Option<OwnedFd>,
}

/// A seat that a connection has.
#[derive(Debug)]
pub(super) struct TakenSeat {
    /// The number of the template.
    pub(super) template: usize,
    /// The number of the seat.
    pub(super) index: usize,
    /// The process that has it.
    pub(super) process: ProcessId,
    /// The name of the app.
    pub(super) app: String,
}

/// What a connection has sent.
pub(super) enum Turn {
    /// Whole lines.
    Lines(Vec<Vec<u8>>),
    /// Nothing more: it is closed, or has written too much.
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
            sent: 0,
            since,
            seat: None,
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

    /// The name of the app that it is.
    pub(super) fn app(&self) -> Option<String> {
        self.seat.as_ref().map(|seat| seat.app.clone())
    }

    /// Keeps the handle of the registered process.
    pub(super) fn keep(&mut self, process: Option<OwnedFd>) {
        self.process = process.or(self.process.take());
    }

    /// Notes that one of its lines is being parsed.
    pub(super) const fn note_sent(&mut self) {
        self.sent += 1;
    }

    /// Notes that one of its lines was parsed; returns false if none was sent.
    pub(super) fn take_sent(&mut self) -> bool {
        let left = self.sent.checked_sub(1);
        self.sent = left.unwrap_or(0);
        left.is_some()
    }

    /// Whether one of its lines is being parsed.
    pub(super) const fn is_sent(&self) -> bool {
        self.sent > 0
    }

    /// Reads what has arrived.
    pub(super) fn read(&mut self) -> Turn {
        let mut lines = Vec::new();
        for _ in 0..FILLS_MAX {
            let fill = self.lines.fill(&mut self.stream);
            while let Some(line) = self.lines.next_line() {
                let (Ok(line), Some(left)) = (line, self.lines_left.checked_sub(1)) else {
                    return Turn::Over;
                };
                self.lines_left = left;
                lines.push(line.to_vec());
            }
            match fill {
                Ok(Fill::Read(_)) => {}
                Ok(Fill::WouldBlock) => break,
                Ok(Fill::End) | Err(_) => return Turn::Over,
            }
        }
        Turn::Lines(lines)
    }

    /// Writes an answer; returns whether there was room for it, which there is unless the
    /// process does not read what was answered before.
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
