//! The statistics of one connection: the thread that serves it, its queries, its latency.

use crate::histogram::Histogram;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The client's end of a connection, as far as it fits a word: an IPv4 address and port, a
/// port alone for IPv6, nothing for a unix socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peer {
    /// IPv4 address, most significant byte first; 0 if it has none.
    pub ipv4: u32,
    /// Port; 0 if it has none.
    pub port: u16,
}

/// The bit of the local port in the word of the two ends.
const LOCAL_PORT_AT: u32 = 48;

impl Peer {
    /// Packs both ends into a word, the local port above the peer.
    const fn pack(self, local_port: u16) -> u64 {
        (local_port as u64) << LOCAL_PORT_AT | (self.ipv4 as u64) << 16 | self.port as u64
    }

    const fn unpack(word: u64) -> Self {
        Self { ipv4: (word >> 16) as u32, port: word as u16 }
    }
}

/// The treatment of a connection by the gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Class {
    /// The connection logs in: it passes the gate.
    #[default]
    New,
    /// Its queries and transactions can be read: it may be delayed.
    Gated,
    /// Its protocol cannot be read (TLS whose decrypted bytes are not seen, compression, or an
    /// unknown one): it is tracked and passes.
    Opaque,
    /// A rule exempts it (unix socket, replication, an exempt port): it passes.
    Exempt,
    /// Its thread serves other connections by an event loop, too, which would wait with it: it is
    /// tracked and passes.
    Shared,
}

impl Class {
    const fn code(self) -> u32 {
        match self {
            Self::New => 0,
            Self::Gated => 1,
            Self::Opaque => 2,
            Self::Exempt => 3,
            Self::Shared => 4,
        }
    }

    const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Gated,
            3 => Self::Exempt,
            4 => Self::Shared,
            0 => Self::New,
            _ => Self::Opaque,
        }
    }
}

/// One connection's statistics. Its worker writes, the agent reads.
///
/// The words that every query changes come first, in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Record {
    /// The process that serves it; 0 while the record is free.
    pid: AtomicU32,
    /// The thread that served it last.
    tid: AtomicU32,
    class: AtomicU32,
    /// 1 while a transaction is open, by the protocol.
    in_transaction: AtomicU32,
    /// When the pending query arrived; 0 if there is none.
    arrived_ns: AtomicU64,
    /// When the first query of its transaction arrived; 0 between transactions.
    begun_ns: AtomicU64,
    queries: AtomicU64,
    transactions: AtomicU64,
    /// Sum of latencies.
    latency_sum_ns: AtomicU64,
    /// The number of connections that have had this record.
    generation: AtomicU32,
    fd: AtomicU32,
    /// Its peer and its local port.
    ends: AtomicU64,
    parks: AtomicU64,
    parked_ns: AtomicU64,
    latency: Histogram,
}

