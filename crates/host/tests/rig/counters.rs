//! Hardware counters: those of an emulated Arm processor, which count what it does.
//!
//! Instructions are the clock of this machine, so that the same work has the same
//! counts however busy the machine below is. Of PCs, emulation has no counters.

use crate::Tests;
use crate::scene::{EPOCH, Scene};
use lull_control::{Capability, Plant};
use lull_host::gauges::counters::{AppCounters, Counted, Modes, modes, probe};
use lull_host::{LiveThread, Roots};
use lull_measure::Nanos;
use lull_measure::catalogue::{CPU, CYCLES, INSTRUCTIONS};
use std::hint::black_box;
use std::time::Duration;

pub(crate) const TESTS: Tests = &[
    ("counters::twice_the_work_is_twice_the_count", twice),
    ("counters::threads_that_are_started_later_are_counted_too", inherited),
    ("counters::more_events_than_counters_take_turns_and_are_scaled", turns),
    ("counters::the_plant_reads_an_app_that_works_half_of_the_time", seen),
];

/// Enough to take a tenth of a second.
const ROUNDS: u64 = 3_000_000;
/// The processor has six counters besides that of cycles.
const APPS_AT_ONCE: usize = 6;

fn work(rounds: u64) -> u64 {
    (0..rounds).fold(1, |sum, round| black_box(sum ^ round.wrapping_mul(sum)))
}

/// The calling thread.
fn me() -> LiveThread {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    LiveThread { pid: std::process::id().cast_signed(), tid, start_ticks: 1 }
}

/// Counters of this thread, which count from now on.
fn counters() -> AppCounters {
    let roots = Roots::default();
    let modes = modes(&roots).unwrap();
    assert_eq!(modes, Modes::UserAndKernel);
    assert_eq!(probe(&roots).unwrap(), "perf_event, user and kernel");
    let mut counters = AppCounters::new(&roots, modes);
    read(&mut counters);
    counters
}

fn read(counters: &mut AppCounters) -> Counted {
    counters.read(&[me()], Nanos::from_secs(1))
}

/// Instructions and cycles of some work.
fn count(counters: &mut AppCounters, rounds: u64) -> [f64; 2] {
    read(counters);
    black_box(work(rounds));
    let counted = read(counters);
    [counted.instructions, counted.cycles].map(|count| count.unwrap() as f64)
}

fn twice() {
    let mut counters = counters();
    let once = count(&mut counters, ROUNDS);
    let twice = count(&mut counters, 2 * ROUNDS);
    println!("instructions and cycles: {once:?}, {twice:?}");
    for (once, twice) in once.into_iter().zip(twice) {
        assert!((twice / once - 2.0).abs() < 0.05, "{once} and {twice}");
    }
    assert!(once[0] > ROUNDS as f64);
    let why = read(&mut counters).llc_misses.unwrap_err().reason;
    assert!(why.contains("LLC-load-misses"), "{why}");
}

fn inherited() {
    let mut counters = counters();
    let own = count(&mut counters, ROUNDS);
    read(&mut counters);
    std::thread::spawn(|| black_box(work(ROUNDS))).join().unwrap();
    let theirs = read(&mut counters).instructions.unwrap() as f64;
    assert!((theirs / own[0] - 1.0).abs() < 0.1, "{own:?} and {theirs}");
}

fn turns() {
    let alone = count(&mut counters(), 4 * ROUNDS);
    let mut many: Vec<_> = (0..APPS_AT_ONCE).map(|_| counters()).collect();
    black_box(work(4 * ROUNDS));
    for counters in &mut many {
        let Counted { instructions, cycles, .. } = read(counters);
        let found = [instructions, cycles].map(|count| count.unwrap() as f64);
        println!("alone {alone:?}, with others {found:?}");
        for (alone, found) in alone.into_iter().zip(found) {
            assert!((found / alone - 1.0).abs() < 0.25, "{alone} alone and {found} with others");
        }
    }
}

/// The role of an app that works and rests in turn.
pub(crate) fn be_worker() -> ! {
    loop {
        let begun = std::time::Instant::now();
        black_box(work(ROUNDS / 10));
        std::thread::sleep(begun.elapsed());
    }
}

fn seen() {
    let mut scene = Scene::start("worker");
    assert!(scene.plant.machine().capabilities.has(Capability::Instructions));
    scene.plant.observe(EPOCH).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let seen = scene.plant.observe(EPOCH).unwrap();
    let app = &seen.apps[0];
    let (cpu, instructions) =
        (app.readings.get(CPU).unwrap(), app.readings.get(INSTRUCTIONS).unwrap());
    println!("{cpu} cores, {instructions} instructions/s, {:?} cycles/s", app.readings.get(CYCLES));
    assert!((0.3..0.7).contains(&cpu), "{cpu} cores");
    // An instruction takes 4 ns here: 250 million in each second of CPU time.
    assert!((instructions / cpu / 250e6 - 1.0).abs() < 0.2, "{instructions} in {cpu} cores");
    assert!(app.readings.get(CYCLES).unwrap() > instructions);
}
