//! One client of the options server.

use super::protocol::MAX_LINE_BYTES;
use crate::clock;
use lull_measure::Nanos;
use lull_measure::push::{Fill, LineReader, LineTooLong};
use rustix::fd::{AsFd, BorrowedFd};
use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A connection, held by one thread at a time: by the acceptor while it is
/// waited for, by a worker from a request to its reply.
#[derive(Debug)]
pub(super) struct Connection {
    /// Its place in the acceptor's table.
    pub(super) number: usize,
    stream: TcpStream,
    input: Mutex<Input>,
}

#[derive(Debug)]
struct Input {
    lines: LineReader,
    /// When the buffered bytes were read: the arrival of the requests in them.
    arrived: Nanos,
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// Bytes were read; there may be whole lines.
    Something,
    /// The client has closed the connection.
    End,
}

impl Connection {
    pub(super) fn new(number: usize, stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let input = Input { lines: LineReader::new(MAX_LINE_BYTES), arrived: Nanos::ZERO };
        Ok(Self { number, stream, input: Mutex::new(input) })
    }

    /// Reads the available bytes. All lines read before must have been taken.
    pub(super) fn read(&self) -> ReadOutcome {
        let mut input = self.lock();
        match input.lines.fill(&mut Unbuffered(&self.stream)) {
            Ok(Fill::End) | Err(_) => ReadOutcome::End,
            Ok(_) => {
                input.arrived = clock::now();
                ReadOutcome::Something
            }
        }
    }

    /// Returns the next complete request line with its arrival.
    pub(super) fn next_line(&self) -> Option<(std::result::Result<String, LineTooLong>, Nanos)> {
        let mut input = self.lock();
        let arrived = input.arrived;
        let line = input.lines.next_line()?;
        Some((line.map(|bytes| String::from_utf8_lossy(bytes).into_owned()), arrived))
    }

    /// Writes a reply. A client whose receive buffer cannot take these few bytes has
    /// stopped reading: its connection is closed, so that no worker waits for it.
    pub(super) fn reply(&self, text: &str) {
        let wrote = (&self.stream).write(text.as_bytes());
        if wrote.ok() != Some(text.len()) {
            self.give_up();
        }
    }

    /// Ends the connection; the acceptor sees it with the next read.
    pub(super) fn give_up(&self) {
        // Fails only if the other end was faster.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Reads from a stream that others hold as well.
struct Unbuffered<'a>(&'a TcpStream);

impl Read for Unbuffered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.0.read(buffer)
    }
}
