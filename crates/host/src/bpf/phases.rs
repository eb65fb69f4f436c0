//! The states of a server's threads during its queries, as the programs of
//! `crates/host/bpf/phases.bpf.c` count it: run, wait for a core, or sleep.
//!
//! ```text
//!   sock_recv_length ─────▶ the thread has a query ──────────────────┐ one state a thread
//!   sched_switch, _wakeup ▶ the thread runs, is queued, or sleeps ───┤
//!   sock_send_length ─────▶ it answers: the sums of this core ◀──────┘
//!   inet_sock_set_state, sched_process_exit ─▶ the query ends without an answer
//! ```

use super::BpfError;
use super::filter;
use super::object::{FreesTypes, Object, kernel_types};
use crate::sys::bpf::MappedWords;
use aya::EbpfLoader;
use lull_measure::Nanos;
use std::collections::BTreeSet;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/phases.bpf.o");

/// The 64-bit words of `struct core_record` in `phases.bpf.c`.
struct Record;

impl Record {
    const BEGUN: usize = 0;
    const BEGUN_AT: usize = 1;
    const ENDED: usize = 2;
    const ENDED_AT: usize = 3;
    const ANSWERED: usize = 4;
    const LASTED: usize = 5;
    const QUEUED: usize = 7;
    const BLOCKED: usize = 8;
    const DISK: usize = 9;
    const CPU: usize = 10;
    const SWITCHES: usize = 11;
    const DISPLACED: usize = 12;
    const UNFOLLOWED: usize = 13;
    const UPDATES_BEGUN: usize = 14;
    const UPDATES_ENDED: usize = 15;
    const WORDS: usize = 16;
}

/// Reads of a record until none was updated meanwhile. An update takes less than a microsecond,
/// but the host of a virtual core may stop it within one.
const READS_MAX: u32 = 100_000;

/// Phases of one server's queries, counted from its creation until it is dropped.
#[derive(Debug)]
pub struct PhaseWatch {
    #[expect(dead_code, reason = "the programs run while their object lives")]
    object: Object,
    records: MappedWords,
    cores: usize,
}

/// The queries observed since the watch began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhasesSeen {
    /// The integral of the number of queries under way over time, in nanoseconds; it wraps.
    pub under_way: u64,
    /// Queries that were answered.
    pub answered: u64,
    /// Sum of the time from the read of a query to its answer, over answered queries.
    pub lasted: Nanos,
    /// The part of `lasted` in which the thread could run and was not on a core.
    pub queued: Nanos,
    /// The part in which it slept interruptibly, as for a lock.
    pub blocked: Nanos,
    /// The part in which it slept uninterruptibly, as for input or output.
    pub disk: Nanos,
    /// Time on a core of the answering threads, from one answer to the next.
    pub cpu: Nanos,
    /// How often they left a core.
    pub switches: u64,
    /// Queries whose thread read from another socket before it answered.
    pub displaced: u64,
    /// Reads by threads for which the table had no room.
    pub unfollowed: u64,
}

