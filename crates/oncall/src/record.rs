//! What is known of one connection: who serves it, and how it fared.

use crate::histogram::Histogram;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The other end of a connection, as far as it fits a word: an IPv4 address
/// and port; a port alone for IPv6; nothing for a unix socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peer {
    /// IPv4 address, most significant byte first; 0 if it has none.
    pub ipv4: u32,
    /// Port; 0 if it has none.
    pub port: u16,
}

/// Where the local port stands in the word of the two ends.
const LOCAL_PORT_AT: u32 = 48;

impl Peer {
    /// Both ends in a word: the local port stands above what the peer needs.
    const fn word(self, local_port: u16) -> u64 {
        (local_port as u64) << LOCAL_PORT_AT | (self.ipv4 as u64) << 16 | self.port as u64
    }

    const fn of_word(word: u64) -> Self {
        Self { ipv4: (word >> 16) as u32, port: word as u16 }
    }
}

/// What the gate may do with a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Class {
    /// It logs in, or its protocol is not known yet: it passes.
    #[default]
    New,
    /// Its queries and transactions are told apart: it may be made to wait.
    Gated,
    /// Its protocol cannot be read (TLS, compression, or none that is known):
    /// it is watched and passes.
    Opaque,
    /// A rule exempts it: unix socket, replication, an exempt port.
    Exempt,
}

impl Class {
    const fn code(self) -> u32 {
        match self {
            Self::New => 0,
            Self::Gated => 1,
            Self::Opaque => 2,
            Self::Exempt => 3,
        }
    }

    const fn of_code(code: u32) -> Self {
        match code {
            1 => Self::Gated,
            3 => Self::Exempt,
            0 => Self::New,
            _ => Self::Opaque,
        }
    }
}

/// One connection's statistics. Its worker writes, the agent reads.
///
/// What every query changes comes first, in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Record {
    /// Process that serves it; 0 while the record is free.
    pid: AtomicU32,
    /// Thread that served it last.
    tid: AtomicU32,
    class: AtomicU32,
    /// 1 while a transaction is open, as far as the protocol says.
    in_transaction: AtomicU32,
    /// When the query that is not answered yet arrived; 0 if there is none.
    arrived_ns: AtomicU64,
    /// When the first query of its transaction arrived; 0 between two.
    begun_ns: AtomicU64,
    queries: AtomicU64,
    transactions: AtomicU64,
    /// Sum of latencies.
    latency_sum_ns: AtomicU64,
    /// One more for each connection that had this record.
    generation: AtomicU32,
    fd: AtomicU32,
    /// Its peer and its local port.
    ends: AtomicU64,
    parks: AtomicU64,
    parked_ns: AtomicU64,
    latency: Histogram,
}

/// One worker at a time serves a connection; if two do, a count may be lost, and
/// nothing else.
fn add_alone(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

impl Record {
    /// Takes a free record for a connection of process `pid` through the server's
    /// port `local_port`, 0 if it has none; `false` if it is taken.
    pub fn claim(&self, pid: u32, fd: u32, peer: Peer, local_port: u16) -> bool {
        let taken = self.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        self.fd.store(fd, Ordering::Relaxed);
        self.ends.store(peer.word(local_port), Ordering::Relaxed);
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

    /// Frees it if process `pid` has it; `false` if it does not.
    pub fn release(&self, pid: u32) -> bool {
        pid != 0 && self.pid.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The process that serves the connection; 0 if the record is free.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Acquire)
    }

    /// The thread that served it last; 0 if none did yet.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Its number among the connections that had this record.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Its file descriptor in its process.
    pub fn fd(&self) -> u32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Its other end.
    pub fn peer(&self) -> Peer {
        Peer::of_word(self.ends.load(Ordering::Relaxed))
    }

    /// The server's port that it came through; 0 if it has none.
    pub fn local_port(&self) -> u16 {
        (self.ends.load(Ordering::Relaxed) >> LOCAL_PORT_AT) as u16
    }

    /// What the gate may do with it.
    pub fn class(&self) -> Class {
        Class::of_code(self.class.load(Ordering::Relaxed))
    }

    /// Says what the gate may do with it.
    pub fn set_class(&self, class: Class) {
        self.class.store(class.code(), Ordering::Relaxed);
    }

    /// Whether a transaction is open, as far as the protocol says.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction.load(Ordering::Relaxed) != 0
    }

    /// Says whether a transaction is open.
    pub fn set_in_transaction(&self, is_open: bool) {
        self.in_transaction.store(u32::from(is_open), Ordering::Relaxed);
    }

    /// When its query arrived that is not answered yet, on the gate's clock.
    pub fn pending_since_ns(&self) -> Option<u64> {
        Some(self.arrived_ns.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// A query has arrived and thread `tid` has it.
    pub fn query_arrived(&self, tid: u32, now_ns: u64) {
        self.tid.store(tid, Ordering::Relaxed);
        self.arrived_ns.store(now_ns.max(1), Ordering::Relaxed);
        if self.begun_ns.load(Ordering::Relaxed) == 0 {
            self.begun_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    /// What arrived was no query, or will not be answered.
    pub fn query_dropped(&self) {
        self.arrived_ns.store(0, Ordering::Relaxed);
        if !self.in_transaction() {
            self.begun_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Its query was answered; its latency, if there was one.
    pub fn query_answered(&self, now_ns: u64) -> Option<u64> {
        let arrived_ns = self.pending_since_ns()?;
        self.arrived_ns.store(0, Ordering::Relaxed);
        let latency_ns = now_ns.saturating_sub(arrived_ns);
        self.latency.add_alone(latency_ns);
        add_alone(&self.queries, 1);
        add_alone(&self.latency_sum_ns, latency_ns);
        Some(latency_ns)
    }

    /// A transaction, or a query outside one, has ended; how long it took since
    /// its first query, if that was seen.
    pub fn transaction_ended(&self, now_ns: u64) -> Option<u64> {
        add_alone(&self.transactions, 1);
        let begun_ns = Some(self.begun_ns.load(Ordering::Relaxed)).filter(|at| *at != 0)?;
        self.begun_ns.store(0, Ordering::Relaxed);
        Some(now_ns.saturating_sub(begun_ns))
    }

    /// Its worker has waited in the gate.
    pub fn parked(&self, waited_ns: u64) {
        add_alone(&self.parks, 1);
        add_alone(&self.parked_ns, waited_ns);
    }

    /// Queries answered.
    pub fn queries(&self) -> u64 {
        self.queries.load(Ordering::Relaxed)
    }

    /// Transactions ended, queries outside of one included.
    pub fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// How often its worker waited in the gate.
    pub fn parks(&self) -> u64 {
        self.parks.load(Ordering::Relaxed)
    }

    /// How long its worker waited in the gate, in nanoseconds.
    pub fn parked_ns(&self) -> u64 {
        self.parked_ns.load(Ordering::Relaxed)
    }

    /// Sum of its latencies, in nanoseconds.
    pub fn latency_sum_ns(&self) -> u64 {
        self.latency_sum_ns.load(Ordering::Relaxed)
    }

    /// Its latencies, from when its worker read the query to when it wrote the answer.
    pub const fn latency(&self) -> &Histogram {
        &self.latency
    }
}
