//! The messages that a server sends: where a reply ends, and where the server reports that the
//! name of the application has changed (postgresql.org, "ReadyForQuery", "ParameterStatus").
//!
//! Each message has one byte that names its kind, and four of length. Headers are read and bodies
//! are skipped, so that no row that a client has stored passes for a message. The bytes come in
//! any pieces; what is remembered between them is three words of the [`State`].

use crate::client::{NameHash, Names};
use crate::protocol::wire::State;

const HEADER_BYTES: usize = 5;
/// The length in a header counts itself.
const LENGTH_BYTES: u32 = 4;
/// A server sends no longer message (`MaxAllocSize`).
const LENGTH_MAX: u32 = 0x3fff_ffff;

const PARAMETER_STATUS: u8 = b'S';
const READY_FOR_QUERY: u8 = b'Z';

/// How a report of the application's name begins.
const KEY: &[u8] = b"application_name\0";
/// `key`: all of [`KEY`] was read.
const IN_VALUE: u8 = KEY.len() as u8;
/// `key`: the rest of the report is of no interest.
const NO_KEY: u8 = u8::MAX;

/// The bytes that were sent are not messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotMessages;

/// How far the messages to the client were read.
pub(super) struct Messages {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that are here; all of them within a body.
    filled: u8,
    /// Bytes of [`KEY`] with which a report begins, or [`NO_KEY`].
    key: u8,
    /// Bytes of the body still to come.
    left: u32,
    /// Hash of the part of the name that was read.
    hash: u64,
}

impl Messages {
    pub(super) fn load(state: &State) -> Self {
        let [a, b, c, d, e, filled, key, _] = state.to_client.to_le_bytes();
        let filled = filled.min(HEADER_BYTES as u8);
        let (left, hash) = (state.from_client as u32, state.held.application.0);
        Self { header: [a, b, c, d, e], filled, key, left, hash }
    }

    pub(super) fn store(&self, state: &mut State) {
        let [a, b, c, d, e] = self.header;
        state.to_client = u64::from_le_bytes([a, b, c, d, e, self.filled, self.key, 0]);
        state.from_client = self.left.into();
        state.held.application = NameHash(self.hash);
    }

    /// Reads bytes that were sent. Returns the status of the last `ReadyForQuery` that ends in
    /// them; `names` takes the name of the application.
    pub(super) fn read(
        &mut self,
        mut bytes: &[u8],
        names: &mut Names,
    ) -> Result<Option<u8>, NotMessages> {
        let mut status = None;
        while !bytes.is_empty() {
            if usize::from(self.filled) < HEADER_BYTES {
                bytes = self.read_header(bytes)?;
                continue;
            }
            let (body, rest) = bytes.split_at(bytes.len().min(self.left as usize));
            match self.header[0] {
                READY_FOR_QUERY => status = body.last().copied(),
                PARAMETER_STATUS => self.read_report(body, names),
                _ => {}
            }
            self.left -= body.len() as u32;
            if self.left == 0 {
                self.filled = 0;
            }
            bytes = rest;
        }
        Ok(status)
    }

