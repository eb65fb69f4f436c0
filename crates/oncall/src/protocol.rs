//! Wire protocols: where a request begins and ends, and whether a transaction is open.
//!
//! A [`Reader`] reads the bytes that a worker receives and sends, in pieces of any size. It
//! keeps no payload: its state is six words, which live in atomics beside the connection
//! ([`SharedReader`]). A connection whose bytes it cannot read becomes opaque, and an
//! opaque connection is never gated.
//!
//! Under TLS the bytes of the socket cannot be read. A caller that sees the decrypted bytes
//! reads them with a new reader; until then the connection is opaque.
//!
//! A protocol is a file of this folder that implements `WireProtocol` and a row of the
//! table `protocols!` below. Names, help texts and numbers in pages follow from the row, and
//! dispatch is a `match` that the row adds an arm to: no call through a pointer, since every
//! query of a server passes here twice.

mod generic;
mod mysql;
mod postgres;
#[cfg(test)]
mod tests;
mod wire;

pub use wire::Request;

use crate::client::Names;
use crate::record::Class;
use crate::sync::{AtomicU64, Ordering};
use mysql::common::Received;
use wire::{HAS_REPLIED, IN_TRANSACTION, IS_PENDING, Phase, State, WireProtocol};

/// Makes [`Protocol`] from its rows: a variant, its number in a page, the type that
/// implements it, and its name in sentences.
macro_rules! protocols {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $wire:ty, $title:literal;)+) => {
        /// A wire protocol that servers speak.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub enum Protocol {
            $(#[doc = $title] $(#[$meta])* $variant,)+
        }

        impl Protocol {
            /// Every protocol, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns its number in a page; 0 means that a page names no protocol.
            #[inline]
            pub const fn code(self) -> u32 {
                match self { $(Self::$variant => $code,)+ }
            }

            /// Returns the protocol with this number.
            #[inline]
            pub const fn from_code(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            #[inline]
            const fn row(self) -> Row {
                match self { $(Self::$variant => Row::new::<$wire>($title),)+ }
            }

            #[inline]
            fn received(self, state: &mut State, bytes: &[u8], names: &mut Names) -> Request {
                match self { $(Self::$variant => <$wire>::received(state, bytes, names),)+ }
            }

            #[inline]
            fn sent(self, state: &mut State, bytes: &[u8], names: &mut Names) -> bool {
                match self { $(Self::$variant => <$wire>::sent(state, bytes, names),)+ }
            }

            #[inline]
            fn ends_reply_at_receive(self, state: &State) -> bool {
                match self { $(Self::$variant => <$wire>::ends_reply_at_receive(state),)+ }
            }
        }
    };
}

protocols! {
    #[default]
    Generic = 1, generic::Generic, "any protocol: statistics only";
    Mysql = 2, mysql::Mysql, "MySQL and MariaDB";
    Postgres = 3, postgres::Postgres, "PostgreSQL";
}

/// The constants of a [`WireProtocol`], and its title.
struct Row {
    name: &'static str,
    title: &'static str,
    programs: &'static [&'static [u8]],
    workers_are_processes: bool,
    first_phase: Phase,
}

impl Row {
    const fn new<W: WireProtocol>(title: &'static str) -> Self {
        Self {
            name: W::NAME,
            title,
            programs: W::PROGRAMS,
            workers_are_processes: W::WORKERS_ARE_PROCESSES,
            first_phase: W::FIRST_PHASE,
        }
    }
}

impl Protocol {
    /// Returns the protocol of a server by the file name of its program; `Generic` if the
    /// program is not known.
    pub fn from_program(file_name: &[u8]) -> Self {
        let speaks = |protocol: &&Self| protocol.row().programs.contains(&file_name);
        Self::ALL.iter().find(speaks).copied().unwrap_or_default()
    }

    /// Returns the protocol with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|protocol| protocol.name() == name).copied()
    }

    /// Returns the name in options and records, in lower case.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the name in sentences.
    pub const fn title(self) -> &'static str {
        self.row().title
    }

    /// Whether each connection is served by a process of its own.
    pub const fn workers_are_processes(self) -> bool {
        self.row().workers_are_processes
    }

    /// Whether requests and transactions can be read: only then is a connection gated.
    #[inline]
    pub const fn is_readable(self) -> bool {
        !self.row().first_phase.is_unread()
    }
}

