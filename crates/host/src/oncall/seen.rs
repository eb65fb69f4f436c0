//! Reads the statistics of servers from a page, by app and by connection.

use crate::sys::page::SharedPage;
use lull_control::LatencyObservation;
use lull_measure::{Gauge, Latency, Missing, Nanos, Percentile};
use lull_oncall::histogram::{BUCKETS, middle_ns};
use lull_oncall::{BYPASS_CLASS, Class, GateEntry, Id, Page, Peer, Record};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads one app's statistics; each reading covers the time since the last.
#[derive(Debug)]
pub struct Statistics {
    page: Arc<SharedPage>,
    last: Nanos,
    /// The last reading of each connection.
    before: BTreeMap<Id, LastReading>,
    /// Queries that were pending at the last reading.
    was_pending: u64,
    has_seen_any: bool,
    /// Transactions of all connections at the last reading.
    transactions: Counts,
}

/// The last reading of a connection.
#[derive(Debug)]
struct LastReading {
    generation: u32,
    queries: u64,
    counts: Counts,
    /// Its sums when these statistics began.
    first: Sums,
}

/// The sums of a connection since it was opened.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    queries: u64,
    transactions: u64,
    parks: u64,
    parked_ns: u64,
}

impl Sums {
    fn read(record: &Record) -> Self {
        Self {
            queries: record.queries(),
            transactions: record.transactions(),
            parks: record.parks(),
            parked_ns: record.parked_ns(),
        }
    }

    /// Returns the difference, which saturates since a server may write any number.
    const fn since(self, first: Self) -> Self {
        Self {
            queries: self.queries.saturating_sub(first.queries),
            transactions: self.transactions.saturating_sub(first.transactions),
            parks: self.parks.saturating_sub(first.parks),
            parked_ns: self.parked_ns.saturating_sub(first.parked_ns),
        }
    }
}

/// Latencies counted by bucket; each bucket counts as its middle, at most 3.2 % off.
///
/// A full histogram would take 200 kB for each of thousands of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts(Box<[u32; BUCKETS]>);

impl Default for Counts {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

impl Counts {
    /// Returns the number of queries.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Adds the counts of another set.
    pub fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0.iter()) {
            *ours = ours.saturating_add(*theirs);
        }
    }

    /// Iterates over the middle and the count of each bucket that is not empty.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u32)> + '_ {
        let all = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(bucket, count)| (Nanos(middle_ns(bucket)), *count))
    }

    /// Returns the latency that `at` percent of the queries do not exceed; `None` without
    /// queries.
    pub fn quantile(&self, at: Percentile) -> Option<Nanos> {
        let rank = (at.fraction() * self.count() as f64).ceil().max(1.0) as u64;
        let mut sum = 0;
        let reaches = |count: &u32| {
            sum += u64::from(*count);
            sum >= rank
        };
        self.0.iter().position(reaches).map(|bucket| Nanos(middle_ns(bucket)))
    }

    /// Adds all latencies to a histogram.
    pub fn add_to(&self, latency: &mut Latency) {
        self.buckets().for_each(|(middle, count)| latency.record_many(middle, u64::from(count)));
    }

    /// Reads counts by bucket.
    pub(super) fn read(counts: impl Iterator<Item = u32>) -> Self {
        let mut read = Self::default();
        read.0.iter_mut().zip(counts).for_each(|(count, now)| *count = now);
        read
    }

    /// Subtracts earlier counts; counts wrap.
    pub(super) fn subtract(&mut self, before: &Self) {
        for (count, before) in self.0.iter_mut().zip(before.0.iter()) {
            *count = count.wrapping_sub(*before);
        }
    }

    /// Replaces these counts by newer ones. Returns the difference; counts wrap.
    fn advance(&mut self, now: impl Iterator<Item = u32>) -> Self {
        let mut new = Self::default();
        let both = self.0.iter_mut().zip(new.0.iter_mut());
        for (count, (before, new)) in now.zip(both) {
            *new = count.wrapping_sub(*before);
            *before = count;
        }
        new
    }
}

