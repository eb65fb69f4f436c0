//! The programs in the kernel that runs the tests; without root or eBPF each test prints why
//! it is skipped.

use super::object::Object;
use super::*;
use crate::sys::sched::set_affinity;
use aya::EbpfLoader;
use lull_control::{CoreId, CoreSet};
use lull_measure::Nanos;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the opened object, or `None` if the kernel refuses permission; any other error is a
/// failure.
pub(super) fn allowed<T>(opened: Result<T, BpfError>) -> Option<T> {
    match opened {
        Ok(opened) => Some(opened),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            lull_testing::skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn cores() -> usize {
    thread::available_parallelism().unwrap().get()
}

/// Runs on a thread of its own on one core; the affinity ends with the thread.
fn on_core<T: Send + 'static>(core: u16, work: impl FnOnce() -> T + Send + 'static) -> T {
    let pinned = move || {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        set_affinity(me, &[CoreId(core)].into_iter().collect::<CoreSet>()).unwrap();
        work()
    };
    thread::spawn(pinned).join().unwrap()
}

/// The object of the programs that only these tests run.
fn test_object() -> Option<Object> {
    static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/tests.bpf.o");
    allowed(Object::load(EbpfLoader::new().btf(None), PROGRAMS))
}

#[test]
fn programs_and_readers_have_the_same_buckets() {
    let Some(mut object) = test_object() else { return };
    if allowed(object.load_raw("lull_bucket").map(drop)).is_none() {
        return;
    }
    let edges = (0..256).map(buckets::begin).flat_map(|low| [low.0.saturating_sub(1), low.0]);
    let powers = (0..64).flat_map(|power| [1_u64 << power, (1 << power) - 1]);
    for time in edges.chain(powers).chain([u64::MAX, 123_456_789]) {
        let found = object.run("lull_bucket", &[time]);
        assert_eq!(found as usize, buckets::bucket(Nanos(time)), "{time} ns");
    }
}

/// `cpu_idle` with this state is the end of a sleep.
const STATE_EXIT: u64 = 0xffff_ffff;

/// Keeps the core busy, so that it has no sleep of its own meanwhile.
fn spin(span: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < span {
        std::hint::spin_loop();
    }
}

fn elapsed(begun: Instant) -> Nanos {
    Nanos(begun.elapsed().as_nanos() as u64)
}

#[test]
fn a_sleep_counts_with_its_length_once_it_has_ended() {
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    on_core(0, move || {
        let sleep = |state: u64| watch.object.run("lull_sleep", &[state, 0]);
        // The events of a sleep, on a core that is kept busy.
        let before = watch.read();
        let outer = Instant::now();
        sleep(3);
        let inner = Instant::now();
        spin(Duration::from_millis(5));
        let lasting = watch.read().cores[0].time.clone();
        let shortest = elapsed(inner);
        sleep(STATE_EXIT);
        let longest = elapsed(outer);
        let after = watch.read().cores[0].time.clone();

        let new = after.sleeps.since(&before.cores[0].time.sleeps);
        assert_eq!(new.count(), 1);
        assert!((shortest..=longest).contains(&new.total()), "{:?}", new.total());
        assert_eq!(lasting.sleeps, before.cores[0].time.sleeps, "it had not ended");
        let so_far = lasting.now - lasting.asleep_since.unwrap();
        assert!(so_far >= Nanos::from_millis(5) && so_far <= longest, "{so_far:?}");
        assert_eq!((lasting.awake_since, after.asleep_since), (None, None));
        assert!(after.awake_since.is_some());
    });
}

/// A reading that was not interrupted: a sleep that ends during a reading may be missing.
fn undisturbed(watch: &Watch) -> WatchCounts {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let before = Instant::now();
        let seen = watch.read();
        if before.elapsed() < Duration::from_micros(500) {
            return seen;
        }
    }
    panic!("every reading takes half a millisecond")
}

