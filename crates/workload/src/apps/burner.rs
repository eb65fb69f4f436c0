//! Best-effort apps that use all of one resource and count their progress.
//!
//! `compute` prices Asian options, which needs no memory beyond the caches and
//! counts paths; `memory` runs the STREAM triad `a[i] = b[i] + s c[i]`
//! (<https://www.cs.virginia.edu/stream/>) over arrays larger than the last-level
//! cache and counts bytes moved. Each thread does the same; they share nothing
//! but the count.

mod work;

pub use work::{Work, WorkError, default_buffer_bytes};

use crate::clock;
use crate::push::{PushConfig, Pusher};
use lull_measure::Nanos;
use lull_measure::push::{Message, Progress};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// A best-effort app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BurnerConfig {
    /// Its work.
    pub work: Work,
    /// Threads doing it, at least 1.
    pub threads: usize,
    /// How long; without it until stopped.
    pub duration: Option<Nanos>,
    /// Where to push progress, every 100 ms.
    pub push: Option<PushConfig>,
}

impl Default for BurnerConfig {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { work: Work::Compute, threads, duration: None, push: None }
    }
}

/// Why a burner cannot run.
#[derive(Debug, thiserror::Error)]
pub enum BurnerError {
    /// The configuration has no threads.
    #[error("threads = 0: a burner needs at least one thread")]
    NoThreads,
    /// The arrays do not fit into memory.
    #[error(
        "cannot allocate {bytes} bytes for the arrays: write a smaller size, such as memory:64MiB"
    )]
    Memory {
        /// Bytes that one thread requested.
        bytes: u64,
    },
    /// The system refuses a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// The progress of a burner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BurnerReport {
    /// Its work, as configured.
    pub work: String,
    /// Threads doing it.
    pub threads: usize,
    /// The counted unit: `paths` or `bytes`.
    pub unit: &'static str,
    /// How much of it.
    pub total: u64,
    /// Over how long.
    pub seconds: f64,
    /// Progress per second.
    pub progress_per_second: f64,
    /// Messages taken by the agent's socket, and dropped.
    pub pushed_messages: u64,
    /// Messages dropped because the agent was absent or slow.
    pub dropped_messages: u64,
}

/// Interval between two pushes of progress.
const PUSH_EVERY: Nanos = Nanos::from_millis(100);

/// Burns until the duration is over or `stop` is set. Threads are named
/// `burn-cpu-N` or `burn-mem-N`.
///
/// # Errors
/// If there are no threads, or the system refuses threads or memory.
pub fn run(config: &BurnerConfig, stop: &AtomicBool) -> Result<BurnerReport, BurnerError> {
    run_counted(config, stop, &AtomicU64::new(0))
}

/// As [`run`], adding progress to `count` as it is made, for the same process to read.
///
/// # Errors
/// As [`run`].
pub fn run_counted(
    config: &BurnerConfig,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<BurnerReport, BurnerError> {
    if config.threads == 0 {
        return Err(BurnerError::NoThreads);
    }
    let (begin, before) = (clock::now(), count.load(Ordering::Relaxed));
    let over = AtomicBool::new(false);
    let (pushed, dropped) = thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..config.threads {
            let name = format!("{}-{number}", config.work.thread_name());
            let burn = || config.work.burn(config.threads, count, &over);
            match thread::Builder::new().name(name).spawn_scoped(scope, burn) {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    over.store(true, Ordering::Relaxed);
                    return Err(BurnerError::Thread(error));
                }
            }
        }
        // A thread that cannot allocate its arrays ends at once and ends the whole run.
        let failed = || workers.iter().any(thread::ScopedJoinHandle::is_finished);
        let pushed = watch_over(config, count, || stop.load(Ordering::Relaxed) || failed());
        over.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(pushed)
    })?;
    let seconds = clock::now().saturating_sub(begin).as_secs_f64();
    let total = count.load(Ordering::Relaxed) - before;
    Ok(BurnerReport {
        work: config.work.to_string(),
        threads: config.threads,
        unit: config.work.unit(),
        total,
        seconds,
        progress_per_second: total as f64 / seconds,
        pushed_messages: pushed,
        dropped_messages: dropped,
    })
}

/// Pushes progress until the end. Returns the numbers of messages sent and dropped.
fn watch_over(config: &BurnerConfig, count: &AtomicU64, is_over: impl Fn() -> bool) -> (u64, u64) {
    let mut pusher = config.push.as_ref().map(|push| (Pusher::new(push.socket.clone()), push));
    let begin = clock::now();
    let end = config.duration.map_or(Nanos::MAX, |duration| begin.saturating_add(duration));
    let mut next = begin + PUSH_EVERY;
    loop {
        let now = clock::now();
        let last = now >= end || is_over();
        if let Some((pusher, push)) = &mut pusher
            && (now >= next || last)
        {
            pusher.push(&Message::Progress(Progress {
                app: push.app.clone(),
                unit: config.work.unit().to_owned(),
                total: count.load(Ordering::Relaxed) as f64,
                time_ns: now,
            }));
        }
        if last {
            break;
        }
        if now >= next {
            next = now + PUSH_EVERY;
        }
        // A stop is noticed within 20 ms.
        let pause = next.min(end).saturating_sub(now).min(Nanos::from_millis(20));
        thread::sleep(pause.into());
    }
    pusher.map_or((0, 0), |(pusher, _)| (pusher.sent(), pusher.dropped()))
}

