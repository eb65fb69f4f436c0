//! Answers whose end shows only in the next call of their thread.
//!
//! A reply of MySQL's protocol has no mark that ends it. With a thread for each connection, the
//! thread receives the next command right after it. A thread that serves many connections
//! receives that command only when the client has sent it, and the client's pause is no part of
//! the answer. So an answer is over as soon as its thread
//!
//! * arms its connection for the next event ([`crate::events::epoll_ctl`]), as pools do, or
//! * reads from another connection, or waits for events, as event loops do.
//!
//! Only connections that were armed in an epoll descriptor concern this module, so that it costs
//! a server with a thread for each connection nothing.
//!
//! Waits for a lock or for another socket are no such end, since a thread may wait for them in
//! the middle of an answer of which it has sent a part.

use crate::connection::Connection;
use crate::process;
use std::cell::Cell;
use std::ffi::c_int;

const NONE: c_int = -1;

thread_local! {
    /// The connection that the thread has sent a part of an answer to. Without a destructor, so
    /// that an access costs no more than its offset.
    static ANSWERED: Cell<c_int> = const { Cell::new(NONE) };
}

/// Notes that the thread has sent a part of an answer, which may be all of it.
#[inline]
pub(crate) fn begin(fd: c_int) {
    ANSWERED.with(|answered| answered.set(fd));
}

/// Notes that the thread turns to this connection, and has ended its answer to another one.
#[inline]
pub(crate) fn end_others(fd: c_int) {
    if ANSWERED.with(|answered| answered.get() != fd) {
        end();
    }
}

/// Notes that the thread waits for events, and has ended its answer.
#[inline]
pub(crate) fn end() {
    let fd = ANSWERED.with(|answered| answered.replace(NONE));
    if fd != NONE {
        end_of(fd);
    }
}

/// Notes that the thread has handed over this connection, and has ended its answer before.
pub(crate) fn forget(fd: c_int) {
    ANSWERED.with(|answered| {
        if answered.get() == fd {
            answered.set(NONE);
        }
    });
}

#[cold]
fn end_of(fd: c_int) {
    // Another thread may serve the connection by now, and the number may be another's.
    let is_mine = |connection: &Connection| connection.record.tid() == process::tid();
    if let Some(connection) = Connection::get_any(fd).filter(is_mine) {
        connection.receives();
    }
}