#[test]
fn a_core_is_asleep_or_awake_and_nothing_else() {
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    let divide = |seen: &WatchCounts| seen.cores[0].time.divide(Nanos::from_millis(1));
    let begun = Instant::now();
    let before = loop {
        on_core(0, || thread::sleep(Duration::from_millis(1)));
        let seen = undisturbed(&watch);
        if let Some(division) = divide(&seen) {
            break (division, seen.cores[0].time.now);
        }
        assert!(begun.elapsed() < PATIENCE, "core 0 never slept");
    };
    on_core(0, || (0..100).for_each(|_| thread::sleep(Duration::from_millis(2))));
    let after = undisturbed(&watch);
    let new = divide(&after).unwrap().since(&before.0);
    let span = after.cores[0].time.now - before.1;
    // Sleeps that are open at either end may be missing: shorter than T each.
    let known = new.asleep + new.awake;
    assert!(known <= span + Nanos::from_millis(1), "{known:?} of {span:?}");
    assert!(known + Nanos::from_millis(1) >= span, "{known:?} of {span:?}");
    let share = new.opportunity().unwrap();
    assert!((0.0..=1.0).contains(&share.share) && share.error < 0.5, "{share:?}");
}

#[test]
fn threads_that_compete_for_a_core_wait_for_it() {
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    let stop = AtomicBool::new(false);
    let before = watch.read();
    let waited = || {
        let new = watch.read().cores[0].waits.since(&before.cores[0].waits);
        new.beyond(Nanos::from_micros(200)).time
    };
    let compete = || {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        set_affinity(me, &CoreSet::first(1)).unwrap();
        while !stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(compete)));
        let begun = Instant::now();
        while waited() < Nanos::from_millis(300) && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(waited() >= Nanos::from_millis(300), "four threads on one core, and no wait seen");
}

/// The address of a thread that does not exist.
const THREAD: u64 = 0xffff_8888_0000_1240;
/// The state of a thread that sleeps and so does not wait once it is switched out.
const SLEEPS: u64 = 1;

#[test]
fn a_wait_is_from_the_wake_up_to_the_switch() {
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    on_core(0, move || {
        // Whether the first is timed depends on what the core did before.
        for _ in 0..64 {
            let before = watch.read().cores[0].waits.clone();
            let outer = Instant::now();
            watch.object.run("lull_wake", &[THREAD]);
            let inner = Instant::now();
            spin(Duration::from_millis(2));
            let shortest = elapsed(inner);
            watch.object.run("lull_switch", &[0, 0, THREAD, SLEEPS]);
            let longest = elapsed(outer);
            let new = watch.read().cores[0].waits.since(&before);
            // Others may have waited on this core meanwhile; they are few.
            let is_it = |time: Nanos| time + Nanos(8) >= shortest && time <= longest + Nanos(8);
            let mut ranks = (1..=new.count()).map(|rank| rank as f64 / new.count() as f64);
            if ranks.any(|share| new.quantile(share).is_some_and(is_it)) {
                return;
            }
        }
        panic!("none of 64 waits of 2 ms was seen");
    });
}

#[test]
fn many_waits_are_sampled_and_counted_with_their_weight() {
    const WAITS: u64 = 20_000;
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    on_core(0, move || {
        let before = watch.read();
        for number in 0..WAITS {
            let thread = THREAD + 64 * number;
            watch.object.run("lull_wake", &[thread]);
            watch.object.run("lull_switch", &[0, 0, thread, SLEEPS]);
        }
        let new = watch.read().cores[0].waits.since(&before.cores[0].waits);
        // One weight may be open at either end; others wait on this core too.
        assert!(new.count() + 32 >= WAITS, "{} of {WAITS}", new.count());
        assert!(new.count() <= 2 * WAITS, "{} of {WAITS}", new.count());
    });
}