impl fmt::Display for BurnerReport {
    /// Writes the report in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { work, threads, unit, total, seconds, progress_per_second, .. } = self;
        write!(
            f,
            "{work} on {threads} threads: {total} {unit} in {seconds:.1} s, \
             {progress_per_second:.0} {unit}/s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::push::{Fill, LineReader, MAX_LINE_BYTES};
    use std::os::unix::net::{UnixListener, UnixStream};

    /// Of two threads and without an end but for a test that nothing stops.
    fn burner(work: Work) -> BurnerConfig {
        let duration = Some(Nanos::from_secs(60));
        BurnerConfig { work, threads: 2, duration, push: None }
    }

    /// Burns until something was counted, however long that takes here.
    fn until_counted(config: &BurnerConfig, count: &AtomicU64) -> BurnerReport {
        let (stop, before) = (AtomicBool::new(false), count.load(Ordering::Relaxed));
        thread::scope(|scope| {
            let burner = scope.spawn(|| run_counted(config, &stop, count));
            while count.load(Ordering::Relaxed) == before && !burner.is_finished() {
                thread::sleep(Nanos::from_millis(1).into());
            }
            stop.store(true, Ordering::Relaxed);
            burner.join().unwrap().unwrap()
        })
    }

    #[test]
    fn both_kinds_get_something_done_and_count_it() {
        for (work, unit) in [(Work::Compute, "paths"), (Work::Memory { bytes: 3 << 20 }, "bytes")] {
            let count = AtomicU64::new(7);
            let report = until_counted(&burner(work), &count);
            assert_eq!(report.unit, unit);
            assert!(report.total > 0);
            assert_eq!(report.total + 7, count.into_inner());
        }
    }

    #[test]
    fn a_burner_ends_when_its_time_is_over() {
        let duration = Nanos::from_millis(150);
        let config = BurnerConfig { duration: Some(duration), ..burner(Work::Compute) };
        let report = run(&config, &AtomicBool::new(false)).unwrap();
        assert!(report.seconds >= duration.as_secs_f64());
    }

    #[test]
    fn a_stop_ends_a_burner_without_duration() {
        let config = BurnerConfig { duration: None, ..burner(Work::Compute) };
        let report = run(&config, &AtomicBool::new(true)).unwrap();
        assert_eq!(report.threads, 2);
    }

    #[test]
    fn a_burner_that_finds_no_memory_says_so() {
        let config = BurnerConfig { duration: None, ..burner(Work::Memory { bytes: 1 << 60 }) };
        let error = run(&config, &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("memory:64MiB"), "{error}");
        let config = BurnerConfig { threads: 0, ..config };
        assert!(matches!(run(&config, &AtomicBool::new(false)), Err(BurnerError::NoThreads)));
    }

    /// Reads the pushed totals to the end, and calls `look` after each read.
    fn totals(mut stream: UnixStream, look: impl Fn(&[f64])) -> Vec<f64> {
        let (mut lines, mut totals) = (LineReader::new(MAX_LINE_BYTES), Vec::new());
        while lines.fill(&mut stream).unwrap() != Fill::End {
            while let Some(line) = lines.next_line() {
                let Message::Progress(progress) = Message::decode(line.unwrap()).unwrap() else {
                    panic!("another kind");
                };
                assert_eq!((progress.app.as_str(), progress.unit.as_str()), ("burner", "paths"));
                totals.push(progress.total);
            }
            look(&totals);
        }
        totals
    }

    #[test]
    fn progress_is_pushed_as_a_total_that_never_falls() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent");
        let listener = UnixListener::bind(&socket).unwrap();
        let push = Some(PushConfig { socket, app: "burner".to_owned() });
        let (config, stop) =
            (BurnerConfig { push, ..burner(Work::Compute) }, AtomicBool::new(false));
        let (report, totals) = thread::scope(|scope| {
            let burner = scope.spawn(|| run(&config, &stop));
            let stream = listener.accept().unwrap().0;
            let is_enough = |some: &[f64]| some.len() >= 3 && some.last() > Some(&0.0);
            let totals = totals(stream, |some| stop.store(is_enough(some), Ordering::Relaxed));
            (burner.join().unwrap().unwrap(), totals)
        });
        assert_eq!(totals.len() as u64, report.pushed_messages);
        assert!(totals.len() >= 3 && totals.is_sorted(), "{totals:?}");
        assert!(totals.last() > Some(&0.0), "{totals:?}");
    }
}
