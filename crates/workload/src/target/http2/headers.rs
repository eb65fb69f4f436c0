//! The header block of a response: its frames (RFC 9113, sections 6.2 and 6.10), and the status in
//! it (RFC 7541).

use super::{
    END_HEADERS, END_STREAM, FRAME_HEAD_BYTES, Frame, HEADERS, MAX_HEAD_BYTES, PADDED, PRIORITY,
    PROTOCOL, ProtocolError,
};

/// The statuses that have an entry in HPACK's static table, from index 8 on.
const STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
/// Bytes of a block that are kept: the status is its first field.
const KEPT_BYTES: usize = 64;
const PRIORITY_BYTES: usize = 5;

/// A header block, whose frames follow each other without others in between.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub(super) stream: u32,
    /// Whether the block ends its stream.
    pub(super) is_last: bool,
    /// Its first [`KEPT_BYTES`].
    kept: Vec<u8>,
    /// Bytes of its frames with their frame headers, so that empty frames count too.
    length: usize,
}

impl HeaderBlock {
    /// Begins the block of a HEADERS frame.
    pub(super) fn new(frame: Frame) -> Self {
        let is_last = frame.flags & END_STREAM != 0;
        Self { stream: frame.stream, is_last, kept: Vec::new(), length: 0 }
    }

    /// Appends a frame. Returns whether the block ends with it.
    ///
    /// # Errors
    /// If the frame is shorter than its padding, or the block is too long.
    pub(super) fn push(&mut self, frame: Frame, payload: &[u8]) -> Result<bool, ProtocolError> {
        let part =
            fragment(frame, payload).ok_or_else(|| ProtocolError::unexpected(PROTOCOL, payload))?;
        self.length += FRAME_HEAD_BYTES + payload.len();
        if self.length > FRAME_HEAD_BYTES + MAX_HEAD_BYTES {
            return Err(ProtocolError::TooLong { protocol: PROTOCOL });
        }
        let room = KEPT_BYTES - self.kept.len();
        self.kept.extend_from_slice(&part[..part.len().min(room)]);
        Ok(frame.flags & END_HEADERS != 0)
    }

    /// Returns the status, which is in the block of a response and not in its trailers.
    pub(super) fn status(&self) -> Option<u16> {
        status_of(&self.kept)
    }
}

/// Returns the part of a header block that a frame contains: a HEADERS frame may have padding and a
/// priority.
fn fragment(frame: Frame, payload: &[u8]) -> Option<&[u8]> {
    if frame.kind != HEADERS {
        return Some(payload);
    }
    let (padding, rest) = match frame.flags & PADDED {
        0 => (0, payload),
        _ => payload.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
    };
    let rest = match frame.flags & PRIORITY {
        0 => rest,
        _ => rest.get(PRIORITY_BYTES..)?,
    };
    rest.get(..rest.len().checked_sub(padding)?)
}

/// Reads the status, which is the first field of a response's header block.
pub(super) fn status_of(mut block: &[u8]) -> Option<u16> {
    // Skip updates of the table's size, which is 0 afterwards. The name has seven indices in the
    // table.
    while let [0x20..=0x3f, rest @ ..] = block {
        block = rest;
    }
    match block {
        [field @ 0x88..=0x8e, ..] => Some(STATUSES[usize::from(field - 0x88)]),
        [0x08..=0x0e | 0x18..=0x1e | 0x48..=0x4e, length, rest @ ..] => {
            let text = rest.get(..usize::from(length & 0x7f))?;
            let digits = if length & 0x80 == 0 { plain(text) } else { huffman(text) };
            digits.filter(|status| (100..1000).contains(status))
        }
        _ => None,
    }
}

fn plain(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Decodes three digits of HPACK's Huffman code: 0 to 2 are the five bits 00000 to 00010, and 3 to
/// 9 the six bits 011001 to 011111.
pub(super) fn huffman(text: &[u8]) -> Option<u16> {
    let bits = text.iter().fold(0_u32, |all, byte| (all << 8) | u32::from(*byte));
    let mut left = 8 * u32::try_from(text.len()).ok().filter(|length| *length <= 3)?;
    let mut number = 0;
    for _ in 0..3 {
        let five = (bits >> left.checked_sub(5)?) & 0x1f;
        let digit = if five <= 2 {
            left -= 5;
            five
        } else {
            left = left.checked_sub(6)?;
            ((bits >> left) & 0x3f).checked_sub(0b01_1001 - 3).filter(|digit| *digit <= 9)?
        };
        number = 10 * number + digit as u16;
    }
    Some(number)
}