/// A connection's protocol, and how far it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reader {
    protocol: Protocol,
    state: State,
}

impl Reader {
    /// Returns the reader of a new connection.
    pub fn new(protocol: Protocol) -> Self {
        Self { protocol, state: State::new(protocol.row().first_phase) }
    }

    /// Reads bytes that the worker received. Returns the request that they begin; `names` takes the
    /// names that they give the client.
    #[inline]
    pub fn received(&mut self, bytes: &[u8], names: &mut Names) -> Request {
        if bytes.is_empty() {
            return Request::None;
        }
        let state = &mut self.state;
        let request = match state.phase.is_unread() {
            // Without framing, all bytes received before a reply belong to one request.
            true if state.is_pending => Request::None,
            true => Request::Command,
            false => self.protocol.received(state, bytes, names),
        };
        if matches!(request, Request::Query | Request::Command) {
            (state.is_pending, state.has_replied) = (true, false);
        }
        request
    }

    /// Reads bytes that the worker sent. Returns whether they end the reply to its request;
    /// `names` takes the names that they give the client.
    #[inline]
    pub fn sent(&mut self, bytes: &[u8], names: &mut Names) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let is_end =
            self.state.phase.is_unread() || self.protocol.sent(&mut self.state, bytes, names);
        is_end && self.end_reply()
    }

    /// Notes that the worker is about to receive. Returns whether that ends the reply to
    /// its request: a MySQL server receives the next command only after its reply.
    #[inline]
    pub fn begins_receive(&mut self) -> bool {
        self.may_end_at_receive() && self.end_reply()
    }

    /// Whether the reply is complete unless the worker sends more of it before it receives.
    #[inline]
    pub fn may_end_at_receive(&self) -> bool {
        let state = &self.state;
        let may_end = state.phase == Phase::Ready && state.is_pending && state.has_replied;
        may_end && self.protocol.ends_reply_at_receive(state)
    }

    /// Whether what the worker has sent ends with a packet, where packets can be read.
    pub fn has_sent_whole_packets(&self) -> bool {
        self.protocol != Protocol::Mysql || mysql::ends_with_packet(&self.state)
    }

    fn end_reply(&mut self) -> bool {
        core::mem::take(&mut self.state.is_pending)
    }

    /// Whether a request was received and its reply is not complete.
    pub const fn is_pending(&self) -> bool {
        self.state.is_pending
    }

    /// Whether a transaction is open, or may be.
    pub const fn in_transaction(&self) -> bool {
        self.state.in_transaction
    }

    /// Whether TLS has begun: the bytes of the socket cannot be read. The decrypted bytes,
    /// if they are seen, are for a new reader.
    pub const fn is_encrypted(&self) -> bool {
        matches!(self.state.phase, Phase::Encrypted)
    }

    /// Returns the class that decides how the gate treats the connection.
    pub const fn class(&self) -> Class {
        self.state.phase.class()
    }

    /// Packs the reader: protocol, phase, flags and notes in the first word, framing in the next
    /// two, and hashes of names in the others.
    #[inline]
    pub const fn pack(self) -> [u64; READER_WORDS] {
        let [phase, flags, first, second] = self.state.pack_head();
        let code = self.protocol.code() as u8;
        let head = u64::from_le_bytes([code, phase, flags, first, second, 0, 0, 0]);
        let [from_client, to_client, user, database, application] = self.state.pack_rest();
        [head, from_client, to_client, user, database, application]
    }

    /// Returns the first word of a [`SharedReader`].
    #[inline]
    const fn shared_head(self) -> u64 {
        let [head, ..] = self.pack();
        let holds_names = !self.state.phase.is_unread() && self.state.held.are_any();
        if holds_names { head | HOLDS_NAMES } else { head }
    }

    /// Unpacks any words. An unknown protocol is `Generic`.
    #[inline]
    pub fn unpack([head, rest @ ..]: [u64; READER_WORDS]) -> Self {
        let [code, phase, flags, first, second, ..] = head.to_le_bytes();
        let protocol = Protocol::from_code(code.into()).unwrap_or_default();
        let state = State::unpack([phase, flags, first, second], rest);
        Self { protocol, state }
    }
}

