//! The calls that the library replaces, each with libc's name and meaning.
//!
//! Tracing shows which calls servers use: MariaDB and MySQL `recv`, `send`, and `read`,
//! `write` under TLS; PostgreSQL `recv`, `send`; memcached `read`, `sendmsg`; Redis `read`,
//! `write`. The waits of a worker with one connection need no hook, since the reads after them
//! carry the same information, except in mode epoll ([`crate::waits`]). Those of pools and event
//! loops are in [`crate::events`].

use crate::answers;
use crate::connection::{self, Connection};
use crate::pool::ServedBy;
use crate::real::{keeping_errno, real};
use crate::traffic;
use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::ffi::{c_int, c_uint, c_void};

/// Returns the bytes of a buffer that a call filled or took, `count` of at most `length`.
///
/// # Safety
/// `at` is valid for reading `length` bytes if `count` is above 0.
unsafe fn bytes<'a>(at: *const c_void, count: ssize_t, length: size_t) -> &'a [u8] {
    let count = usize::try_from(count).unwrap_or(0).min(length);
    if count == 0 || at.is_null() {
        return &[];
    }
    // SAFETY: by the caller, and `count` is at most `length`.
    unsafe { std::slice::from_raw_parts(at.cast(), count) }
}

/// Calls `see` with the [`bytes`] of each of several buffers.
///
/// # Safety
/// `parts` is valid for `count` entries, and each for its length, if `done` is above 0.
unsafe fn each_part(parts: *const iovec, count: usize, done: ssize_t, see: impl Fn(&[u8])) {
    let mut left = usize::try_from(done).unwrap_or(0);
    if left == 0 || parts.is_null() {
        return;
    }
    // SAFETY: by the caller.
    for part in unsafe { std::slice::from_raw_parts(parts, count) } {
        let here = left.min(part.iov_len);
        // SAFETY: by the caller, and `here` is at most the part's length.
        see(unsafe { bytes(part.iov_base, here.cast_signed(), part.iov_len) });
        left -= here;
        if left == 0 {
            return;
        }
    }
}

/// Makes a call that reads, and tracks the connection before and after it.
fn reading(
    fd: c_int,
    read: impl FnOnce() -> ssize_t,
    see: impl FnOnce(&Connection, ssize_t),
) -> ssize_t {
    if !traffic::is_readable() {
        let done = read();
        if done > 0
            && let Some(connection) = Connection::get(fd)
        {
            see(&connection, done);
        }
        return done;
    }
    let Some(connection) = Connection::get(fd) else { return read() };
    if connection.served_by != ServedBy::Alone {
        answers::end_others(fd);
    }
    connection.receives();
    let done = read();
    if done > 0 {
        see(&connection, done);
    } else if connection.served_by != ServedBy::Pool {
        // In a pool the turn ends when the server arms the connection: the rest of a query may
        // be on its way.
        connection.found_nothing();
    }
    done
}

/// Makes a call that writes, and tracks the connection after it.
fn writing(
    fd: c_int,
    write: impl FnOnce() -> ssize_t,
    see: impl FnOnce(&Connection, ssize_t),
) -> ssize_t {
    let done = write();
    if done > 0
        && let Some(connection) = Connection::get(fd)
    {
        see(&connection, done);
    }
    done
}

type Read = unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
type Recv = unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
type RecvFrom = unsafe extern "C" fn(
    c_int,
    *mut c_void,
    size_t,
    c_int,
    *mut sockaddr,
    *mut socklen_t,
) -> ssize_t;
type ReadV = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
type RecvMsg = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type Send = unsafe extern "C" fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
type SendTo = unsafe extern "C" fn(
    c_int,
    *const c_void,
    size_t,
    c_int,
    *const sockaddr,
    socklen_t,
) -> ssize_t;
type SendMsg = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
type Accept = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
type Accept4 = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;

