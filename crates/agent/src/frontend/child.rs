//! One front-end process as its agent sees it: its start, its messages, its end.
//!
//! Nothing here waits for the process but [`FrontendChild::wait_for`], which takes a deadline.

use super::channel::{Bounds, Channel, ChannelError};
use super::handover::Listeners;
use super::message::{FROM_MAX, FromFrontend, TO_MAX, ToFrontend};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const BOUNDS: Bounds = Bounds { to: TO_MAX, from: FROM_MAX, turn: 4 << 20 };
/// How long a front end may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Why a front end is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// It runs and does not answer.
    #[error("it did not answer for 10 s")]
    Silent,
    /// It ended, or its channel is of no use.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// A front end that was started.
#[derive(Debug)]
pub(super) struct FrontendChild {
    child: Child,
    channel: Channel,
}

impl FrontendChild {
    /// Starts `program` as a front end and hands the sockets over.
    pub(super) fn start(program: &Path, listeners: &Listeners) -> io::Result<Self> {
        let hand_over = |stream: &_| listeners.send(stream);
        let (child, channel) = Channel::start(program, "frontend", BOUNDS, hand_over)?;
        Ok(Self { child, channel })
    }

    /// The process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message. One that the channel does not take now is sent later.
    pub(super) fn send(&mut self, message: &ToFrontend) {
        self.channel.send(message);
    }

    /// Sends an epoch, unless an earlier message still waits: the viewers are behind then.
    pub(super) fn show(&mut self, epoch: &ToFrontend) {
        self.channel.flush();
        if !self.channel.is_behind() {
            self.send(epoch);
        }
    }

    /// Calls `take` with each message that has come, without waiting.
    ///
    /// # Errors
    /// If the process has ended, or sent what is no message.
    pub(super) fn receive(&mut self, take: impl FnMut(FromFrontend)) -> Result<(), Lost> {
        Ok(self.channel.receive(take)?)
    }

    /// Waits until the channel can be read, or the deadline.
    pub(super) fn wait_for(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return };
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.channel.is_behind());
        let polled = poll(&mut [PollFd::new(self.channel.stream(), flags)], Some(&left));
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
