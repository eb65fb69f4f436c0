//! The gate under every interleaving of a few threads (loom).
//!
//! `cargo xtask test` builds and runs it with `--cfg loom`. Time does not pass, so that no
//! deadline repairs a lost wake-up: it is a deadlock, which loom reports.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use lull_oncall::{
    CLIENT_CLASSES, ClassShare, ClientClasses, Control, Decision, Gate, GateEntry, Id, Lease, Mode,
    Park, Rest, Settings, Verdict, Wake,
};

const NOW: u64 = 1_000_000_000_000;

/// The gate's memory, and the condition variable of parked threads.
struct Shared {
    control: Control,
    slots: Vec<Lease>,
    waiting: Vec<AtomicU64>,
    entries: Vec<GateEntry>,
    /// Classes of clients, and their queues; no room for queues is a gate without classes.
    classes: ClientClasses,
    tickets: Vec<AtomicU32>,
    asleep: Mutex<()>,
    changed: Condvar,
    running: AtomicUsize,
    /// Workers whose next query will be reported.
    armed: AtomicUsize,
    now_ns: AtomicU64,
}

impl Shared {
    fn new(cap: u32, connections: usize) -> Arc<Self> {
        Self::in_mode(Mode::Post, cap, connections)
    }

    /// A gate on which each connection is of a class of its own.
    fn with_classes(cap: u32, connections: usize) -> Arc<Self> {
        let mut shared = Arc::try_unwrap(Self::new(cap, connections)).ok().unwrap();
        assert!(shared.classes.set(&vec![ClassShare::default(); connections]));
        shared.tickets = (0..2 * CLIENT_CLASSES).map(|_| AtomicU32::new(0)).collect();
        for (class, entry) in shared.entries.iter().enumerate() {
            entry.set_client_class(class as u32);
        }
        Arc::new(shared)
    }

    fn in_mode(mode: Mode, cap: u32, connections: usize) -> Arc<Self> {
        let control = Control::default();
        control.set(&Settings { mode, cap, ..Settings::default() });
        control.beat(NOW);
        Arc::new(Self {
            control,
            slots: (0..cap).map(|_| Lease::default()).collect(),
            waiting: vec![AtomicU64::new(0)],
            entries: (0..connections).map(|_| GateEntry::default()).collect(),
            classes: ClientClasses::default(),
            tickets: Vec::new(),
            asleep: Mutex::new(()),
            changed: Condvar::new(),
            running: AtomicUsize::new(0),
            armed: AtomicUsize::new(0),
            now_ns: AtomicU64::new(NOW),
        })
    }

    fn gate(&self) -> Gate<'_> {
        let gate = Gate::new(&self.control, &self.slots, &self.waiting, &self.entries);
        match self.tickets.as_slice() {
            [] => gate,
            tickets => gate.with_classes(&self.classes, tickets),
        }
    }

    /// One query of a worker: it waits, runs and ends.
    fn query(&self, id: Id, cap: usize) {
        self.begin(id);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(running <= cap, "{running} run at once");
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.gate().answered(id, false, NOW, self);
    }

    /// One query of a worker that rests until it arrives.
    fn rest_then_query(&self, id: Id, cap: usize) {
        assert!(self.gate().rest(id, NOW));
        self.armed.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.gate().sleep(id, u64::MAX, self), Rest::Called);
        self.query(id, cap);
    }

    /// Reports that queries have arrived, once their workers are armed.
    fn serve(&self, ids: &[u32]) {
        while self.armed.load(Ordering::SeqCst) < ids.len() {
            loom::thread::yield_now();
        }
        ids.iter().for_each(|id| self.gate().query_arrived(Id(*id), NOW, self));
        self.gate().pump(NOW, self);
    }

    /// Asserts that no worker holds a slot or waits, after one pump that removes stale bits.
    fn assert_clean(&self) {
        assert_eq!(self.gate().active(NOW), 0);
        self.gate().pump(NOW, self);
        assert_eq!((self.gate().active(NOW), self.control.waiters()), (0, 0));
    }

    /// The same after a limit is lifted, since a stale bit of a worker without queries stays.
    fn assert_clean_without_limit(&self, id: Id) {
        self.entries[id.index()].allow(None, None);
        self.assert_clean();
    }

    fn begin(&self, id: Id) {
        if self.gate().arrive(id, false, self.now_ns(), self) == Decision::Park {
            self.gate().park(id, self);
        }
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
        self.now_ns.load(Ordering::Relaxed)
    }

    fn wait(&self, word: &AtomicU32, value: u32, _until_ns: u64) -> Verdict {
        let mut asleep = self.asleep.lock().unwrap();
        while word.load(Ordering::Acquire) == value {
            asleep = self.changed.wait(asleep).unwrap();
        }
        Verdict::Stay
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // The longest of these has somewhat more than the usual thousand steps.
    builder.max_branches = 5_000;
    builder.check(model);
}

