//! The gate for a connection's worker: turns, and rests between them.
//!
//! Methods that may change `errno` restore it.

use crate::connection::Connection;
use crate::parking::{Parking, WAKER};
use crate::pool::{self, HideOutcome, ServedBy};
use crate::real::keeping_errno;
use crate::{clock, service, ticker, timer};
use lull_oncall::protocol::Reader;
use lull_oncall::{Class, Decision, GateEntry, Rest, Waking};
use std::ffi::c_int;

/// How the rest of a worker that would have waited for its client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestEnd {
    /// The worker did not rest: it waits in libc.
    NotRested,
    /// A query has arrived and the worker has a slot; or it was let go.
    Called,
    /// Its time was up.
    TimedOut,
    /// A signal arrived.
    Interrupted,
}

impl Connection {
    /// Returns when its worker holds a slot, or needs none.
    #[inline]
    pub(crate) fn take_turn(&self, passes: bool, now_ns: u64) {
        if self.has_gate() && self.served_by == ServedBy::Alone {
            self.arrive(passes, now_ns, &self.parking());
        }
    }

    /// Takes a turn for something that no client waits for, if the worker has none. It ends
    /// when the worker finds nothing more to read. A client that has disconnected by then
    /// does not end the wait.
    pub(crate) fn take_turn_unwatched(&self, reader: Reader) {
        let may_park = self.has_gate() && self.served_by == ServedBy::Alone;
        if may_park && self.is_between_transactions(reader) {
            let parking = Parking { fd: -1, ..self.parking() };
            self.arrive(false, clock::now_ns(), &parking);
        }
    }

    #[inline(never)]
    fn arrive(&self, passes: bool, now_ns: u64, parking: &Parking) {
        let gate = self.page.gate();
        keeping_errno(|| {
            if gate.arrive(self.id, passes, now_ns, parking) == Decision::Park {
                let parking = Parking { leaves_ns: timer::leaves_ns(now_ns), ..*parking };
                self.parked(gate.park(self.id, &parking));
            }
        });
    }

    /// Notes that its worker has replied to a query.
    #[inline]
    pub(crate) fn end_query(&self, in_transaction: bool, now_ns: u64) {
        if self.is_admitted() {
            self.end_turn(in_transaction, now_ns);
        }
    }

    #[inline(never)]
    fn end_turn(&self, in_transaction: bool, now_ns: u64) {
        let gate = self.page.gate();
        keeping_errno(|| gate.answered(self.id, in_transaction, now_ns, &WAKER));
    }

    /// Notes that there was nothing to read: its worker will wait for its client.
    pub(crate) fn found_nothing(&self) {
        self.local.forget_arrival();
        if self.is_admitted() {
            let reader = self.local.reader.load();
            if !reader.is_pending() {
                let (gate, is_open) = (self.page.gate(), reader.in_transaction());
                keeping_errno(|| gate.idle(self.id, is_open, clock::now_ns(), &WAKER));
            }
        }
    }

    /// Rests instead of waiting for the client until `until_ns`, in mode epoll and between
    /// transactions: the worker sleeps on its gate entry, and the service thread on its socket.
    pub(crate) fn rest(&self, until_ns: u64) -> RestEnd {
        let is_alone = self.served_by == ServedBy::Alone;
        if !is_alone || !self.is_between_transactions(self.local.reader.load()) {
            return RestEnd::NotRested;
        }
        let (gate, parking) = (self.page.gate(), self.parking());
        let now_ns = clock::now_ns();
        // The thread that calls workers is started only where workers rest.
        if !gate.has_rests(now_ns) || !service::is_running() || !gate.rest(self.id, now_ns) {
            return RestEnd::NotRested;
        }
        // A query that ends the rest arrives after this.
        self.local.set_earliest_arrival(now_ns);
        if !service::arm(self.fd, self.id, now_ns) {
            gate.evict(self.id, &parking);
            gate.park(self.id, &parking);
            self.local.forget_arrival();
            return RestEnd::NotRested;
        }
        let rest = gate.sleep(self.id, until_ns, &parking);
        match gate.entry(self.id).filter(|entry| rest == Rest::Called && entry.is_admitted()) {
            Some(entry) => {
                self.parked(clock::now_ns().saturating_sub(entry.waiting_since_ns()));
            }
            // A worker that was let go was not called at any known time.
            None => self.local.forget_arrival(),
        }
        match rest {
            Rest::TimedOut => RestEnd::TimedOut,
            Rest::Left => RestEnd::Interrupted,
            Rest::Called => RestEnd::Called,
        }
    }

