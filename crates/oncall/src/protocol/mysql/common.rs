//! The frames of nearly every query, read in the words of a packed reader.
//!
//! A server comes back from the kernel with cold caches, where to unpack a reader, read its frames
//! in a loop and pack it again costs more than all else of a query. A header, a payload, a whole
//! command and an OK packet change few bits of two words. The functions here return these words as
//! a [`Reader`](crate::protocol::Reader) would leave them, which a test compares, and `None` for
//! everything else.

use super::{
    AT_PAYLOAD, AWAITS_FILE, COM_QUERY, COM_STMT_EXECUTE, COM_STMT_PREPARE, COMMAND, FLAGS,
    SERVER_STATUS_IN_TRANS,
};
use crate::protocol::wire::{HAS_REPLIED, IN_TRANSACTION, IS_PENDING, Phase, Request};
use crate::protocol::{HOLDS_NAMES, Protocol};

/// Where the parts of the first word begin: protocol, phase, flags, then the notes.
const PHASE_AT: u32 = 8;
const FLAGS_AT: u32 = 16;
const NOTES_AT: u32 = 24;
const COMMAND_AT: u32 = NOTES_AT + 8 * COMMAND as u32;

const PENDING: u64 = (IS_PENDING as u64) << FLAGS_AT;
const REPLIED: u64 = (HAS_REPLIED as u64) << FLAGS_AT;
const OPEN: u64 = (IN_TRANSACTION as u64) << FLAGS_AT;
const WAITS_FOR_FILE: u64 = (AWAITS_FILE as u64) << (NOTES_AT + 8 * FLAGS as u32);

/// The bits that the first word of a connection which runs queries has in common with others.
const FIXED: u64 = 0xffff | WAITS_FOR_FILE | HOLDS_NAMES;
/// The packed word of a connection that has logged in, expects no file, and has no name.
const RUNS_QUERIES: u64 = Protocol::Mysql.code() as u64 | (Phase::Ready.code() as u64) << PHASE_AT;

/// The bytes of a header that a framing keeps, behind its position.
const HEADER: u64 = 0xffff_ff00;
/// Numbers from here on have several bytes.
const LONG_NUMBER: u8 = 0xfb;

/// The request that bytes from a client begin, and the words after them.
pub(in crate::protocol) struct Received {
    pub(in crate::protocol) request: Request,
    pub(in crate::protocol) head: u64,
    pub(in crate::protocol) from_client: u64,
}

/// Reads a header, the payload behind one, or both, of a command that begins a query.
#[inline]
pub(in crate::protocol) fn received(head: u64, framing: u64, bytes: &[u8]) -> Option<Received> {
    if head & FIXED != RUNS_QUERIES {
        return None;
    }
    let (header, payload) = match framing as u8 {
        0 => {
            let (length, header, payload) = split(bytes)?;
            if payload.is_empty() {
                let position = if length == 0 { 0 } else { AT_PAYLOAD };
                let from_client = (length as u64) << 32 | header | u64::from(position);
                return Some(Received { request: Request::None, head, from_client });
            }
            (payload.len() == length).then_some((header, payload))?
        }
        AT_PAYLOAD if bytes.len() as u64 == framing >> 32 => (framing & HEADER, bytes),
        _ => return None,
    };
    let (sequence, command) = ((header >> 8) as u8, *payload.first()?);
    if sequence != 0 || !matches!(command, COM_QUERY | COM_STMT_PREPARE | COM_STMT_EXECUTE) {
        return None;
    }
    let kept = head & !(0xff << COMMAND_AT | REPLIED);
    let head = kept | u64::from(command) << COMMAND_AT | PENDING;
    Some(Received { request: Request::Query, head, from_client: header })
}

/// Reads an OK packet that the server sends by itself. Returns the first word and the framing.
#[inline]
pub(in crate::protocol) fn sent(head: u64, framing: u64, bytes: &[u8]) -> Option<(u64, u64)> {
    let command = (head >> COMMAND_AT) as u8;
    if head & FIXED != RUNS_QUERIES || framing as u8 != 0 || command == COM_STMT_PREPARE {
        return None;
    }
    let (length, header, payload) = split(bytes)?;
    let [0, rows, id, status, _, ..] = payload else { return None };
    if payload.len() != length || *rows >= LONG_NUMBER || *id >= LONG_NUMBER {
        return None;
    }
    let is_open = u16::from(*status) & SERVER_STATUS_IN_TRANS != 0;
    Some((head & !OPEN | REPLIED | if is_open { OPEN } else { 0 }, header))
}

/// Ends the reply of a worker that is about to receive. Returns the first word, and whether a
/// transaction is open.
#[inline]
pub(in crate::protocol) fn end_reply(head: u64) -> Option<(u64, bool)> {
    let expected = RUNS_QUERIES | PENDING | REPLIED;
    (head & (FIXED | PENDING | REPLIED) == expected).then_some((head & !PENDING, head & OPEN != 0))
}

/// Splits bytes that begin with a header: the length of the payload, the header as a framing keeps
/// it, and the rest.
#[inline]
fn split(bytes: &[u8]) -> Option<(usize, u64, &[u8])> {
    let ([a, b, c, sequence], payload) = bytes.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
    Some((length, u64::from(u32::from_le_bytes([0, *sequence, *b, *c])), payload))
}
