//! One front-end process as its agent sees it: its start, its messages, its end.
//!
//! Nothing here waits for the process but [`FrontendChild::wait_for`], which takes a deadline.

use super::channel::{Bounds, Channel, ChannelError};
use super::ending::EndingChild;
use super::handover::Listeners;
use super::message::{FROM_MAX, FromFrontend, TO_MAX, ToFrontend};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::time::Instant;

const BOUNDS: Bounds = Bounds { to: TO_MAX, from: FROM_MAX, turn: 4 << 20 };

/// The reason why a front end cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// The process runs and does not answer.
    #[error("it did not answer for 10 s")]
    Silent,
    /// The process ended, or its channel cannot be used.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// A front end that was started. It ends when dropped.
#[derive(Debug)]
pub(super) struct FrontendChild {
    // Dropped first: a front end ends by itself when its channel is closed.
    channel: Channel,
    process: EndingChild,
}

impl FrontendChild {
    /// Starts `program` as a front end and hands the sockets over.
    pub(super) fn start(program: &Path, listeners: &Listeners) -> io::Result<Self> {
        let hand_over = |stream: &_| listeners.send(stream);
        let (child, channel) = Channel::start(program, "frontend", BOUNDS, hand_over)?;
        Ok(Self { channel, process: EndingChild::new(child) })
    }

    /// The process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
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

    /// Calls `take` with each message that has arrived, without waiting.
    ///
    /// # Errors
    /// If the process has ended, or sent bytes that are not a message.
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

    /// Closes the channel and returns the process, which ends by itself then.
    pub(super) fn end(self) -> EndingChild {
        let Self { channel, mut process } = self;
        drop(channel);
        process.end(Instant::now());
        process
    }

    /// Closes the channel and returns the process, which is not trusted to end by itself.
    pub(super) fn kill(self) -> EndingChild {
        let Self { channel, mut process } = self;
        drop(channel);
        process.kill(Instant::now());
        process
    }
}
