//! The calls by which event loops and pools of threads wait for their connections.
//!
//! Only servers whose protocol is read and whose workers are threads are concerned: MariaDB with
//! `thread_handling=pool-of-threads`, and proxies that speak MySQL's protocol.

use crate::connection::Connection;
use crate::pool::{self, ServedBy};
use crate::real::{keeping_errno, real};
use crate::{answers, clock, page, traffic};
use libc::{epoll_event, sigset_t};
use std::ffi::c_int;

type EpollCtl = unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int;
type EpollWait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
type EpollPWait =
    unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;

/// Whether threads of this process may serve several connections, and their answers are read.
fn is_watched() -> bool {
    page::get().is_some() && traffic::is_readable() && !page::protocol().workers_are_processes()
}

/// Notes that the server is about to change the events that it waits for at a connection.
fn track_change(epoll: c_int, operation: c_int, fd: c_int, event: Option<&epoll_event>) {
    let Some(mut connection) = Connection::get_any(fd) else { return };
    match event {
        Some(event) if operation != libc::EPOLL_CTL_DEL => {
            answers::forget(fd);
            connection.arms(epoll, event);
        }
        // The event may be armed in another epoll descriptor, and hidden there.
        _ if pool::is_armed_at(connection.id, epoll) => {
            pool::forget(connection.id);
            connection.set_served_by(ServedBy::Alone);
        }
        _ => {}
    }
}

/// `epoll_ctl(2)`. The tables are updated first: after libc's call, another thread may have the
/// connection.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let real = real!(c"epoll_ctl" as EpollCtl);
    if is_watched() {
        // SAFETY: the caller's own event, which may be null.
        let event = unsafe { event.as_ref() };
        keeping_errno(|| track_change(epoll, operation, fd, event));
    }
    // SAFETY: the caller's own call, passed on.
    unsafe { real(epoll, operation, fd, event) }
}

/// Waits by `wait` with a timeout in milliseconds, and hides the events of connections that have
/// to wait at the gate. If all are hidden, waits for the rest of the time.
///
/// # Safety
/// `at` is valid for as many events as `wait` returns.
unsafe fn wait_for_events(
    epoll: c_int,
    at: *mut epoll_event,
    timeout_ms: c_int,
    wait: impl Fn(c_int) -> c_int,
) -> c_int {
    if !is_watched() {
        return wait(timeout_ms);
    }
    answers::end();
    let mut left_ms = timeout_ms;
    let begun_ns = if timeout_ms > 0 { clock::now_ns() } else { 0 };
    loop {
        let count = wait(left_ms);
        if count <= 0 || !pool::is_used() {
            return count;
        }
        // SAFETY: by the caller.
        let events = unsafe { std::slice::from_raw_parts_mut(at, count.cast_unsigned() as usize) };
        let shown = keeping_errno(|| hide_events(epoll, events));
        if shown > 0 || timeout_ms == 0 {
            return shown;
        }
        if timeout_ms > 0 {
            let waited_ms = clock::now_ns().saturating_sub(begun_ns) / 1_000_000;
            let waited_ms = c_int::try_from(waited_ms).unwrap_or(c_int::MAX);
            left_ms = timeout_ms.saturating_sub(waited_ms);
            if left_ms <= 0 {
                return 0;
            }
        }
    }
}

/// Keeps the events that the server may have, in their order. Returns their number.
fn hide_events(epoll: c_int, events: &mut [epoll_event]) -> c_int {
    let now_ns = clock::now_ns();
    let mut shown = 0;
    for at in 0..events.len() {
        let event = events[at];
        if is_shown(epoll, &event, now_ns) {
            events[shown] = event;
            shown += 1;
        }
    }
    shown as c_int
}

/// Whether the server may have an event. The end of a connection is never hidden, nor is any event
/// of which nothing is known.
fn is_shown(epoll: c_int, event: &epoll_event, now_ns: u64) -> bool {
    let Some((id, fd)) = pool::find(epoll, event) else { return true };
    let connection = Connection::get_any(fd).filter(|connection| connection.id == id);
    let Some(connection) = connection else { return true };
    let is_only_query = event.events == libc::EPOLLIN.cast_unsigned();
    connection.shows_event(is_only_query, now_ns)
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    let real = real!(c"epoll_wait" as EpollWait);
    // SAFETY: the caller's own call, passed on.
    let wait = |ms| unsafe { real(epoll, events, room, ms) };
    // SAFETY: libc fills as many of the caller's events as it returns.
    unsafe { wait_for_events(epoll, events, timeout_ms, wait) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let real = real!(c"epoll_pwait" as EpollPWait);
    // SAFETY: the caller's own call, passed on.
    let wait = |ms| unsafe { real(epoll, events, room, ms, mask) };
    // SAFETY: libc fills as many of the caller's events as it returns.
    unsafe { wait_for_events(epoll, events, timeout_ms, wait) }
}
