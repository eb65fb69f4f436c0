//! The client protocol of MySQL and MariaDB: packets, commands and status flags of replies.
//!
//! A packet has three bytes of length and one of sequence; sequence 0 is a new command. The
//! last packet of a reply carries the status flags, of which bit 0 is set while a
//! transaction is open (dev.mysql.com, "OK_Packet", "EOF_Packet"; mariadb.com, "Server
//! Response Packets").

pub(super) mod common;
mod login;

use super::wire::{Phase, Request, State, WireProtocol};
use crate::client::Names;

/// MySQL and MariaDB. `notes` holds the pending command and the flags of the login; the two
/// words of framing are each a [`Framing`].
pub(super) struct Mysql;

const COM_QUIT: u8 = 0x01;
const COM_QUERY: u8 = 0x03;
const COM_CHANGE_USER: u8 = 0x11;
const COM_BINLOG_DUMP: u8 = 0x12;
const COM_REGISTER_SLAVE: u8 = 0x15;
const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;
const COM_STMT_SEND_LONG_DATA: u8 = 0x18;
const COM_STMT_CLOSE: u8 = 0x19;
const COM_BINLOG_DUMP_GTID: u8 = 0x1e;
/// MySQL only: a donor's connection, and a member's of group replication. Other protocols follow.
const COM_CLONE: u8 = 0x20;
const COM_SUBSCRIBE_GROUP_REPLICATION_STREAM: u8 = 0x21;
/// MariaDB only.
const COM_STMT_BULK_EXECUTE: u8 = 0xfa;

const CLIENT_COMPRESS: u32 = 0x20;
const CLIENT_SSL: u32 = 0x800;
const CLIENT_DEPRECATE_EOF: u32 = 1 << 24;
const CLIENT_ZSTD: u32 = 1 << 26;
/// Sequence numbers of a login: it follows the greeting, and within TLS the request for TLS.
const LOGIN_SEQUENCES: [u8; 2] = [1, 2];
/// Length of a login packet that only requests TLS.
const SSL_REQUEST_BYTES: u32 = 32;

const SERVER_STATUS_IN_TRANS: u16 = 1;
/// "Deadlock found": the server rolled back the whole transaction, not only the statement.
const ER_LOCK_DEADLOCK: u16 = 1213;

/// `notes`: the pending command.
const COMMAND: usize = 0;
/// `notes`: the flags below.
const FLAGS: usize = 1;
/// The login packet was read.
const LOGIN_READ: u8 = 1;
/// Result sets end with an OK packet instead of an EOF packet.
const NO_EOF: u8 = 2;
/// The server waits for a file from the client (`LOAD DATA LOCAL`).
const AWAITS_FILE: u8 = 4;

impl WireProtocol for Mysql {
    const NAME: &'static str = "mysql";
    const PROGRAMS: &'static [&'static [u8]] = &[b"mariadbd", b"mysqld", b"mysqld-debug"];

    fn received(state: &mut State, bytes: &[u8], names: &mut Names) -> Request {
        let mut request = Request::None;
        let mut framing = Framing::unpack(state.from_client);
        framing.each_packet(bytes, |packet| {
            let begun = match state.phase {
                Phase::Login => read_login(state, packet, names),
                // The sequence numbers of a long file come round to 0.
                Phase::Ready if packet.sequence == 0 && !awaits_file(state) => {
                    read_command(state, packet.head)
                }
                _ => Request::None,
            };
            // Of requests that are read at once the strongest counts.
            request = request.max(begun);
        });
        state.from_client = framing.pack();
        request
    }

    fn sent(state: &mut State, bytes: &[u8], names: &mut Names) -> bool {
        let mut framing = Framing::unpack(state.to_client);
        framing.each_packet(bytes, |packet| match state.phase {
            Phase::Login => read_login_reply(state, packet, names),
            _ => read_reply(state, packet),
        });
        state.to_client = framing.pack();
        false
    }

    /// A server calls `recv` for the next command only when it has replied in full.
    fn ends_reply_at_receive(state: &State) -> bool {
        !awaits_file(state)
    }
}

const fn awaits_file(state: &State) -> bool {
    state.notes[FLAGS] & AWAITS_FILE != 0
}

