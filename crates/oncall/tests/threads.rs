//! The gate and the page with real threads, in more steps than the model (`model.rs`) can take.
//!
//! `cargo xtask miri` runs these tests with weak memory and many schedules, `cargo xtask tsan`
//! under ThreadSanitizer. As in the model, time does not pass, so that no deadline repairs a lost
//! wake-up.
#![cfg(not(loom))]

use lull_oncall::sync::{AtomicU32, AtomicU64, Ordering};
use lull_oncall::{
    CLIENT_CLASSES, ClassShare, ClientClasses, Control, Decision, Gate, GateEntry, Id, Lease, Mode,
    NOTE_BYTES, Note, Park, Peer, Record, Rest, Settings, Verdict, Wake,
};
use std::sync::{Condvar, Mutex};
use std::thread::{scope, yield_now};
use std::time::Duration;

const NOW: u64 = 1_000_000_000_000;
/// Miri takes some thousand times as long for a step.
const WORKERS: u32 = if cfg!(miri) { 3 } else { 8 };
const QUERIES: u64 = if cfg!(miri) { 6 } else { 500 };
/// A worker that sleeps longer was not woken. No test takes nearly as long.
const LOST: Duration = Duration::from_secs(300);

/// The memory of a gate, and the condition variable on which its workers sleep.
struct Shared {
    control: Control,
    slots: Vec<Lease>,
    waiting: Vec<AtomicU64>,
    entries: Vec<GateEntry>,
    /// Classes of clients, none at first, and their queues.
    classes: ClientClasses,
    tickets: Vec<AtomicU32>,
    asleep: Mutex<()>,
    changed: Condvar,
    running: AtomicU32,
    /// Written by the worker that runs, by a load and a store.
    done: AtomicU64,
}

impl Shared {
    fn new(settings: &Settings) -> Self {
        let control = Control::default();
        control.set(settings);
        control.beat(NOW);
        Self {
            control,
            slots: (0..WORKERS).map(|_| Lease::default()).collect(),
            waiting: vec![AtomicU64::new(0)],
            entries: (0..WORKERS).map(|_| GateEntry::default()).collect(),
            classes: ClientClasses::default(),
            tickets: (0..CLIENT_CLASSES as u32 * 2 * WORKERS).map(|_| AtomicU32::new(0)).collect(),
            asleep: Mutex::new(()),
            changed: Condvar::new(),
            running: AtomicU32::new(0),
            done: AtomicU64::new(0),
        }
    }