/// `read(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    let real = real!(c"read" as Read);
    reading(
        fd,
        // SAFETY: the caller's own call, passed on.
        || unsafe { real(fd, to, length) },
        // SAFETY: libc has filled that much of the caller's buffer.
        |connection, done| connection.received(unsafe { bytes(to, done, length) }),
    )
}

/// `read` as a server calls it that was compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `read`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    type Checked = unsafe extern "C" fn(c_int, *mut c_void, size_t, size_t) -> ssize_t;
    let real = real!(c"__read_chk" as Checked);
    reading(
        fd,
        // SAFETY: the caller's own call, passed on.
        || unsafe { real(fd, to, length, room) },
        // SAFETY: libc has filled that much of the caller's buffer.
        |connection, done| connection.received(unsafe { bytes(to, done, length) }),
    )
}

/// `recv(2)`. Bytes that are only peeked at are tracked when they are read.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    let real = real!(c"recv" as Recv);
    // SAFETY: the caller's own call, passed on.
    let call = || unsafe { real(fd, to, length, flags) };
    if flags & libc::MSG_PEEK != 0 {
        return call();
    }
    // SAFETY: libc has filled that much of the caller's buffer.
    reading(fd, call, |connection, done| connection.received(unsafe { bytes(to, done, length) }))
}

/// `recv` as a server calls it that was compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `recv`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    type Checked = unsafe extern "C" fn(c_int, *mut c_void, size_t, size_t, c_int) -> ssize_t;
    let real = real!(c"__recv_chk" as Checked);
    // SAFETY: the caller's own call, passed on.
    let call = || unsafe { real(fd, to, length, room, flags) };
    if flags & libc::MSG_PEEK != 0 {
        return call();
    }
    // SAFETY: libc has filled that much of the caller's buffer.
    reading(fd, call, |connection, done| connection.received(unsafe { bytes(to, done, length) }))
}

/// `recvfrom(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    let real = real!(c"recvfrom" as RecvFrom);
    // SAFETY: the caller's own call, passed on.
    let call = || unsafe { real(fd, to, length, flags, address, address_length) };
    if flags & libc::MSG_PEEK != 0 {
        return call();
    }
    // SAFETY: libc has filled that much of the caller's buffer.
    reading(fd, call, |connection, done| connection.received(unsafe { bytes(to, done, length) }))
}

/// `readv(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let real = real!(c"readv" as ReadV);
    reading(
        fd,
        // SAFETY: the caller's own call, passed on.
        || unsafe { real(fd, parts, count) },
        |connection, done| {
            let count = usize::try_from(count).unwrap_or(0);
            // SAFETY: libc has filled that much of the caller's buffers.
            unsafe { each_part(parts, count, done, |bytes| connection.received(bytes)) };
        },
    )
}

/// `recvmsg(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let real = real!(c"recvmsg" as RecvMsg);
    // SAFETY: the caller's own call, passed on.
    let call = || unsafe { real(fd, message, flags) };
    if flags & libc::MSG_PEEK != 0 {
        return call();
    }
    reading(fd, call, |connection, done| {
        // SAFETY: the call succeeded, so that the message is valid.
        let message = unsafe { &*message };
        let (parts, count) = (message.msg_iov, message.msg_iovlen);
        // SAFETY: libc has filled that much of the caller's buffers.
        unsafe { each_part(parts, count, done, |bytes| connection.received(bytes)) };
    })
}

/// `write(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    let real = real!(c"write" as Write);
    writing(
        fd,
        // SAFETY: the caller's own call, passed on.
        || unsafe { real(fd, from, length) },
        // SAFETY: libc has read that much of the caller's buffer.
        |connection, done| connection.sent(unsafe { bytes(from, done, length) }),
    )
}

