//! The server's own timer while a worker waits at the gate.
//!
//! A process of PostgreSQL that waits for its client has a timer for `idle_session_timeout`. It
//! stops that timer only when it has its query from the library, which holds the query back
//! while the worker waits. So the timer could end the session of a client whose query has
//! arrived. A worker of a session with that setting therefore stops waiting before its process's
//! timer fires.
//!
//! PostgreSQL has one timer for all its time-outs, of which the earliest sets it, and leaves it
//! running when that one is no longer needed. So the time that is left may be that of another.

use crate::page;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};

const ITIMER_REAL: c_int = 0;
/// PostgreSQL's variable of `idle_session_timeout` in milliseconds, an `int`, since version 14; 0
/// in a session without.
const IDLE_SESSION_TIMEOUT: &CStr = c"IdleSessionTimeout";
/// A worker waits for this part of the timer's remaining time: the rest is for a machine that runs
/// the worker late.
const WAITED_PART: u64 = 2;
const NOT_LOOKED_UP: *mut c_int = std::ptr::dangling_mut();
/// The address of PostgreSQL's variable, once it was looked up; null in a server without it.
static SETTING: AtomicPtr<c_int> = AtomicPtr::new(NOT_LOOKED_UP);

/// Returns when a worker that begins to wait now must stop waiting because its session may end by
/// `idle_session_timeout`; `u64::MAX` if it has no such setting, or no timer is set.
pub(crate) fn leaves_ns(now_ns: u64) -> u64 {
    if !page::protocol().workers_are_processes() {
        return u64::MAX;
    }
    let left_ns = left_ns().filter(|_| is_positive(setting()));
    left_ns.map_or(u64::MAX, |left_ns| now_ns.saturating_add(left_ns / WAITED_PART))
}

/// Returns the address of PostgreSQL's variable, which is looked up once.
fn setting() -> *mut c_int {
    let known = SETTING.load(Ordering::Relaxed);
    if known != NOT_LOOKED_UP {
        return known;
    }
    let found = find(IDLE_SESSION_TIMEOUT);
    SETTING.store(found, Ordering::Relaxed);
    found
}

/// Returns the address of a variable of the program, or of a library; null if there is none.
fn find(name: &CStr) -> *mut c_int {
    // SAFETY: a constant of libc's, and a name that ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.cast()
}

/// Whether there is such a variable, and it is more than 0 now.
fn is_positive(variable: *mut c_int) -> bool {
    // SAFETY: null, or the address of an `int` of a library that stays loaded, which only the
    // server's one thread, the caller, writes.
    let value = unsafe { variable.as_ref() };
    value.is_some_and(|value| *value > 0)
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

    #[test]
    fn a_setting_is_read_from_the_variable_of_its_name() {
        // Variables of libc: `optind` is 1 at first, and `getdate_err` is 0.
        assert!(is_positive(find(c"optind")));
        assert!(!is_positive(find(c"getdate_err")));
        assert!(!is_positive(setting()), "a test program has no such variable");
    }
}