/// The words of a packed [`Reader`].
const READER_WORDS: usize = 6;

/// The bit of a [`SharedReader`]'s first word that is set while names are held, which is seldom:
/// without it the words of names are neither loaded nor stored.
const HOLDS_NAMES: u64 = 1 << 63;

/// A [`Reader`] in atomics. One thread at a time serves a connection; two threads may
/// misread it, which has no other effect.
#[derive(Debug, Default)]
pub struct SharedReader([AtomicU64; READER_WORDS]);

impl SharedReader {
    /// Returns an empty one, for a static table.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; READER_WORDS])
    }

    /// Loads the reader.
    #[inline]
    pub fn load(&self) -> Reader {
        let word = |at: usize| self.0[at].load(Ordering::Relaxed);
        let head = word(0);
        let names = if head & HOLDS_NAMES == 0 { [0; 3] } else { [word(3), word(4), word(5)] };
        let [user, database, application] = names;
        Reader::unpack([head, word(1), word(2), user, database, application])
    }

    /// Notes that the worker is about to receive. Returns whether a transaction is open if that
    /// ends the reply to its request ([`Reader::begins_receive`]).
    #[inline]
    pub fn begins_receive(&self) -> Option<bool> {
        // Every call that receives passes here, and only with both flags can it matter.
        const REPLYING: u8 = IS_PENDING | HAS_REPLIED;
        let head = self.0[0].load(Ordering::Relaxed);
        let [_, _, flags, ..] = head.to_le_bytes();
        if flags & REPLYING != REPLYING {
            return None;
        }
        if let Some((head, in_transaction)) = mysql::common::end_reply(head) {
            self.0[0].store(head, Ordering::Relaxed);
            return Some(in_transaction);
        }
        self.end_reply_at_receive()
    }

    fn end_reply_at_receive(&self) -> Option<bool> {
        let mut reader = self.load();
        let is_end = reader.begins_receive();
        is_end.then(|| {
            // The end of a reply changes no framing and no name.
            self.0[0].store(reader.shared_head(), Ordering::Relaxed);
            reader.in_transaction()
        })
    }

    /// Reads bytes that the worker received, if they have the form of nearly every query. Returns
    /// the request that they begin, and whether a transaction is open; `None`, and changes nothing,
    /// if they are for [`Reader::received`].
    #[inline]
    pub fn received_common(&self, bytes: &[u8]) -> Option<(Request, bool)> {
        let [head, framing] = [0, 1].map(|at| self.0[at].load(Ordering::Relaxed));
        let Received { request, head, from_client } =
            mysql::common::received(head, framing, bytes)?;
        self.0[0].store(head, Ordering::Relaxed);
        self.0[1].store(from_client, Ordering::Relaxed);
        let [_, _, flags, ..] = head.to_le_bytes();
        Some((request, flags & IN_TRANSACTION != 0))
    }

    /// Reads bytes that the worker sent, if they are a common reply, which ends when the worker
    /// receives. Returns `false`, and changes nothing, if they are for [`Reader::sent`].
    #[inline]
    pub fn sent_common(&self, bytes: &[u8]) -> bool {
        let [head, framing] = [0, 2].map(|at| self.0[at].load(Ordering::Relaxed));
        let Some((head, to_client)) = mysql::common::sent(head, framing, bytes) else {
            return false;
        };
        self.0[0].store(head, Ordering::Relaxed);
        self.0[2].store(to_client, Ordering::Relaxed);
        true
    }

    /// Stores the reader.
    #[inline]
    pub fn store(&self, reader: Reader) {
        let [_, from_client, to_client, names @ ..] = reader.pack();
        self.0[0].store(reader.shared_head(), Ordering::Relaxed);
        // Where nothing is read there is no framing to keep, and no name.
        if reader.state.phase.is_unread() {
            return;
        }
        self.0[1].store(from_client, Ordering::Relaxed);
        self.0[2].store(to_client, Ordering::Relaxed);
        if reader.state.held.are_any() {
            for (word, value) in self.0[3..].iter().zip(names) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}
