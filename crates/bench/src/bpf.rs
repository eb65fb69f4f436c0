//! The cost of programs at the scheduler's tracepoints to the scheduled threads.
//!
//! Two threads on one core wake each other in turn, in bursts that come to a
//! pace of 50,000 switches a second, with the programs of the gauges attached,
//! with those of `lull lab interrupts`, with those of run-queue latency, and with none.
//! What the programs take is in the CPU time of the threads, since they run where these
//! switch, and the kernel counts it by itself on request (`kernel.bpf_stats_enabled`).

use super::pinned::Pinned;
use super::stats::{BoxedContender, Summary, interleave_all, ns_each, on_core_ns};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result};
use lull_host::bpf::{InterruptLog, WaitWatch, Watch};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub(super) const BENCH: Bench = Bench {
    name: "bpf",
    about: "Two threads that wake each other at 50,000 switches a second, with eBPF programs at \
            the scheduler's tracepoints and without",
    run,
};

const ROUNDS: usize = 100;
/// Rounds in which the kernel counts the time of the programs, which varies little.
const COUNTED_ROUNDS: usize = 20;
/// How long the threads play in a round.
const SPAN: Duration = Duration::from_millis(200);
/// Exchanges of two switches each, and how often this many are made.
const BURST: u64 = 25;
const PAUSE: Duration = Duration::from_millis(1);
/// The rate of events for which shares of a core are reported.
const SWITCHES_PER_S: f64 = 50_000.0;
/// The share of a core that the gauges may take at it, in percent.
const SHARE_MOST: f64 = 1.0;

/// CPU time and switches of threads.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    cpu_ns: f64,
    /// Times that they were switched to.
    switches: f64,
}

/// Has the kernel count the time of eBPF programs until it is dropped.
struct Counted {
    before: String,
}

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl Counted {
    fn begin() -> Result<Self> {
        let before = std::fs::read_to_string(STATS).context(STATS)?;
        std::fs::write(STATS, "1").with_context(|| format!("cannot write {STATS}"))?;
        Ok(Self { before })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // A machine whose counting stays on is slower and otherwise the same.
        let _ = std::fs::write(STATS, &self.before);
    }
}

/// Time of all eBPF programs that this process holds, as the kernel has counted it.
fn programs_ns() -> Result<f64> {
    let mut sum_ns = 0.0;
    for entry in std::fs::read_dir("/proc/self/fdinfo")? {
        // The descriptor of the directory itself is gone when it is read.
        let Ok(text) = std::fs::read_to_string(entry?.path()) else { continue };
        let time = text.lines().find_map(|line| line.strip_prefix("run_time_ns:"));
        let time: Option<f64> = time.and_then(|time| time.trim().parse().ok());
        sum_ns += time.unwrap_or_default();
    }
    Ok(sum_ns)
}

fn run(_: &Context) -> Result<Report> {
    let _pinned = Pinned::to_last_core()?;
    let cores = xtask::here::cores();
    let mut contenders: Vec<BoxedContender<'_>> = vec![
        Box::new(play_ns),
        Box::new(|| {
            let _watch = Watch::begin(cores)?;
            play_ns()
        }),
        Box::new(|| {
            let mut log = InterruptLog::begin(None)?;
            let cost = play_ns();
            while log.pop().is_some() {}
            cost
        }),
        Box::new(|| play_beside_waits(std::process::id())),
        Box::new(|| play_beside_waits(std::os::unix::process::parent_id())),
    ];
    let costs = interleave_all(ROUNDS, &mut contenders)?;
    let [none, watched, logged, own, other] = &costs[..] else { anyhow::bail!("five contenders") };
    let mut report = Report::default();
    let each = |costs: &[f64]| Summary::new(costs.iter().copied());
    report.reported("CPU time of a switch, no programs", each(none), "ns");
    report.reported("CPU time of a switch, the gauges' programs", each(watched), "ns");
    report.reported("what the gauges add to a switch", Summary::new(more(watched, none)), "ns");
    let share = |extra: Vec<f64>| {
        Summary::new(extra.into_iter().map(|ns| 100.0 * ns * SWITCHES_PER_S / 1e9))
    };
    let _counted = Counted::begin()?;
    let parent = std::os::unix::process::parent_id();
    let what = [
        "the gauges at 50,000 switches/s",
        "run-queue latency of the app that switches, at 50,000 switches/s",
        "run-queue latency of another app, at 50,000 switches/s",
    ];
    let counted = [
        counted_ns(|| Watch::begin(cores))?,
        counted_ns(|| waits_of(std::process::id()))?,
        counted_ns(|| waits_of(parent))?,
    ];
    for ((what, counted), played) in what.into_iter().zip(counted).zip([watched, own, other]) {
        let by_difference = format!("{what}: difference of CPU time");
        report.reported(&by_difference, share(more(played, none)), "% of a core");
        report.bounded_above(what, share(counted), "% of a core", SHARE_MOST);
    }
    let what = "`lull lab interrupts` at 1000 sleeps/s and 50,000 switches/s";
    report.reported(what, share(more(logged, none)), "% of a core");
    report.reported("reading the gauges, all cores", reading_us(cores)?, "us");
    report.note(format!(
        "{ROUNDS} rounds in turn of {} s on one core: {BURST} exchanges every {} ms. CPU time is \
         that of both threads, switches are those that the kernel counted of them (schedstat), \
         differences are of one round. The rest of the machine goes on meanwhile. Figures with a \
         bound are the time that the kernel counts of the programs, for all of the machine \
         (`run_time_ns`), over the switches of both threads; differences of rounds are wider than \
         what they measure.",
        SPAN.as_secs_f64(),
        PAUSE.as_millis(),
    ));
    Ok(report)
}

