//! What must be known of a server's protocol: where a query begins and ends,
//! and whether a transaction is open.
//!
//! A [`Reader`] sees the bytes that a worker receives and sends, in whatever
//! pieces. It never keeps payload: it is three words, so that it can live in
//! atomics beside its connection. What it does not understand makes the
//! connection opaque, and an opaque connection is never made to wait.

mod mysql;
mod postgres;
#[cfg(test)]
mod tests;

use crate::record::Class;
use crate::sync::{AtomicU64, Ordering};

/// A protocol that servers speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// None that is known: what is received asks, what is sent answers.
    #[default]
    Generic,
    /// MySQL's and MariaDB's client protocol.
    Mysql,
    /// PostgreSQL's frontend/backend protocol, version 3.
    Postgres,
}

/// What bytes from a client were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// Nothing new: a part of a query, or of a login.
    More,
    /// A query that may be made to wait.
    Query,
    /// Something that is answered and must not wait.
    Command,
    /// Something that is not answered.
    Silent,
    /// The same, and nobody waits until it is done: it takes a turn as a query does.
    Chore,
}

/// A connection's protocol, as far as it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reader {
    protocol: Protocol,
    phase: Phase,
    /// A query was heard and is not answered.
    is_pending: bool,
    /// Something was said since.
    has_replied: bool,
    in_transaction: bool,
    /// MySQL: the command that is pending. PostgreSQL: bytes kept in `tail`.
    note: u8,
    /// MySQL: what was agreed at login.
    agreed: u8,
    from_client: Stream,
    to_client: Stream,
}

/// The bit of `has_replied` among the packed flags.
const HAS_REPLIED: u8 = 2;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Login,
    /// PostgreSQL: TLS was asked for.
    Asked,
    Ready,
    Opaque,
    Exempt,
}

/// Eight bytes of one direction: where its framing stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Stream {
    /// Bytes of payload still to come.
    left: u32,
    /// Bytes of the header that are here, or how far the payload is.
    have: u8,
    bytes: [u8; 3],
}

impl Protocol {
    /// The protocol of a server by its program's name; generic if it is not known.
    pub fn of_program(name: &[u8]) -> Self {
        match name {
            b"mariadbd" | b"mysqld" | b"mysqld-debug" => Self::Mysql,
            b"postgres" | b"postmaster" => Self::Postgres,
            _ => Self::Generic,
        }
    }

    /// Its number in a page; 0 stands for none.
    pub const fn code(self) -> u32 {
        match self {
            Self::Generic => 1,
            Self::Mysql => 2,
            Self::Postgres => 3,
        }
    }

    /// The protocol with this number.
    pub const fn of_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Generic),
            2 => Some(Self::Mysql),
            3 => Some(Self::Postgres),
            _ => None,
        }
    }
}

impl Reader {
    /// For a new connection.
    pub fn new(protocol: Protocol) -> Self {
        let phase = match protocol {
            Protocol::Generic => Phase::Opaque,
            Protocol::Mysql | Protocol::Postgres => Phase::Login,
        };
        Self { protocol, phase, ..Self::default() }
    }

    /// The worker received these bytes.
    pub fn received(&mut self, bytes: &[u8]) -> Heard {
        if bytes.is_empty() {
            return Heard::More;
        }
        let heard = match (self.phase, self.protocol) {
            // What cannot be read is watched as what is received and sent.
            (Phase::Opaque | Phase::Exempt, _) if self.is_pending => Heard::More,
            (Phase::Opaque | Phase::Exempt, _) | (_, Protocol::Generic) => Heard::Command,
            (_, Protocol::Mysql) => self.mysql_received(bytes),
            (_, Protocol::Postgres) => self.postgres_received(bytes),
        };
        if matches!(heard, Heard::Query | Heard::Command) {
            (self.is_pending, self.has_replied) = (true, false);
        }
        heard
    }

