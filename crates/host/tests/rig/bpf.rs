//! eBPF programs in the guest's kernel: its verifier accepts them, and they count the sleeps,
//! waits and queries that the tests make.

use crate::Tests;
use crate::background::BackgroundThread;
use crate::scene::{bare_plant, ledger, wait_for};
use lull_control::{CoreId, CoreSet, Plant};
use lull_host::bpf::{InterruptLog, Kind, QueryWatch, WaitWatch, Watch};
use lull_host::sys::sched::set_affinity;
use lull_measure::Nanos;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: Tests = &[
    ("bpf::sleeps_of_an_idle_machine_are_seen_with_their_length", sleeps),
    ("bpf::a_busy_core_has_no_opportunity_and_its_threads_wait", busy),
    ("bpf::waits_of_an_apps_threads_are_seen_apart", waits),
    ("bpf::interrupts_and_sleeps_are_logged_one_by_one", logged),
    ("bpf::queries_are_seen_at_a_servers_sockets_from_6_3_on", queries),
];

const CORES: usize = 4;
const BREAK_EVEN: Nanos = Nanos::from_millis(1);
const EPOCH: Nanos = Nanos::from_millis(500);

/// Threads on one core that never sleep, until this is dropped.
fn busy_on(core: u16, threads: usize) -> Vec<BackgroundThread<()>> {
    let start = |_| {
        BackgroundThread::start(move |going| {
            pin(core);
            while going.is_on() {
                std::hint::spin_loop();
            }
        })
    };
    (0..threads).map(start).collect()
}

fn pin(core: u16) {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    set_affinity(me, &[CoreId(core)].into_iter().collect::<CoreSet>()).unwrap();
}

fn sleeps() {
    let begun = Instant::now();
    let watch = Watch::begin(CORES).unwrap();
    let before = watch.read();
    let naps = || {
        pin(3);
        (0..10).for_each(|_| thread::sleep(Duration::from_millis(40)));
    };
    wait_for("ten gaps of 20 ms on core 3", || {
        thread::spawn(naps).join().unwrap();
        let new = watch.read().cores[3].time.sleeps.since(&before.cores[3].time.sleeps);
        let long = new.beyond(Nanos::from_millis(20));
        long.time.saturating_sub(long.error) >= Nanos::from_millis(200)
    });
    let after = watch.read();
    let now = &after.cores[3].time;
    // Since the watch began: a sleep that was under way at a reading counts whole when it ends.
    let (slept, elapsed) = (now.sleeps.total(), Nanos::from(begun.elapsed()));
    assert!(slept <= elapsed, "{slept:?} of sleep in {elapsed:?}");
    let share = now.divide(BREAK_EVEN).unwrap().opportunity().unwrap();
    assert!((0.0..=1.0).contains(&share.share) && share.error <= 1.0, "{share:?}");
}

fn busy() {
    let dir = tempfile::tempdir().unwrap();
    let mut plant = bare_plant(ledger(dir.path()));
    plant.watch_events(BREAK_EVEN);
    let _busy = busy_on(2, 3);
    wait_for("no opportunity on the busy core, some on others, and long waits", || {
        let seen = plant.observe(EPOCH).unwrap();
        let share = |core: usize| seen.cores[core].c6_opportunity.clone();
        let idle = [0, 1, 3].into_iter().filter_map(|core| share(core).ok());
        let machine = seen.c6_opportunity.clone();
        let waits = seen.run_queue_latency.clone();
        share(2) == Ok(0.0)
            && idle.fold(0.0, f64::max) > 0.0
            && machine.is_ok_and(|share| share > 0.0 && share < 1.0)
            && waits.is_ok_and(|waits| waits.p99 >= BREAK_EVEN)
            && seen.idle_gaps.is_ok()
    });
    let _ = plant.restore();
}

fn waits() {
    let mut watch = WaitWatch::begin(2).unwrap();
    watch.follow(&[(std::process::id(), 1)].into()).unwrap();
    let _busy = busy_on(2, 3);
    wait_for("long waits of threads that share a core", || {
        thread::sleep(Duration::from_millis(50));
        let waits = watch.read(1).waits;
        waits.count() > 20 && waits.quantile(0.9).is_some_and(|wait| wait >= BREAK_EVEN)
    });
    assert_eq!(watch.read(0).waits.count(), 0, "an app without a process");
}

fn logged() {
    let mut log = InterruptLog::begin(None).unwrap();
    let mut kinds = BTreeSet::new();
    wait_for("interrupts, their ends, sleeps and wake-ups", || {
        // The console's interrupts, and timers.
        eprintln!("bpf: the log is on");
        thread::sleep(Duration::from_millis(20));
        while let Some(event) = log.pop() {
            assert!(usize::from(event.core.0) < CORES, "{event:?}");
            kinds.insert(match event.kind {
                Kind::Begin { .. } => "begin",
                Kind::End { .. } => "end",
                Kind::Poll { .. } => "poll",
                Kind::Sleep { .. } => "sleep",
                Kind::Wake => "wake",
            });
        }
        ["begin", "end", "sleep", "wake"].iter().all(|kind| kinds.contains(kind))
    });
    assert_eq!(log.lost(), 0);
}

/// Whether this kernel is Linux 6.3 or later.
fn has_socket_lengths() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    version >= (6, 3)
}

fn queries() {
    const WORK: Duration = Duration::from_millis(40);
    if !has_socket_lengths() {
        let refused = QueryWatch::begin(CORES).unwrap_err().to_string();
        assert!(refused.contains("Linux 6.3"), "{refused}");
        return;
    }
    // IFF_UP and IFF_LOOPBACK; the kernel gives it its address.
    std::fs::write("/sys/class/net/lo/flags", "0x9").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut watch = QueryWatch::begin(CORES).unwrap();
    let namespace = std::fs::metadata("/proc/self/ns/net").unwrap().ino() as u32;
    watch.set_listener(namespace, &BTreeSet::from([address.port()])).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for _ in 0..5 {
        client.write_all(b"query").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        thread::sleep(WORK);
        server.write_all(b"answer").unwrap();
        client.read_exact(&mut [0; 6]).unwrap();
    }
    let seen = watch.read();
    assert_eq!((seen.latencies.count(), seen.pending.0, seen.lost), (5, 0, 0));
    assert!(seen.latencies.total() >= Nanos::from_millis(5 * 40), "{:?}", seen.latencies.total());
}
