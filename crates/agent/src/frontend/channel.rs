//! The agent's end of the channel to a process that it starts and that has fewer rights.
//!
//! Nothing here waits for the process: what the channel does not take is kept up to a bound, and
//! then dropped.

use super::frames::{FrameError, Frames, encode};
use lull_host::service;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// How much a channel carries, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The limit on a message to the process, and on all that may wait for the channel.
    pub to: usize,
    /// The limit on a message from the process.
    pub from: usize,
    /// Read immediately, so that the process cannot hold up the loop.
    pub turn: usize,
}

/// The reason why a process cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The process has closed its end of the channel.
    #[error("it ended")]
    Ended,
    /// The channel failed.
    #[error("the channel to it failed: {0}")]
    Channel(#[from] io::Error),
    /// The process sent bytes that are not a valid frame.
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    frames: Frames,
    /// Encoded and not yet taken by the channel.
    waiting: Vec<u8>,
    bounds: Bounds,
}

impl Channel {
    /// Starts `program` with the internal command `name`, whose standard input is the other end.
    /// `hand_over` sends the first messages before the start, so that a program that ends
    /// immediately does not cause an error of sending.
    ///
    /// # Errors
    /// If there is no channel, or the program cannot be started.
    pub fn start(
        program: &Path,
        name: &str,
        bounds: Bounds,
        hand_over: impl FnOnce(&UnixStream) -> io::Result<()>,
    ) -> io::Result<(Child, Self)> {
        let (stream, theirs) = UnixStream::pair()?;
        hand_over(&stream)?;
        stream.set_nonblocking(true)?;
        let mut command = Command::new(program);
        for variable in service::VARIABLES {
            command.env_remove(variable);
        }
        command.arg0("lull").arg(name);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        // The command holds the other end, whose last copy must be the child's: it ends here.
        let child = command.spawn()?;
        let frames = Frames::new(bounds.from);
        Ok((child, Self { stream, frames, waiting: Vec::new(), bounds }))
    }

    /// The socket, which is readable when a message has arrived.
    pub const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether something waits for the channel.
    pub const fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a message, unless too much waits already. One that the channel does not take now is
    /// sent later; one that is too long is of no use to the process.
    pub fn send(&mut self, message: &impl Serialize) {
        self.send_all(std::slice::from_ref(message));
    }

    /// Sends messages at once, so that they wake the process once if they are not too many.
    pub fn send_all(&mut self, messages: &[impl Serialize]) {
        for message in messages {
            if self.waiting.len() >= self.bounds.to {
                self.flush();
            }
            if self.waiting.len() < self.bounds.to {
                let _ = encode(message, self.bounds.to, &mut self.waiting);
            }
        }
        self.flush();
    }

    /// Writes what the channel takes; a failure shows when it is read.
    pub fn flush(&mut self) {
        let mut written = 0;
        while written < self.waiting.len() {
            match self.stream.write(&self.waiting[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.waiting.drain(..written);
    }

    /// Calls `take` with each message that has arrived, without waiting.
    ///
    /// # Errors
    /// If the process has ended, or sent bytes that are not a message; earlier messages are taken.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        mut take: impl FnMut(T),
    ) -> Result<(), ChannelError> {
        self.flush();
        let mut bytes = [0; 64 << 10];
        let mut left = self.bounds.turn;
        while left > 0 {
            let most = left.min(bytes.len());
            let count = match self.stream.read(&mut bytes[..most]) {
                Ok(0) => return Err(ChannelError::Ended),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(ChannelError::Ended);
                }
                Err(error) => return Err(error.into()),
            };
            left -= count;
            self.frames.add(&bytes[..count]);
            while let Some(message) = self.frames.next_message()? {
                take(message);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_are_longer_together_than_the_limit_are_all_sent() {
        let (stream, mut theirs) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let bounds = Bounds { to: 1_000, from: 1_000, turn: 1_000 };
        let frames = Frames::new(bounds.from);
        let mut channel = Channel { stream, frames, waiting: Vec::new(), bounds };
        let messages: Vec<String> = (0..100).map(|number| format!("{number:0100}")).collect();
        channel.send_all(&messages);
        drop(channel);
        let (mut bytes, mut frames) = (Vec::new(), Frames::new(1_000));
        theirs.read_to_end(&mut bytes).unwrap();
        frames.add(&bytes);
        let received = std::iter::from_fn(|| frames.next_message::<String>().unwrap());
        assert_eq!(received.collect::<Vec<_>>(), messages);
    }
}