    fn gate(&self) -> Gate<'_> {
        Gate::new(&self.control, &self.slots, &self.waiting, &self.entries)
            .with_classes(&self.classes, &self.tickets)
    }

    /// Waits for a turn, calls `work` in it, and ends the query.
    fn query(&self, id: Id, work: impl FnOnce()) {
        if self.gate().arrive(id, false, NOW, self) == Decision::Park {
            self.gate().park(id, self);
        }
        work();
        self.gate().answered(id, false, NOW, self);
    }

    /// Runs all queries of one worker under a limit.
    fn work(&self, id: Id, cap: u32) {
        for _ in 0..QUERIES {
            self.query(id, || {
                let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
                assert!(running <= cap, "{running} run at once");
                self.running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        self.gate().idle(id, false, NOW, self);
    }

    /// Asserts that no worker holds a slot or waits, after one pump that removes stale bits.
    fn assert_clean(&self) {
        assert_eq!(self.gate().active(NOW), 0);
        self.gate().pump(NOW, self);
        assert_eq!((self.gate().active(NOW), self.control.waiters()), (0, 0));
    }
}

impl Wake for Shared {
    fn wake(&self, _id: Id, _entry: &GateEntry) {
        let _asleep = self.asleep.lock().unwrap();
        self.changed.notify_all();
    }
}

impl Park for Shared {
    fn now_ns(&self) -> u64 {
        NOW
    }

    fn wait(&self, word: &AtomicU32, value: u32, _until_ns: u64) -> Verdict {
        let asleep = self.asleep.lock().unwrap();
        let is_asleep = |_: &mut ()| word.load(Ordering::Acquire) == value;
        let (_asleep, waited) = self.changed.wait_timeout_while(asleep, LOST, is_asleep).unwrap();
        assert!(!waited.timed_out(), "a worker sleeps although the gate has nothing to wait for");
        Verdict::Stay
    }
}

/// Calls `work` in one thread for each worker.
fn each_worker(work: impl Fn(Id) + Sync) {
    scope(|scope| {
        for id in 0..WORKERS {
            let work = &work;
            scope.spawn(move || work(Id(id)));
        }
    });
}

fn closed(cap: u32) -> Settings {
    Settings { mode: Mode::Post, cap, ..Settings::default() }
}

#[test]
fn a_worker_that_runs_alone_sees_what_the_one_before_it_wrote() {
    let shared = Shared::new(&closed(1));
    each_worker(|id| {
        for _ in 0..QUERIES {
            // Without order between two turns, or with two at once, an addition is lost.
            shared.query(id, || {
                let done = shared.done.load(Ordering::Relaxed);
                yield_now();
                shared.done.store(done + 1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(shared.done.load(Ordering::Relaxed), u64::from(WORKERS) * QUERIES);
    shared.assert_clean();
}

#[test]
fn no_more_workers_run_at_once_than_the_limit_and_all_queries_end() {
    for (joins, batch) in [(true, 1), (false, 1), (true, 3)] {
        let shared = Shared::new(&Settings { joins, batch, ..closed(2) });
        each_worker(|id| shared.work(id, 2));
        shared.assert_clean();
    }
}

#[test]
fn settings_that_change_meanwhile_stop_no_worker() {
    let shared = Shared::new(&closed(1));
    let left = AtomicU32::new(WORKERS);
    scope(|scope| {
        scope.spawn(|| {
            for cap in (1..=WORKERS).cycle() {
                shared.control.set(&Settings { joins: cap % 2 == 0, ..closed(cap) });
                shared.gate().pump(NOW, &shared);
                if left.load(Ordering::Relaxed) == 0 {
                    break;
                }
                yield_now();
            }
        });
        scope.spawn(|| {
            each_worker(|id| {
                shared.work(id, WORKERS);
                left.fetch_sub(1, Ordering::Relaxed);
            });
        });
    });
    shared.assert_clean();
}

#[test]
fn classes_that_change_meanwhile_stop_no_worker() {
    let shared = Shared::new(&closed(2));
    let left = AtomicU32::new(WORKERS);
    let sets = [vec![], vec![ClassShare::default()], vec![ClassShare::default(); 3]];
    scope(|scope| {
        scope.spawn(|| {
            for set in sets.iter().cycle() {
                assert!(shared.classes.set(set));
                if left.load(Ordering::Relaxed) == 0 {
                    break;
                }
                yield_now();
            }
        });
        scope.spawn(|| {
            each_worker(|id| {
                for step in 0..QUERIES {
                    shared.entries[id.index()].set_client_class((step % 4) as u32);
                    shared.query(id, || {});
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        });
    });
    shared.assert_clean();
}

#[test]
fn workers_that_rest_are_called_for_each_query() {
    let shared = Shared::new(&Settings { mode: Mode::Epoll, ..closed(1) });
    // Bits of the workers whose next query is reported by the service thread.
    let (armed, left) = (AtomicU32::new(0), AtomicU32::new(WORKERS));
    scope(|scope| {
        scope.spawn(|| {
            while left.load(Ordering::Acquire) > 0 {
                let arrived = armed.swap(0, Ordering::AcqRel);
                for id in (0..WORKERS).filter(|id| arrived >> id & 1 == 1) {
                    shared.gate().query_arrived(Id(id), NOW, &shared);
                }
                shared.gate().pump(NOW, &shared);
                yield_now();
            }
        });
        scope.spawn(|| {
            each_worker(|id| {
                for _ in 0..QUERIES {
                    assert!(shared.gate().rest(id, NOW));
                    armed.fetch_or(1 << id.0, Ordering::AcqRel);
                    assert_eq!(shared.gate().sleep(id, u64::MAX, &shared), Rest::Called);
                    shared.query(id, || ());
                }
                left.fetch_sub(1, Ordering::AcqRel);
            });
        });
    });
    assert_eq!(shared.control.counters().calls, u64::from(WORKERS) * QUERIES);
    shared.assert_clean();
}

#[test]
fn a_text_that_is_read_while_it_is_replaced_is_one_of_those_written() {
    let (note, written) = (Note::default(), AtomicU32::new(0));
    let texts = ["limit 15", "a limit of 7 keeps p99 below 9 ms", ""];
    scope(|scope| {
        scope.spawn(|| {
            for text in texts.iter().cycle().take(QUERIES as usize * 4) {
                note.write(text);
            }
            written.store(1, Ordering::Release);
        });
        let mut room = [0; NOTE_BYTES];
        while written.load(Ordering::Acquire) == 0 {
            let text = note.read(&mut room);
            assert!(texts.contains(&text), "{text:?}");
            yield_now();
        }
    });
}

#[test]
fn of_two_that_claim_a_record_one_has_it_and_its_counts_never_go_back() {
    let (record, claims) = (Record::default(), AtomicU32::new(0));
    scope(|scope| {
        for pid in [7, 8] {
            let (record, claims) = (&record, &claims);
            scope.spawn(move || {
                if !record.claim(pid, 3, Peer::default(), 0) {
                    return;
                }
                claims.fetch_add(1, Ordering::Relaxed);
                for query in 0..QUERIES {
                    record.query_arrived(pid, NOW + query);
                    assert_eq!(record.query_answered(NOW + query + 5), Some(5));
                }
            });
        }
        let mut before = 0;
        while before < QUERIES {
            let queries = record.queries();
            assert!(before <= queries, "{queries} after {before}");
            before = queries;
            yield_now();
        }
    });
    assert_eq!(claims.load(Ordering::Relaxed), 1);
    let counted: u32 = record.latency().counts().sum();
    assert_eq!((u64::from(counted), record.pid() == 7 || record.pid() == 8), (QUERIES, true));
}