/// One connection, since the last reading.
#[derive(Debug, Clone)]
pub struct ConnectionSeen {
    /// Its number in the page.
    pub id: Id,
    /// Its place among the connections that have had this number.
    pub generation: u32,
    /// The process and thread that serve it; process 0 if it is closed.
    pub worker: (u32, u32),
    /// The client's end.
    pub peer: Peer,
    /// The server's port; 0 if it has none.
    pub local_port: u16,
    /// The class that decides how the gate treats it.
    pub class: Class,
    /// The number of its client's class; 0 where the gate has no such classes, and
    /// [`BYPASS_CLASS`] if the client bypasses the gate and so is in none.
    pub client_class: usize,
    /// Latencies since the last reading, from when the worker read the query to the end of
    /// the reply.
    pub latency: Counts,
    /// Queries with a complete reply. This and the next two count since the connection was
    /// opened, or since these statistics began if that was later.
    pub queries: u64,
    /// Transactions ended.
    pub transactions: u64,
    /// How often it waited in the gate, and the sum of the waits.
    pub parked: (u64, Nanos),
    /// Whether its worker waits in the gate now.
    pub waits: bool,
    /// The age of the pending query.
    pub pending: Option<Nanos>,
}

/// Returns the number of the class of an entry, or [`BYPASS_CLASS`]: another one that does not
/// exist is 0.
pub(super) fn class_of(page: &Page, entry: &GateEntry) -> usize {
    let class = entry.client_class();
    let is_one = class < page.client_classes().count() || class == usize::from(BYPASS_CLASS);
    if is_one { class } else { 0 }
}

impl LastReading {
    fn at_first(record: &Record) -> Self {
        let (generation, first) = (record.generation(), Sums::read(record));
        let mut counts = Counts::default();
        counts.advance(record.latency().counts());
        Self { generation, queries: first.queries, counts, first }
    }
}

impl Statistics {
    /// Returns a reader from now on; a page that an agent has left contains earlier queries.
    pub(super) fn new(page: Arc<SharedPage>, now: Nanos) -> Self {
        let used = page.records().filter(|(_, record)| record.generation() != 0);
        let before = used.map(|(id, record)| (id, LastReading::at_first(record))).collect();
        let mut transactions = Counts::default();
        transactions.advance(page.transactions());
        Self { page, last: now, before, was_pending: 0, has_seen_any: false, transactions }
    }

    /// Reads every connection that is open, or that was closed since the last reading.
    ///
    /// A number is reused only after all others, so that a connection is missed only if 10,000
    /// were opened between two readings.
    pub fn connections(&mut self) -> Vec<ConnectionSeen> {
        let now = super::now();
        let page = Arc::clone(&self.page);
        let used = page.records().filter(|(_, record)| record.generation() != 0);
        used.filter_map(|(id, record)| self.connection(id, record, now)).collect()
    }

    /// Reads the transactions that ended since the last reading, by their duration on the
    /// server from their first query; a query outside a transaction counts as one. There are
    /// none if the protocol is not known; there each query is a transaction.
    pub fn transactions(&mut self) -> Counts {
        self.transactions.advance(self.page.transactions())
    }

    /// Reads the latency of all connections since the last reading. It is missing until a
    /// first connection is seen.
    pub fn latency(&mut self) -> Gauge<LatencyObservation> {
        let now = super::now();
        let span = now.saturating_sub(self.last);
        let connections = self.connections();
        self.last = now;
        self.has_seen_any |= !connections.is_empty();
        if !self.has_seen_any {
            return Err(Missing::because(
                "no connection was observed yet: is the server dynamically linked, was it started \
                 with the library, and is a client connected?",
            ));
        }
        let mut window = Latency::default();
        for connection in &connections {
            connection.latency.add_to(&mut window);
        }
        let pending = connections.iter().filter_map(|connection| connection.pending);
        let (oldest, outstanding) = (pending.clone().max(), pending.count() as u64);
        let before = std::mem::replace(&mut self.was_pending, outstanding);
        Ok(LatencyObservation::on_server(window, span, (outstanding, oldest), before))
    }

