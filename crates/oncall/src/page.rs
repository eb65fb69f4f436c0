//! Where everything lies in memory that agent and server share.
//!
//! The page is a fixed struct of atomics, so that any bytes are a page: zeros
//! are an empty one, and a hostile one can mislead but not break. Its header
//! says which layout it is; a program that was built with another refuses it
//! and runs without.

use crate::gate::Gate;
use crate::histogram::{BUCKETS, Histogram};
use crate::lease::Lease;
use crate::record::Record;
use crate::seat::{Id, Seat};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{CAP_MAX, Control};

/// Connections that a page has room for; more are served, unwatched and ungated.
pub const CONNECTIONS: usize = 10_000;
/// Size of the page.
pub const PAGE_BYTES: usize = size_of::<Page>();
/// The first word of a page: `lullpage`, least significant byte first.
pub const MAGIC: u64 = u64::from_le_bytes(*b"lullpage");
/// Version of the layout; it changes with every change of size or meaning.
pub const VERSION: u32 = 7;

/// Why memory is no page of this layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageError {
    /// It is too short, or longer than a page.
    Length {
        /// What it has, in bytes.
        found: usize,
    },
    /// It does not begin as a page does.
    Magic,
    /// Another version.
    Version {
        /// The one found.
        found: u32,
    },
    /// The same version with other sizes: built from other code.
    Sizes,
}

impl core::fmt::Display for PageError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length { found } => {
                write!(out, "it has {found} bytes, a page of this version {PAGE_BYTES}")
            }
            Self::Magic => write!(out, "it does not begin as a page of Lull does"),
            Self::Version { found } => write!(out, "its layout is version {found}, not {VERSION}"),
            Self::Sizes => write!(out, "its parts have other sizes: it is of another build"),
        }
    }
}

impl core::error::Error for PageError {}

/// What a page is, before anything else of it is believed.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    connections: AtomicU32,
    seat_bytes: AtomicU32,
    record_bytes: AtomicU32,
    control_bytes: AtomicU32,
    slots: AtomicU32,
    /// Protocol that servers are told to read: 0 by the program's name.
    protocol: AtomicU32,
    /// 1 if connections over unix sockets may be gated.
    gates_unix: AtomicU32,
    exempt_ports: [AtomicU32; EXEMPT_PORTS],
    /// How many records have been offered, by all processes of a server: the agent
    /// has read of a connection before another has its place.
    next: AtomicU32,
    /// Records below this have been offered ever: whoever reads them all leaves the
    /// rest of the memory alone.
    offered: AtomicU32,
    /// Connections that found no room.
    turned_away: AtomicU64,
}

/// Histograms that the connections' transactions are spread over.
const SHARDS: usize = 16;

/// How many ports can be exempt.
pub(crate) const EXEMPT_PORTS: usize = 4;

/// All that agent and server share.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    header: Header,
    control: Control,
    slots: [Lease; CAP_MAX as usize],
    waiting: [AtomicU64; CONNECTIONS.div_ceil(64)],
    /// Transactions by how long they took; several, so that workers seldom meet at one.
    transactions: [Histogram; SHARDS],
    seats: [Seat; CONNECTIONS],
    records: [Record; CONNECTIONS],
}

const fn parts() -> [u32; 5] {
    [
        CONNECTIONS as u32,
        size_of::<Seat>() as u32,
        size_of::<Record>() as u32,
        size_of::<Control>() as u32,
        CAP_MAX,
    ]
}

impl Page {
    /// Writes the header into memory that was zero. The magic comes last: who
    /// sees it sees the rest.
    pub fn format(&self) {
        self.header.version.store(VERSION, Ordering::Relaxed);
        for (word, value) in self.header.parts().into_iter().zip(parts()) {
            word.store(value, Ordering::Relaxed);
        }
        self.header.magic.store(MAGIC, Ordering::Release);
    }