/// Adds to a counter as the only writer. If two workers serve a connection at once, a count
/// may be lost.
fn add_alone(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

impl Record {
    /// Claims a free record for a connection of process `pid` through the server's port
    /// `local_port` (0 if it has none). Returns `false` if the record is taken.
    pub fn claim(&self, pid: u32, fd: u32, peer: Peer, local_port: u16) -> bool {
        let taken = self.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        self.fd.store(fd, Ordering::Relaxed);
        self.tid.store(0, Ordering::Relaxed);
        self.ends.store(peer.pack(local_port), Ordering::Relaxed);
        self.set_class(Class::New);
        self.set_in_transaction(false);
        self.arrived_ns.store(0, Ordering::Relaxed);
        self.begun_ns.store(0, Ordering::Relaxed);
        let sums = [&self.queries, &self.transactions, &self.parks, &self.parked_ns];
        for sum in sums.into_iter().chain([&self.latency_sum_ns]) {
            sum.store(0, Ordering::Relaxed);
        }
        self.latency.clear();
        self.generation.fetch_add(1, Ordering::Release);
        true
    }

    /// Frees the record if process `pid` has it. Returns `false` if it does not.
    pub fn release(&self, pid: u32) -> bool {
        pid != 0 && self.pid.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns the process that serves the connection; 0 if the record is free.
    #[inline]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Acquire)
    }

    /// Returns the thread that served it last; 0 if none has.
    #[inline]
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Returns its number among the connections that have had this record.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns its file descriptor in its process.
    pub fn fd(&self) -> u32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Returns the client's end.
    pub fn peer(&self) -> Peer {
        Peer::unpack(self.ends.load(Ordering::Relaxed))
    }

    /// Returns the server's port; 0 if it has none.
    pub fn local_port(&self) -> u16 {
        (self.ends.load(Ordering::Relaxed) >> LOCAL_PORT_AT) as u16
    }

    /// Returns what the gate may do with it.
    #[inline]
    pub fn class(&self) -> Class {
        Class::from_code(self.class.load(Ordering::Relaxed))
    }

    /// Sets what the gate may do with it.
    #[inline]
    pub fn set_class(&self, class: Class) {
        self.class.store(class.code(), Ordering::Relaxed);
    }

    /// Whether a transaction is open, by the protocol.
    #[inline]
    pub fn in_transaction(&self) -> bool {
        self.in_transaction.load(Ordering::Relaxed) != 0
    }

    /// Sets whether a transaction is open.
    #[inline]
    pub fn set_in_transaction(&self, is_open: bool) {
        self.in_transaction.store(u32::from(is_open), Ordering::Relaxed);
    }

    /// Returns when the pending query arrived, in nanoseconds of the gate's clock.
    #[inline]
    pub fn pending_since_ns(&self) -> Option<u64> {
        Some(self.arrived_ns.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Returns when the transaction of the pending query began, in nanoseconds of the gate's
    /// clock.
    pub fn transaction_since_ns(&self) -> Option<u64> {
        self.pending_since_ns()?;
        Some(self.begun_ns.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Records that a query has arrived and thread `tid` has it.
    #[inline]
    pub fn query_arrived(&self, tid: u32, now_ns: u64) {
        self.tid.store(tid, Ordering::Relaxed);
        self.arrived_ns.store(now_ns.max(1), Ordering::Relaxed);
        if self.begun_ns.load(Ordering::Relaxed) == 0 {
            self.begun_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    /// Forgets the pending query: it gets no reply.
    #[inline]
    pub fn query_dropped(&self) {
        self.arrived_ns.store(0, Ordering::Relaxed);
        if !self.in_transaction() {
            self.begun_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Records that the reply to the pending query is complete. Returns its latency in
    /// nanoseconds, if a query was pending.
    #[inline]
    pub fn query_answered(&self, now_ns: u64) -> Option<u64> {
        let arrived_ns = self.pending_since_ns()?;
        self.arrived_ns.store(0, Ordering::Relaxed);
        let latency_ns = now_ns.saturating_sub(arrived_ns);
        self.latency.add_alone(latency_ns);
        add_alone(&self.queries, 1);
        add_alone(&self.latency_sum_ns, latency_ns);
        Some(latency_ns)
    }

    /// Returns the duration of the transaction, or the query outside one, that ends now, in
    /// nanoseconds from its first query, if that was seen.
    #[inline]
    pub fn transaction_took(&self, now_ns: u64) -> Option<u64> {
        let begun_ns = Some(self.begun_ns.load(Ordering::Relaxed)).filter(|at| *at != 0)?;
        Some(now_ns.saturating_sub(begun_ns))
    }

    /// Records that a transaction, or a query outside one, has ended. Returns its duration as
    /// [`Self::transaction_took`] does.
    #[inline]
    pub fn transaction_ended(&self, now_ns: u64) -> Option<u64> {
        let took_ns = self.transaction_took(now_ns);
        add_alone(&self.transactions, 1);
        self.begun_ns.store(0, Ordering::Relaxed);
        took_ns
    }

    /// Records that its worker has waited in the gate.
    pub fn parked(&self, waited_ns: u64) {
        add_alone(&self.parks, 1);
        add_alone(&self.parked_ns, waited_ns);
    }

    /// Returns the number of queries with a complete reply.
    pub fn queries(&self) -> u64 {
        self.queries.load(Ordering::Relaxed)
    }

    /// Returns the number of transactions, with queries outside one.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// Returns how often its worker has waited in the gate.
    pub fn parks(&self) -> u64 {
        self.parks.load(Ordering::Relaxed)
    }

    /// Returns how long its worker has waited in the gate, in nanoseconds.
    pub fn parked_ns(&self) -> u64 {
        self.parked_ns.load(Ordering::Relaxed)
    }

    /// Returns the sum of its latencies in nanoseconds.
    pub fn latency_sum_ns(&self) -> u64 {
        self.latency_sum_ns.load(Ordering::Relaxed)
    }

    /// Returns its latencies: from when its worker read a query, a resting worker's query can
    /// have arrived, or an event reported one to a pool, to when the reply was written.
    pub const fn latency(&self) -> &Histogram {
        &self.latency
    }
}
