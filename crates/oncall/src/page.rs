//! The layout of the memory that agent and server share.
//!
//! The page is a fixed struct of atomics, so that any bytes are a valid page: zeros are an
//! empty one, and hostile bytes can mislead but cause no undefined behaviour. Its header
//! names the layout; a program that was built with another one refuses the page and runs
//! without it.

use crate::accounts::Accounts;
use crate::classes::{CLIENT_CLASSES, ClientClasses};
use crate::client::ClientRules;
use crate::gate::Gate;
use crate::gate_entry::{GateEntry, Id};
use crate::histogram::{BUCKETS, Histogram};
use crate::lease::Lease;
use crate::note::Note;
use crate::record::Record;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{CAP_MAX, Control};

/// The number of connections in a page. Further ones are neither tracked nor gated.
pub const CONNECTIONS: usize = 10_000;
/// The size of the page in bytes.
pub const PAGE_BYTES: usize = size_of::<Page>();
/// The first word of a page: `lullpage`, least significant byte first.
pub const MAGIC: u64 = u64::from_le_bytes(*b"lullpage");
/// The version of the layout, which changes with every change of size or meaning.
pub const VERSION: u32 = 11;

/// The reason why memory is not a page of this layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageError {
    /// The memory is shorter or longer than a page.
    Length {
        /// Its length in bytes.
        found: usize,
    },
    /// The memory does not begin with the magic number.
    Magic,
    /// The page is of another version.
    Version {
        /// Its version.
        found: u32,
    },
    /// The page is of this version with other sizes: another build.
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

/// The header of a page: its layout, and the agent's rules for connections.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    connections: AtomicU32,
    entry_bytes: AtomicU32,
    record_bytes: AtomicU32,
    control_bytes: AtomicU32,
    slots: AtomicU32,
    classes_bytes: AtomicU32,
    /// The protocol that the agent names; 0 if servers determine it by their program.
    protocol: AtomicU32,
    /// 1 if connections over unix sockets may be gated.
    gates_unix: AtomicU32,
    exempt_ports: [AtomicU32; EXEMPT_PORTS],
    /// The number of records that were offered to all processes of a server. Records are
    /// offered in turn, so that the agent reads of a connection before its record is reused.
    next: AtomicU32,
    /// Records below this have been offered. A reader of all records does not touch the
    /// memory of the others.
    offered: AtomicU32,
    /// Connections without a record.
    turned_away: AtomicU64,
    /// The process of the agent, for reports only; 0 if none is attached.
    agent: AtomicU32,
    /// 1 while an agent moves threads of servers to cores.
    dispatched: AtomicU32,
    /// The PID namespace of the process that mapped the page last, by its inode number; 0 if it is
    /// not known.
    pid_namespace: AtomicU32,
}

/// Histograms that the connections' transactions are spread over.
const SHARDS: usize = 16;

/// The places of the queues of all classes of clients: a power of two for each, so that tickets
/// may wrap.
const TICKETS: usize = CLIENT_CLASSES * CONNECTIONS.next_power_of_two();

/// How many ports can be exempt.
pub(crate) const EXEMPT_PORTS: usize = 4;

/// The memory that agent and server share.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    header: Header,
    control: Control,
    /// The agent's last decision.
    note: Note,
    slots: [Lease; CAP_MAX as usize],
    waiting: [AtomicU64; CONNECTIONS.div_ceil(64)],
    /// Histograms of the durations of transactions; several, so that workers rarely contend.
    transactions: [Histogram; SHARDS],
    client_rules: ClientRules,
    client_classes: ClientClasses,
    /// How long turns of each class waited, those that did.
    class_waits: [Histogram; CLIENT_CLASSES],
    /// The same by user and database.
    accounts: Accounts,
    tickets: [AtomicU32; TICKETS],
    entries: [GateEntry; CONNECTIONS],
    records: [Record; CONNECTIONS],
}

const fn parts() -> [u32; 6] {
    [
        CONNECTIONS as u32,
        size_of::<GateEntry>() as u32,
        size_of::<Record>() as u32,
        size_of::<Control>() as u32,
        CAP_MAX,
        (size_of::<ClientRules>() + size_of::<ClientClasses>() + size_of::<Accounts>()) as u32,
    ]
}

impl Page {
    /// Writes the header into memory that was zero. The magic number is last, so that a reader
    /// that sees it sees the rest.
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
    /// The first difference to this layout.
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

