//! The server's own timer while a worker waits at the gate.
//!
//! A process of PostgreSQL that waits for its client has a timer for `idle_session_timeout`. It
//! stops that timer only when it has its query from the library, which holds the query back
//! while the worker waits. So the timer could end the session of a client whose query has
//! arrived. A worker therefore stops waiting before its timer fires.

use crate::page;
use std::ffi::c_int;

const ITIMER_REAL: c_int = 0;
/// A worker waits for this part of the time that is left of the timer: the rest is for a machine
/// that is late to run it.
const WAITED_PART: u64 = 2;

/// Returns when a worker that begins to wait now must stop waiting because of its process's timer;
/// `u64::MAX` if it has none.
pub(crate) fn leaves_ns(now_ns: u64) -> u64 {
    if !page::protocol().workers_are_processes() {
        return u64::MAX;
    }
    left_ns().map_or(u64::MAX, |left_ns| now_ns.saturating_add(left_ns / WAITED_PART))
}

/// Returns the time until the process's timer fires; `None` if it is not set.
fn left_ns() -> Option<u64> {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // An interval, and the time that is left (`man 2 getitimer`).
    let mut times = [none, none];
    // SAFETY: both times may be written.
    let failed = unsafe { libc::syscall(libc::SYS_getitimer, ITIMER_REAL, times.as_mut_ptr()) };
    let [_, left] = times;
    let left_ns = u64::try_from(left.tv_sec).ok()?.checked_mul(1_000_000_000)?;
    let left_ns = left_ns.checked_add(u64::try_from(left.tv_usec).ok()?.checked_mul(1000)?)?;
    Some(left_ns).filter(|left_ns| failed == 0 && *left_ns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_is_not_set_does_not_end_a_wait() {
        assert_eq!(left_ns(), None, "a test program has no timer");
        assert_eq!(leaves_ns(7), u64::MAX);
    }
}
