//! What the calls mean: connections that come and go, queries that begin and end.

use crate::descriptors::{self, Descriptor};
use crate::parking::{Parking, WAKER};
use crate::real::keeping_errno;
use crate::{clock, page, process, service};
use lull_oncall::protocol::{Reader, Request, SharedReader};
use lull_oncall::{CONNECTIONS, Class, Decision, Id, Mode, Page, Peer, Record, Rest, Seat, Waking};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// What this process knows of each connection: its own, since nobody else needs
/// it and nobody else may change it.
static OWN: [Own; CONNECTIONS] = [const { Own::new() }; CONNECTIONS];

/// How far a connection's protocol was read, and when its query can have come: in one
/// cache line, since every query needs both.
#[repr(align(32))]
struct Own {
    reader: SharedReader,
    /// While its worker rests and until it has read the query that ended the rest:
    /// the earliest that this can have come. 0 otherwise.
    came_ns: AtomicU64,
}

impl Own {
    const fn new() -> Self {
        Self { reader: SharedReader::new(), came_ns: AtomicU64::new(0) }
    }

    /// When the query came that a worker has at this time: of one that rested, when
    /// it can have come at the earliest.
    fn takes_came(&self, now_ns: u64) -> u64 {
        match self.came_ns.load(Ordering::Relaxed) {
            0 => now_ns,
            came_ns => {
                self.came_ns.store(0, Ordering::Relaxed);
                came_ns.min(now_ns)
            }
        }
    }
}

/// A connection that a call is about.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    page: &'static Page,
    record: &'static Record,
    own: &'static Own,
    id: Id,
    fd: c_int,
    is_exempt: bool,
}

/// What became of a worker that would have waited for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rested {
    /// It is to wait as ever.
    Not,
    /// Something has come, and it has a slot; or it was let go.
    Called,
    /// Its time was up.
    Late,
    /// A signal came.
    Left,
}

/// Whether the program's protocol is one that is known: only then may anybody be
/// made to wait, and only then does it say something that a worker reads again.
pub(crate) fn knows_protocol() -> bool {
    page::protocol().is_readable()
}

/// The connection of a descriptor that is read from or written to.
pub(crate) fn connection(fd: c_int) -> Option<Connection> {
    let what = descriptors::get(fd);
    if matches!(what, Descriptor::Foreign | Descriptor::Unwatched) {
        return None;
    }
    let page = page::get().filter(|page| page.control().mode() != Mode::Off)?;
    match what {
        Descriptor::Connection { id, is_exempt } => {
            let connection = of_id(page, id, fd, is_exempt)?;
            // A child has its parent's table; what it reads from is its own.
            let is_mine = connection.record.pid() == process::pid();
            if is_mine { Some(connection) } else { keeping_errno(|| open(page, fd)) }
        }
        _ => keeping_errno(|| open(page, fd)),
    }
}

fn of_id(page: &'static Page, id: Id, fd: c_int, is_exempt: bool) -> Option<Connection> {
    let (record, own) = (page.record(id)?, OWN.get(id.index())?);
    Some(Connection { page, record, own, id, fd, is_exempt })
}

/// Gives a descriptor that is used for the first time its place in the page.
#[cold]
fn open(page: &'static Page, fd: c_int) -> Option<Connection> {
    let end = ends(fd);
    let claimed = claim(page, fd, &end);
    let Some(id) = claimed else {
        descriptors::set(fd, Descriptor::Unwatched);
        page.header().turn_away();
        return None;
    };
    let header = page.header();
    let is_exempt = (end.is_unix && !header.gates_unix()) || header.exempts(end.local_port);
    let connection = of_id(page, id, fd, is_exempt)?;
    let reader = Reader::new(page::protocol());
    connection.own.reader.store(reader);
    connection.own.came_ns.store(0, Ordering::Relaxed);
    connection.record.set_class(connection.class(reader));
    page.gate().open_seat(id);
    descriptors::set(fd, Descriptor::Connection { id, is_exempt });
    Some(connection)
}

fn claim(page: &Page, fd: c_int, end: &Ends) -> Option<Id> {
    let (pid, fd) = (process::pid(), fd.cast_unsigned());
    let mut offers = (0..CONNECTIONS).map(|_| page.header().next());
    let takes = |record: &Record| record.claim(pid, fd, end.peer, end.local_port);
    offers.find(|id| page.record(*id).is_some_and(takes))
}

/// The two ends of a socket.
struct Ends {
    peer: Peer,
    local_port: u16,
    is_unix: bool,
}

