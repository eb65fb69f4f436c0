//! Latencies of queries on a server's sockets, as the kernel sees them: for servers into
//! which no library can be preloaded.
//!
//! ```text
//!   sock_recv_length ─▶ the socket's query was read now ──────┐ one slot a socket
//!   sock_send_length ─▶ it is answered: this core's histogram ┘
//!   tcp_destroy_sock ─▶ its slot is cleared
//! ```
//!
//! The programs, which sockets they watch and how they tell them apart are in
//! `crates/host/bpf/queries.bpf.c`. They follow pointers of the kernel, which it allows only
//! to programs under a GPL-compatible licence: `crates/host/bpf` may be used under Apache-2.0
//! as all of Lull, or under MIT or GPL-2.0 (docs/decisions.md).

use super::BpfError;
use super::buckets::{self, Histogram};
use super::filter;
use super::object::{FreesTypes, Object, kernel_types};
use crate::sys::bpf::MappedWords;
use aya::EbpfLoader;
use lull_measure::Nanos;
use std::collections::BTreeSet;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/queries.bpf.o");

/// The 64-bit words of `struct socket_slot` in `queries.bpf.c`, and how many slots there are.
struct Slot;

impl Slot {
    const SINCE: usize = 1;
    const WORDS: usize = 2;
    const COUNT: usize = 1 << 16;
}

/// The 64-bit words of `struct core_record` in `queries.bpf.c`.
struct Record;

impl Record {
    const LATENCIES: usize = 0;
    const LOST: usize = buckets::WORDS;
    const WORDS: usize = buckets::WORDS + 8;
}

/// Queries of one server, counted from its creation until it is dropped.
#[derive(Debug)]
pub struct QueryWatch {
    object: Object,
    slots: MappedWords,
    records: MappedWords,
    cores: usize,
    ports: BTreeSet<u16>,
}

/// The queries observed since the watch began.
#[derive(Debug, Clone, Default)]
pub struct QueriesSeen {
    /// Latencies of answered queries.
    pub latencies: Histogram,
    /// Queries that were displaced from their slot.
    pub lost: u64,
    /// The number of queries that were read and not answered, and when the oldest of them
    /// was read.
    pub pending: (u64, Option<Nanos>),
}