/// Whether no packet to the client was begun and not ended.
pub(super) fn ends_with_packet(state: &State) -> bool {
    Framing::unpack(state.to_client).position == 0
}

/// The beginning of a packet.
struct Packet<'a> {
    length: u32,
    sequence: u8,
    /// The part of the payload that arrived with its first byte.
    head: &'a [u8],
}

/// How far the packets of one direction were read: eight bytes.
struct Framing {
    /// Bytes of payload still to come.
    left: u32,
    /// Bytes of the header that are here, or `AT_PAYLOAD`, or `IN_PAYLOAD`.
    position: u8,
    header: [u8; 3],
}

/// The header is complete and no byte of the payload was read.
const AT_PAYLOAD: u8 = 4;
/// The first byte of the payload was read.
const IN_PAYLOAD: u8 = 5;

impl Framing {
    const fn pack(&self) -> u64 {
        let [a, b, c] = self.header;
        (self.left as u64) << 32 | u32::from_le_bytes([self.position, a, b, c]) as u64
    }

    const fn unpack(word: u64) -> Self {
        let [position, a, b, c] = (word as u32).to_le_bytes();
        Self { left: (word >> 32) as u32, position, header: [a, b, c] }
    }

    /// Calls `read` for each packet whose first byte of payload is among `bytes`.
    #[inline]
    fn each_packet(&mut self, mut bytes: &[u8], mut read: impl FnMut(&Packet<'_>)) {
        while !bytes.is_empty() {
            if self.position < AT_PAYLOAD {
                bytes = self.read_header(bytes);
                continue;
            }
            let here = bytes.len().min(self.left as usize);
            let (head, rest) = bytes.split_at(here);
            if self.position == AT_PAYLOAD {
                let [sequence, ..] = self.header;
                read(&Packet { length: self.left, sequence, head });
            }
            self.left -= here as u32;
            self.position = if self.left == 0 { 0 } else { IN_PAYLOAD };
            bytes = rest;
        }
    }

    /// Reads a header, or a part of it, and returns the bytes after it.
    #[inline]
    fn read_header<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        // Nearly every header arrives in one piece.
        if self.position == 0
            && let Some(([a, b, c, sequence], rest)) = bytes.split_first_chunk::<4>()
        {
            self.header = [*a, *b, *c];
            self.end_header(*sequence);
            return rest;
        }
        let Some((byte, rest)) = bytes.split_first() else { return bytes };
        match self.header.get_mut(usize::from(self.position)) {
            Some(at) => {
                *at = *byte;
                self.position += 1;
            }
            None => self.end_header(*byte),
        }
        rest
    }

    /// Takes the length out of the header, which is needed no more: the sequence, the header's
    /// last byte, takes its place.
    #[inline]
    fn end_header(&mut self, sequence: u8) {
        let [a, b, c] = self.header;
        self.left = u32::from_le_bytes([a, b, c, 0]);
        self.header[0] = sequence;
        self.position = if self.left == 0 { 0 } else { AT_PAYLOAD };
    }
}

/// Reads the client's part of the login: its capabilities decide which messages can be read later.
#[cold]
fn read_login(state: &mut State, packet: &Packet<'_>, names: &mut Names) -> Request {
    if state.notes[FLAGS] & LOGIN_READ != 0 {
        return Request::None;
    }
    state.notes[FLAGS] |= LOGIN_READ;
    // What a proxy sends before the login (PROXY protocol), and MySQL's X protocol, are no login.
    let is_login = LOGIN_SEQUENCES.contains(&packet.sequence);
    let Some(capabilities) = packet.head.first_chunk::<4>().filter(|_| is_login) else {
        state.phase = Phase::Opaque;
        return Request::None;
    };
    let capabilities = u32::from_le_bytes(*capabilities);
    let requests_tls = capabilities & CLIENT_SSL != 0 && packet.length == SSL_REQUEST_BYTES;
    if requests_tls {
        state.phase = Phase::Encrypted;
    } else if capabilities & (CLIENT_COMPRESS | CLIENT_ZSTD) != 0 {
        state.phase = Phase::Opaque;
    } else if capabilities & CLIENT_DEPRECATE_EOF != 0 {
        state.notes[FLAGS] |= NO_EOF;
    }
    if !requests_tls {
        *names = login::names_at_login(capabilities, packet.head);
    }
    Request::None
}

