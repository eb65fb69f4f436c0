//! The numbers of this process and thread, as the kernel gives them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

static PID: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Has no destructor, so that an access costs no more than its offset.
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// Returns the number of this process.
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

/// Returns the number of this thread.
pub(crate) fn tid() -> u32 {
    TID.with(|known| {
        if known.get() == 0 {
            // SAFETY: `gettid` has no conditions.
            known.set(unsafe { libc::gettid() }.cast_unsigned());
        }
        known.get()
    })
}

/// Forgets the parent's numbers in a child that `fork` made.
pub(crate) fn after_fork() {
    PID.store(0, Ordering::Relaxed);
    TID.with(|known| known.set(0));
}