impl PhaseWatch {
    /// Begins to watch a server, on the cores `0..cores`, that listens at these ports in the
    /// network namespace with this inode number.
    ///
    /// # Errors
    /// The kernel's refusal, with the remedy.
    pub fn begin(cores: usize, namespace: u32, ports: &BTreeSet<u16>) -> Result<Self, BpfError> {
        let _freed = FreesTypes;
        let kernel = kernel_types()?;
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&kernel)).map_max_entries("records", cores as u32);
        let mut object = Object::load(&mut loader, PROGRAMS)?;
        let records = object.mapped("records", Record::WORDS, cores)?;
        filter::set_listener(&mut object, namespace, ports)?;
        let programs = [
            ("lull_phase_exit", "sched_process_exit"),
            ("lull_phase_closed", "inet_sock_set_state"),
            ("lull_phase_switch", "sched_switch"),
            ("lull_phase_wake", "sched_wakeup"),
            ("lull_phase_sent", "sock_send_length"),
            // Last: a state that this program makes is kept by the others.
            ("lull_phase_received", "sock_recv_length"),
        ];
        object.attach_each(&programs, &kernel)?;
        Ok(Self { object, records, cores })
    }

    /// Reads the record of a core between two updates of it.
    fn read_record(&self, core: usize) -> [u64; Record::WORDS] {
        let word = |index: usize| self.records.get(core * Record::WORDS + index);
        let mut record = [0; Record::WORDS];
        for _ in 0..READS_MAX {
            let ended = word(Record::UPDATES_ENDED);
            record = std::array::from_fn(word);
            if word(Record::UPDATES_BEGUN) == ended {
                break;
            }
            std::hint::spin_loop();
        }
        record
    }

    /// Reads all that was seen up to `now`, by `CLOCK_MONOTONIC`.
    pub fn read(&self, now: Nanos) -> PhasesSeen {
        let records: Vec<_> = (0..self.cores).map(|core| self.read_record(core)).collect();
        let sum = |index: usize| {
            records.iter().fold(0_u64, |sum, record| sum.wrapping_add(record[index]))
        };
        let (ended, ended_at) = (sum(Record::ENDED), sum(Record::ENDED_AT));
        let (begun, begun_at) = (sum(Record::BEGUN), sum(Record::BEGUN_AT));
        let open = begun.wrapping_sub(ended);
        PhasesSeen {
            under_way: open.wrapping_mul(now.0).wrapping_add(ended_at).wrapping_sub(begun_at),
            answered: sum(Record::ANSWERED),
            lasted: Nanos(sum(Record::LASTED)),
            queued: Nanos(sum(Record::QUEUED)),
            blocked: Nanos(sum(Record::BLOCKED)),
            disk: Nanos(sum(Record::DISK)),
            cpu: Nanos(sum(Record::CPU)),
            switches: sum(Record::SWITCHES),
            displaced: sum(Record::DISPLACED),
            unfollowed: sum(Record::UNFOLLOWED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::allowed;
    use super::*;
    use crate::monotonic;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};
    use std::time::{Duration, Instant};

    /// A watch on a listener, or `None` if the kernel refuses it or has no such tracepoints.
    fn watched() -> Option<(PhaseWatch, TcpListener)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let namespace = std::fs::metadata("/proc/self/ns/net").unwrap().ino() as u32;
        let begun = PhaseWatch::begin(1 << 10, namespace, &BTreeSet::from([port]));
        if begun.as_ref().is_err_and(BpfError::is_unsupported) {
            lull_testing::skip(&begun.unwrap_err().to_string());
            return None;
        }
        Some((allowed(begun)?, listener))
    }

    /// A thread that does some work for each query of a connection and answers it.
    fn serve(listener: &TcpListener, mut work: impl FnMut() + Send + 'static) -> Served {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        let thread = thread::spawn(move || {
            while server.read_exact(&mut [0; 10]).is_ok() {
                work();
                server.write_all(&[7; 10]).unwrap();
            }
        });
        Served { client, thread }
    }

    struct Served {
        client: TcpStream,
        thread: JoinHandle<()>,
    }

    impl Served {
        fn send(&mut self) {
            self.client.write_all(&[7; 10]).unwrap();
        }

        fn query(&mut self) {
            self.send();
            self.client.read_exact(&mut [0; 10]).unwrap();
        }

        fn close(self) {
            drop(self.client);
            self.thread.join().unwrap();
        }
    }

    /// Waits until it is so. The kernel counts an answer after the client may have it.
    fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "not so: {what}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_query_is_divided_into_running_and_waiting() {
        let Some((watch, listener)) = watched() else { return };
        let before = watch.read(monotonic());
        let mut served = serve(&listener, || thread::sleep(Duration::from_millis(20)));
        (0..3).for_each(|_| served.query());
        until("three answers", || watch.read(monotonic()).answered == 3);
        let slept = watch.read(monotonic());
        served.close();
        assert_eq!((slept.answered, slept.displaced, slept.unfollowed), (3, 0, 0));
        assert!(slept.blocked >= Nanos::from_millis(60), "{slept:?}");
        assert!(slept.blocked <= slept.lasted && slept.switches >= 3, "{slept:?}");
        // No other query was under way: the integral is the sum of the latencies.
        assert_eq!(slept.under_way.wrapping_sub(before.under_way), slept.lasted.0);
        let spin = || {
            let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime) - begun;
            while used().tv_nsec < 20_000_000 {}
        };
        let mut served = serve(&listener, spin);
        (0..3).for_each(|_| served.query());
        until("six answers", || watch.read(monotonic()).answered == 6);
        let spun = watch.read(monotonic());
        served.close();
        // The thread's clock is not the kernel's monotonic one, by which the programs measure.
        assert!(spun.cpu.saturating_sub(slept.cpu) >= Nanos::from_millis(50), "{spun:?}");
        assert!(slept.cpu < Nanos::from_millis(60), "sleep is not CPU time: {slept:?}");
    }

    #[test]
    fn queries_under_way_count_until_they_are_answered_or_their_thread_has_gone() {
        let Some((watch, listener)) = watched() else { return };
        let (go, wait) = mpsc::channel::<()>();
        let mut served = serve(&listener, move || wait.recv().unwrap());
        served.send();
        // With one query under way the integral grows as the time does.
        let grows = || {
            let (from, to) = (monotonic(), Nanos(monotonic().0 + 1_000));
            watch.read(to).under_way.wrapping_sub(watch.read(from).under_way) == to.0 - from.0
        };
        until("under way", grows);
        go.send(()).unwrap();
        served.client.read_exact(&mut [0; 10]).unwrap();
        until("answered", || !grows());
        // The thread ends without an answer.
        served.send();
        until("under way again", grows);
        drop(go);
        assert!(served.thread.join().is_err(), "its channel has no sender");
        until("gone", || !grows());
        assert_eq!(watch.read(monotonic()).answered, 1);
    }
}
