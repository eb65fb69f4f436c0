//! The library that `lull exec` preloads into a server: the on-call runtime.
//!
//! It replaces libc's calls that accept, read, write and close sockets. It tracks which
//! connection a worker serves, when a query arrives and when its reply is complete, and where
//! the gate decides so it delays the worker before the worker sees its query. All other
//! calls go straight to libc.
//!
//! ```text
//!   server ──recv──▶ hooks, waits ──▶ libc            page (shared with the agent)
//!     └──SSL_read──▶ tls ──▶ OpenSSL ──recv──▶ hooks      ▲
//!                      │                                 │ records, entries
//!                      ├─▶ connection   identity ────────┤
//!                      ├─▶ traffic      protocol ────────┤
//!                      └─▶ gate ◀─ service ▶ oncall::Gate┘
//!   pool ──epoll_wait─▶ events ──▶ libc     ▲
//!                      └─▶ pool ◀─ ticker ──┘
//! ```
//!
//! A thread of a pool is never delayed: the events of connections that have to wait are hidden
//! from it (`pool`).
//!
//! Rules, since the library runs inside a program that it does not own:
//!
//! * It looks up libc's functions when they are first called, since other libraries'
//!   constructors run before its own (libcap-ng's closes descriptors). It looks up those of a
//!   TLS library when a session is first used, since that library may be loaded late.
//! * It allocates nothing and takes no lock, except for one thread that mode epoll, or a gated
//!   pool of threads, starts, and for threads that a dispatched thread starts.
//!   `errno` after a call is the value that libc's call set.
//! * Without a page, with a page of another version, or with an agent that is silent, every
//!   call passes straight through.
//! * A child made by `fork` continues under its own number; connections belong to the
//!   process that reads them. A program that is executed starts from the beginning.
//! * A signal, a hang-up, or a `shutdown` of its socket ends a worker's wait.
//! * A server's thread may end by `pthread_cancel` or `pthread_exit` below its functions, which
//!   unwinds the stack through them. Nothing that has a destructor is alive there, and they are
//!   `extern "C"`: with `panic = "abort"`, as the library is built, the compiler lets such an
//!   unwinding pass, and in a function that is `extern "C-unwind"` ends the process (Rust 1.95).
//! * It asserts its invariants in debug builds only: a server must not end because of it.

mod answers;
mod client;
mod clock;
mod connection;
mod cores;
pub mod creation;
mod descriptors;
pub mod events;
mod gate;
pub mod hooks;
mod load;
mod page;
mod parking;
mod pool;
mod process;
mod real;
mod service;
mod session;
mod signals;
mod thread;
mod ticker;
mod timer;
pub mod tls;
mod traffic;
pub mod waits;
