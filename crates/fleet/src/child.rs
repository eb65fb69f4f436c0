//! The watcher's process as the agent sees it: its start, its messages, its end.
//!
//! Nothing here waits for the process: what the channel does not take is dropped.

use crate::message::{FROM_MAX, FromWatcher, TO_MAX, ToWatcher};
use lull_agent::frontend::channel::{Bounds, Channel, ChannelError};
use lull_agent::frontend::ending::EndingChild;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;

const BOUNDS: Bounds = Bounds { to: TO_MAX, from: FROM_MAX, turn: 1 << 20 };

/// A watcher that was started. It ends when dropped.
#[derive(Debug)]
pub(crate) struct WatcherChild {
    // Dropped first: a watcher ends by itself when its channel is closed.
    channel: Option<Channel>,
    process: EndingChild,
}

impl WatcherChild {
    /// Starts `program` as a watcher.
    pub(crate) fn start(program: &Path) -> io::Result<Self> {
        let (child, channel) = Channel::start(program, "pods", BOUNDS, |_| Ok(()))?;
        Ok(Self { channel: Some(channel), process: EndingChild::new(child) })
    }

    /// Closes its channel and returns the process, which ends without being waited for.
    pub(crate) fn end(self) -> EndingChild {
        let Self { channel, mut process } = self;
        drop(channel);
        process.end(Instant::now());
        process
    }

    /// The channel, which is readable when a message has arrived.
    pub(crate) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(|channel| channel.stream().as_fd())
    }

    /// Sends messages at once, unless too much waits already.
    pub(crate) fn send(&mut self, messages: &[ToWatcher]) {
        if let Some(channel) = &mut self.channel {
            channel.send_all(messages);
        }
    }

    /// Returns the messages that have arrived, without waiting.
    ///
    /// # Errors
    /// If the process has ended, or sent bytes that are not a message; earlier messages are
    /// returned, too.
    pub(crate) fn receive(&mut self) -> (Vec<FromWatcher>, Result<(), ChannelError>) {
        let Some(channel) = &mut self.channel else {
            return (Vec::new(), Err(ChannelError::Ended));
        };
        let mut messages = Vec::new();
        let received = channel.receive(|message| messages.push(message));
        (messages, received)
    }
}
