//! The on-call gate: which workers of a server may run, and when (REEF, section 3.3).
//!
//! A *connection* is served by a *worker*. A worker that has a query and may
//! not run it yet *parks*. At most C workers hold a slot of the gate at once;
//! a slot is kept until the worker's transaction ends, or until its lease has
//! run out. Slots are handed round the ring of waiting connections, one turn
//! each a *round*, with a pause (the ISR delay D) between rounds if there is one.
//!
//! The crate is pure: no clock, no system call, no allocation. Its state lies
//! in atomics that any number of threads and processes share, so that nobody
//! who is killed leaves a lock behind, and everything that is read from there
//! is checked before it is used: the other side may have been replaced.
//!
//! * [`Gate`] is the state machine. It never blocks: it says *run* or *park*
//!   and tells a [`Wake`] whom to wake. A simulator drives it directly.
//! * [`park`](Gate::park) is the loop around it for real threads, over a [`Park`];
//!   [`sleep`](Gate::sleep) that of a worker without a query, in mode epoll.
//! * [`Record`] holds one connection's statistics, [`histogram`] its buckets.
//! * [`Page`] lays all of it out for shared memory.
//! * [`protocol`] reads what is needed of MySQL's and PostgreSQL's protocols:
//!   where a query begins, where it ends, whether a transaction is open.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, loom))]
extern crate std;

mod control;
mod gate;
pub mod histogram;
mod lease;
#[cfg(not(loom))]
mod page;
mod park;
pub mod protocol;
mod record;
mod seat;
pub mod sync;

pub use control::{BREAK_EVEN_NS, Control, Counters, ISR_DELAY_MAX_NS, Mode, Settings, Waking};
pub use gate::{Decision, Gate, Wake};
pub use lease::{Lease, OWNERS_MAX};
#[cfg(not(loom))]
pub use page::{CONNECTIONS, Header, MAGIC, PAGE_BYTES, Page, PageError, VERSION};
pub use park::{Park, Rest, Verdict};
pub use record::{Class, Peer, Record};
pub use seat::{Id, Seat};

/// The slots of a page's gate: a cap beyond it is cut to it. A simulator's gate
/// has as many as it needs.
pub const CAP_MAX: u32 = 256;

/// The most queries a turn that anybody asks for: more is a turn without end.
pub const BATCH_MAX: u32 = 1024;
