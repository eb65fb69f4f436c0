//! The client end of the push protocol ([`lull_measure::push`]).

use crate::clock;
use lull_measure::Nanos;
use lull_measure::push::{MAX_LINE_BYTES, Message};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The agent to push to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushConfig {
    /// The agent's unix socket.
    pub socket: PathBuf,
    /// The app's name in the agent's configuration.
    pub app: String,
}

/// Pause between two attempts to connect to the agent.
const PAUSE: Nanos = Nanos::from_millis(500);

/// Pushes messages and never waits for the agent.
///
/// While the agent is absent or slow, messages are dropped and counted. The pusher
/// tries to reconnect twice a second.
#[derive(Debug)]
pub struct Pusher {
    socket: PathBuf,
    stream: Option<UnixStream>,
    retry_at: Nanos,
    /// Encoded and not yet taken by the socket.
    out: Vec<u8>,
    sent: u64,
    dropped: u64,
}

impl Pusher {
    /// A pusher to the agent's socket, which need not exist yet.
    pub const fn new(socket: PathBuf) -> Self {
        Self { socket, stream: None, retry_at: Nanos::ZERO, out: Vec::new(), sent: 0, dropped: 0 }
    }

    /// Writes a message to the socket. Returns whether the socket took it.
    pub fn push(&mut self, message: &Message) -> bool {
        let taken = self.try_push(message);
        *(if taken { &mut self.sent } else { &mut self.dropped }) += 1;
        taken
    }

    /// Messages taken by the socket.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages dropped because the agent was absent or slow.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn try_push(&mut self, message: &Message) -> bool {
        if self.stream.is_none() && !self.connect() {
            return false;
        }
        // A partly written line must be completed before the next one may follow. An
        // agent that has not taken the last line yet does not get another.
        if !self.flush() || !self.out.is_empty() {
            return false;
        }
        message.encode(&mut self.out).is_ok() && self.flush()
    }

    fn connect(&mut self) -> bool {
        let now = clock::now();
        if now < self.retry_at {
            return false;
        }
        self.out.clear();
        self.stream = self.open().ok();
        self.retry_at = now + PAUSE;
        self.stream.is_some()
    }

    /// Connects without blocking; `UnixStream::connect` waits while the agent's
    /// backlog is full.
    fn open(&self) -> Result<UnixStream, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(self.socket.as_path())?)?;
        Ok(UnixStream::from(socket))
    }

    /// Writes what the socket takes. Returns whether the connection is still open.
    fn flush(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let mut written = 0;
        while written < self.out.len() {
            match stream.write(&self.out[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.stream = None;
                    return false;
                }
            }
        }
        self.out.drain(..written);
        debug_assert!(self.out.len() <= MAX_LINE_BYTES, "more than one line waits");
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::push::{LineReader, Progress};
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    fn message(total: u32) -> Message {
        let app = "burner".to_owned();
        // Long, so that a socket's buffer is soon full.
        let unit = "x".repeat(100);
        Message::Progress(Progress { app, unit, total: f64::from(total), time_ns: Nanos(1) })
    }

    fn totals(stream: &mut impl Read) -> Vec<f64> {
        let mut bytes = Vec::new();
        // Ends with an error once the non-blocking stream is empty.
        let _ = stream.read_to_end(&mut bytes);
        let (mut lines, mut rest, mut totals) =
            (LineReader::new(MAX_LINE_BYTES), bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            lines.fill(&mut rest).unwrap();
            while let Some(line) = lines.next_line() {
                let Message::Progress(progress) = Message::decode(line.unwrap()).unwrap() else {
                    panic!("another kind");
                };
                totals.push(progress.total);
            }
        }
        totals
    }

    #[test]
    fn an_agent_that_is_away_costs_messages_and_no_time() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent");
        let mut pusher = Pusher::new(socket.clone());
        assert!(!pusher.push(&message(1)));
        let listener = UnixListener::bind(&socket).unwrap();
        pusher.retry_at = Nanos::ZERO;
        assert!(pusher.push(&message(2)));
        let (mut agent, _) = listener.accept().unwrap();
        agent.set_nonblocking(true).unwrap();
        assert_eq!(totals(&mut agent), [2.0]);
        drop((agent, listener));
        assert!(!pusher.push(&message(3)), "a closed connection took a message");
        assert_eq!((pusher.sent(), pusher.dropped()), (1, 2));
    }

    #[test]
    fn an_agent_that_does_not_read_gets_whole_lines_and_misses_some() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut pusher = Pusher::new(socket);
        let mut count = 0;
        while pusher.push(&message(count)) && pusher.out.is_empty() {
            count += 1;
        }
        for _ in 0..5 {
            assert!(!pusher.push(&message(u32::MAX)));
        }
        let (mut agent, _) = listener.accept().unwrap();
        agent.set_nonblocking(true).unwrap();
        let mut got = totals(&mut agent);
        assert!(pusher.push(&message(count + 1)));
        got.extend(totals(&mut agent));
        assert!(got.windows(2).all(|pair| pair[0] < pair[1]), "mixed up: {got:?}");
        assert_eq!(got.last(), Some(&f64::from(count + 1)));
    }
}
