//! The connection of NRI: two connections of ttrpc on one socket.
//!
//! ```text
//! frame     u32 connection   u32 length of what follows (big endian)
//! message   u32 length   u32 stream   u8 type   u8 flags   payload
//! ```
//!
//! A message may be spread over frames, and a frame may have several messages. Runtimes read a
//! frame into a buffer of 4 KiB at least; what a plug-in of ours sends is far smaller, and has a
//! frame of its own. Source: `pkg/net/multiplex/mux.go` of github.com/containerd/nri and
//! `PROTOCOL.md` of github.com/containerd/ttrpc.

use thiserror::Error;

const FRAME_HEADER: usize = 8;
const MESSAGE_HEADER: usize = 10;
/// Most bytes of a message in ttrpc.
const MESSAGE_MAX: usize = 4 << 20;

/// A connection of ttrpc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    /// The connection on which the runtime calls the plug-in.
    Plugin,
    /// The connection on which the plug-in calls the runtime.
    Runtime,
}

impl Connection {
    const fn number(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }

    const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Plugin),
            2 => Some(Self::Runtime),
            _ => None,
        }
    }
}

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageType {
    Request,
    Response,
    /// A part of a stream, which NRI does not use.
    Other,
}

/// A message of ttrpc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) connection: Connection,
    /// The number by which a response finds its request.
    pub(super) stream: u32,
    pub(super) kind: MessageType,
    pub(super) payload: Vec<u8>,
}

/// Why the bytes of a runtime are not messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum TrunkError {
    #[error("it has used connection {0}, which NRI does not define")]
    Connection(u32),
    #[error("a message of {0} bytes, which is more than ttrpc allows")]
    TooLong(usize),
}

/// Bytes that have arrived and do not form a whole message yet.
#[derive(Debug, Default)]
pub(super) struct Trunk {
    frames: Vec<u8>,
    plugin: Vec<u8>,
    runtime: Vec<u8>,
}

impl Trunk {
    /// Takes bytes and returns the messages that are whole now.
    ///
    /// # Errors
    /// If they are not of NRI. Nothing that follows can be read.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<Vec<Packet>, TrunkError> {
        self.frames.extend_from_slice(bytes);
        let mut packets = Vec::new();
        let mut at = 0;
        while let Some([number, length]) = numbers(&self.frames[at..]) {
            let connection =
                Connection::from_number(number).ok_or(TrunkError::Connection(number))?;
            let length = length as usize;
            if length > MESSAGE_HEADER + MESSAGE_MAX {
                return Err(TrunkError::TooLong(length));
            }
            let begin = at + FRAME_HEADER;
            let Some(content) = self.frames.get(begin..begin + length) else { break };
            let buffer = match connection {
                Connection::Plugin => &mut self.plugin,
                Connection::Runtime => &mut self.runtime,
            };
            buffer.extend_from_slice(content);
            split(connection, buffer, &mut packets)?;
            at = begin + length;
        }
        self.frames.drain(..at);
        Ok(packets)
    }
}

/// Moves whole messages out of the bytes of a connection.
fn split(
    connection: Connection,
    buffer: &mut Vec<u8>,
    packets: &mut Vec<Packet>,
) -> Result<(), TrunkError> {
    let mut at = 0;
    while let (Some([length, stream]), Some(&kind)) = (numbers(&buffer[at..]), buffer.get(at + 8)) {
        let length = length as usize;
        if length > MESSAGE_MAX {
            return Err(TrunkError::TooLong(length));
        }
        let begin = at + MESSAGE_HEADER;
        let Some(payload) = buffer.get(begin..begin + length) else { break };
        let kind = match kind {
            1 => MessageType::Request,
            2 => MessageType::Response,
            _ => MessageType::Other,
        };
        packets.push(Packet { connection, stream, kind, payload: payload.to_vec() });
        at = begin + length;
    }
    buffer.drain(..at);
    Ok(())
}

/// The first two numbers of a header.
fn numbers(bytes: &[u8]) -> Option<[u32; 2]> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some([u32::from_be_bytes(*first), u32::from_be_bytes(*rest.first_chunk()?)])
}

/// Appends a message, in a frame of its own.
pub(super) fn encode(packet: &Packet, bytes: &mut Vec<u8>) {
    let Packet { connection, stream, kind, payload } = packet;
    let length = payload.len() as u32;
    bytes.extend(connection.number().to_be_bytes());
    bytes.extend((MESSAGE_HEADER as u32 + length).to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(stream.to_be_bytes());
    let (kind, flags) = match kind {
        // No data follows the request.
        MessageType::Request => (1, 1),
        MessageType::Response => (2, 0),
        MessageType::Other => (3, 0),
    };
    bytes.extend([kind, flags]);
    bytes.extend(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(connection: Connection, stream: u32, payload: &[u8]) -> Packet {
        Packet { connection, stream, kind: MessageType::Request, payload: payload.to_vec() }
    }

    #[test]
    fn messages_arrive_whole_however_their_bytes_do() {
        let sent = [
            packet(Connection::Plugin, 1, b"configure"),
            packet(Connection::Runtime, 1, b""),
            packet(Connection::Plugin, 3, &[7; 9_000]),
        ];
        let mut bytes = Vec::new();
        sent.iter().for_each(|one| encode(one, &mut bytes));
        let mut trunk = Trunk::default();
        assert_eq!(trunk.add(&bytes).unwrap(), sent);
        let pieces = bytes.chunks(7).flat_map(|piece| trunk.add(piece).unwrap());
        assert_eq!(pieces.collect::<Vec<_>>(), sent);
        assert!(trunk.frames.is_empty() && trunk.plugin.is_empty() && trunk.runtime.is_empty());
    }

    #[test]
    fn a_message_may_be_spread_over_frames() {
        let whole = packet(Connection::Plugin, 5, b"synchronize");
        let mut bytes = Vec::new();
        encode(&whole, &mut bytes);
        let message = &bytes[FRAME_HEADER..];
        let mut trunk = Trunk::default();
        let mut received = Vec::new();
        for part in message.chunks(4) {
            let mut frame = Connection::Plugin.number().to_be_bytes().to_vec();
            frame.extend((part.len() as u32).to_be_bytes());
            frame.extend(part);
            received.extend(trunk.add(&frame).unwrap());
        }
        assert_eq!(received, [whole]);
    }

    #[test]
    fn what_is_no_message_of_nri_ends_the_connection_before_it_takes_memory() {
        let header = |connection: u32, length: u32| {
            [connection.to_be_bytes(), length.to_be_bytes()].concat()
        };
        let refused = |bytes: &[u8]| Trunk::default().add(bytes).unwrap_err();
        assert_eq!(refused(&header(7, 1)), TrunkError::Connection(7));
        assert_eq!(refused(&header(1, u32::MAX)), TrunkError::TooLong(u32::MAX as usize));
        let mut long = header(1, MESSAGE_HEADER as u32);
        long.extend(header(MESSAGE_MAX as u32 + 1, 1));
        long.extend([1, 1]);
        assert_eq!(refused(&long), TrunkError::TooLong(MESSAGE_MAX + 1));
    }
}