/// Threads that each do one query under a cap.
fn workers(cap: u32, threads: u32) {
    query_at_once(&Shared::new(cap, threads as usize), cap, threads);
}

fn query_at_once(shared: &Arc<Shared>, cap: u32, threads: u32) {
    let others: Vec<_> = (1..threads)
        .map(|id| {
            let shared = Arc::clone(shared);
            loom::thread::spawn(move || shared.query(Id(id), cap as usize))
        })
        .collect();
    shared.query(Id(0), cap as usize);
    for other in others {
        other.join().unwrap();
    }
    shared.assert_clean();
}

#[test]
fn of_two_workers_one_runs_at_a_time_and_both_run() {
    check(4, || workers(1, 2));
}

#[test]
fn of_three_workers_two_run_at_a_time_and_all_run() {
    check(2, || workers(2, 3));
}

#[test]
fn of_three_workers_one_runs_at_a_time_and_all_run() {
    check(1, || workers(1, 3));
}

#[test]
fn two_workers_of_two_classes_both_run() {
    check(3, || query_at_once(&Shared::with_classes(1, 2), 1, 2));
}

#[test]
fn of_three_workers_of_three_classes_one_runs_at_a_time_and_all_run() {
    check(1, || query_at_once(&Shared::with_classes(1, 3), 1, 3));
}

#[test]
fn a_worker_that_arrives_again_is_not_lost() {
    check(3, || {
        let shared = Shared::new(1, 2);
        let other = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.query(Id(1), 1))
        };
        shared.query(Id(0), 1);
        shared.query(Id(0), 1);
        other.join().unwrap();
        shared.assert_clean();
    });
}

#[test]
fn a_worker_that_is_expelled_while_it_is_admitted_runs_once_and_leaves_no_slot_behind() {
    check(3, || {
        let shared = Shared::new(1, 2);
        shared.begin(Id(0));
        let waiter = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.begin(Id(1));
                shared.gate().answered(Id(1), false, NOW, &*shared);
            })
        };
        let closer = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.gate().evict(Id(1), &*shared))
        };
        shared.gate().answered(Id(0), false, NOW, &*shared);
        waiter.join().unwrap();
        closer.join().unwrap();
        shared.assert_clean();
    });
}

#[test]
fn when_the_lease_of_the_agent_has_expired_one_pump_frees_all() {
    check(2, || {
        let shared = Shared::new(1, 3);
        // The holder never ends its turn, and the agent is silent from now on.
        shared.begin(Id(0));
        for id in [1, 2] {
            assert_eq!(shared.gate().arrive(Id(id), false, NOW, &*shared), Decision::Park);
        }
        let waiter = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.gate().park(Id(2), &*shared))
        };
        // The pump that any worker's deadline would bring.
        let later = NOW + 71_000_000;
        shared.gate().pump(later, &*shared);
        waiter.join().unwrap();
        assert_eq!(shared.gate().check(Id(1), later, &*shared), Decision::Run);
    });
}

#[test]
fn of_two_called_workers_one_runs_at_a_time_and_both_run() {
    // With two preemptions it takes minutes.
    check(1, || {
        let shared = Shared::in_mode(Mode::Epoll, 1, 2);
        let others: Vec<_> = (0..2)
            .map(|id| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.rest_then_query(Id(id), 1))
            })
            .collect();
        shared.serve(&[0, 1]);
        for other in others {
            other.join().unwrap();
        }
        shared.assert_clean();
    });
}

#[test]
fn a_called_worker_and_one_that_has_a_query_both_run() {
    check(2, || {
        let shared = Shared::in_mode(Mode::Epoll, 1, 2);
        let called = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.rest_then_query(Id(1), 1))
        };
        let querying = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.query(Id(0), 1))
        };
        shared.serve(&[1]);
        called.join().unwrap();
        querying.join().unwrap();
        shared.assert_clean();
    });
}

