//! The connection that this thread's call of a TLS library belongs to.
//!
//! A TLS library reads and writes the socket below the server's call, through the hooks of
//! `read` and `write`. Of a connection of which nothing was decrypted yet those bytes are a
//! handshake, and no query. They also tell which descriptor a session has if the library does
//! not (a BIO of the server's own, as in PostgreSQL 18).

use lull_oncall::Id;
use std::cell::Cell;
use std::ffi::c_int;

const NONE: c_int = -1;

/// The thread's call, and its memory of earlier ones. Without a destructor, so that an access costs
/// no more than its offset.
struct Session {
    /// Whether the thread is in a call.
    is_inside: Cell<bool>,
    /// The descriptor that the call has used, if its connection is encrypted.
    used: Cell<c_int>,
    /// The descriptor whose session had no more bytes at the thread's last call that reads.
    drained: Cell<c_int>,
    /// The session of the last call that moved bytes.
    known: Cell<Known>,
}

/// A session's descriptor, and the connection that it was.
#[derive(Clone, Copy)]
struct Known {
    session: usize,
    fd: c_int,
    id: Id,
}

thread_local! {
    static THREAD: Session = const {
        Session {
            is_inside: Cell::new(false),
            used: Cell::new(NONE),
            drained: Cell::new(NONE),
            known: Cell::new(Known { session: 0, fd: NONE, id: Id(0) }),
        }
    };
}

/// Notes that the thread calls a TLS library. Returns `false` if it already is in such a call:
/// one library may be built on another, and only the outer call counts.
#[inline]
pub(crate) fn begin() -> bool {
    THREAD.with(|thread| !thread.is_inside.replace(true))
}

/// Notes that the call has returned. Returns the descriptor that it has used, if its
/// connection is encrypted and nothing of it was decrypted before.
#[inline]
pub(crate) fn end() -> Option<c_int> {
    THREAD.with(|thread| {
        thread.is_inside.set(false);
        Some(thread.used.replace(NONE)).filter(|fd| *fd != NONE)
    })
}

/// Notes that the thread reads or writes the socket of an encrypted connection. Returns
/// whether a TLS library does it.
pub(crate) fn uses(fd: c_int) -> bool {
    THREAD.with(|thread| {
        let is_inside = thread.is_inside.get();
        if is_inside {
            thread.used.set(fd);
        }
        is_inside
    })
}

/// Notes whether a session has returned all bytes that its library had received in whole, so
/// that the next come by its socket.
#[inline]
pub(crate) fn set_drained(fd: c_int, is_drained: bool) {
    THREAD.with(|thread| thread.drained.set(if is_drained { fd } else { NONE }));
}

/// Whether that is so for this descriptor.
pub(crate) fn is_drained(fd: c_int) -> bool {
    THREAD.with(|thread| fd != NONE && thread.drained.get() == fd)
}

/// Remembers which connection a session is.
#[inline]
pub(crate) fn remember(session: usize, fd: c_int, id: Id) {
    THREAD.with(|thread| thread.known.set(Known { session, fd, id }));
}

/// Returns the descriptor of a session and its connection, if it is the last that was
/// remembered. The caller checks that the descriptor still is that connection.
#[inline]
pub(crate) fn recall(session: usize) -> Option<(c_int, Id)> {
    let known = THREAD.with(|thread| thread.known.get());
    (known.session == session).then_some((known.fd, known.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_used_by_a_library_only_within_its_call() {
        assert!(!uses(5));
        assert!(begin() && !begin(), "a call within a call does not count");
        assert!(uses(5));
        assert_eq!((end(), end()), (Some(5), None));
        assert!(!uses(5));
        assert!(begin());
        assert_eq!(end(), None, "of an earlier call");
    }

    #[test]
    fn only_the_last_descriptor_without_bytes_is_drained() {
        set_drained(5, true);
        assert!(is_drained(5) && !is_drained(6) && !is_drained(NONE));
        set_drained(6, false);
        assert!(!is_drained(5) && !is_drained(NONE));
    }

    #[test]
    fn a_session_is_recalled_until_another_is_remembered() {
        remember(0x1000, 5, Id(7));
        assert_eq!((recall(0x1000), recall(0x2000)), (Some((5, Id(7))), None));
        remember(0x2000, 6, Id(8));
        assert_eq!(recall(0x1000), None);
    }
}
