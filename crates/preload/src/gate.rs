//! What the gate does with a connection's worker: turns, and rests between them.
//!
//! Methods that may change `errno` restore it.

use crate::connection::Connection;
use crate::parking::{Parking, WAKER};
use crate::real::keeping_errno;
use crate::{clock, service};
use lull_oncall::protocol::Reader;
use lull_oncall::{Class, Decision, Rest, Seat, Waking};

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
    pub(crate) fn take_turn(&self, passes: bool, now_ns: u64) {
        if self.has_gate() {
            self.arrive(passes, now_ns, &self.parking());
        }
    }

    /// Takes a turn for something that no client waits for, if the worker has none. It ends
    /// when the worker finds nothing more to read. A client that has disconnected by then
    /// does not end the wait.
    pub(crate) fn take_turn_unwatched(&self, reader: Reader) {
        if self.has_gate() && self.is_between_transactions(reader) {
            let parking = Parking { fd: -1, ..self.parking() };
            self.arrive(false, clock::now_ns(), &parking);
        }
    }

    fn arrive(&self, passes: bool, now_ns: u64, parking: &Parking) {
        let gate = self.page.gate();
        keeping_errno(|| {
            if gate.arrive(self.id, passes, now_ns, parking) == Decision::Park {
                self.record.parked(gate.park(self.id, parking));
            }
        });
    }

    /// Notes that its worker has replied to a query.
    pub(crate) fn end_query(&self, in_transaction: bool, now_ns: u64) {
        if self.is_admitted() {
            let gate = self.page.gate();
            keeping_errno(|| gate.answered(self.id, in_transaction, now_ns, &WAKER));
        }
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
    /// transactions: the worker sleeps on its seat, and the service thread on its socket.
    pub(crate) fn rest(&self, until_ns: u64) -> RestEnd {
        if !self.is_between_transactions(self.local.reader.load()) {
            return RestEnd::NotRested;
        }
        let (gate, parking) = (self.page.gate(), self.parking());
        let now_ns = clock::now_ns();
        if !service::is_running() || !gate.rest(self.id, now_ns) {
            return RestEnd::NotRested;
        }
        // A query that ends the rest arrives after this.
        self.local.set_earliest_arrival(now_ns);
        if !service::arm(self.fd, self.id, now_ns) {
            gate.expel(self.id, &parking);
            gate.park(self.id, &parking);
            self.local.forget_arrival();
            return RestEnd::NotRested;
        }
        let rest = gate.sleep(self.id, until_ns, &parking);
        match gate.seat(self.id).filter(|seat| rest == Rest::Called && seat.is_admitted()) {
            Some(seat) => {
                self.record.parked(clock::now_ns().saturating_sub(seat.waiting_since_ns()));
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

    fn has_gate(&self) -> bool {
        self.page.control().mode().gates()
    }

    fn is_admitted(&self) -> bool {
        self.page.gate().seat(self.id).is_some_and(Seat::is_admitted)
    }

    /// Whether its worker may be delayed: no query is pending and no transaction is open.
    fn is_between_transactions(&self, reader: Reader) -> bool {
        let is_between = !reader.is_pending() && !reader.in_transaction();
        is_between && self.class(reader) == Class::Gated
    }

    /// How its worker sleeps.
    fn parking(&self) -> Parking {
        let by_signal = self.page.control().waking() == Waking::Signal;
        Parking { fd: self.fd, by_signal: by_signal.then_some(self.id) }
    }
}