#[test]
fn programs_end_with_their_watch() {
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    let ids = watch.program_ids().unwrap();
    assert!(ids.iter().all(|id| is_loaded(*id).unwrap()));
    drop(watch);
    // The kernel frees them once no core can still be in one.
    let begun = Instant::now();
    while ids.iter().any(|id| is_loaded(*id).unwrap()) {
        assert!(begun.elapsed() < PATIENCE, "programs {ids:?} are still there");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_error_has_the_reason_of_the_verifier() {
    let Some(mut object) = test_object() else { return };
    let refused = object.load_raw("lull_refused").map(drop).unwrap_err();
    if refused.raw_os_error() == Some(libc::EPERM) {
        return assert!(refused.to_string().contains("CAP_"), "{refused}");
    }
    let error = refused.to_string();
    assert!(error.contains("rejects the program lull_refused"), "{error}");
    assert!(error.contains("invalid access to map value"), "{error}");
}

#[test]
fn a_missing_tracepoint_is_named() {
    let Some(mut object) = test_object() else { return };
    let error = object.attach("lull_bucket", "no_such_event").unwrap_err();
    if error.raw_os_error() == Some(libc::EPERM) {
        return lull_testing::skip(&error.to_string());
    }
    let error = error.to_string();
    assert!(error.contains("cannot attach to no_such_event"), "{error}");
    assert!(error.contains("no such tracepoint"), "{error}");
}

#[test]
fn the_log_has_every_event_of_the_requested_core_and_of_no_other() {
    let Some(mut log) = allowed(InterruptLog::begin(Some(CoreId(0)))) else { return };
    let minus_one = u64::MAX;
    let events = on_core(0, move || {
        log.object.run("lull_irq_begin", &[77, 0]);
        log.object.run("lull_irq_end", &[77, 0, 1]);
        log.object.run("lull_poll", &[0, 8, 64]);
        log.object.run("lull_idle", &[2, 0]);
        // A number below zero keeps its 32 bits.
        log.object.run("lull_irq_begin", &[minus_one, 0]);
        log.object.run("lull_idle", &[STATE_EXIT, 0]);
        std::iter::from_fn(move || log.pop()).collect::<Vec<_>>()
    });
    assert!(events.iter().all(|event| event.core == CoreId(0)));
    assert!(events.is_sorted_by_key(|event| event.time), "events of one core are in order");
    // Other events of this core may lie in between.
    let mut all = events.iter().map(|event| event.kind);
    for kind in [
        Kind::Begin { interrupt: 77 },
        Kind::End { interrupt: 77, handled: true },
        Kind::Poll { work: 8, budget: 64 },
        Kind::Sleep { state: 2 },
        Kind::Begin { interrupt: u32::MAX },
        Kind::Wake,
    ] {
        assert!(all.any(|event| event == kind), "no {kind:?} in {events:?}");
    }
}

#[test]
fn other_cores_than_the_requested_one_write_nothing() {
    let last = cores() as u16 - 1;
    let Some(mut log) = allowed(InterruptLog::begin(Some(CoreId(last + 1)))) else { return };
    on_core(last, move || {
        log.object.run("lull_irq_begin", &[77, 0]);
        assert_eq!((log.pop(), log.lost()), (None, 0));
    });
}

#[test]
fn events_that_find_the_buffer_full_are_lost_and_counted() {
    let Some(mut log) = allowed(InterruptLog::begin(None)) else { return };
    let begun = Instant::now();
    let mut written = 0;
    while log.lost() == 0 {
        log.object.run("lull_poll", &[0, 8, 64]);
        written += 1;
        assert!(begun.elapsed() < PATIENCE, "the buffer never filled");
    }
    let kept = std::iter::from_fn(|| log.pop()).count();
    assert!(kept >= 130_000, "{kept} records fitted into the buffer");
    assert!(kept + log.lost() as usize >= written, "{kept} kept, {} lost", log.lost());
    log.object.run("lull_poll", &[0, 9, 64]);
    let last = std::iter::from_fn(|| log.pop()).last().map(|event| event.kind);
    assert!(last.is_some(), "there is room again");
}
