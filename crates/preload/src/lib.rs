//! The library that `lull exec` preloads into a server: the on-call runtime.
//!
//! It stands between the server and libc where sockets are accepted, read,
//! written and closed. It sees which connection a worker serves, when a query
//! comes and when it is answered, and where the gate says so it makes the
//! worker wait before it sees its query. All else goes straight to libc.
//!
//! ```text
//!   server ──recv──▶ hooks ──▶ libc            page (shared with the agent)
//!                      │                          ▲ statistics, seats
//!                      └──▶ watch ──▶ oncall::Gate┘
//! ```
//!
//! What it keeps to, since it runs inside somebody else's server:
//!
//! * libc's functions are found when first called: other libraries'
//!   constructors run before ours (libcap-ng's closes descriptors).
//! * Nothing is allocated and no lock is taken, but for one thread that is
//!   started in mode epoll. `errno` after a call is what libc's call left there.
//! * Without a page, with one that it does not know, or with an agent that is
//!   silent, every call goes straight through.
//! * A child made by `fork` goes on under its own number; connections belong
//!   to the process that reads them. A program that is executed starts anew.
//! * A signal, a hang-up, or a `shutdown` of its socket ends a worker's wait.

mod clock;
mod descriptors;
pub mod hooks;
mod page;
mod parking;
mod process;
mod real;
mod service;
mod signals;
pub mod waits;
mod watch;
