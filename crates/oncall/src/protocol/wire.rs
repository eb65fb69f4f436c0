//! The trait that every wire protocol implements, and the state of one connection.

use crate::client::{NameHash, Names};
use crate::record::Class;

/// A wire protocol: which programs speak it, and how its bytes are read.
///
/// A protocol keeps no payload and allocates nothing: all that it remembers of a
/// connection is a [`State`]. Where it meets something that it cannot read (compression),
/// it sets [`Phase::Opaque`] and is not called for that connection again. Where TLS begins it
/// sets [`Phase::Encrypted`], and is called again, in its first phase, only if the decrypted
/// bytes are seen.
pub(super) trait WireProtocol {
    /// The name in options and records: lower case, unique.
    const NAME: &'static str;
    /// File names of the programs that speak it.
    const PROGRAMS: &'static [&'static [u8]] = &[];
    /// Whether each connection is served by a process of its own. Such workers cannot be
    /// woken by signals, since a process cannot be sure which thread a number names.
    const WORKERS_ARE_PROCESSES: bool = false;
    /// The phase in which a connection begins. `Opaque` means that the protocol is never
    /// read, and then its connections are never gated.
    const FIRST_PHASE: Phase = Phase::Login;

    /// Reads bytes that the worker received; `bytes` is not empty. `names` takes the names that
    /// they give the client.
    fn received(state: &mut State, bytes: &[u8], names: &mut Names) -> Request;

    /// Reads bytes that the worker sent; `bytes` is not empty. Returns whether they end the
    /// reply to the pending request. `names` takes the names that they give the client.
    fn sent(state: &mut State, bytes: &[u8], names: &mut Names) -> bool;

    /// Whether the reply that the server has begun is complete when the worker calls
    /// `recv` again. It is called only for protocols that set [`State::has_replied`].
    fn ends_reply_at_receive(_state: &State) -> bool {
        false
    }
}

/// The request that bytes from a client begin, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// No request: the bytes continue one, or belong to a login.
    None,
    /// A message that gets no reply.
    OneWay,
    /// A message that gets no reply and takes a turn at the gate, as a query does:
    /// no client waits for it, and many at once would take the cores from queries.
    GatedOneWay,
    /// A command that gets a reply and must not be delayed.
    Command,
    /// A query: it gets a reply, and the gate may delay it.
    Query,
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client logs in.
    #[default]
    Login,
    /// The client has requested encryption and the server has not replied yet.
    EncryptionRequested,
    /// Requests and replies are read.
    Ready,
    /// TLS has begun, and no decrypted bytes were seen yet.
    Encrypted,
    /// The bytes cannot be read.
    Opaque,
    /// The connection belongs to a replica, or only cancels a request elsewhere.
    Exempt,
}

impl Phase {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Login => 0,
            Self::EncryptionRequested => 1,
            Self::Ready => 2,
            Self::Opaque => 3,
            Self::Exempt => 4,
            Self::Encrypted => 5,
        }
    }

    /// The phase with this code. An unknown code is `Opaque`, which is never gated.
    pub(super) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Login,
            1 => Self::EncryptionRequested,
            2 => Self::Ready,
            4 => Self::Exempt,
            5 => Self::Encrypted,
            _ => Self::Opaque,
        }
    }

    /// Whether the protocol is not read: no longer, or not before its bytes are decrypted.
    pub(super) const fn is_unread(self) -> bool {
        matches!(self, Self::Opaque | Self::Exempt | Self::Encrypted)
    }

    /// Returns the treatment by the gate of a connection in this phase.
    pub(super) const fn class(self) -> Class {
        match self {
            Self::Login | Self::EncryptionRequested => Class::New,
            Self::Ready => Class::Gated,
            Self::Encrypted | Self::Opaque => Class::Opaque,
            Self::Exempt => Class::Exempt,
        }
    }
}

/// The state that is kept of a connection: six words once packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// A request was received and its reply is not complete.
    pub(super) is_pending: bool,
    /// The server has sent a part of the reply since.
    pub(super) has_replied: bool,
    pub(super) in_transaction: bool,
    /// Two bytes for the protocol's own use.
    pub(super) notes: [u8; 2],
    /// Framing of the bytes from the client, for the protocol's own use.
    pub(super) from_client: u64,
    /// Framing of the bytes to the client, for the protocol's own use.
    pub(super) to_client: u64,
    /// Names that a request has given and that hold once the server has accepted it.
    pub(super) held: Names,
}

/// The bits of the packed flags.
pub(super) const IS_PENDING: u8 = 1;
pub(super) const HAS_REPLIED: u8 = 2;
pub(super) const IN_TRANSACTION: u8 = 4;

impl State {
    pub(super) fn new(phase: Phase) -> Self {
        Self { phase, ..Self::default() }
    }

    /// Packs the phase, the flags and the notes.
    #[inline]
    pub(super) const fn pack_head(&self) -> [u8; 4] {
        let flags = if self.is_pending { IS_PENDING } else { 0 }
            | if self.has_replied { HAS_REPLIED } else { 0 }
            | if self.in_transaction { IN_TRANSACTION } else { 0 };
        let [first, second] = self.notes;
        [self.phase.code(), flags, first, second]
    }

    /// Packs the rest: the framing and the names.
    #[inline]
    pub(super) const fn pack_rest(&self) -> [u64; 5] {
        let Names { user, database, application } = self.held;
        [self.from_client, self.to_client, user.0, database.0, application.0]
    }

    /// Unpacks any bytes and words.
    #[inline]
    pub(super) const fn unpack(head: [u8; 4], rest: [u64; 5]) -> Self {
        let [phase, flags, first, second] = head;
        let [from_client, to_client, user, database, application] = rest;
        Self {
            phase: Phase::from_code(phase),
            is_pending: flags & IS_PENDING != 0,
            has_replied: flags & HAS_REPLIED != 0,
            in_transaction: flags & IN_TRANSACTION != 0,
            notes: [first, second],
            from_client,
            to_client,
            held: Names {
                user: NameHash(user),
                database: NameHash(database),
                application: NameHash(application),
            },
        }
    }
}
