//! The waits that stand for "no query at hand": in mode epoll workers rest there.
//!
//! MariaDB waits for a client's next command in `poll`, MySQL in `ppoll`, each on
//! that one socket. PostgreSQL's processes wait in `epoll_wait` on their latch,
//! too, and memcached's and Redis' threads on many sockets: those wait as ever.

use crate::clock;
use crate::real::{keeping_errno, real, set_errno};
use crate::watch::{self, Connection, Rested};
use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};
use std::ffi::c_int;

type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type CheckedPoll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
type PPoll = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
type CheckedPPoll =
    unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, size_t) -> c_int;

/// The connection that a wait is for, if it is for nothing but to read from one.
///
/// # Safety
/// `at` is valid for `count` entries, as `poll` wants it.
unsafe fn awaited(at: *const pollfd, count: nfds_t) -> Option<Connection> {
    if count != 1 {
        return None;
    }
    // SAFETY: the caller says so; a null pointer is no reference.
    let one = unsafe { at.as_ref() }?;
    let reads = one.events & libc::POLLIN != 0 && one.events & libc::POLLOUT == 0;
    if reads { watch::connection(one.fd) } else { None }
}

/// Rests, and then waits as `wait` does, for what is left of the time in
/// nanoseconds (`u64::MAX` is for ever).
fn resting(connection: &Connection, time_ns: u64, wait: impl Fn(u64) -> c_int) -> c_int {
    let until_ns = clock::now_ns().saturating_add(time_ns);
    let rested = match time_ns {
        0 => Rested::Not,
        _ => keeping_errno(|| connection.rest(until_ns)),
    };
    if rested == Rested::Not {
        return wait(time_ns);
    }
    let ready = wait(0);
    match rested {
        _ if ready != 0 => ready,
        Rested::Late => 0,
        Rested::Left => interrupted(),
        Rested::Called | Rested::Not => {
            // Called for nothing, or let go: it waits as ever, and without a slot.
            connection.found_nothing();
            let left_ns = until_ns.saturating_sub(clock::now_ns());
            wait(if time_ns == u64::MAX { time_ns } else { left_ns })
        }
    }
}

/// As a wait that a signal ended.
fn interrupted() -> c_int {
    set_errno(libc::EINTR);
    -1
}

/// `poll`'s time in nanoseconds.
fn of_ms(time_ms: c_int) -> u64 {
    u64::try_from(time_ms).map_or(u64::MAX, |ms| ms * 1_000_000)
}

/// And back, never too short.
fn in_ms(time_ns: u64) -> c_int {
    match time_ns {
        u64::MAX => -1,
        _ => c_int::try_from(time_ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
    }
}

/// `ppoll`'s time in nanoseconds; `None` if there is none in it.
fn of_timespec(time: Option<&timespec>) -> Option<u64> {
    let Some(time) = time else { return Some(u64::MAX) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u64::try_from(time.tv_nsec).ok()?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanos).min(u64::MAX - 1))
}

/// And back.
fn in_timespec(time_ns: u64) -> timespec {
    timespec {
        tv_sec: (time_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (time_ns % 1_000_000_000).cast_signed(),
    }
}

/// `poll(2)`.
///
/// # Safety
/// As the manual says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, time_ms: c_int) -> c_int {
    let real = real!(c"poll" as Poll);
    // SAFETY: the caller's own call, handed on.
    let wait = |ms: c_int| unsafe { real(fds, count, ms) };
    // SAFETY: the caller's own entries.
    match unsafe { awaited(fds, count) } {
        Some(connection) => resting(&connection, of_ms(time_ms), |ns| wait(in_ms(ns))),
        None => wait(time_ms),
    }
}

/// `poll` as a server calls it that was compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `poll`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time_ms: c_int,
    room: size_t,
) -> c_int {
    let real = real!(c"__poll_chk" as CheckedPoll);
    // SAFETY: the caller's own call, handed on.
    let wait = |ms: c_int| unsafe { real(fds, count, ms, room) };
    // SAFETY: the caller's own entries.
    match unsafe { awaited(fds, count) } {
        Some(connection) => resting(&connection, of_ms(time_ms), |ns| wait(in_ms(ns))),
        None => wait(time_ms),
    }
}

/// `ppoll` with a call of the caller's own; one that changes the mask of signals
/// is left alone.
///
/// # Safety
/// As the manual says of `ppoll`, of whose arguments these are.
unsafe fn ppolling(
    (fds, count): (*mut pollfd, nfds_t),
    time: *const timespec,
    mask: *const sigset_t,
    wait: impl Fn(*const timespec) -> c_int,
) -> c_int {
    // SAFETY: the caller's own time, which may be null.
    let time_ns = of_timespec(unsafe { time.as_ref() });
    // SAFETY: the caller's own entries.
    let awaited = if mask.is_null() { unsafe { awaited(fds, count) } } else { None };
    let (Some(connection), Some(time_ns)) = (awaited, time_ns) else { return wait(time) };
    resting(&connection, time_ns, |ns| match ns {
        u64::MAX => wait(std::ptr::null()),
        _ => {
            let time = in_timespec(ns);
            wait(&raw const time)
        }
    })
}

/// `ppoll(2)`.
///
/// # Safety
/// As the manual says.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let real = real!(c"ppoll" as PPoll);
    // SAFETY: the caller's own call, handed on, with a time that is valid for it.
    let wait = |time| unsafe { real(fds, count, time, mask) };
    // SAFETY: the caller's own arguments.
    unsafe { ppolling((fds, count), time, mask, wait) }
}

/// `ppoll` as a server calls it that was compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `ppoll`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    let real = real!(c"__ppoll_chk" as CheckedPPoll);
    // SAFETY: the caller's own call, handed on, with a time that is valid for it.
    let wait = |time| unsafe { real(fds, count, time, mask, room) };
    // SAFETY: the caller's own arguments.
    unsafe { ppolling((fds, count), time, mask, wait) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_never_shorter_there_and_back() {
        for ms in [-1, 0, 1, 999, 28_800_000, c_int::MAX] {
            assert_eq!(in_ms(of_ms(ms)), ms);
        }
        assert_eq!(in_ms(1), 1, "a part of a millisecond is one");
        let time = timespec { tv_sec: 28_800, tv_nsec: 7 };
        let there = in_timespec(of_timespec(Some(&time)).unwrap());
        assert_eq!((there.tv_sec, there.tv_nsec), (28_800, 7));
        assert_eq!(of_timespec(None), Some(u64::MAX));
        assert_eq!(of_timespec(Some(&timespec { tv_sec: -1, tv_nsec: 0 })), None);
    }
}
