//! The connection of a descriptor, and this process's state of it.
//!
//! A connection gets a number in the page (an [`Id`] with its record and its gate entry) when its
//! worker first reads from it or writes to it, and gives it back when its descriptor is
//! closed. [`crate::traffic`] reads its protocol, and [`crate::gate`] delays its worker.

mod address;

use crate::descriptors::{self, ConnectionWord, Descriptor};
use crate::parking::WAKER;
use crate::pool::{self, ServedBy};
use crate::real::keeping_errno;
use crate::{clock, page, process};
pub(crate) use address::Ends;
use lull_oncall::protocol::{Reader, SharedReader};
use lull_oncall::{CONNECTIONS, Class, Id, Mode, Page, Record};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state that this process keeps of each connection. It is not in the page: no other process
/// needs it, and none may change it.
static LOCAL: [Local; CONNECTIONS] = [const { Local::new() }; CONNECTIONS];

/// How far a connection's protocol was read, when its query can have arrived, and which thread
/// reads it. They share a cache line, since every query needs them.
#[repr(align(64))]
pub(crate) struct Local {
    pub(crate) reader: SharedReader,
    /// A lower bound of the arrival time of the query that ends its worker's rest, or that an
    /// event has reported; 0 unless the worker rests or has not read that query yet.
    earliest_ns: AtomicU64,
    /// The address of the thread that read its last query ([`process::thread_address`]); 0 if none
    /// has.
    thread: AtomicU64,
}

const _: () = assert!(size_of::<Local>() == 64);

impl Local {
    const fn new() -> Self {
        let [earliest_ns, thread] = [const { AtomicU64::new(0) }; 2];
        Self { reader: SharedReader::new(), earliest_ns, thread }
    }

    /// Whether the thread at this address read its last query.
    #[inline]
    pub(crate) fn is_read_by(&self, thread: u64) -> bool {
        thread != 0 && self.thread.load(Ordering::Relaxed) == thread
    }