impl QueryWatch {
    /// Begins to watch, on the cores `0..cores`, a server that listens at no port yet.
    ///
    /// # Errors
    /// The kernel's refusal, with the remedy.
    pub fn begin(cores: usize) -> Result<Self, BpfError> {
        let _freed = FreesTypes;
        let kernel = kernel_types()?;
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&kernel)).map_max_entries("records", cores as u32);
        let mut object = Object::load(&mut loader, PROGRAMS)?;
        let slots = object.mapped("sockets", Slot::WORDS, Slot::COUNT)?;
        let records = object.mapped("records", Record::WORDS, cores)?;
        let programs = [
            ("lull_received", "sock_recv_length"),
            ("lull_sent", "sock_send_length"),
            ("lull_destroyed", "tcp_destroy_sock"),
        ];
        object.attach_each(&programs, &kernel)?;
        Ok(Self { object, slots, records, cores, ports: BTreeSet::new() })
    }

    /// Sets where the server listens: at these ports, in the network namespace with this
    /// inode number.
    ///
    /// # Errors
    /// The kernel's error; nothing has changed then.
    pub fn set_listener(&mut self, namespace: u32, ports: &BTreeSet<u16>) -> Result<(), BpfError> {
        filter::set_listener(&mut self.object, namespace, ports)?;
        self.ports.clone_from(ports);
        Ok(())
    }

    /// The ports that are watched.
    pub const fn ports(&self) -> &BTreeSet<u16> {
        &self.ports
    }

    /// Reads all that was seen up to now.
    pub fn read(&self) -> QueriesSeen {
        let (mut latencies, mut lost) = (Histogram::default(), 0);
        for core in 0..self.cores {
            let word = |index: usize| self.records.get(core * Record::WORDS + index);
            latencies.merge(&Histogram::read(|index| word(Record::LATENCIES + index)));
            lost += word(Record::LOST);
        }
        let since = |slot: usize| self.slots.get(Slot::WORDS * slot + Slot::SINCE);
        let begun = (0..Slot::COUNT).map(since).filter(|since| *since > 0);
        let (count, first) =
            begun.fold((0, u64::MAX), |(count, first), since| (count + 1, first.min(since)));
        let oldest = (count > 0).then_some(Nanos(first));
        QueriesSeen { latencies, lost, pending: (count, oldest) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::allowed;
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    fn namespace() -> u32 {
        std::fs::metadata("/proc/self/ns/net").unwrap().ino() as u32
    }

    /// A watch on a listener, or `None` if the kernel refuses it or has no such tracepoints.
    fn watched() -> Option<(QueryWatch, TcpListener)> {
        let begun = QueryWatch::begin(1 << 10);
        if begun.as_ref().is_err_and(BpfError::is_unsupported) {
            lull_testing::skip(&begun.unwrap_err().to_string());
            return None;
        }
        let mut watch = allowed(begun)?;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        watch.set_listener(namespace(), &BTreeSet::from([port])).unwrap();
        Some((watch, listener))
    }

    /// The client's end of a connection and the server's.
    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn pass(from: &mut TcpStream, to: &mut TcpStream) {
        from.write_all(&[7; 10]).unwrap();
        to.read_exact(&mut [0; 10]).unwrap();
    }

    /// Passes a query to the server, and the answer back after a while. Returns bounds of
    /// the query's latency at the server.
    fn query(client: &mut TcpStream, server: &mut TcpStream, work: Duration) -> (Nanos, Nanos) {
        let outer = Instant::now();
        pass(client, server);
        let inner = Instant::now();
        std::thread::sleep(work);
        let least = inner.elapsed();
        pass(server, client);
        (Nanos(least.as_nanos() as u64), Nanos(outer.elapsed().as_nanos() as u64))
    }

    #[test]
    fn a_query_lasts_from_its_read_to_its_answer() {
        let Some((watch, listener)) = watched() else { return };
        let (mut client, mut server) = connect(&listener);
        // A greeting before the first query is no answer.
        pass(&mut server, &mut client);
        let (mut least, mut most) = (Nanos::ZERO, Nanos::ZERO);
        for ms in [1, 5, 20] {
            let took = query(&mut client, &mut server, Duration::from_millis(ms));
            (least, most) = (least + took.0, most + took.1);
        }
        let seen = watch.read();
        assert_eq!((seen.latencies.count(), seen.pending, seen.lost), (3, (0, None), 0));
        let total = seen.latencies.total();
        assert!((least..=most).contains(&total), "{total:?}, not in {least:?} to {most:?}");
    }

    #[test]
    fn an_unanswered_query_is_pending_until_its_connection_is_gone() {
        let Some((watch, listener)) = watched() else { return };
        let (mut client, mut server) = connect(&listener);
        let before = crate::monotonic();
        pass(&mut client, &mut server);
        let (count, since) = watch.read().pending;
        assert_eq!(count, 1);
        assert!(since.unwrap() >= before && since.unwrap() <= crate::monotonic());
        drop((client, server));
        let begun = Instant::now();
        while watch.read().pending.0 > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the kernel keeps the socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(watch.read().latencies.count(), 0);
    }

    #[test]
    fn other_ports_other_namespaces_and_the_clients_ends_are_not_watched() {
        let Some((mut watch, listener)) = watched() else { return };
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, mut server) = connect(&other);
        query(&mut client, &mut server, Duration::ZERO);
        let (mut client, mut server) = connect(&listener);
        query(&mut client, &mut server, Duration::ZERO);
        assert_eq!(watch.read().latencies.count(), 1, "not the clients' own ends");
        let port = listener.local_addr().unwrap().port();
        watch.set_listener(namespace() ^ 1, &BTreeSet::from([port])).unwrap();
        query(&mut client, &mut server, Duration::ZERO);
        watch.set_listener(namespace(), &BTreeSet::new()).unwrap();
        query(&mut client, &mut server, Duration::ZERO);
        assert_eq!(watch.read().latencies.count(), 1);
    }
}
