//! Messages as bytes on a stream: a length of four bytes, then the message as postcard.
//!
//! Postcard is the plain sequence of a type's fields, without names, references or types that
//! the sender could choose, so that decoding allocates no more than was sent.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the length.
const HEAD: usize = 4;

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A message is longer than its direction allows.
    #[error("a message of {length} bytes, where {most} are the most")]
    TooLong {
        /// Its length.
        length: usize,
        /// The most.
        most: usize,
    },
    /// The bytes are not a message.
    #[error("a message of unknown form ({0})")]
    Malformed(#[from] postcard::Error),
    /// More bytes than the message has.
    #[error("a message with {0} bytes too many")]
    Rest(usize),
}

/// Appends a message to `out`.
///
/// # Errors
/// If it is longer than `most`; `out` is unchanged then.
pub fn encode(message: &impl Serialize, most: usize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let body = postcard::to_allocvec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= most);
    let length = length.ok_or(FrameError::TooLong { length: body.len(), most })?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&body);
    Ok(())
}

/// Splits a stream of bytes into messages.
#[derive(Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    /// `bytes[..start]` has been returned.
    start: usize,
    most: usize,
}

impl Frames {
    /// A stream of messages of at most `most` bytes each.
    pub const fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, most }
    }

    /// Adds bytes that have come. Take all messages before the next call.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole message; `None` until more bytes have come.
    ///
    /// # Errors
    /// If the bytes are not a message; the stream is of no use then.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((head, rest)) = rest.split_first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length > self.most {
            return Err(FrameError::TooLong { length, most: self.most });
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let (message, rest) = postcard::take_from_bytes(body)?;
        self.start += HEAD + length;
        if rest.is_empty() { Ok(Some(message)) } else { Err(FrameError::Rest(rest.len())) }
    }
}

/// Splits a stream of bytes that comes in pieces of this length into messages of at most `most`
/// bytes, and returns how many of them `take` accepts; it ends where bytes are no message. What
/// fuzz targets call.
#[doc(hidden)]
pub fn count_taken<T: DeserializeOwned>(
    bytes: &[u8],
    piece: usize,
    most: usize,
    mut take: impl FnMut(T) -> bool,
) -> usize {
    let (mut frames, mut taken) = (Frames::new(most), 0);
    for piece in bytes.chunks(piece.max(1)) {
        frames.add(piece);
        loop {
            match frames.next_message() {
                Ok(Some(message)) => taken += usize::from(take(message)),
                Ok(None) => break,
                // The agent ends a process that sends this.
                Err(_) => return taken,
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    type Message = (u64, Vec<(u64, f64)>, Option<String>);

    fn message(count: u64) -> Message {
        (count, (0..count).map(|at| (at, 0.5)).collect(), Some("text".repeat(3)))
    }

    #[test]
    fn messages_arrive_in_any_pieces() {
        let mut bytes = Vec::new();
        (0..4).for_each(|count| encode(&message(count * 100), 10_000, &mut bytes).unwrap());
        for size in [1, 3, 1_000, bytes.len()] {
            let (mut frames, mut got) = (Frames::new(10_000), Vec::new());
            for piece in bytes.chunks(size) {
                frames.add(piece);
                while let Some(message) = frames.next_message::<Message>().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, [0, 100, 200, 300].map(message), "{size}");
        }
    }

    #[test]
    fn what_is_too_long_or_of_another_form_is_refused() {
        let mut bytes = b"before".to_vec();
        assert!(encode(&message(100), 50, &mut bytes).is_err());
        assert_eq!(bytes, b"before");
        let refused = |bytes: &[u8]| {
            let mut frames = Frames::new(1_000);
            frames.add(bytes);
            frames.next_message::<Message>().unwrap_err().to_string()
        };
        assert!(refused(&[255, 255, 255, 255]).contains("are the most"));
        // A list that claims 2^35 elements in ten bytes.
        assert!(refused(&[7, 0, 0, 0, 1, 255, 255, 255, 255, 127, 0]).contains("unknown form"));
        let mut long = Vec::new();
        encode(&message(0), 1_000, &mut long).unwrap();
        long[0] += 1;
        long.push(0);
        assert!(refused(&long).contains("1 bytes too many"));
    }
}
