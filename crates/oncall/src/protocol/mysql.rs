//! MySQL's client protocol: packets, commands and the status flags of replies.
//!
//! Packets have three bytes of length and one of sequence; sequence 0 is a
//! new command. The last packet of a reply carries the status flags, of which
//! bit 0 says that a transaction is open (dev.mysql.com, "OK_Packet",
//! "EOF_Packet"; mariadb.com, "Server Response Packets").

use super::{Heard, Phase, Reader, Stream};

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
/// MariaDB's.
const COM_STMT_BULK_EXECUTE: u8 = 0xfa;

const CLIENT_COMPRESS: u32 = 0x20;
const CLIENT_SSL: u32 = 0x800;
const CLIENT_DEPRECATE_EOF: u32 = 1 << 24;
const CLIENT_ZSTD: u32 = 1 << 26;
/// Length of a login packet that only asks for TLS.
const SSL_REQUEST_BYTES: u32 = 32;

const IN_TRANSACTION: u16 = 1;
/// "Deadlock found": the whole transaction was rolled back, not the statement.
const DEADLOCK: u16 = 1213;

/// `agreed`: the login packet was seen.
const SEEN: u8 = 1;
/// `agreed`: result sets end with an OK packet.
const NO_EOF: u8 = 2;
/// `agreed`: the server waits for a file of the client.
const FILE: u8 = 4;

/// `have`: the header is complete, no payload is here.
const AT_PAYLOAD: u8 = 4;
/// `have`: within the payload.
const IN_PAYLOAD: u8 = 5;

/// The beginning of a packet.
struct Packet<'a> {
    length: u32,
    sequence: u8,
    /// What of its payload came with its beginning.
    head: &'a [u8],
}

impl Stream {
    /// Calls `see` for each packet of which a first byte of payload is here.
    fn packets(&mut self, mut bytes: &[u8], mut see: impl FnMut(&Packet<'_>)) {
        while let Some((byte, rest)) = bytes.split_first() {
            match self.have {
                AT_PAYLOAD => {
                    let here = bytes.len().min(self.left as usize);
                    let [sequence, ..] = self.bytes;
                    see(&Packet { length: self.left, sequence, head: &bytes[..here] });
                    self.have = IN_PAYLOAD;
                }
                0..=2 => {
                    self.bytes[usize::from(self.have)] = *byte;
                    self.have += 1;
                    bytes = rest;
                }
                3 => {
                    let [a, b, c] = self.bytes;
                    self.left = u32::from_le_bytes([a, b, c, 0]);
                    self.bytes[0] = *byte;
                    self.have = if self.left == 0 { 0 } else { AT_PAYLOAD };
                    bytes = rest;
                }
                _ => {
                    let here = bytes.len().min(self.left as usize);
                    self.left -= here as u32;
                    bytes = &bytes[here..];
                    if self.left == 0 {
                        self.have = 0;
                    }
                }
            }
        }
    }
}

impl Reader {
    pub(super) fn mysql_received(&mut self, bytes: &[u8]) -> Heard {
        let mut heard = Heard::More;
        let mut stream = self.from_client;
        stream.packets(bytes, |packet| {
            let this = match self.phase {
                Phase::Login => self.mysql_login(packet),
                Phase::Ready if packet.sequence == 0 => self.mysql_command(packet.head),
                _ => Heard::More,
            };
            if this != Heard::More {
                heard = this;
            }
        });
        self.from_client = stream;
        heard
    }

    /// The client's part of the login: what it can do decides what can be read.
    fn mysql_login(&mut self, packet: &Packet<'_>) -> Heard {
        if self.agreed & SEEN != 0 {
            return Heard::More;
        }
        self.agreed |= SEEN;
        let Some(written) = packet.head.first_chunk::<4>() else {
            self.phase = Phase::Opaque;
            return Heard::More;
        };
        let can = u32::from_le_bytes(*written);
        let asks_tls = can & CLIENT_SSL != 0 && packet.length == SSL_REQUEST_BYTES;
        if asks_tls || can & (CLIENT_COMPRESS | CLIENT_ZSTD) != 0 {
            self.phase = Phase::Opaque;
        } else if can & CLIENT_DEPRECATE_EOF != 0 {
            self.agreed |= NO_EOF;
        }
        Heard::More
    }