    /// Checks that memory of `bytes` is a page of this layout.
    ///
    /// # Errors
    /// The first thing that is not as it should be.
    pub fn check(&self, bytes: usize) -> Result<(), PageError> {
        if bytes != PAGE_BYTES {
            return Err(PageError::Length { found: bytes });
        }
        if self.header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(PageError::Magic);
        }
        let found = self.header.version.load(Ordering::Relaxed);
        if found != VERSION {
            return Err(PageError::Version { found });
        }
        let found = self.header.parts().map(|word| word.load(Ordering::Relaxed));
        if found == parts() { Ok(()) } else { Err(PageError::Sizes) }
    }

    /// What the server's side is told about connections.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// What the agent sets and the gate keeps.
    pub const fn control(&self) -> &Control {
        &self.control
    }

    /// The gate over this page.
    pub const fn gate(&self) -> Gate<'_> {
        Gate::new(&self.control, &self.slots, &self.waiting, &self.seats)
    }

    /// A connection's statistics.
    pub fn record(&self, id: Id) -> Option<&Record> {
        self.records.get(id.index())
    }

    /// Counts a transaction of a connection that took so long.
    pub fn transaction_took(&self, id: Id, took_ns: u64) {
        self.transactions[id.index() % SHARDS].add(took_ns);
    }

    /// Transactions since the page was made, by bucket; each count wraps.
    pub fn transactions(&self) -> impl Iterator<Item = u32> + '_ {
        (0..BUCKETS).map(|bucket| {
            let counts = self.transactions.iter().map(|shard| shard.count(bucket));
            counts.fold(0, u32::wrapping_add)
        })
    }

    /// Every record that was [offered](Header::next), with its number, free ones too.
    pub fn records(&self) -> impl Iterator<Item = (Id, &Record)> {
        let offered = self.header.offered.load(Ordering::Acquire) as usize;
        self.records.iter().take(offered).enumerate().map(|(at, record)| (Id(at as u32), record))
    }
}

impl Header {
    const fn parts(&self) -> [&AtomicU32; 5] {
        [&self.connections, &self.seat_bytes, &self.record_bytes, &self.control_bytes, &self.slots]
    }

    /// The protocol that servers are told to read; 0 by the program's name.
    pub fn protocol_code(&self) -> u32 {
        self.protocol.load(Ordering::Relaxed)
    }

    /// Says which protocol servers are to read.
    pub fn set_protocol_code(&self, code: u32) {
        self.protocol.store(code, Ordering::Relaxed);
    }

    /// Whether connections over unix sockets may be gated.
    pub fn gates_unix(&self) -> bool {
        self.gates_unix.load(Ordering::Relaxed) == 1
    }

    /// Says whether connections over unix sockets may be gated.
    pub fn set_gates_unix(&self, gates: bool) {
        self.gates_unix.store(u32::from(gates), Ordering::Relaxed);
    }

    /// Whether connections to this local port pass by rule.
    pub fn exempts(&self, port: u16) -> bool {
        let is_it = |word: &AtomicU32| word.load(Ordering::Relaxed) == u32::from(port);
        port != 0 && self.exempt_ports.iter().any(is_it)
    }

    /// Makes connections to these local ports pass; `false` if there are too many.
    pub fn exempt(&self, ports: &[u16]) -> bool {
        for (at, word) in self.exempt_ports.iter().enumerate() {
            word.store(ports.get(at).copied().unwrap_or(0).into(), Ordering::Relaxed);
        }
        ports.len() <= EXEMPT_PORTS
    }

    /// The record that a connection may have if it is free; nobody else is told of
    /// it until all others have been.
    pub fn next(&self) -> Id {
        let id = Id(self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS as u32);
        self.offered.fetch_max(id.0 + 1, Ordering::Release);
        id
    }

    /// Counts a connection that found no room.
    pub fn turn_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections that found no room and are neither watched nor gated.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    /// A page on the heap: made on a thread with a stack that holds one.
    fn page() -> Box<Page> {
        let make = || {
            Box::new(Page {
                header: Header::default(),
                control: Control::default(),
                slots: core::array::from_fn(|_| Lease::default()),
                waiting: core::array::from_fn(|_| AtomicU64::new(0)),
                transactions: core::array::from_fn(|_| Histogram::default()),
                seats: core::array::from_fn(|_| Seat::default()),
                records: core::array::from_fn(|_| Record::default()),
            })
        };
        std::thread::Builder::new().stack_size(1 << 28).spawn(make).unwrap().join().unwrap()
    }

    #[test]
    fn a_page_for_ten_thousand_connections_is_below_16_mb() {
        assert_eq!(CONNECTIONS, 10_000);
        let bytes: usize = PAGE_BYTES;
        assert!(bytes <= 16_000_000, "{bytes}");
    }