/// `send(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn send(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    let real = real!(c"send" as Send);
    writing(
        fd,
        // SAFETY: the caller's own call, passed on.
        || unsafe { real(fd, from, length, flags) },
        // SAFETY: libc has read that much of the caller's buffer.
        |connection, done| connection.sent(unsafe { bytes(from, done, length) }),
    )
}

/// `sendto(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    let real = real!(c"sendto" as SendTo);
    writing(
        fd,
        // SAFETY: the caller's own call, passed on.
        || unsafe { real(fd, from, length, flags, address, address_length) },
        // SAFETY: libc has read that much of the caller's buffer.
        |connection, done| connection.sent(unsafe { bytes(from, done, length) }),
    )
}

/// `writev(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let real = real!(c"writev" as ReadV);
    writing(
        fd,
        // SAFETY: the caller's own call, passed on.
        || unsafe { real(fd, parts, count) },
        |connection, done| {
            let count = usize::try_from(count).unwrap_or(0);
            // SAFETY: libc has read that much of the caller's buffers.
            unsafe { each_part(parts, count, done, |bytes| connection.sent(bytes)) };
        },
    )
}

/// `sendmsg(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let real = real!(c"sendmsg" as SendMsg);
    // SAFETY: the caller's own call, passed on.
    let call = || unsafe { real(fd, message, flags) };
    writing(fd, call, |connection, done| {
        // SAFETY: the call succeeded, so that the message is valid.
        let message = unsafe { &*message };
        let (parts, count) = (message.msg_iov, message.msg_iovlen);
        // SAFETY: libc has read that much of the caller's buffers.
        unsafe { each_part(parts, count, done, |bytes| connection.sent(bytes)) };
    })
}

/// Notes the descriptor that `accept` returned.
fn track_accepted(fd: c_int) -> c_int {
    if fd >= 0 {
        keeping_errno(|| connection::accepted(fd));
    }
    fd
}

/// `accept(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let real = real!(c"accept" as Accept);
    // SAFETY: the caller's own call, passed on.
    track_accepted(unsafe { real(fd, address, length) })
}

/// `accept4(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let real = real!(c"accept4" as Accept4);
    // SAFETY: the caller's own call, passed on.
    track_accepted(unsafe { real(fd, address, length, flags) })
}

/// `close(2)`. The table is updated first: after libc's call, another thread may get the
/// same number.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    type Close = unsafe extern "C" fn(c_int) -> c_int;
    let real = real!(c"close" as Close);
    keeping_errno(|| connection::closing(fd));
    // SAFETY: the caller's own call, passed on.
    unsafe { real(fd) }
}

/// `shutdown(2)`: how a server ends a connection that another thread serves.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    type Shutdown = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let real = real!(c"shutdown" as Shutdown);
    // SAFETY: the caller's own call, passed on.
    let done = unsafe { real(fd, how) };
    keeping_errno(|| connection::shutting_down(fd));
    done
}

/// `dup2(2)`, which closes the descriptor that it replaces.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    type Dup2 = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let real = real!(c"dup2" as Dup2);
    if from != to {
        keeping_errno(|| connection::closing(to));
    }
    // SAFETY: the caller's own call, passed on.
    unsafe { real(from, to) }
}

/// `dup3(2)`, as [`dup2`].
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    type Dup3 = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    let real = real!(c"dup3" as Dup3);
    if from != to {
        keeping_errno(|| connection::closing(to));
    }
    // SAFETY: the caller's own call, passed on.
    unsafe { real(from, to, flags) }
}

/// `close_range(2)`.
///
/// # Safety
/// As the manual page requires.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    const ONLY_LATER: c_int = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    let real = real!(c"close_range" as CloseRange);
    if flags & ONLY_LATER == 0 {
        // Numbers beyond the table are not watched.
        keeping_errno(|| {
            (first..=last.min(1 << 16)).for_each(|fd| connection::closing(fd.cast_signed()));
        });
    }
    // SAFETY: the caller's own call, passed on.
    unsafe { real(first, last, flags) }
}
