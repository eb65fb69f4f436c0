//! Programs against the kernel that runs the tests; without root or eBPF each
//! says that it was left out, and why.

use super::assembler::{Assembler, R1, R2, R3, R6};
use super::*;
use crate::sys::sched::set_affinity;
use lull_control::{CoreId, CoreSet};
use lull_measure::Nanos;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// What was opened, or `None` where this process may not; anything else that
/// the kernel says is a failure.
pub(super) fn allowed<T>(opened: Result<T, BpfError>) -> Option<T> {
    match opened {
        Ok(opened) => Some(opened),
        Err(error) if matches!(error.error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            lull_testing::skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn cores() -> usize {
    thread::available_parallelism().unwrap().get()
}

/// Runs on a thread of its own on one core, since affinity outlives the test otherwise.
fn on_core<T: Send + 'static>(core: u16, work: impl FnOnce() -> T + Send + 'static) -> T {
    let pinned = move || {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        set_affinity(me, &[CoreId(core)].into_iter().collect::<CoreSet>()).unwrap();
        work()
    };
    thread::spawn(pinned).join().unwrap()
}

#[test]
fn the_kernel_sorts_times_into_the_same_buckets_as_we_do() {
    let mut asm = Assembler::new();
    asm.load(R6, R1, 0);
    buckets::assemble(&mut asm, R6, R2, R3);
    asm.set(assembler::R0, R6);
    asm.end_with_answer();
    let Some(program) = allowed(load("lull_bucket", &asm.finish(), Point::Raw)) else { return };
    let edges = (0..256).map(buckets::begin).flat_map(|low| [low.0.saturating_sub(1), low.0]);
    let powers = (0..64).flat_map(|power| [1_u64 << power, (1 << power) - 1]);
    for time in edges.chain(powers).chain([u64::MAX, 123_456_789]) {
        let answer = bpf::run(&program, &[time]).unwrap();
        assert_eq!(answer as usize, buckets::bucket(Nanos(time)), "{time} ns");
    }
}

/// `cpu_idle` with this state is the end of a sleep.
const LEAVES: u64 = 0xffff_ffff;

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
        let sleep = &watch.programs[0].program;
        // A sleep as the core would tell it, on a core that is kept busy.
        let before = watch.read();
        let outer = Instant::now();
        bpf::run(sleep, &[3, 0]).unwrap();
        let inner = Instant::now();
        spin(Duration::from_millis(5));
        let lasting = watch.read().cores[0].time.clone();
        let shortest = elapsed(inner);
        bpf::run(sleep, &[LEAVES, 0]).unwrap();
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

/// What a reader saw that was not interrupted: a sleep that ends while it reads may
/// be missing.
fn at_once(watch: &Watch) -> Seen {
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
    let divide = |seen: &Seen| seen.cores[0].time.divide(Nanos::from_millis(1));
    let begun = Instant::now();
    let before = loop {
        on_core(0, || thread::sleep(Duration::from_millis(1)));
        let seen = at_once(&watch);
        if let Some(division) = divide(&seen) {
            break (division, seen.cores[0].time.now);
        }
        assert!(begun.elapsed() < PATIENCE, "core 0 never slept");
    };
    on_core(0, || (0..100).for_each(|_| thread::sleep(Duration::from_millis(2))));
    let after = at_once(&watch);
    let new = divide(&after).unwrap().since(&before.0);
    let span = after.cores[0].time.now - before.1;
    // What is open at either end may be missing: shorter than T each.
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

/// A thread that only the test knows: what programs are told is an address.
const NOBODY: u64 = 0xffff_8888_0000_1240;
/// The state of a thread that sleeps, so that it does not wait when it makes way.
const SLEEPS: u64 = 1;

#[test]
fn a_wait_is_from_the_wake_up_to_the_switch() {
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    on_core(0, move || {
        let [switch, wake] = [1, 2].map(|index| &watch.programs[index].program);
        // Whether the first is timed depends on what the core did before.
        for _ in 0..64 {
            let before = watch.read().cores[0].waits.clone();
            let outer = Instant::now();
            bpf::run(wake, &[NOBODY]).unwrap();
            let inner = Instant::now();
            spin(Duration::from_millis(2));
            let shortest = elapsed(inner);
            bpf::run(switch, &[0, 0, NOBODY, SLEEPS]).unwrap();
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
fn where_many_wait_few_are_timed_and_count_for_all() {
    const WAITS: u64 = 20_000;
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    on_core(0, move || {
        let [switch, wake] = [1, 2].map(|index| &watch.programs[index].program);
        let before = watch.read();
        for number in 0..WAITS {
            let thread = NOBODY + 64 * number;
            bpf::run(wake, &[thread]).unwrap();
            bpf::run(switch, &[0, 0, thread, SLEEPS]).unwrap();
        }
        let new = watch.read().cores[0].waits.since(&before.cores[0].waits);
        // One weight may be open at either end; others wait on this core too.
        assert!(new.count() + 32 >= WAITS, "{} of {WAITS}", new.count());
        assert!(new.count() <= 2 * WAITS, "{} of {WAITS}", new.count());
    });
}

#[test]
fn a_watch_that_ends_takes_its_programs_along() {
    let Some(watch) = allowed(Watch::begin(cores())) else { return };
    let ids = watch.program_ids().unwrap();
    assert!(ids.iter().all(|id| bpf::exists(*id).unwrap()));
    drop(watch);
    // The kernel frees them once no core can still be in one.
    let begun = Instant::now();
    while ids.iter().any(|id| bpf::exists(*id).unwrap()) {
        assert!(begun.elapsed() < PATIENCE, "programs {ids:?} are still there");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_the_verifier_refuses_is_said_in_its_words() {
    let mut asm = Assembler::new();
    asm.load(R2, R6, 0);
    asm.end();
    let Err(error) = load("lull_wrong", &asm.finish(), Point::Raw) else {
        panic!("R6 was never set")
    };
    if error.error.raw_os_error() == Some(libc::EPERM) {
        return assert!(error.to_string().contains("CAP_"), "{error}");
    }
    assert!(error.to_string().contains("R6 !read_ok"), "{error}");
}

#[test]
fn a_tracepoint_that_is_not_there_is_named() {
    let mut asm = Assembler::new();
    asm.end();
    let attached = Attached::new("lull_nowhere", &asm.finish(), c"no_such_event");
    if let Err(error) = &attached
        && error.error.raw_os_error() == Some(libc::EPERM)
    {
        return lull_testing::skip(&error.to_string());
    }
    let error = attached.unwrap_err().to_string();
    assert!(error.contains("cannot watch no_such_event"), "{error}");
    assert!(error.contains("no such tracepoint"), "{error}");
}

#[test]
fn the_log_tells_every_event_of_the_core_asked_for_and_of_no_other() {
    let Some(mut log) = allowed(InterruptLog::begin(Some(CoreId(0)))) else { return };
    let minus_one = u64::MAX;
    let told = on_core(0, move || {
        let programs = log.programs.iter().map(|attached| &attached.program);
        let arguments: [&[u64]; 4] = [&[77, 0], &[77, 0, 1], &[0, 8, 64], &[2, 0]];
        for (program, arguments) in programs.zip(arguments) {
            bpf::run(program, arguments).unwrap();
        }
        // A number below zero keeps its 32 bits.
        bpf::run(&log.programs[0].program, &[minus_one, 0]).unwrap();
        bpf::run(&log.programs[3].program, &[LEAVES, 0]).unwrap();
        std::iter::from_fn(move || log.pop()).collect::<Vec<_>>()
    });
    assert!(told.iter().all(|event| event.core == CoreId(0)));
    assert!(told.is_sorted_by_key(|event| event.time), "events of one core are in order");
    // Others of this core may stand between.
    let mut all = told.iter().map(|event| event.kind);
    for kind in [
        Kind::Begin { interrupt: 77 },
        Kind::End { interrupt: 77, handled: true },
        Kind::Poll { work: 8, budget: 64 },
        Kind::Sleep { state: 2 },
        Kind::Begin { interrupt: u32::MAX },
        Kind::Wake,
    ] {
        assert!(all.any(|told| told == kind), "no {kind:?} in {told:?}");
    }
}

#[test]
fn a_core_that_was_not_asked_for_writes_nothing() {
    let last = cores() as u16 - 1;
    let Some(mut log) = allowed(InterruptLog::begin(Some(CoreId(last + 1)))) else { return };
    on_core(last, move || {
        bpf::run(&log.programs[0].program, &[77, 0]).unwrap();
        assert_eq!((log.pop(), log.lost()), (None, 0));
    });
}

#[test]
fn events_that_nobody_reads_are_lost_and_counted() {
    let Some(mut log) = allowed(InterruptLog::begin(None)) else { return };
    let begun = Instant::now();
    let mut written = 0;
    while log.lost() == 0 {
        bpf::run(&log.programs[2].program, &[0, 8, 64]).unwrap();
        written += 1;
        assert!(begun.elapsed() < PATIENCE, "the buffer never filled");
    }
    let kept = std::iter::from_fn(|| log.pop()).count();
    assert!(kept >= 100_000, "{kept} records fitted into the buffer");
    assert!(kept + log.lost() as usize >= written, "{kept} kept, {} lost", log.lost());
    bpf::run(&log.programs[2].program, &[0, 9, 64]).unwrap();
    let last = std::iter::from_fn(|| log.pop()).last().map(|event| event.kind);
    assert!(last.is_some(), "there is room again");
}
