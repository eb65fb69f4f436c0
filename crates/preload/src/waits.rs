//! The hooks of the waits for a client's next command, in which workers rest in mode epoll.
//!
//! MariaDB waits in `poll` and MySQL in `ppoll`, each on that one socket. PostgreSQL's
//! processes wait in `epoll_wait` on their latch, too, and the threads of memcached and Redis
//! on many sockets: no worker rests in those waits.

use crate::clock;
use crate::connection::Connection;
use crate::gate::RestEnd;
use crate::real::{keeping_errno, real, set_errno};
use crate::session;
use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};
use std::ffi::c_int;

type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type CheckedPoll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
type PPoll = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
type CheckedPPoll =
    unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, size_t) -> c_int;

/// Returns the connection that a wait is for, if it waits only to read from one.
///
/// # Safety
/// `at` is valid for `count` entries, as `poll` requires.
unsafe fn awaited(at: *const pollfd, count: nfds_t) -> Option<Connection> {
    if count != 1 {
        return None;
    }
    // SAFETY: by the caller; a null pointer yields `None`.
    let one = unsafe { at.as_ref() }?;
    let reads = one.events & libc::POLLIN != 0 && one.events & libc::POLLOUT == 0;
    if reads { Connection::get(one.fd).or_else(|| awaited_under_tls(one.fd)) } else { None }
}

/// Returns the connection under TLS that this thread waits for. Only its socket is watched
/// while its worker rests, so that its worker may rest only if its TLS library has no query
/// that was read already.
fn awaited_under_tls(fd: c_int) -> Option<Connection> {
    if session::is_drained(fd) { Connection::get_decrypted(fd) } else { None }
}

/// Rests, and then calls `wait` with the rest of the time in nanoseconds (`u64::MAX` is no
/// timeout).
fn rest_then_wait(connection: &Connection, time_ns: u64, wait: impl Fn(u64) -> c_int) -> c_int {
    let until_ns = clock::now_ns().saturating_add(time_ns);
    let rest_end = match time_ns {
        0 => RestEnd::NotRested,
        _ => keeping_errno(|| connection.rest(until_ns)),
    };
    if rest_end == RestEnd::NotRested {
        return wait(time_ns);
    }
    let ready = wait(0);
    match rest_end {
        _ if ready != 0 => ready,
        RestEnd::TimedOut => 0,
        RestEnd::Interrupted => interrupted(),
        RestEnd::Called | RestEnd::NotRested => {
            // Nothing can be read, or the worker was let go: it waits without a slot.
            connection.found_nothing();
            let left_ns = until_ns.saturating_sub(clock::now_ns());
            wait(if time_ns == u64::MAX { time_ns } else { left_ns })
        }
    }
}

/// Returns as from a wait that a signal ended.
fn interrupted() -> c_int {
    set_errno(libc::EINTR);
    -1
}

/// Converts `poll`'s timeout to nanoseconds.
fn ns_from_ms(time_ms: c_int) -> u64 {
    u64::try_from(time_ms).map_or(u64::MAX, |ms| ms * 1_000_000)
}

/// Converts nanoseconds to `poll`'s timeout, rounding up.
fn ms_from_ns(time_ns: u64) -> c_int {
    match time_ns {
        u64::MAX => -1,
        _ => c_int::try_from(time_ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
    }
}

/// Converts `ppoll`'s timeout to nanoseconds; `None` if it is invalid.
fn ns_from_timespec(time: Option<&timespec>) -> Option<u64> {
    let Some(time) = time else { return Some(u64::MAX) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u64::try_from(time.tv_nsec).ok()?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanos).min(u64::MAX - 1))
}

/// Converts nanoseconds to `ppoll`'s timeout.
fn timespec_from_ns(time_ns: u64) -> timespec {
    timespec {
        tv_sec: (time_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (time_ns % 1_000_000_000).cast_signed(),
    }
}

/// `poll(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, time_ms: c_int) -> c_int {
    let real = real!(c"poll" as Poll);
    // SAFETY: the caller's own call, passed on.
    let wait = |ms: c_int| unsafe { real(fds, count, ms) };
    // SAFETY: the caller's own entries.
    match unsafe { awaited(fds, count) } {
        Some(connection) => {
            rest_then_wait(&connection, ns_from_ms(time_ms), |ns| wait(ms_from_ns(ns)))
        }
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
    // SAFETY: the caller's own call, passed on.
    let wait = |ms: c_int| unsafe { real(fds, count, ms, room) };
    // SAFETY: the caller's own entries.
    match unsafe { awaited(fds, count) } {
        Some(connection) => {
            rest_then_wait(&connection, ns_from_ms(time_ms), |ns| wait(ms_from_ns(ns)))
        }
        None => wait(time_ms),
    }
}

/// Rests and then calls `wait`, if the caller's `ppoll` leaves the signal mask unchanged.
///
/// # Safety
/// As for `ppoll`, whose arguments these are.
unsafe fn ppoll_resting(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    wait: impl Fn(*const timespec) -> c_int,
) -> c_int {
    // SAFETY: the caller's own time, which may be null.
    let time_ns = ns_from_timespec(unsafe { time.as_ref() });
    // SAFETY: the caller's own entries.
    let awaited = if mask.is_null() { unsafe { awaited(fds, count) } } else { None };
    let (Some(connection), Some(time_ns)) = (awaited, time_ns) else { return wait(time) };
    rest_then_wait(&connection, time_ns, |ns| match ns {
        u64::MAX => wait(std::ptr::null()),
        _ => {
            let time = timespec_from_ns(ns);
            wait(&raw const time)
        }
    })
}

/// `ppoll(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let real = real!(c"ppoll" as PPoll);
    // SAFETY: the caller's own call, passed on, with a time that is valid for it.
    let wait = |time| unsafe { real(fds, count, time, mask) };
    // SAFETY: the caller's own arguments.
    unsafe { ppoll_resting(fds, count, time, mask, wait) }
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
    // SAFETY: the caller's own call, passed on, with a time that is valid for it.
    let wait = |time| unsafe { real(fds, count, time, mask, room) };
    // SAFETY: the caller's own arguments.
    unsafe { ppoll_resting(fds, count, time, mask, wait) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_times_are_never_shorter() {
        for ms in [-1, 0, 1, 999, 28_800_000, c_int::MAX] {
            assert_eq!(ms_from_ns(ns_from_ms(ms)), ms);
        }
        assert_eq!(ms_from_ns(1), 1, "rounded up");
        let time = timespec { tv_sec: 28_800, tv_nsec: 7 };
        let there = timespec_from_ns(ns_from_timespec(Some(&time)).unwrap());
        assert_eq!((there.tv_sec, there.tv_nsec), (28_800, 7));
        assert_eq!(ns_from_timespec(None), Some(u64::MAX));
        assert_eq!(ns_from_timespec(Some(&timespec { tv_sec: -1, tv_nsec: 0 })), None);
    }
}