/// CPU time of a switch while waits of the threads of a process are counted.
fn play_beside_waits(process: u32) -> Result<f64> {
    let _watch = waits_of(process)?;
    play_ns()
}

fn waits_of(process: u32) -> Result<WaitWatch> {
    let mut watch = WaitWatch::begin(1)?;
    watch.follow(&[(process, 0)].into())?;
    Ok(watch)
}

/// The programs' own time by switch, in ns, in each round.
fn counted_ns<W, E: Into<anyhow::Error>>(
    begin: impl Fn() -> std::result::Result<W, E>,
) -> Result<Vec<f64>> {
    let _watch = begin().map_err(Into::<anyhow::Error>::into)?;
    let once = |_| {
        let before = programs_ns()?;
        let switches = play()?.switches;
        Ok((programs_ns()? - before) / switches)
    };
    (0..COUNTED_ROUNDS).map(once).collect()
}

/// Returns the extra cost of one over the other, round by round.
fn more(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over - under).collect()
}

fn reading_us(cores: usize) -> Result<Summary> {
    const READINGS: usize = 1000;
    let watch = Watch::begin(cores)?;
    let read = || (0..READINGS).for_each(|_| drop(black_box(watch.read())));
    Ok(Summary::new((0..ROUNDS).map(|_| ns_each(READINGS, read) / 1e3)))
}

/// CPU time of a switch, of two threads that play for the span.
fn play_ns() -> Result<f64> {
    let both = play()?;
    Ok(both.cpu_ns / both.switches)
}

/// Returns the usage of two threads that exchange messages for the span.
fn play() -> Result<Used> {
    let ball = AtomicU64::new(0);
    let server = thread::current();
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(|| returns(&ball, &server));
        let one = serves(&ball, other.thread());
        (one, other.join())
    });
    let other = other.map_err(|_| anyhow::anyhow!("the other thread panicked"))??;
    let one = one?;
    let (cpu_ns, switches) = (one.cpu_ns + other.cpu_ns, one.switches + other.switches);
    Ok(Used { cpu_ns, switches })
}

/// The ball is here at even numbers; the last one ends the game.
const END: u64 = u64::MAX;

fn serves(ball: &AtomicU64, other: &Thread) -> Result<Used> {
    let before = used()?;
    let begun = Instant::now();
    let mut next_burst = begun;
    let mut number = 0;
    while begun.elapsed() < SPAN {
        for _ in 0..BURST {
            pass(ball, number + 1, other);
            wait_for(ball, |there| there == number + 2);
            number += 2;
        }
        next_burst += PAUSE;
        // Catch up after a burst that took too long, as far as possible.
        thread::sleep(next_burst.saturating_duration_since(Instant::now()));
    }
    let after = used();
    pass(ball, END, other);
    Ok(after?.since(before))
}

fn returns(ball: &AtomicU64, server: &Thread) -> Result<Used> {
    let before = used()?;
    loop {
        let number = wait_for(ball, |there| there % 2 == 1);
        if number == END {
            return Ok(used()?.since(before));
        }
        pass(ball, number + 1, server);
    }
}

fn pass(ball: &AtomicU64, number: u64, to: &Thread) {
    ball.store(number, Ordering::Release);
    to.unpark();
}

fn wait_for(ball: &AtomicU64, is_mine: impl Fn(u64) -> bool) -> u64 {
    loop {
        let number = ball.load(Ordering::Acquire);
        if is_mine(number) {
            return number;
        }
        thread::park();
    }
}

impl Used {
    fn since(self, before: Self) -> Self {
        Self { cpu_ns: self.cpu_ns - before.cpu_ns, switches: self.switches - before.switches }
    }
}

/// Returns the usage of this thread so far.
fn used() -> Result<Used> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let slices = text.split_whitespace().nth(2).and_then(|slices| slices.parse().ok());
    Ok(Used {
        cpu_ns: on_core_ns(),
        switches: slices.with_context(|| format!("{path} has no third number"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_game_has_its_switches_and_its_cost() {
        let _pinned = Pinned::to_last_core().unwrap();
        let cost_ns = play_ns().unwrap();
        assert!(cost_ns > 0.0 && cost_ns.is_finite(), "{cost_ns}");
    }

    #[test]
    fn added_costs_are_reported_round_by_round() {
        assert_eq!(more(&[30.0, 50.0], &[10.0, 40.0]), [20.0, 10.0]);
    }
}
