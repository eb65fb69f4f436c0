//! The meaning of a connection's bytes: queries that begin and replies that end.
//!
//! Methods that may change `errno` restore it; most calls change nothing.

use crate::connection::Connection;
use crate::pool::ServedBy;
use crate::{answers, clock, cores, page, process, session};
use lull_oncall::protocol::{Reader, Request};
use lull_oncall::{Class, Names};

/// Whether the requests of this program's connections can be read. Only then may a worker
/// be delayed, and only then does the call before a read carry information.
pub(crate) fn is_readable() -> bool {
    page::protocol().is_readable()
}

impl Connection {
    /// Notes that its worker is about to read.
    #[inline]
    pub(crate) fn receives(&self) {
        if let Some(in_transaction) = self.local.reader.begins_receive() {
            self.replied(in_transaction);
        }
    }

    /// Notes that its worker has read these bytes. Returns when the worker may have them.
    #[inline]
    pub(crate) fn received(&self, bytes: &[u8]) {
        if !is_readable() {
            return self.received_unread(bytes);
        }
        match self.local.reader.received_common(bytes) {
            Some((Request::None, _)) => {}
            Some((_, in_transaction)) => self.begin_request(Class::Gated, in_transaction, true),
            None => self.read_request(bytes),
        }
    }

    /// Without a protocol, what is read is a query and what is written its reply.
    #[inline(never)]
    fn received_unread(&self, bytes: &[u8]) {
        if self.record.pending_since_ns().is_none() && !bytes.is_empty() {
            let now_ns = clock::now_ns();
            cores::note();
            self.record.query_arrived(process::tid(), now_ns);
            cores::leave_dead_dispatcher(self.page, now_ns);
        }
    }

    /// Reads bytes of a request. What a TLS library receives and sends below a call of the
    /// server's is not read: the call has the decrypted bytes.
    #[inline(never)]
    fn read_request(&self, bytes: &[u8]) {
        let mut reader = self.local.reader.load();
        if reader.is_encrypted() && session::uses(self.fd) {
            return;
        }
        let mut names = Names::default();
        let request = reader.received(bytes, &mut names);
        self.local.reader.store(reader);
        if names.are_any() {
            self.name_client(&names, bytes);
        }
        match request {
            Request::None => {}
            Request::OneWay => self.record.query_dropped(),
            Request::GatedOneWay => {
                self.record.query_dropped();
                self.take_turn_unwatched(reader);
            }
            Request::Query | Request::Command => {
                let may_wait = request == Request::Query;
                self.begin_request(reader.class(), reader.in_transaction(), may_wait);
            }
        }
    }

    /// Notes a request of a connection that a reader gives this class.
    fn begin_request(&self, class: Class, in_transaction: bool, may_wait: bool) {
        let now_ns = clock::now_ns();
        self.record.query_arrived(self.reading_thread(), self.local.take_arrival(now_ns));
        cores::leave_dead_dispatcher(self.page, now_ns);
        if may_wait {
            self.follow_rules();
        }
        let class = self.limited(class);
        if self.record.class() != class {
            self.record.set_class(class);
        }
        if may_wait && class == Class::Gated {
            self.take_turn(in_transaction, now_ns);
        }
    }

    /// Returns the number of this thread, which has read a query of it, and notes which cores the
    /// thread may use before an agent can have seen that.
    ///
    /// A thread that serves one connection has noted both at its first query. To look them up again
    /// would take a call and cache lines of its own.
    #[inline]
    fn reading_thread(&self) -> u32 {
        let thread = process::thread_address();
        if self.served_by == ServedBy::Alone && self.local.is_read_by(thread) {
            return self.record.tid();
        }
        self.note_thread(thread)
    }

    #[inline(never)]
    fn note_thread(&self, thread: u64) -> u32 {
        cores::note();
        self.local.set_read_by(thread);
        process::tid()
    }

    /// Notes that its worker has written these bytes.
    #[inline]
    pub(crate) fn sent(&self, bytes: &[u8]) {
        if !is_readable() {
            return self.sent_unread(bytes);
        }
        // Where a thread serves many connections, it may have to end the reply ([`answers`]).
        let is_alone = self.served_by == ServedBy::Alone;
        if !is_alone || !self.local.reader.sent_common(bytes) {
            self.read_reply(bytes);
        }
    }

    #[inline(never)]
    fn sent_unread(&self, bytes: &[u8]) {
        if !bytes.is_empty() && self.record.pending_since_ns().is_some() {
            let now_ns = clock::now_ns();
            self.record.query_answered(now_ns);
            self.record.transaction_ended(now_ns);
        }
    }

    #[inline(never)]
    fn read_reply(&self, bytes: &[u8]) {
        let mut reader = self.local.reader.load();
        if reader.is_encrypted() && session::uses(self.fd) {
            return;
        }
        let was_pending = reader.is_pending();
        let mut names = Names::default();
        let is_end = reader.sent(bytes, &mut names);
        self.local.reader.store(reader);
        if names.are_any() {
            self.name_client(&names, bytes);
        }
        if is_end {
            self.replied(reader.in_transaction());
        } else if was_pending && !reader.is_pending() {
            self.logged_in_again(reader);
        } else if self.served_by != ServedBy::Alone && reader.may_end_at_receive() {
            answers::begin(self.fd);
        }
    }

    /// Notes that a change of user is complete, which is not a query and ends any transaction.
    fn logged_in_again(&self, reader: Reader) {
        self.record.set_in_transaction(reader.in_transaction());
        self.record.query_dropped();
        self.end_query(reader.in_transaction(), clock::now_ns());
    }

    /// Notes that the reply to its query is complete.
    #[inline(never)]
    fn replied(&self, is_open: bool) {
        let now_ns = clock::now_ns();
        // First: its locked instruction waits for all stores before it.
        if !is_open && let Some(took_ns) = self.record.transaction_took(now_ns) {
            self.page.transaction_took(self.id, took_ns);
        }
        self.record.query_answered(now_ns);
        if self.record.in_transaction() != is_open {
            self.record.set_in_transaction(is_open);
        }
        if !is_open {
            self.record.transaction_ended(now_ns);
        }
        self.end_query(is_open, now_ns);
    }
}
