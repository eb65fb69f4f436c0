//! The messages to the agent.

use crate::message::{FROM_MAX, FromWatcher};
use lull_agent::frontend::frames::encode;
use std::io::ErrorKind;
use tokio::net::UnixStream;

/// The way to the agent.
#[derive(Clone, Copy)]
pub(super) struct Out<'a> {
    channel: &'a UnixStream,
}

impl<'a> Out<'a> {
    /// Sends through this channel.
    pub(super) const fn new(channel: &'a UnixStream) -> Self {
        Self { channel }
    }

    /// The channel, from which the agent's messages are read.
    pub(super) const fn channel(self) -> &'a UnixStream {
        self.channel
    }

    /// Sends messages, as fast as the agent takes them.
    pub(super) async fn send(self, messages: &[FromWatcher]) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        for message in messages {
            // Every text is bounded where it was made.
            let _ = encode(message, FROM_MAX, &mut bytes);
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            self.channel.writable().await?;
            match self.channel.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