    /// Returns the header.
    #[inline]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the shared words of the gate.
    #[inline]
    pub const fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the agent's last decision.
    pub const fn note(&self) -> &Note {
        &self.note
    }

    /// Returns the gate over this page.
    #[inline]
    pub const fn gate(&self) -> Gate<'_> {
        Gate::new(&self.control, &self.slots, &self.waiting, &self.entries)
            .with_classes(&self.client_classes, &self.tickets)
    }

    /// Returns the rules that put clients into classes.
    #[inline]
    pub const fn client_rules(&self) -> &ClientRules {
        &self.client_rules
    }

    /// Returns the classes of clients.
    pub const fn client_classes(&self) -> &ClientClasses {
        &self.client_classes
    }

    /// Counts a turn of a connection that began after a wait by its class.
    pub fn turn_waited(&self, id: Id, waited_ns: u64) {
        let class = self.entries.get(id.index()).map_or(0, GateEntry::client_class);
        let waits = self.class_waits.get(class).unwrap_or(&self.class_waits[0]);
        waits.add(waited_ns);
    }

    /// Returns how long turns of a class have waited since the page was made; `None` beyond the
    /// last class.
    pub fn class_waits(&self, class: usize) -> Option<&Histogram> {
        self.class_waits.get(class)
    }

    /// Returns how long turns have waited by user and database.
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Returns a connection's statistics.
    #[inline]
    pub fn record(&self, id: Id) -> Option<&Record> {
        self.records.get(id.index())
    }

    /// Counts a transaction of a connection by its duration.
    #[inline]
    pub fn transaction_took(&self, id: Id, took_ns: u64) {
        self.transactions[id.index() % SHARDS].add(took_ns);
    }

    /// Returns the transactions since the page was made, by bucket; each count wraps.
    pub fn transactions(&self) -> impl Iterator<Item = u32> + '_ {
        (0..BUCKETS).map(|bucket| {
            let counts = self.transactions.iter().map(|shard| shard.count(bucket));
            counts.fold(0, u32::wrapping_add)
        })
    }

    /// Iterates over the records that were [offered](Header::offer_record), free ones included.
    pub fn records(&self) -> impl Iterator<Item = (Id, &Record)> {
        let offered = self.header.offered.load(Ordering::Acquire) as usize;
        self.records.iter().take(offered).enumerate().map(|(at, record)| (Id(at as u32), record))
    }
}

impl Header {
    const fn parts(&self) -> [&AtomicU32; 6] {
        [
            &self.connections,
            &self.entry_bytes,
            &self.record_bytes,
            &self.control_bytes,
            &self.slots,
            &self.classes_bytes,
        ]
    }

    /// Returns the number of the protocol that the agent names; 0 if it names none.
    pub fn protocol_code(&self) -> u32 {
        self.protocol.load(Ordering::Relaxed)
    }

    /// Sets the number of the protocol that servers read.
    pub fn set_protocol_code(&self, code: u32) {
        self.protocol.store(code, Ordering::Relaxed);
    }

    /// Whether connections over unix sockets may be gated.
    pub fn gates_unix(&self) -> bool {
        self.gates_unix.load(Ordering::Relaxed) == 1
    }

    /// Sets whether connections over unix sockets may be gated.
    pub fn set_gates_unix(&self, gates: bool) {
        self.gates_unix.store(u32::from(gates), Ordering::Relaxed);
    }

    /// Whether a rule exempts connections to this local port.
    pub fn exempts(&self, port: u16) -> bool {
        let is_it = |word: &AtomicU32| word.load(Ordering::Relaxed) == u32::from(port);
        port != 0 && self.exempt_ports.iter().any(is_it)
    }

    /// Exempts connections to these local ports. Returns `false` if there are too many.
    pub fn set_exempt_ports(&self, ports: &[u16]) -> bool {
        for (at, word) in self.exempt_ports.iter().enumerate() {
            word.store(ports.get(at).copied().unwrap_or(0).into(), Ordering::Relaxed);
        }
        ports.len() <= EXEMPT_PORTS
    }

    /// Offers a record to a connection, which claims it if it is free. The same record is
    /// offered again only after all others.
    pub fn offer_record(&self) -> Id {
        let id = Id(self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS as u32);
        self.offered.fetch_max(id.0 + 1, Ordering::Release);
        id
    }

