//! The watcher's process as the agent sees it: its start, its messages, its end.
//!
//! Nothing here waits for the process: what the channel does not take is dropped.

use crate::message::{FROM_MAX, FromWatcher, TO_MAX, ToWatcher};
use lull_agent::frontend::channel::{Bounds, Channel, ChannelError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const BOUNDS: Bounds = Bounds { to: TO_MAX, from: FROM_MAX, turn: 1 << 20 };
/// How long the process may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// A watcher that was started. It ends when dropped.
#[derive(Debug)]
pub(crate) struct WatcherChild {
    child: Child,
    channel: Option<Channel>,
}

impl WatcherChild {
    /// Starts `program` as a watcher.
    pub(crate) fn start(program: &Path) -> io::Result<Self> {
        let (child, channel) = Channel::start(program, "pods", BOUNDS, |_| Ok(()))?;
        Ok(Self { child, channel: Some(channel) })
    }

    /// The channel, which is readable when something has come.
    pub(crate) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(|channel| channel.stream().as_fd())
    }

    /// Sends a message, unless too much waits already.
    pub(crate) fn send(&mut self, message: &ToWatcher) {
        if let Some(channel) = &mut self.channel {
            channel.send(message);
        }
    }

    /// Returns the messages that have come, without waiting.
    ///
    /// # Errors
    /// If the process has ended, or sent what is no message; what arrived before is returned, too.
    pub(crate) fn receive(&mut self) -> (Vec<FromWatcher>, Result<(), ChannelError>) {
        let Some(channel) = &mut self.channel else {
            return (Vec::new(), Err(ChannelError::Ended));
        };
        let mut messages = Vec::new();
        let received = channel.receive(|message| messages.push(message));
        (messages, received)
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