    fn mysql_command(&mut self, head: &[u8]) -> Heard {
        let command = head.first().copied().unwrap_or(COM_QUIT);
        match command {
            // Nothing replies to these, and one may come while another is pending.
            COM_QUIT | COM_STMT_SEND_LONG_DATA => return Heard::Silent,
            // Clients close dozens each when they go. Hundreds at once would take
            // the cores from those who have a turn.
            COM_STMT_CLOSE => return Heard::Chore,
            COM_CHANGE_USER => self.phase = Phase::Login,
            COM_BINLOG_DUMP | COM_REGISTER_SLAVE | COM_BINLOG_DUMP_GTID => {
                self.phase = Phase::Exempt;
            }
            _ => {}
        }
        self.note = command;
        self.agreed &= !FILE;
        match command {
            COM_QUERY | COM_STMT_PREPARE | COM_STMT_EXECUTE | COM_STMT_BULK_EXECUTE => Heard::Query,
            _ => Heard::Command,
        }
    }

    pub(super) fn mysql_sent(&mut self, bytes: &[u8]) {
        let mut stream = self.to_client;
        stream.packets(bytes, |packet| match self.phase {
            Phase::Login => self.mysql_greet(packet),
            _ => self.mysql_reply(packet),
        });
        self.to_client = stream;
    }

    /// The server's part of the login: an OK packet ends it.
    fn mysql_greet(&mut self, packet: &Packet<'_>) {
        if packet.head.first() == Some(&0) {
            // An answer to a change of user, too: it was no query.
            (self.phase, self.is_pending, self.in_transaction) = (Phase::Ready, false, false);
        }
    }

    fn mysql_reply(&mut self, packet: &Packet<'_>) {
        let is_first = !core::mem::replace(&mut self.has_replied, true);
        let head = packet.head;
        let has_ok = self.agreed & NO_EOF != 0;
        match head.first() {
            Some(0xfb) if is_first => self.agreed |= FILE,
            // What PREPARE answers looks like an OK packet and is none.
            Some(0x00) if self.note == COM_STMT_PREPARE => {}
            Some(0xfe) if packet.length == 5 => self.mysql_status(head.get(3..5)),
            Some(0xfe) if has_ok && packet.length >= 7 => self.mysql_status(ok_status(head)),
            // A row of a prepared statement looks like one too; the last packet counts.
            Some(0x00) => self.mysql_status(ok_status(head)),
            Some(0xff) if head.get(1..3) == Some(&DEADLOCK.to_le_bytes()) => {
                self.in_transaction = false;
            }
            _ => {}
        }
        // What follows a file is the answer.
        if !is_first {
            self.agreed &= !FILE;
        }
    }

    /// Takes the status over. One that was cut off may be anything: a
    /// connection that may be in a transaction passes.
    fn mysql_status(&mut self, status: Option<&[u8]>) {
        let status = status.and_then(|bytes| bytes.first_chunk::<2>());
        self.in_transaction =
            status.is_none_or(|bytes| u16::from_le_bytes(*bytes) & IN_TRANSACTION != 0);
    }

    pub(super) const fn mysql_awaits_file(&self) -> bool {
        self.agreed & FILE != 0
    }
}

/// The status flags of an OK packet: after its first byte and two numbers.
fn ok_status(head: &[u8]) -> Option<&[u8]> {
    let at = skip_number(head, 1).and_then(|at| skip_number(head, at))?;
    head.get(at..at + 2)
}

/// Where the number that begins at `at` ends ("length-encoded integer").
fn skip_number(head: &[u8], at: usize) -> Option<usize> {
    Some(
        at + match head.get(at)? {
            0xfc => 3,
            0xfd => 4,
            0xfe => 9,
            _ => 1,
        },
    )
}