    /// Returns how many records were offered so far; the number wraps. The number of a record is
    /// that of its offer, counted from 0, modulo [`CONNECTIONS`].
    pub fn offers(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the process that attached to the page last and did not detach; 0 if there is none.
    /// It may have been killed since.
    pub fn agent(&self) -> u32 {
        self.agent.load(Ordering::Relaxed)
    }

    /// Sets the process of the agent.
    pub fn set_agent(&self, pid: u32) {
        self.agent.store(pid, Ordering::Relaxed);
    }

    /// Whether an agent moves threads of servers to cores, or did until it was killed.
    #[inline]
    pub fn is_dispatched(&self) -> bool {
        self.dispatched.load(Ordering::Relaxed) == 1
    }

    /// Sets whether an agent moves threads of servers to cores.
    pub fn set_dispatched(&self, is_dispatched: bool) {
        self.dispatched.store(is_dispatched.into(), Ordering::Relaxed);
    }

    /// Returns the PID namespace in which the numbers of processes in records count, by its inode
    /// number; 0 if it is not known.
    pub fn pid_namespace(&self) -> u32 {
        self.pid_namespace.load(Ordering::Relaxed)
    }

    /// Sets the PID namespace of the servers.
    pub fn set_pid_namespace(&self, inode: u32) {
        self.pid_namespace.store(inode, Ordering::Relaxed);
    }

    /// Counts a connection for which the page has no record.
    pub fn count_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of connections without a record, which are neither tracked nor gated.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    /// A page on the heap, made on a thread with a large stack.
    fn page() -> Box<Page> {
        let make = || {
            Box::new(Page {
                header: Header::default(),
                control: Control::default(),
                note: Note::default(),
                slots: core::array::from_fn(|_| Lease::default()),
                waiting: core::array::from_fn(|_| AtomicU64::new(0)),
                transactions: core::array::from_fn(|_| Histogram::default()),
                client_rules: ClientRules::default(),
                client_classes: ClientClasses::default(),
                class_waits: core::array::from_fn(|_| Histogram::default()),
                accounts: Accounts::default(),
                tickets: core::array::from_fn(|_| AtomicU32::new(0)),
                entries: core::array::from_fn(|_| GateEntry::default()),
                records: core::array::from_fn(|_| Record::default()),
            })
        };
        std::thread::Builder::new().stack_size(1 << 28).spawn(make).unwrap().join().unwrap()
    }

    #[test]
    fn a_page_for_ten_thousand_connections_is_below_20_mb() {
        assert_eq!(CONNECTIONS, 10_000);
        let bytes: usize = PAGE_BYTES;
        assert!(bytes <= 20_000_000, "{bytes}");
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
        page.header.entry_bytes.store(65, Ordering::Relaxed);
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
        assert_eq!(record.tid(), 0, "no thread has served it yet");
        assert!(page.record(Id(10_000)).is_none());
    }

    #[test]
    fn a_reader_of_all_records_sees_only_those_that_were_offered() {
        let page = page();
        assert_eq!(page.records().count(), 0);
        let offers: Vec<Id> = (0..3).map(|_| page.header().offer_record()).collect();
        let read: Vec<Id> = page.records().map(|(id, _)| id).collect();
        assert_eq!(read, offers);
        (0..2 * CONNECTIONS).for_each(|_| {
            page.header().offer_record();
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
        assert_eq!(record.transaction_since_ns(), None, "its client has the turn");
        record.query_arrived(70, 50_000);
        assert_eq!(record.transaction_since_ns(), Some(1_000));
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
    fn settings_are_read_back() {
        let page = page();
        let control = page.control();
        let settings = crate::Settings { waking: crate::Waking::Signal, ..Default::default() };
        control.set(&settings);
        assert_eq!(control.settings(), settings);
        control.set(&crate::Settings::default());
        assert_eq!(control.waking(), crate::Waking::Futex);
        control.count_signal();
        assert_eq!(control.counters().signals, 1);
    }

    #[test]
    fn ports_are_exempt_by_rule_and_port_0_never_is() {
        let page = page();
        assert!(page.header().set_exempt_ports(&[3307]));
        assert!(page.header().exempts(3307) && !page.header().exempts(3306));
        assert!(!page.header().exempts(0));
        let many: Vec<u16> = (1..=5).collect();
        assert!(!page.header().set_exempt_ports(&many));
    }
}
