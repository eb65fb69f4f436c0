//! eBPF programs at tracepoints, for events that only the kernel sees, and the readers of their
//! counts.
//!
//! ```text
//!   cpu_idle ─────────────▶ lull_sleep ──▶ histogram of sleeps ─┐ one record a core,
//!   sched_wakeup, _new ───▶ lull_wake ───▶ table of waiting     │ read as memory at
//!   sched_switch ─────────▶ lull_switch ─▶ histogram of waits ──┘ the end of an epoch
//!   irq_handler_*, napi_poll, cpu_idle ──▶ a record an event ──▶ ring buffer
//!   sock_recv_length, sock_send_length ──▶ histogram of a server's queries
//!   sched_switch ────────────────────────▶ histogram of the waits of each app
//!   sched_wakeup, sched_switch, sockets ─▶ what threads do during a server's queries
//! ```
//!
//! The programs are CO-RE programs in C, `crates/host/bpf/*.bpf.c`. `cargo xtask bpf`
//! compiles them; the objects are committed, so that a build of Lull needs no clang. `aya`
//! loads them (`object.rs`), and `watch.rs`, `interrupts.rs`, `queries.rs`, `waits.rs` and
//! `phases.rs` read what they count, most of it as mapped memory without a system call. The
//! kernel checks each program before it runs it, and stops running it when the process ends,
//! however it ends.
//!
//! Linux 5.18 or later is needed (since then the state of the thread that is switched out is
//! an argument of `sched_switch`), `CAP_BPF` and `CAP_PERFMON`; for queries Linux 6.3 with
//! `CONFIG_DEBUG_INFO_BTF`, and for waits of apps the latter, `CONFIG_SCHED_INFO` and
//! `CONFIG_FAIR_GROUP_SCHED`.

mod buckets;
mod core_time;
mod error;
mod filter;
mod interrupts;
mod log_rows;
mod object;
mod phases;
mod queries;
mod waits;
mod watch;

pub use buckets::{Histogram, TimeBeyond};
pub use core_time::{CoreTime, Division, Opportunity};
pub use error::BpfError;
pub use interrupts::{Event, InterruptLog, Kind};
pub use log_rows::{LogRows, Row};
pub use object::is_loaded;
pub use phases::{PhaseWatch, PhasesSeen};
pub use queries::{QueriesSeen, QueryWatch};
pub use waits::{PROCESSES_MAX, WaitWatch, WaitsSeen};
pub use watch::{CoreCounts, Watch, WatchCounts};

#[cfg(test)]
mod tests;