    fn connection(&mut self, id: Id, record: &Record, now: Nanos) -> Option<ConnectionSeen> {
        let (generation, queries) = (record.generation(), record.queries());
        let (pid, tid) = (record.pid(), record.tid());
        let none = || LastReading {
            generation,
            queries: 0,
            counts: Counts::default(),
            first: Sums::default(),
        };
        let before = self.before.entry(id).or_insert_with(none);
        if before.generation != generation {
            *before = none();
        }
        if pid == 0 && before.queries == queries {
            return None;
        }
        // Most connections have no new reply since a reading 10 ms ago. A worker counts a
        // query last, so that one that ends during this reading belongs to the next.
        let latency = match before.queries == queries {
            true => Counts::default(),
            false => before.counts.advance(record.latency().counts()),
        };
        before.queries = queries;
        let sums = Sums::read(record).since(before.first);
        let pending = record.pending_since_ns().filter(|_| pid != 0);
        Some(ConnectionSeen {
            id,
            generation,
            worker: (pid, tid),
            peer: record.peer(),
            local_port: record.local_port(),
            class: record.class(),
            client_class: self.page.gate().entry(id).map_or(0, |entry| class_of(&self.page, entry)),
            latency,
            queries: sums.queries,
            transactions: sums.transactions,
            parked: (sums.parks, Nanos(sums.parked_ns)),
            waits: pid != 0 && self.page.gate().entry(id).is_some_and(GateEntry::is_waiting),
            pending: pending.map(|since| now.saturating_sub(Nanos(since))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monotonic as now;
    use crate::oncall::{Rules, Runtime};
    use crate::testing::NoWake;
    use lull_oncall::{Mode, Settings};

    /// A runtime with eight records that were offered to connections.
    fn runtime() -> Runtime {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        (0..8).for_each(|at| assert_eq!(runtime.page.header().offer_record(), Id(at)));
        runtime
    }

    #[test]
    fn queries_are_read_once_and_by_connection() {
        let runtime = runtime();
        let mut statistics = runtime.statistics();
        assert!(statistics.latency().unwrap_err().reason.contains("no connection"));
        let ids = [Id(0), Id(7)];
        let records = ids.map(|id| runtime.page.record(id).unwrap());
        for record in records {
            assert!(record.claim(1, 3, Peer::default(), 0));
            record.query_arrived(5, 1_000);
            record.query_answered(2_001_000);
        }
        records[1].query_arrived(5, 3_000_000);
        let seen = statistics.latency().unwrap();
        assert_eq!((seen.window.count(), seen.outstanding), (2, 1));
        let mean = seen.window.mean().unwrap();
        assert!(mean.0.abs_diff(2_000_000) < 66_000, "{mean}");
        assert_eq!(statistics.latency().unwrap().window.count(), 0);
        records[1].query_answered(9_000_000);
        let by_connection = statistics.connections();
        let counts: Vec<u64> = by_connection.iter().map(|one| one.latency.count()).collect();
        assert_eq!(counts, [0, 1]);
        assert_eq!(by_connection[1].queries, 2);
    }

    #[test]
    fn a_query_that_waits_unread_is_under_way() {
        let lease = 1_000_000_000;
        let settings =
            Settings { mode: Mode::Post, cap: 1, agent_lease_ns: lease, ..Settings::default() };
        let runtime = Runtime::start(&settings, &Rules::default()).unwrap();
        runtime.set(&settings);
        for id in [Id(0), Id(1)] {
            assert_eq!(runtime.page.header().offer_record(), id);
            assert!(runtime.page.record(id).unwrap().claim(1, 3, Peer::default(), 0));
            runtime.page.gate().arrive(id, false, now().0, &NoWake);
        }
        // The event of a connection is hidden from a pool's threads while it waits, so that no
        // thread has read its query.
        assert!(runtime.page.gate().entry(Id(1)).unwrap().is_waiting());
        let ages = runtime.transactions_under_way();
        assert!(matches!(ages[..], [age] if age < Nanos::from_secs(600)), "{ages:?}");
    }

    #[test]
    fn transactions_are_read_once() {
        let runtime = runtime();
        let mut statistics = runtime.statistics();
        runtime.page.transaction_took(Id(0), 5_000_000);
        runtime.page.transaction_took(Id(1), 5_000_000);
        let seen: Vec<_> = statistics.transactions().buckets().collect();
        assert_eq!(seen.len(), 1);
        assert!(seen[0].0.0.abs_diff(5_000_000) < 165_000 && seen[0].1 == 2, "{seen:?}");
        assert_eq!(statistics.transactions().count(), 0);
    }

    #[test]
    fn queries_before_the_statistics_began_are_not_in_them() {
        let runtime = runtime();
        let record = runtime.page.record(Id(0)).unwrap();
        let query = || {
            record.query_arrived(5, 1_000);
            record.query_answered(2_000);
            record.transaction_ended(2_000);
            runtime.page.transaction_took(Id(0), 1_000);
        };
        assert!(record.claim(1, 3, Peer::default(), 0));
        (0..5).for_each(|_| query());
        let mut statistics = runtime.statistics();
        assert_eq!(statistics.latency().unwrap().window.count(), 0);
        query();
        let seen = statistics.connections();
        assert_eq!((seen[0].queries, seen[0].transactions), (1, 1));
        assert_eq!((seen[0].latency.count(), statistics.transactions().count()), (1, 1));
        // The next connection of this number has no past.
        assert!(record.release(1) && record.claim(1, 3, Peer::default(), 0));
        query();
        assert_eq!(statistics.connections()[0].queries, 1);
    }

    #[test]
    fn a_quantile_is_the_bucket_that_reaches_its_rank() {
        let mut counts = Counts::default();
        assert_eq!(counts.quantile(Percentile::P99), None);
        (counts.0[10], counts.0[20]) = (98, 2);
        let at = |percentile| counts.quantile(percentile).unwrap().0;
        assert_eq!((at(Percentile::P50), at(Percentile::P99)), (middle_ns(10), middle_ns(20)));
    }

    #[test]
    fn the_port_of_a_connection_and_whether_it_waits_are_read() {
        let runtime = runtime();
        let agent_lease_ns = 1_000_000_000;
        runtime.set(&Settings { mode: Mode::Post, agent_lease_ns, ..Settings::default() });
        runtime.allow(Id(1), None, Some(0), false);
        for (id, port) in [(0, 3306), (1, 3307), (2, 3306)] {
            let record = runtime.page.record(Id(id)).unwrap();
            assert!(record.claim(1, 3, Peer { ipv4: u32::MAX, port: u16::MAX }, port));
            runtime.page.gate().arrive(Id(id), false, now().0, &NoWake);
        }
        let mut statistics = runtime.statistics();
        let seen = statistics.connections();
        let seen: Vec<_> = seen.iter().map(|one| (one.local_port, one.waits)).collect();
        assert_eq!(seen, [(3306, false), (3307, true), (3306, false)]);
    }

    #[test]
    fn a_later_connection_of_the_same_number_starts_from_zero() {
        let runtime = runtime();
        let mut statistics = runtime.statistics();
        let record = runtime.page.record(Id(0)).unwrap();
        for round in 1..=3 {
            assert!(record.claim(1, 3, Peer::default(), 0));
            for _ in 0..round {
                record.query_arrived(5, 1_000);
                record.query_answered(2_000);
            }
            // Replies before it was closed are not lost.
            assert!(record.release(1));
            assert_eq!(statistics.latency().unwrap().window.count(), round);
            assert!(statistics.connections().is_empty());
        }
    }
}