    /// Reads the received part of a header. Returns the bytes behind it.
    fn read_header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], NotMessages> {
        let filled = usize::from(self.filled);
        let rest = match bytes.split_first_chunk() {
            Some((header, rest)) if filled == 0 => {
                self.header = *header;
                rest
            }
            _ => {
                let (part, rest) = bytes.split_at(bytes.len().min(HEADER_BYTES - filled));
                self.header[filled..filled + part.len()].copy_from_slice(part);
                self.filled += part.len() as u8;
                if usize::from(self.filled) < HEADER_BYTES {
                    return Ok(rest);
                }
                rest
            }
        };
        let [kind, length @ ..] = self.header;
        let length = u32::from_be_bytes(length);
        let is_ready = kind == READY_FOR_QUERY;
        if !(LENGTH_BYTES..=LENGTH_MAX).contains(&length)
            || !kind.is_ascii_alphanumeric()
            || (is_ready && length != LENGTH_BYTES + 1)
        {
            return Err(NotMessages);
        }
        self.left = length - LENGTH_BYTES;
        self.filled = if self.left == 0 { 0 } else { HEADER_BYTES as u8 };
        self.key = 0;
        Ok(rest)
    }

    /// Reads a part of a report: a key and a value, each of which a zero ends.
    fn read_report(&mut self, body: &[u8], names: &mut Names) {
        for byte in body {
            match self.key {
                NO_KEY => return,
                IN_VALUE if *byte == 0 => {
                    names.application = NameHash::from_parts(self.hash);
                    self.key = NO_KEY;
                }
                IN_VALUE => self.hash = NameHash::add_byte(self.hash, *byte),
                at if KEY.get(usize::from(at)) == Some(byte) => {
                    self.key = at + 1;
                    self.hash = NameHash::OF_NOTHING;
                }
                _ => self.key = NO_KEY,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::Phase;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    /// Returns the reader's result for replies that are sent in pieces of this many bytes.
    fn read(sent: &[Vec<u8>], piece: usize) -> Result<(Vec<u8>, Names), NotMessages> {
        let mut state = State::new(Phase::Ready);
        let (mut statuses, mut names) = (Vec::new(), Names::default());
        for part in sent.concat().chunks(piece) {
            let mut messages = Messages::load(&state);
            statuses.extend(messages.read(part, &mut names)?);
            messages.store(&mut state);
        }
        Ok((statuses, names))
    }

    fn application(sent: &[Vec<u8>]) -> NameHash {
        read(sent, usize::MAX).unwrap().1.application
    }

    #[test]
    fn the_name_of_an_application_changes_when_the_server_reports_it() {
        let report = message(b'S', b"application_name\0report\0");
        let (done, ready) = (message(b'C', b"SET\0"), message(b'Z', b"I"));
        let expected = NameHash::from_bytes(b"report");
        let row = message(b'D', b"\0\x01\0\0\0\x06report");
        let orders = [
            vec![done.clone(), report.clone(), ready.clone()],
            vec![report.clone(), done.clone(), ready.clone()],
            vec![message(b'1', b""), message(b'2', b""), done.clone(), report.clone()],
            // After an error, an empty statement, a notice, and rows of `set_config`.
            vec![message(b'E', b"SERROR\0\0"), report.clone(), ready.clone()],
            vec![message(b'3', b""), report.clone(), ready.clone()],
            vec![message(b'N', b"SNOTICE\0\0"), report.clone(), ready.clone()],
            vec![message(b'T', b"\0\x01"), row, done.clone(), report, ready.clone()],
        ];
        for order in orders {
            assert_eq!(application(&order), expected, "{order:?}");
        }
        let reset = message(b'S', b"application_name\0\0");
        assert_eq!(application(&[done, reset, ready]), NameHash::from_bytes(b""));
    }

    #[test]
    fn other_reports_and_the_bytes_of_rows_give_no_name() {
        let fake = message(b'S', b"application_name\0fake\0");
        let none = [
            message(b'D', &fake),
            message(b'd', &fake),
            message(b'S', b"TimeZone\0application_name\0"),
            message(b'S', b"application_names\0fake\0"),
            message(b'S', b"application_name\0cut off"),
            message(b'S', b""),
        ];
        for bytes in none {
            assert!(!application(&[bytes.clone(), message(b'Z', b"I")]).is_known(), "{bytes:?}");
        }
    }

    #[test]
    fn a_row_that_ends_like_the_end_of_a_reply_ends_none() {
        let row = message(b'D', &message(b'Z', b"I"));
        let reply = [row, message(b'Z', b"T")];
        assert_eq!(read(&reply[..1], usize::MAX).unwrap().0, b"");
        assert_eq!(read(&reply, usize::MAX).unwrap().0, b"T");
    }

    #[test]
    fn bytes_that_are_no_messages_are_noticed() {
        let none: [&[u8]; 4] =
            [b"D\0\0\0\x03", b"D\xff\0\0\0", b"\x16\x03\x03\0\x7a", b"Z\0\0\0\x06II"];
        for bytes in none {
            assert_eq!(read(&[bytes.to_vec()], usize::MAX), Err(NotMessages), "{bytes:?}");
        }
    }

    fn any_message() -> impl Strategy<Value = Vec<u8>> {
        let body = prop::collection::vec(any::<u8>(), 0..20);
        prop_oneof![
            body.prop_map(|body| message(b'D', &body)),
            Just(message(b'S', b"application_name\0report\0")),
            Just(message(b'S', b"application_name\0\0")),
            Just(message(b'S', b"TimeZone\0UTC\0")),
            prop::sample::select(vec![b'I', b'T', b'E']).prop_map(|at| message(b'Z', &[at])),
            Just(message(b'2', b"")),
        ]
    }

    proptest! {
        #[test]
        fn messages_in_any_pieces_are_read_as_in_one(
            all in prop::collection::vec(any_message(), 0..12),
            piece in 1usize..30,
        ) {
            let (statuses, names) = read(&all, piece).unwrap();
            prop_assert_eq!(names, read(&all, usize::MAX).unwrap().1);
            let ends = all.iter().filter(|message| message[0] == b'Z');
            let ends: Vec<u8> = ends.map(|message| message[5]).collect();
            prop_assert_eq!(statuses.last(), ends.last());
            if piece == 1 {
                prop_assert_eq!(statuses, ends);
            }
        }
    }
}