fn ends(fd: c_int) -> Ends {
    let (peer, is_unix) = address(fd, libc::getpeername);
    let (local, _) = address(fd, libc::getsockname);
    Ends { peer, local_port: local.port, is_unix }
}

type NameOf = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// One end's address, and whether it is a unix socket's.
fn address(fd: c_int, name_of: NameOf) -> (Peer, bool) {
    // SAFETY: all zeros are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the storage may be written, and `length` says how long it is.
    unsafe { name_of(fd, (&raw mut storage).cast(), &raw mut length) };
    let family = c_int::from(storage.ss_family);
    let at = &raw const storage;
    let peer = match family {
        libc::AF_INET => {
            // SAFETY: the storage is large enough and aligned for every address, and
            // the family says that it holds one of this kind.
            let internet = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ipv4 = u32::from_be(internet.sin_addr.s_addr);
            Peer { ipv4, port: u16::from_be(internet.sin_port) }
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let internet = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            Peer { ipv4: 0, port: u16::from_be(internet.sin6_port) }
        }
        _ => Peer::default(),
    };
    (peer, family == libc::AF_UNIX)
}

/// A descriptor came out of `accept`.
pub(crate) fn accepted(fd: c_int) {
    if page::get().is_some() {
        // One that was closed unseen may have had the number before.
        forget(descriptors::set(fd, Descriptor::Accepted));
    }
}

/// A descriptor is about to be closed, or to be another.
pub(crate) fn closing(fd: c_int) {
    if descriptors::get(fd) != Descriptor::Foreign {
        forget(descriptors::set(fd, Descriptor::Foreign));
    }
}

fn forget(what: Descriptor) {
    if let (Descriptor::Connection { id, .. }, Some(page)) = (what, page::get()) {
        close(page, id);
    }
}

/// A connection's place is free again, if it is this process's.
fn close(page: &Page, id: Id) {
    let Some(record) = page.record(id).filter(|record| record.pid() == process::pid()) else {
        return;
    };
    page.gate().close_seat(id, clock::now_ns(), &WAKER);
    record.release(process::pid());
}

/// Nobody waits on a socket that is shut down: its worker is to find out.
pub(crate) fn shutting_down(fd: c_int) {
    if let (Descriptor::Connection { id, .. }, Some(page)) = (descriptors::get(fd), page::get()) {
        page.gate().expel(id, &WAKER);
    }
}

/// Something has come for a worker that rests, and not before this time.
pub(crate) fn came(id: Id, since_ns: u64) {
    if let Some(own) = OWN.get(id.index()) {
        own.came_ns.fetch_max(since_ns, Ordering::Relaxed);
    }
}

/// The process ends.
#[cfg_attr(test, expect(dead_code, reason = "tests load no page"))]
pub(crate) extern "C" fn close_all() {
    if let Some(page) = page::get() {
        descriptors::take_all().for_each(|id| close(page, id));
    }
}

/// What these do that can change `errno` keeps it; most calls do nothing of the kind.
impl Connection {
    /// Its worker is about to read.
    pub(crate) fn receives(&self) {
        if let Some(reader) = self.own.reader.begins_receive() {
            self.answered(reader);
        }
    }

    /// Its worker has read these bytes. Returns once it may have them.
    #[inline]
    pub(crate) fn received(&self, bytes: &[u8]) {
        if knows_protocol() {
            self.heard(bytes);
        } else if self.record.pending_since_ns().is_none() && !bytes.is_empty() {
            // What is read asks, and what is written answers.
            self.record.query_arrived(process::tid(), clock::now_ns());
        }
    }

    fn heard(&self, bytes: &[u8]) {
        let mut reader = self.own.reader.load();
        let request = reader.received(bytes);
        self.own.reader.store(reader);
        match request {
            Request::None => {}
            Request::OneWay => self.record.query_dropped(),
            Request::GatedOneWay => {
                self.record.query_dropped();
                self.has_chore(reader);
            }
            Request::Query | Request::Command => self.asked(reader, request == Request::Query),
        }
    }

    /// There is nothing to read: its worker will wait for its client.
    pub(crate) fn found_nothing(&self) {
        self.came_unseen();
        let gate = self.page.gate();
        if gate.seat(self.id).is_some_and(Seat::is_admitted) {
            let reader = self.own.reader.load();
            if !reader.is_pending() {
                let is_open = reader.in_transaction();
                keeping_errno(|| gate.idle(self.id, is_open, clock::now_ns(), &WAKER));
            }
        }
    }