#[test]
fn a_resting_worker_that_is_expelled_as_it_is_called_runs_once_and_leaves_no_slot_behind() {
    // With three preemptions it takes minutes.
    check(1, || {
        let shared = Shared::in_mode(Mode::Epoll, 1, 1);
        let worker = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                assert!(shared.gate().rest(Id(0), NOW));
                shared.armed.fetch_add(1, Ordering::SeqCst);
                assert_eq!(shared.gate().sleep(Id(0), u64::MAX, &*shared), Rest::Called);
                shared.gate().end_turn(Id(0), NOW, &*shared);
            })
        };
        let closer = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.gate().evict(Id(0), &*shared))
        };
        shared.serve(&[0]);
        worker.join().unwrap();
        closer.join().unwrap();
        shared.assert_clean();
    });
}

#[test]
fn queries_that_are_given_while_a_turn_begins_are_not_lost() {
    check(3, || {
        let shared = Shared::new(1, 1);
        shared.entries[0].allow(None, Some(1));
        let agent = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.entries[0].allow(None, Some(2));
                shared.gate().pump(NOW, &*shared);
            })
        };
        // The first query counts for either decision, the second for the later one.
        shared.query(Id(0), 1);
        shared.query(Id(0), 1);
        agent.join().unwrap();
        assert!(shared.entries[0].left() < Some(2));
        shared.assert_clean_without_limit(Id(0));
    });
}

#[test]
fn no_turn_begins_without_a_query() {
    check(2, || {
        let shared = Shared::new(1, 2);
        let is_given = Arc::new(AtomicUsize::new(0));
        shared.entries[0].allow(None, Some(1));
        shared.begin(Id(1));
        assert_eq!(shared.gate().arrive(Id(0), false, NOW, &*shared), Decision::Park);
        let limited = {
            let (shared, is_given) = (Arc::clone(&shared), Arc::clone(&is_given));
            loom::thread::spawn(move || {
                shared.gate().park(Id(0), &*shared);
                shared.gate().answered(Id(0), false, NOW, &*shared);
                shared.begin(Id(0));
                assert_eq!(is_given.load(Ordering::SeqCst), 1, "a turn of nothing");
                shared.gate().answered(Id(0), false, NOW, &*shared);
            })
        };
        let other = {
            let shared = Arc::clone(&shared);
            // It may see the other worker's first wait and assign the slot to its second.
            loom::thread::spawn(move || shared.gate().answered(Id(1), false, NOW, &*shared))
        };
        other.join().unwrap();
        is_given.store(1, Ordering::SeqCst);
        shared.entries[0].allow(None, None);
        shared.gate().pump(NOW, &*shared);
        limited.join().unwrap();
        shared.assert_clean();
    });
}

#[test]
fn queries_that_are_withdrawn_while_a_turn_begins_delay_no_other_worker() {
    check(2, || {
        let shared = Shared::new(1, 2);
        let limited = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.query(Id(0), 1))
        };
        let other = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.query(Id(1), 1))
        };
        shared.entries[0].allow(None, Some(0));
        other.join().unwrap();
        shared.entries[0].allow(None, Some(1));
        shared.gate().pump(NOW, &*shared);
        limited.join().unwrap();
        shared.assert_clean_without_limit(Id(0));
    });
}

#[test]
fn a_bypass_loses_no_worker_that_arrives_at_the_same_time() {
    // Two threads: with an agent that closes the gate meanwhile it takes minutes. That agent
    // writes only what the next test has.
    check(4, || {
        let shared = Shared::new(1, 2);
        // The holder never ends its turn: only the bypass lets the other worker run.
        shared.begin(Id(0));
        let waiter = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.begin(Id(1));
                shared.gate().answered(Id(1), false, NOW, &*shared);
            })
        };
        assert!(shared.control.bypass(1));
        shared.gate().pump(NOW, &*shared);
        waiter.join().unwrap();
        assert_eq!((shared.control.mode(), shared.gate().active(NOW)), (Mode::Stats, 1));
        shared.gate().end_turn(Id(0), NOW, &*shared);
        shared.assert_clean();
    });
}

#[test]
fn an_agent_that_sets_the_gate_at_the_same_time_keeps_the_bypass() {
    check(4, || {
        let shared = Shared::new(1, 1);
        let agent = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.control.set(&Settings { mode: Mode::Epoll, cap: 1, ..Settings::default() });
            })
        };
        assert!(shared.control.bypass(1));
        agent.join().unwrap();
        let control = &shared.control;
        assert_eq!((control.mode(), control.bypassed_since_s()), (Mode::Stats, Some(1)));
        assert!(control.end_bypass());
        assert_eq!(control.mode(), Mode::Epoll);
    });
}