    /// Notes the address of the thread that reads its query.
    pub(crate) fn set_read_by(&self, thread: u64) {
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// Returns when the query that the worker reads now arrived: the earliest time at which
    /// it can have arrived if the worker rested, else now.
    pub(crate) fn take_arrival(&self, now_ns: u64) -> u64 {
        match self.earliest_ns.load(Ordering::Relaxed) {
            0 => now_ns,
            earliest_ns => {
                self.earliest_ns.store(0, Ordering::Relaxed);
                earliest_ns.min(now_ns)
            }
        }
    }

    /// Notes that no query arrived before this time.
    pub(crate) fn set_earliest_arrival(&self, now_ns: u64) {
        self.earliest_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Notes that a query arrived at this time, unless its arrival was noted before.
    pub(crate) fn set_first_arrival(&self, now_ns: u64) {
        if self.earliest_ns.load(Ordering::Relaxed) == 0 {
            self.earliest_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Notes that the next query's arrival is known only when it is read.
    pub(crate) fn forget_arrival(&self) {
        self.earliest_ns.store(0, Ordering::Relaxed);
    }
}

/// The connection that a call is about.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) page: &'static Page,
    pub(crate) record: &'static Record,
    pub(crate) local: &'static Local,
    pub(crate) id: Id,
    pub(crate) fd: c_int,
    /// Whether a rule exempts it from the gate.
    is_exempt: bool,
    /// The kind of thread that serves it.
    pub(crate) served_by: ServedBy,
}

impl Connection {
    /// Returns the connection of a descriptor that is read from or written to, and gives it
    /// a number in the page on its first use. Returns `None` where nothing is to be watched, and
    /// for a connection whose decrypted bytes are read instead.
    #[inline]
    pub(crate) fn get(fd: c_int) -> Option<Self> {
        // Each call of a server runs this code, so it reads the word without unpacking it.
        match descriptors::connection(fd) {
            Some(word) if word.is_decrypted() => None,
            Some(word) => Self::find(fd, word),
            None if descriptors::is_accepted(fd) => Self::begin(fd),
            None => None,
        }
    }

    /// Returns the connection of a descriptor if its decrypted bytes are read.
    #[inline]
    pub(crate) fn get_decrypted(fd: c_int) -> Option<Self> {
        let word = descriptors::connection(fd).filter(|word| word.is_decrypted())?;
        Self::find(fd, word)
    }

    /// Returns the connection of a descriptor, whichever of its bytes are read.
    pub(crate) fn get_any(fd: c_int) -> Option<Self> {
        Self::get(fd).or_else(|| Self::get_decrypted(fd))
    }

    /// Notes the kind of thread that serves it from now on.
    pub(crate) fn set_served_by(&mut self, served_by: ServedBy) {
        if self.served_by != served_by {
            self.change_served_by(served_by);
        }
    }

    #[cold]
    fn change_served_by(&mut self, served_by: ServedBy) {
        let before = descriptors::get(self.fd);
        if let Descriptor::Connection { id, is_exempt, is_decrypted, .. } = before {
            let after = Descriptor::Connection { id, is_exempt, is_decrypted, served_by };
            descriptors::replace(self.fd, before, after);
        }
        self.served_by = served_by;
        self.record.set_class(self.class(self.local.reader.load()));
    }

    /// Returns the connection of a descriptor whose bytes a TLS library has decrypted or
    /// encrypted. From its first such bytes on they are read, by a new reader, and the bytes
    /// of the socket are not.
    pub(crate) fn decrypt(fd: c_int) -> Option<Self> {
        Self::get_decrypted(fd).or_else(|| Self::begin_decrypted(fd))
    }

    #[cold]
    fn begin_decrypted(fd: c_int) -> Option<Self> {
        let connection = Self::get(fd)?;
        let Self { id, is_exempt, served_by, .. } = connection;
        let what = |is_decrypted| Descriptor::Connection { id, is_exempt, is_decrypted, served_by };
        if !descriptors::replace(fd, what(false), what(true)) {
            return None;
        }
        // A handshake may have looked like a query.
        connection.record.query_dropped();
        connection.restart_reader();
        Some(connection)
    }

    #[inline]
    fn find(fd: c_int, word: ConnectionWord) -> Option<Self> {
        let page = watched_page()?;
        let connection = Self::new(page, word.id(), fd, word.is_exempt())?;
        // A child inherits its parent's table; it reads from its own descriptor.
        if connection.record.pid() != process::pid() {
            return Self::begin(fd);
        }
        Some(Self { served_by: word.served_by(), ..connection })
    }

    /// Gives a descriptor that is used for the first time its number in the page, if connections
    /// are watched.
    #[cold]
    fn begin(fd: c_int) -> Option<Self> {
        let page = watched_page()?;
        keeping_errno(|| Self::open(page, fd))
    }

    #[inline]
    fn new(page: &'static Page, id: Id, fd: c_int, is_exempt: bool) -> Option<Self> {
        let (record, local) = (page.record(id)?, LOCAL.get(id.index())?);
        Some(Self { page, record, local, id, fd, is_exempt, served_by: ServedBy::Alone })
    }

    fn open(page: &'static Page, fd: c_int) -> Option<Self> {
        let ends = Ends::of_socket(fd);
        let Some(id) = claim(page, fd, &ends) else {
            descriptors::set(fd, Descriptor::Unwatched);
            page.header().count_turned_away();
            return None;
        };
        let header = page.header();
        let is_exempt = (ends.is_unix && !header.gates_unix()) || header.exempts(ends.local_port);
        let connection = Self::new(page, id, fd, is_exempt)?;
        connection.local.forget_arrival();
        connection.local.set_read_by(0);
        connection.restart_reader();
        pool::forget(id);
        page.gate().open_connection(id);
        connection.begin_client(&ends);
        let (is_decrypted, served_by) = (false, ServedBy::Alone);
        descriptors::set(fd, Descriptor::Connection { id, is_exempt, is_decrypted, served_by });
        Some(connection)
    }

    /// Reads its protocol from the beginning.
    fn restart_reader(&self) {
        let reader = Reader::new(page::protocol());
        self.local.reader.store(reader);
        self.record.set_class(self.class(reader));
    }

    /// Returns the class that decides how the gate treats it.
    pub(crate) fn class(&self, reader: Reader) -> Class {
        self.limited(reader.class())
    }

    /// The same, of a connection that its reader gives this class.
    #[inline]
    pub(crate) fn limited(&self, class: Class) -> Class {
        match class {
            _ if self.is_exempt => Class::Exempt,
            Class::Gated if self.bypasses_gate() => Class::Exempt,
            Class::Gated if self.served_by == ServedBy::Loop => Class::Shared,
            class => class,
        }
    }
}

/// Returns the page if connections are watched.
#[inline]
fn watched_page() -> Option<&'static Page> {
    page::get().filter(|page| page.control().mode() != Mode::Off)
}

/// Takes the next free record of the page.
fn claim(page: &Page, fd: c_int, ends: &Ends) -> Option<Id> {
    let (pid, fd) = (process::pid(), fd.cast_unsigned());
    let mut offers = (0..CONNECTIONS).map(|_| page.header().offer_record());
    let takes = |record: &Record| record.claim(pid, fd, ends.peer, ends.local_port);
    offers.find(|id| page.record(*id).is_some_and(takes))
}

/// Notes that `accept` returned this descriptor.
pub(crate) fn accepted(fd: c_int) {
    if let Some(page) = page::get() {
        // A descriptor that was closed unseen may have had the number before.
        release(descriptors::set(fd, Descriptor::Accepted));
        if !descriptors::is_accepted(fd) {
            // Its number is beyond the table.
            page.header().count_turned_away();
        }
    }
}

/// Notes that a descriptor is about to be closed, or to be replaced.
pub(crate) fn closing(fd: c_int) {
    let what = descriptors::get(fd);
    // A child of `vfork` has the memory of this process, and descriptors of its own.
    if what != Descriptor::Foreign && process::is_own_memory() {
        end_last_reply(fd, what);
        release(descriptors::set(fd, Descriptor::Foreign));
    }
}

/// Counts the last reply on a connection that its worker ends by itself, since it does not
/// receive after it. A reply that was cut off within a packet is none.
fn end_last_reply(fd: c_int, what: Descriptor) {
    let (Descriptor::Connection { id, .. }, Some(page)) = (what, page::get()) else { return };
    let is_mine =
        |one: &Connection| (one.record.pid(), one.record.tid()) == (process::pid(), process::tid());
    if let Some(connection) = Connection::new(page, id, fd, false).filter(is_mine)
        && connection.local.reader.load().has_sent_whole_packets()
    {
        connection.receives();
    }
}

/// Notes that a socket is shut down: its worker must find out, and so must not wait.
pub(crate) fn shutting_down(fd: c_int) {
    if let (Descriptor::Connection { id, .. }, Some(page)) = (descriptors::get(fd), page::get()) {
        page.gate().evict(id, &WAKER);
    }
}

/// Notes that a query has arrived for a worker that rests, and not before this time.
pub(crate) fn arrived(id: Id, since_ns: u64) {
    if let Some(local) = LOCAL.get(id.index()) {
        local.earliest_ns.fetch_max(since_ns, Ordering::Relaxed);
    }
}

/// Gives back the numbers of all connections, when the process ends.
pub(crate) fn close_all() {
    if let Some(page) = page::get() {
        descriptors::take_all().for_each(|id| close(page, id));
    }
}

/// Frees the records of an earlier process that had this process's number, and has ended: a
/// server that is started again in a container often has the same one.
pub(crate) fn release_former(page: &Page) {
    let former = page.records().filter(|(_, record)| record.pid() == process::pid());
    former.for_each(|(id, _)| close(page, id));
}

fn release(what: Descriptor) {
    if let (Descriptor::Connection { id, .. }, Some(page)) = (what, page::get()) {
        close(page, id);
    }
}

/// Gives back a connection's number, if it is this process's.
fn close(page: &Page, id: Id) {
    let Some(record) = page.record(id).filter(|record| record.pid() == process::pid()) else {
        return;
    };
    pool::forget(id);
    page.gate().close_connection(id, clock::now_ns(), &WAKER);
    record.release(process::pid());
}