    #[test]
    fn only_a_page_of_this_layout_passes() {
        let page = page();
        assert_eq!(page.check(PAGE_BYTES), Err(PageError::Magic));
        page.format();
        assert_eq!(page.check(PAGE_BYTES), Ok(()));
        let short = PAGE_BYTES - 1;
        assert_eq!(page.check(short), Err(PageError::Length { found: short }));
        page.header.version.store(VERSION + 1, Ordering::Relaxed);
        assert_eq!(page.check(PAGE_BYTES), Err(PageError::Version { found: VERSION + 1 }));
        page.format();
        page.header.seat_bytes.store(65, Ordering::Relaxed);
        assert_eq!(page.check(PAGE_BYTES), Err(PageError::Sizes));
    }

    #[test]
    fn a_record_is_claimed_once_and_starts_from_nothing() {
        let page = page();
        let record = page.record(Id(9_999)).unwrap();
        let peer = crate::Peer { ipv4: 0x7f00_0001, port: 40_000 };
        assert!(record.claim(7, 3, peer, u16::MAX) && !record.claim(8, 3, peer, 1));
        assert_eq!((record.pid(), record.fd(), record.peer()), (7, 3, peer));
        assert_eq!(record.local_port(), u16::MAX);
        record.query_arrived(70, 1_000);
        assert_eq!(record.query_answered(6_000), Some(5_000));
        assert_eq!(record.query_answered(7_000), None, "answered once");
        let generation = record.generation();
        assert!(!record.release(8) && record.release(7));
        assert!(record.claim(9, 4, peer, 0));
        assert_eq!((record.queries(), record.latency().counts().sum::<u32>()), (0, 0));
        assert_eq!((record.generation(), record.local_port()), (generation + 1, 0));
        assert!(page.record(Id(10_000)).is_none());
    }

    #[test]
    fn who_reads_all_records_leaves_those_alone_that_nobody_ever_had() {
        let page = page();
        assert_eq!(page.records().count(), 0);
        let offers: Vec<Id> = (0..3).map(|_| page.header().next()).collect();
        let read: Vec<Id> = page.records().map(|(id, _)| id).collect();
        assert_eq!(read, offers);
        (0..2 * CONNECTIONS).for_each(|_| {
            page.header().next();
        });
        assert_eq!(page.records().count(), CONNECTIONS);
    }

    #[test]
    fn a_transaction_lasts_from_its_first_query_to_its_end() {
        let page = page();
        let record = page.record(Id(3)).unwrap();
        assert!(record.claim(7, 3, crate::Peer::default(), 0));
        record.query_arrived(70, 1_000);
        record.query_answered(2_000);
        record.set_in_transaction(true);
        record.query_arrived(70, 50_000);
        record.query_answered(60_000);
        record.set_in_transaction(false);
        let took_ns = record.transaction_ended(60_000).unwrap();
        assert_eq!((took_ns, record.transaction_ended(70_000)), (59_000, None));
        assert_eq!(record.transactions(), 2);
        page.transaction_took(Id(3), took_ns);
        page.transaction_took(Id(3 + SHARDS as u32 + 1), took_ns);
        let bucket = crate::histogram::bucket_of(took_ns);
        assert_eq!(page.transactions().nth(bucket), Some(2));
        assert_eq!(page.transactions().sum::<u32>(), 2);
    }

    #[test]
    fn what_is_set_is_read_and_any_other_number_is_what_needs_the_least() {
        let page = page();
        let control = page.control();
        let settings = crate::Settings { waking: crate::Waking::Signal, ..Default::default() };
        control.set(&settings);
        assert_eq!(control.settings(), settings);
        control.set(&crate::Settings::default());
        assert_eq!(control.waking(), crate::Waking::Futex);
        control.signalled();
        assert_eq!(control.counters().signals, 1);
    }

    #[test]
    fn ports_are_exempt_by_rule_and_no_port_is_none() {
        let page = page();
        assert!(page.header().exempt(&[3307]));
        assert!(page.header().exempts(3307) && !page.header().exempts(3306));
        assert!(!page.header().exempts(0));
        let many: Vec<u16> = (1..=5).collect();
        assert!(!page.header().exempt(&many));
    }
}
