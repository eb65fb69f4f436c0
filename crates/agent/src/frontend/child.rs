//! One front-end process as its agent sees it: its start, the channel, its end.
//!
//! Nothing here waits for the process but [`FrontendChild::wait_for`], which takes a deadline:
//! what the channel does not take is kept up to a bound, and then dropped.

use super::frames::{FrameError, Frames, encode};
use super::handover::Listeners;
use super::message::{FROM_MAX, FromFrontend, TO_MAX, ToFrontend};
use lull_host::service;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes that may wait for the channel; an epoch that would exceed them is not shown.
const WAITING_MAX: usize = TO_MAX;
/// Most bytes that are read from a front end at once, so that it cannot hold up the loop.
const TURN_MAX: usize = 4 << 20;
/// How long a front end may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Why a front end is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// It has closed its end of the channel.
    #[error("it ended")]
    Ended,
    /// It runs and does not answer.
    #[error("it did not answer for 10 s")]
    Silent,
    /// The channel failed.
    #[error("the channel to it failed: {0}")]
    Channel(#[from] io::Error),
    /// It sent what no front end sends.
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
}

/// A front end that was started.
#[derive(Debug)]
pub(super) struct FrontendChild {
    child: Child,
    channel: UnixStream,
    frames: Frames,
    /// Encoded and not yet taken by the channel.
    waiting: Vec<u8>,
}

impl FrontendChild {
    /// Starts `program` as a front end and hands the sockets over.
    pub(super) fn start(program: &Path, listeners: &Listeners) -> io::Result<Self> {
        let (channel, theirs) = UnixStream::pair()?;
        // Before the start, so that a program that ends at once is no failure to send.
        listeners.send(&channel)?;
        channel.set_nonblocking(true)?;
        let mut command = Command::new(program);
        for variable in service::VARIABLES {
            command.env_remove(variable);
        }
        command.arg0("lull").arg("frontend");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn()?;
        // The command holds the other end, whose last copy must be the child's.
        drop(command);
        Ok(Self { child, channel, frames: Frames::new(FROM_MAX), waiting: Vec::new() })
    }

    /// The process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message. One that the channel does not take now is sent later.
    pub(super) fn send(&mut self, message: &ToFrontend) {
        let is_full = self.waiting.len() >= WAITING_MAX;
        if !is_full && encode(message, TO_MAX, &mut self.waiting).is_ok() {
            // A failure shows when the channel is read.
            let _ = self.flush();
        }
    }

    /// Sends an epoch, unless an earlier message still waits: the viewers are behind then.
    pub(super) fn show(&mut self, epoch: &ToFrontend) {
        let _ = self.flush();
        if self.waiting.is_empty() {
            self.send(epoch);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        let end = loop {
            match self.channel.write(&self.waiting[written..]) {
                _ if written == self.waiting.len() => break Ok(()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.waiting.drain(..written);
        end
    }

    /// Calls `take` with each message that has come, without waiting.
    ///
    /// # Errors
    /// If the process has ended, or sent what is no message.
    pub(super) fn receive(&mut self, mut take: impl FnMut(FromFrontend)) -> Result<(), Lost> {
        let _ = self.flush();
        let mut bytes = [0; 64 << 10];
        let mut left = TURN_MAX;
        while left > 0 {
            let count = match self.channel.read(&mut bytes) {
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
                take(message);
            }
        }
        Ok(())
    }

    /// Waits until the channel can be read, or the deadline.
    pub(super) fn wait_for(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return };
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !self.waiting.is_empty());
        let polled = poll(&mut [PollFd::new(&self.channel, flags)], Some(&left));
        debug_assert!(polled.is_ok() || polled == Err(Errno::INTR), "the descriptor is open");
    }

    /// Ends the process, and describes how it ended.
    pub(super) fn end(self) -> String {
        let Self { mut child, channel, .. } = self;
        // A front end ends by itself when its channel is closed.
        drop(channel);
        match ended(&mut child) {
            Some(status) => status,
            None => format!("it did not end by itself; {}", kill(&mut child)),
        }
    }

    /// Kills the process, which is not trusted to end by itself, and describes how it ended.
    pub(super) fn kill(self) -> String {
        let Self { mut child, channel, .. } = self;
        drop(channel);
        kill(&mut child)
    }
}

/// Kills a process and waits for its end, but no longer than [`END_TIMEOUT`]: root without
/// `CAP_KILL` may not kill a process of another user.
fn kill(child: &mut Child) -> String {
    let killed = child.kill();
    match (ended(child), killed) {
        (Some(status), _) => status,
        (None, Ok(())) => "it was killed and has not ended yet".to_owned(),
        (None, Err(error)) => format!("it cannot be killed: {error}; CAP_KILL is needed"),
    }
}

/// Waits for the end of a process, and describes it; `None` if it runs after [`END_TIMEOUT`].
fn ended(child: &mut Child) -> Option<String> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.to_string()),
            Ok(None) if begun.elapsed() < END_TIMEOUT => std::thread::sleep(PAUSE),
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}