fn read_command(state: &mut State, head: &[u8]) -> Request {
    let command = head.first().copied().unwrap_or(COM_QUIT);
    match command {
        // These get no reply, and one may arrive while another command is pending.
        COM_QUIT | COM_STMT_SEND_LONG_DATA => return Request::OneWay,
        // A client closes dozens of statements when it disconnects. Hundreds of these at
        // once would take the cores from the workers that hold a slot.
        COM_STMT_CLOSE => return Request::GatedOneWay,
        COM_CHANGE_USER => begin_change_of_user(state, head),
        COM_BINLOG_DUMP
        | COM_REGISTER_SLAVE
        | COM_BINLOG_DUMP_GTID
        | COM_CLONE
        | COM_SUBSCRIBE_GROUP_REPLICATION_STREAM => {
            state.phase = Phase::Exempt;
        }
        _ => {}
    }
    state.notes[COMMAND] = command;
    state.notes[FLAGS] &= !AWAITS_FILE;
    match command {
        COM_QUERY | COM_STMT_PREPARE | COM_STMT_EXECUTE | COM_STMT_BULK_EXECUTE => Request::Query,
        _ => Request::Command,
    }
}

#[cold]
fn begin_change_of_user(state: &mut State, head: &[u8]) {
    state.phase = Phase::Login;
    state.held = login::names_at_change(head);
}

/// Reads the server's part of the login, which an OK packet ends. An error ends a change of user:
/// the client keeps the names that it had.
#[cold]
fn read_login_reply(state: &mut State, packet: &Packet<'_>, names: &mut Names) {
    match packet.head.first() {
        Some(0x00) => names.update(&state.held),
        Some(0xff) if state.notes[COMMAND] == COM_CHANGE_USER => {}
        _ => return,
    }
    state.held = Names::default();
    // A change of user ends here, too; it is not counted as a query.
    (state.phase, state.is_pending, state.in_transaction) = (Phase::Ready, false, false);
}

fn read_reply(state: &mut State, packet: &Packet<'_>) {
    let is_first = !core::mem::replace(&mut state.has_replied, true);
    let head = packet.head;
    let has_ok = state.notes[FLAGS] & NO_EOF != 0;
    match head.first() {
        Some(0xfb) if is_first => state.notes[FLAGS] |= AWAITS_FILE,
        // The reply to PREPARE begins like an OK packet and is none.
        Some(0x00) if state.notes[COMMAND] == COM_STMT_PREPARE => {}
        Some(0xfe) if packet.length == 5 => set_status(state, head.get(3..5)),
        Some(0xfe) if has_ok && packet.length >= 7 => set_status(state, ok_status(head)),
        // A row of a prepared statement begins like one, too; the last packet counts.
        Some(0x00) => set_status(state, ok_status(head)),
        Some(0xff) if head.get(1..3) == Some(&ER_LOCK_DEADLOCK.to_le_bytes()) => {
            state.in_transaction = false;
        }
        _ => {}
    }
    // The packet after the request for a file is the reply.
    if !is_first {
        state.notes[FLAGS] &= !AWAITS_FILE;
    }
}

/// Takes over the status flags. If they were cut off, a transaction may be open, and the
/// connection counts as in one, so that it passes the gate.
fn set_status(state: &mut State, status: Option<&[u8]>) {
    let status = status.and_then(|bytes| bytes.first_chunk::<2>());
    state.in_transaction =
        status.is_none_or(|bytes| u16::from_le_bytes(*bytes) & SERVER_STATUS_IN_TRANS != 0);
}

/// The status flags of an OK packet: they follow its first byte and two numbers.
fn ok_status(head: &[u8]) -> Option<&[u8]> {
    let at = skip_number(head, 1).and_then(|at| skip_number(head, at))?;
    head.get(at..at + 2)
}

/// Returns where the number that begins at `at` ends ("length-encoded integer").
fn skip_number(head: &[u8], at: usize) -> Option<usize> {
    let length = match head.get(at)? {
        0xfc => 3,
        0xfd => 4,
        0xfe => 9,
        _ => 1,
    };
    Some(at + length)
}

#[cfg(test)]
mod tests;