    /// Notes that the server is about to arm it in an epoll descriptor: what its thread had to
    /// do for it is done.
    pub(crate) fn arms(&mut self, epoll: c_int, event: &libc::epoll_event) {
        // A server that waits for room to write has not ended its answer.
        let waits_for = event.events & (libc::EPOLLIN | libc::EPOLLOUT).cast_unsigned();
        if waits_for != libc::EPOLLOUT.cast_unsigned() {
            self.receives();
            // In a pool a turn is one transaction: the thread does not look for the next one.
            self.found_nothing();
        }
        let served_by = pool::server_arms(self.id, self.fd, epoll, event);
        self.set_served_by(served_by);
    }

    /// Decides on the event of a connection of a pool that was returned at `now_ns`. Returns
    /// whether the server may have it at once; else it has it when the connection is admitted.
    /// Only an event that says no more than that there are bytes `may_wait`.
    pub(crate) fn shows_event(&self, may_wait: bool, now_ns: u64) -> bool {
        self.local.set_first_arrival(now_ns);
        if !self.has_gate() || !ticker::is_running() {
            return true;
        }
        let Some(was_hidden) = pool::examine(self.id) else { return true };
        self.follow_rules();
        let may_wait = may_wait && self.is_between_transactions(self.local.reader.load());
        let is_shown = !may_wait || self.has_turn(was_hidden, now_ns);
        if is_shown {
            pool::show(self.id);
        }
        is_shown
    }

    fn has_turn(&self, was_hidden: bool, now_ns: u64) -> bool {
        let gate = self.page.gate();
        let mut has_waited = was_hidden;
        let mut decision = match was_hidden {
            true => gate.check(self.id, now_ns, &WAKER),
            false => gate.arrive(self.id, false, now_ns, &WAKER),
        };
        while decision == Decision::Park {
            match pool::hide(self.id) {
                HideOutcome::Hidden => return false,
                HideOutcome::Admitted => decision = gate.check(self.id, clock::now_ns(), &WAKER),
                HideOutcome::Gone => return true,
            }
            has_waited = true;
        }
        if has_waited && let Some(entry) = gate.entry(self.id) {
            self.parked(clock::now_ns().saturating_sub(entry.waiting_since_ns()));
        }
        true
    }

    /// Notes how long its worker has waited, for the connection, and for the class and the account
    /// of its client.
    fn parked(&self, waited_ns: u64) {
        self.record.parked(waited_ns);
        self.page.turn_waited(self.id, waited_ns);
        self.count_wait(waited_ns);
    }

    #[inline]
    fn has_gate(&self) -> bool {
        self.page.control().mode().gates()
    }

    #[inline]
    fn is_admitted(&self) -> bool {
        self.page.gate().entry(self.id).is_some_and(GateEntry::is_admitted)
    }

    /// Whether its worker may be delayed: no query is pending and no transaction is open.
    fn is_between_transactions(&self, reader: Reader) -> bool {
        let is_between = !reader.is_pending() && !reader.in_transaction();
        is_between && self.class(reader) == Class::Gated
    }

    /// How its worker sleeps.
    fn parking(&self) -> Parking {
        let by_signal = self.page.control().waking() == Waking::Signal;
        Parking { by_signal: by_signal.then_some(self.id), fd: self.fd, ..WAKER }
    }
}
