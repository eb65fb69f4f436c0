//! What this process and thread are called.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

static PID: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Without a destructor, so that it costs no more than its offset.
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// The process.
pub(crate) fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => look_up_pid(),
        pid => pid,
    }
}

#[cold]
fn look_up_pid() -> u32 {
    // SAFETY: `getpid` has no conditions.
    let pid = unsafe { libc::getpid() }.cast_unsigned();
    PID.store(pid, Ordering::Relaxed);
    pid
}

/// The thread.
pub(crate) fn tid() -> u32 {
    TID.with(|kept| {
        if kept.get() == 0 {
            // SAFETY: `gettid` has no conditions.
            kept.set(unsafe { libc::gettid() }.cast_unsigned());
        }
        kept.get()
    })
}

/// In a child that `fork` made: it has another number.
pub(crate) extern "C" fn after_fork() {
    PID.store(0, Ordering::Relaxed);
    TID.with(|kept| kept.set(0));
    crate::clock::after_fork();
    crate::service::after_fork();
    crate::signals::after_fork();
}