    /// Its worker has written these bytes.
    #[inline]
    pub(crate) fn sent(&self, bytes: &[u8]) {
        if knows_protocol() {
            self.said(bytes);
        } else if !bytes.is_empty() && self.record.pending_since_ns().is_some() {
            let now_ns = clock::now_ns();
            self.record.query_answered(now_ns);
            self.record.transaction_ended(now_ns);
        }
    }

    fn said(&self, bytes: &[u8]) {
        let mut reader = self.own.reader.load();
        let is_answer = reader.sent(bytes);
        self.own.reader.store(reader);
        if is_answer {
            self.answered(reader);
        }
    }

    /// Its worker has nothing to do and would wait for its client until then:
    /// in mode epoll it rests instead, off its socket, unless the client is in
    /// the middle of something.
    pub(crate) fn rest(&self, until_ns: u64) -> Rested {
        let reader = self.own.reader.load();
        if !self.is_free(reader) {
            return Rested::Not;
        }
        let (gate, parking) = (self.page.gate(), self.parking());
        let now_ns = clock::now_ns();
        if !service::is_there() || !gate.rest(self.id, now_ns) {
            return Rested::Not;
        }
        // What comes from now on ends the rest, and came no sooner.
        self.own.came_ns.store(now_ns, Ordering::Relaxed);
        if !service::arm(self.fd, self.id, now_ns) {
            gate.expel(self.id, &parking);
            gate.park(self.id, &parking);
            self.came_unseen();
            return Rested::Not;
        }
        let rest = gate.sleep(self.id, until_ns, &parking);
        let seat = gate.seat(self.id).filter(|seat| seat.is_admitted());
        match (rest, seat) {
            (Rest::Called, Some(seat)) => {
                self.record.parked(clock::now_ns().saturating_sub(seat.asked_ns()));
            }
            // One that was let go was not called at any time that is known.
            _ => self.came_unseen(),
        }
        match rest {
            Rest::Late => Rested::Late,
            Rest::Left => Rested::Left,
            Rest::Called => Rested::Called,
        }
    }

    /// Nothing is known of when its next query comes until it is read.
    fn came_unseen(&self) {
        self.own.came_ns.store(0, Ordering::Relaxed);
    }

    fn class(&self, reader: Reader) -> Class {
        if self.is_exempt { Class::Exempt } else { reader.class() }
    }

    /// Whether its worker may be held up, being in the middle of nothing.
    fn is_free(&self, reader: Reader) -> bool {
        let is_between = !reader.is_pending() && !reader.in_transaction();
        is_between && self.class(reader) == Class::Gated
    }

    /// How its worker sleeps.
    fn parking(&self) -> Parking {
        let by_signal = self.page.control().waking() == Waking::Signal;
        Parking { fd: self.fd, by_signal: by_signal.then_some(self.id) }
    }

    fn asked(&self, reader: Reader, may_wait: bool) {
        let now_ns = clock::now_ns();
        self.record.query_arrived(process::tid(), self.own.takes_came(now_ns));
        let class = self.class(reader);
        if self.record.class() != class {
            self.record.set_class(class);
        }
        if may_wait && class == Class::Gated && self.has_gate() {
            self.takes_turn(reader.in_transaction(), now_ns, &self.parking());
        }
    }

    /// Its worker is to do something that the client does not wait for. It takes
    /// a turn, if it has none, and gives it back when it finds nothing more to
    /// read; a client that has gone by then changes nothing.
    fn has_chore(&self, reader: Reader) {
        if self.has_gate() && self.is_free(reader) {
            let parking = Parking { fd: -1, ..self.parking() };
            self.takes_turn(false, clock::now_ns(), &parking);
        }
    }

    fn has_gate(&self) -> bool {
        self.page.control().mode().gates()
    }

    /// Returns once it has a turn, or needs none.
    fn takes_turn(&self, passes: bool, now_ns: u64, parking: &Parking) {
        let gate = self.page.gate();
        keeping_errno(|| {
            if gate.arrive(self.id, passes, now_ns, parking) == Decision::Park {
                self.record.parked(gate.park(self.id, parking));
            }
        });
    }

    fn answered(&self, reader: Reader) {
        let now_ns = clock::now_ns();
        self.record.query_answered(now_ns);
        let is_open = reader.in_transaction();
        if self.record.in_transaction() != is_open {
            self.record.set_in_transaction(is_open);
        }
        if !is_open && let Some(took_ns) = self.record.transaction_ended(now_ns) {
            self.page.transaction_took(self.id, took_ns);
        }
        let gate = self.page.gate();
        if gate.seat(self.id).is_some_and(Seat::is_admitted) {
            keeping_errno(|| gate.answered(self.id, is_open, now_ns, &WAKER));
        }
    }
}
