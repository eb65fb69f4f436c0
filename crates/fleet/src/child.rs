//! The watcher's process as the agent sees it: its start, the channel, its end.
//!
//! Nothing here waits for the process: what the channel does not take is dropped.

use crate::message::{FROM_MAX, FromWatcher, TO_MAX, ToWatcher};
use lull_agent::frontend::frames::{FrameError, Frames, encode};
use lull_host::service;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Most bytes that are read at once, so that a watcher cannot hold up the loop.
const TURN_MAX: usize = 1 << 20;
/// Most bytes that may wait for the channel.
const WAITING_MAX: usize = TO_MAX;
/// How long the process may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Why a watcher is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// It has closed its end of the channel.
    #[error("it ended")]
    Ended,
    /// The channel failed.
    #[error("the channel to it failed: {0}")]
    Channel(#[from] io::Error),
    /// It sent what no watcher sends.
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
}

/// A watcher that was started. It ends when dropped.
#[derive(Debug)]
pub(crate) struct WatcherChild {
    child: Child,
    channel: Option<UnixStream>,
    frames: Frames,
    waiting: Vec<u8>,
}

impl WatcherChild {
    /// Starts `program` as a watcher.
    pub(crate) fn start(program: &Path) -> io::Result<Self> {
        let (channel, theirs) = UnixStream::pair()?;
        channel.set_nonblocking(true)?;
        let mut command = Command::new(program);
        for variable in service::VARIABLES {
            command.env_remove(variable);
        }
        command.arg0("lull").arg("pods");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn()?;
        let frames = Frames::new(FROM_MAX);
        Ok(Self { child, channel: Some(channel), frames, waiting: Vec::new() })
    }

    /// The channel, which is readable when something has come.
    pub(crate) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    /// Sends a message, unless too much waits already.
    pub(crate) fn send(&mut self, message: &ToWatcher) {
        if self.waiting.len() < WAITING_MAX {
            // A message that is too long is of no use to the watcher.
            let _ = encode(message, TO_MAX, &mut self.waiting);
        }
        self.flush();
    }

    /// Writes what the channel takes; a failure shows when it is read.
    fn flush(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        while !self.waiting.is_empty() {
            match channel.write(&self.waiting) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Returns the messages that have come, without waiting.
    ///
    /// # Errors
    /// If the process has ended, or sent what is no message; what arrived before is returned, too.
    pub(crate) fn receive(&mut self) -> (Vec<FromWatcher>, Result<(), Lost>) {
        self.flush();
        let mut messages = Vec::new();
        let received = self.receive_into(&mut messages);
        (messages, received)
    }

    fn receive_into(&mut self, messages: &mut Vec<FromWatcher>) -> Result<(), Lost> {
        let Some(channel) = &mut self.channel else { return Err(Lost::Ended) };
        let mut bytes = [0; 16 << 10];
        let mut left = TURN_MAX;
        while left > 0 {
            let count = match channel.read(&mut bytes) {
                Ok(0) => return Err(Lost::Ended),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(Lost::Ended);
                }
                Err(error) => return Err(error.into()),
            };
            left = left.saturating_sub(count);
            self.frames.add(&bytes[..count]);
            while let Some(message) = self.frames.next_message()? {
                messages.push(message);
            }
        }
        Ok(())
    }
}

impl Drop for WatcherChild {
    fn drop(&mut self) {
        // A watcher ends by itself when its channel is closed.
        self.channel = None;
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        // Root without CAP_KILL may not kill a process of another user; then it is left.
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}