    /// The worker sent these bytes; whether they end the answer to its query.
    pub fn sent(&mut self, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return false;
        }
        match (self.phase, self.protocol) {
            (Phase::Opaque | Phase::Exempt, _) | (_, Protocol::Generic) => self.answer(),
            (_, Protocol::Mysql) => {
                self.mysql_sent(bytes);
                false
            }
            (_, Protocol::Postgres) => self.postgres_sent(bytes) && self.answer(),
        }
    }

    /// The worker is about to receive; whether that means that its query was
    /// answered. A MySQL server asks for the next command only then.
    pub fn receives(&mut self) -> bool {
        let is_mysql = self.protocol == Protocol::Mysql && self.phase == Phase::Ready;
        is_mysql && self.has_replied && !self.mysql_awaits_file() && self.answer()
    }

    /// Whether [`receives`](Self::receives) can mean anything, by the first of
    /// the packed words alone: on the way of every call it rarely does.
    const fn may_be_over(first: u64) -> bool {
        let [code, _, flags, ..] = first.to_le_bytes();
        code == Protocol::Mysql.code() as u8 && flags & HAS_REPLIED != 0
    }

    /// Whether nothing of it is read any more.
    const fn is_unread(&self) -> bool {
        matches!(self.phase, Phase::Opaque | Phase::Exempt)
    }

    fn answer(&mut self) -> bool {
        core::mem::take(&mut self.is_pending)
    }

    /// Whether a query was heard that is not answered.
    pub const fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Whether a transaction is open, or may be.
    pub const fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// What the gate may do with the connection.
    pub const fn class(&self) -> Class {
        match self.phase {
            Phase::Login | Phase::Asked => Class::New,
            Phase::Ready => Class::Gated,
            Phase::Opaque => Class::Opaque,
            Phase::Exempt => Class::Exempt,
        }
    }

    /// As three words.
    pub const fn pack(self) -> [u64; 3] {
        let phase = match self.phase {
            Phase::Login => 0,
            Phase::Asked => 1,
            Phase::Ready => 2,
            Phase::Opaque => 3,
            Phase::Exempt => 4,
        };
        let flags = (self.is_pending as u8)
            | if self.has_replied { HAS_REPLIED } else { 0 }
            | (self.in_transaction as u8) << 2;
        let code = self.protocol.code() as u8;
        let first = [code, phase, flags, self.note, self.agreed, 0, 0, 0];
        [u64::from_le_bytes(first), self.from_client.pack(), self.to_client.pack()]
    }

    /// From three words, whatever they are.
    pub fn unpack([first, from_client, to_client]: [u64; 3]) -> Self {
        let [code, phase, flags, note, agreed, ..] = first.to_le_bytes();
        Self {
            protocol: Protocol::of_code(code.into()).unwrap_or_default(),
            phase: match phase {
                0 => Phase::Login,
                1 => Phase::Asked,
                2 => Phase::Ready,
                4 => Phase::Exempt,
                _ => Phase::Opaque,
            },
            is_pending: flags & 1 != 0,
            has_replied: flags & HAS_REPLIED != 0,
            in_transaction: flags & 4 != 0,
            note,
            agreed,
            from_client: Stream::unpack(from_client),
            to_client: Stream::unpack(to_client),
        }
    }
}

impl Stream {
    const fn pack(self) -> u64 {
        let [a, b, c] = self.bytes;
        (self.left as u64) << 32 | u32::from_le_bytes([self.have, a, b, c]) as u64
    }

    const fn unpack(word: u64) -> Self {
        let [have, a, b, c] = (word as u32).to_le_bytes();
        Self { left: (word >> 32) as u32, have, bytes: [a, b, c] }
    }
}

/// A reader in atomics. One thread at a time serves a connection; if two do
/// after all, they may misread it and nothing else.
#[derive(Debug, Default)]
pub struct SharedReader([AtomicU64; 3]);

impl SharedReader {
    /// For a table of them.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 3])
    }

    /// What stands there.
    pub fn get(&self) -> Reader {
        let [a, b, c] = &self.0;
        Reader::unpack([a, b, c].map(|word| word.load(Ordering::Relaxed)))
    }

    /// The worker is about to receive; the reader after, if that means that its
    /// query was answered.
    pub fn receives(&self) -> Option<Reader> {
        if !Reader::may_be_over(self.0[0].load(Ordering::Relaxed)) {
            return None;
        }
        let mut reader = self.get();
        let is_over = reader.receives();
        is_over.then(|| {
            self.set(reader);
            reader
        })
    }

    /// Puts another in its place.
    pub fn set(&self, reader: Reader) {
        let [first, streams @ ..] = reader.pack();
        self.0[0].store(first, Ordering::Relaxed);
        // Where nothing is read there is no framing to keep.
        if !reader.is_unread() {
            for (word, value) in self.0[1..].iter().zip(streams) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}
