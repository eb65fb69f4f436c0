//! The on-call gate: it decides which workers of a server may run, and when (REEF, SoCC'25,
//! section 3.3).
//!
//! A *connection* is served by a *worker*. A worker that has read a query and may not run it
//! yet *parks*. At most C workers hold a *slot* of the gate at once; a worker keeps its slot
//! until its transaction ends, or until its lease expires. Slots pass round the ring of
//! waiting connections, one turn each a *round*, with a pause (the ISR delay D) between
//! rounds if one is set.
//!
//! The crate is pure: no clock, no system call, no allocation. Its state is in atomics that
//! any number of threads and processes share, so that a process that is killed leaves no lock
//! behind. Every value is checked when it is read, since the other side may be another
//! program.
//!
//! * [`Gate`] is the state machine. It never blocks: it returns *run* or *park*, and names
//!   the workers to wake to a [`Wake`]. A simulator drives it directly.
//! * [`Gate::park`] is the loop of a parked thread, over a [`Park`]; [`Gate::sleep`] is the
//!   loop of a worker without a query, in mode epoll.
//! * [`Record`] holds one connection's statistics, [`histogram`] its buckets.
//! * [`Page`] lays all of it out for shared memory.
//! * [`protocol`] reads wire protocols: where a query begins, where its reply ends, whether a
//!   transaction is open.
//!
//! Invariants are asserted: `assert!` where a gate is made, `debug_assert!` in the calls of a
//! query. None depends on shared memory, whose content another program may have written.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, loom))]
extern crate std;

#[cfg(not(loom))]
mod accounts;
mod classes;
#[cfg(not(loom))]
mod client;
mod control;
mod gate;
mod gate_entry;
pub mod histogram;
mod lease;
#[cfg(not(loom))]
mod note;
#[cfg(not(loom))]
mod page;
mod park;
#[cfg(not(loom))]
pub mod protocol;
mod record;
pub mod sync;

#[cfg(not(loom))]
pub use accounts::{ACCOUNTS, Account, Accounts, NAME_TEXT_BYTES, NameText};
pub use classes::{
    CLIENT_CLASSES, CLIENT_ORDERS, CLIENT_TURN_WITHIN_MAX, CLIENT_WEIGHT_MAX, ClassShare,
    ClientClasses,
};
#[cfg(not(loom))]
pub use client::{
    AddressPrefix, BYPASS_CLASS, BYPASS_RULES, CLASS_NAME_BYTES, CLIENT_RULES, Client, ClientRule,
    ClientRules, NAME_SEARCH_BYTES, NameHash, Names,
};
pub use control::{
    BREAK_EVEN_NS, Control, Counters, ISR_DELAY_MAX_NS, Mode, PARK_MAX_NS, Settings, Waking,
};
pub use gate::{Decision, Gate, Wake};
pub use gate_entry::{GateEntry, Id};
pub use lease::{Lease, OWNERS_MAX};
#[cfg(not(loom))]
pub use note::{NOTE_BYTES, Note};
#[cfg(not(loom))]
pub use page::{CONNECTIONS, Header, MAGIC, PAGE_BYTES, Page, PageError, VERSION};
pub use park::{Park, Rest, Verdict};
pub use record::{Class, Peer, Record};

/// The slots of a page's gate, to which it limits the cap. A simulator's gate has as many as
/// it needs.
pub const CAP_MAX: u32 = 256;

/// The largest number of queries of one turn.
pub const BATCH_MAX: u32 = 1024;
