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
    // Dropped first: a watcher ends by itself when its channel is closed.
    channel: Option<Channel>,
    process: EndingChild,
}

/// The process of a watcher. When dropped, it is waited for, and killed if it does not end.
#[derive(Debug)]
pub(crate) struct EndingChild {
    child: Child,
    /// When it is killed; `None` while it may run.
    deadline: Option<Instant>,
}

impl WatcherChild {
    /// Starts `program` as a watcher.
    pub(crate) fn start(program: &Path) -> io::Result<Self> {
        let (child, channel) = Channel::start(program, "pods", BOUNDS, |_| Ok(()))?;
        let process = EndingChild { child, deadline: None };
        Ok(Self { channel: Some(channel), process })
    }

    /// Closes its channel and returns the process, which ends without being waited for.
    pub(crate) fn end(self) -> EndingChild {
        let Self { channel, mut process } = self;
        drop(channel);
        process.deadline = Some(Instant::now() + END_TIMEOUT);
        process
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

impl EndingChild {
    /// Returns whether it has ended, without waiting; kills it once its time is over.
    pub(crate) fn has_ended(&mut self, now: Instant) -> bool {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return true;
        }
        // Root without CAP_KILL may not kill a process of another user; then it is left.
        self.deadline.is_some_and(|deadline| now >= deadline) && self.child.kill().is_err()
    }
}

impl Drop for EndingChild {
    fn drop(&mut self) {
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + END_TIMEOUT);
        while !self.has_ended(Instant::now()) {
            if Instant::now() >= deadline {
                // It was killed, which takes no more than a moment.
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_watcher_that_does_not_end_is_killed_and_nobody_waits_for_it() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let begin = Instant::now();
        let mut process = EndingChild { child, deadline: Some(begin + END_TIMEOUT) };
        assert!(!process.has_ended(begin), "it has a second");
        assert!(!process.has_ended(begin + END_TIMEOUT), "it is killed now");
        drop(process);
    }
}
