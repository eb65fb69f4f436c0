//! Instructions, cycles and last-level misses of an app by `perf_event_open(2)`.
//!
//! A counter of each kind is opened on every thread that the app has when it is
//! first seen, with `inherit`: whatever those threads start is counted too and
//! stays counted after its exit, at no cost per thread. A thread started in
//! the moment between listing and opening can be missed.

use crate::Roots;
use crate::gauges::app_time::{is_born_since, is_gone};
use crate::gauges::not_allowed;
use crate::threads::LiveThread;
use lull_measure::{Gauge, Missing, Nanos};
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware};
use perf_event::{Builder, Counter};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The event that `perf` calls LLC-load-misses. The kernel's plain `cache-misses` counts the last
/// level on some processors and the first or second on others.
const LLC_MISSES: Cache =
    Cache { which: CacheId::LL, operation: CacheOp::READ, result: CacheResult::MISS };

/// The instructions that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// Instructions of the app and of the kernel on its behalf.
    UserAndKernel,
    /// Instructions of the app alone: all that `perf_event_paranoid` allows here.
    User,
}

/// Returns the means by which instructions are counted.
///
/// # Errors
/// If the kernel offers no hardware counters to this process.
pub fn probe(roots: &Roots) -> Result<String, Missing> {
    modes(roots).map(|modes| match modes {
        Modes::UserAndKernel => "perf_event, user and kernel".to_owned(),
        Modes::User => "perf_event, user only".to_owned(),
    })
}

/// The most that this process may count.
///
/// # Errors
/// As [`probe`].
pub fn modes(roots: &Roots) -> Result<Modes, Missing> {
    if !roots.is_own_proc() {
        return Err(Missing::because("a recorded tree has no hardware counters"));
    }
    let open = |modes| open(Hardware::INSTRUCTIONS, modes, 0).map(|_| modes);
    let allowed = open(Modes::UserAndKernel).or_else(|_| open(Modes::User));
    allowed.map_err(|error| refused(roots, &error))
}

fn refused(roots: &Roots, error: &io::Error) -> Missing {
    Missing::because(match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => not_allowed(roots, 2),
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "no hardware counters: the kernel knows no PMU here (usual in virtual machines)".into()
        }
        _ => format!("perf_event_open: {error}"),
    })
}

/// Processors count instructions and cycles, and by far not all of them this.
fn probe_llc(roots: &Roots, modes: Modes) -> Result<(), Missing> {
    let Err(error) = open(LLC_MISSES, modes, 0) else { return Ok(()) };
    Err(match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL) => Missing::because(
            "this processor's PMU has no event for misses of the last-level cache: \
             `perf stat -e LLC-load-misses true` says `not supported`",
        ),
        _ => refused(roots, &error),
    })
}

fn open(event: impl Event, modes: Modes, tid: i32) -> io::Result<Counter> {
    let mut builder = Builder::new(event);
    let counter = builder.observe_pid(tid).any_cpu().inherit(true).enabled(true);
    counter.exclude_kernel(modes == Modes::User).build()
}

/// The counts of an app between two calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    /// Instructions retired.
    pub instructions: Gauge<u64>,
    /// Core cycles spent.
    pub cycles: Gauge<u64>,
    /// Reads that the last-level cache could not answer.
    pub llc_misses: Gauge<u64>,
}

impl Counted {
    /// Returns counts of which every one is missing for this reason.
    pub fn unknown(why: &Missing) -> Self {
        let none = || Err(why.clone());
        Self { instructions: none(), cycles: none(), llc_misses: none() }
    }
}

/// The counters of one app, over epochs.
#[derive(Debug)]
pub struct AppCounters {
    instructions: Tally<Hardware>,
    cycles: Tally<Hardware>,
    /// The tally, or the reason why there is none, which holds in later epochs too.
    llc_misses: Result<Tally<Cache>, Missing>,
}

impl AppCounters {
    /// Creates the counters of an app without readings.
    pub fn new(roots: &Roots, modes: Modes) -> Self {
        Self {
            instructions: Tally::new(roots, Hardware::INSTRUCTIONS, modes),
            cycles: Tally::new(roots, Hardware::CPU_CYCLES, modes),
            llc_misses: probe_llc(roots, modes).map(|()| Tally::new(roots, LLC_MISSES, modes)),
        }
    }

    /// Returns the counts since the last call; `live` and `listed` as for
    /// [`AppTime::read`](super::app_time::AppTime::read).
    pub fn read(&mut self, live: &[LiveThread], listed: Nanos) -> Counted {
        Counted {
            instructions: self.instructions.read(live, listed),
            cycles: self.cycles.read(live, listed),
            llc_misses: match &mut self.llc_misses {
                Ok(tally) => tally.read(live, listed),
                Err(why) => Err(why.clone()),
            },
        }
    }
}

/// One event counted over all threads of an app.
#[derive(Debug)]
struct Tally<E> {
    roots: Roots,
    event: E,
    modes: Modes,
    counters: Vec<Tracked>,
    /// Processes that are counted, by an own counter or by inheritance.
    covered: BTreeSet<i32>,
    listed: Nanos,
}

#[derive(Debug)]
struct Tracked {
    counter: Counter,
    count: u64,
    enabled_ns: u64,
    running_ns: u64,
}

impl<E: Event + Clone> Tally<E> {
    fn new(roots: &Roots, event: E, modes: Modes) -> Self {
        let (counters, covered) = (Vec::new(), BTreeSet::new());
        Self { roots: roots.clone(), event, modes, counters, covered, listed: Nanos::MAX }
    }

    fn read(&mut self, live: &[LiveThread], listed: Nanos) -> Gauge<u64> {
        let opened = self.cover(live);
        self.listed = listed;
        let sum: Gauge<f64> = self.counters.iter_mut().map(Tracked::change).sum();
        opened.and(sum).map(|count| count.round() as u64)
    }

    /// Opens counters for the threads that are not counted yet.
    fn cover(&mut self, live: &[LiveThread]) -> Result<(), Missing> {
        let alive: BTreeMap<i32, u64> =
            live.iter().rev().map(|at| (at.pid, at.start_ticks)).collect();
        self.covered.retain(|pid| alive.contains_key(pid));
        if self.covered.is_empty() {
            // The app has begun or was restarted.
            self.counters.clear();
        }
        let known: BTreeSet<_> = self.covered.clone();
        for (pid, start_ticks) in alive {
            if known.contains(&pid) || self.is_inherited(&known, pid, start_ticks) {
                self.covered.insert(pid);
                continue;
            }
            for thread in live.iter().filter(|thread| thread.pid == pid) {
                self.open(thread)?;
            }
            self.covered.insert(pid);
        }
        Ok(())
    }

    /// Returns whether a new process was started by a thread that is counted.
    ///
    /// That is so if its parent is counted. Because the parent may have exited, it is also
    /// so if the process began after the last listing.
    fn is_inherited(&self, known: &BTreeSet<i32>, pid: i32, start_ticks: u64) -> bool {
        let ticks_per_s = rustix::param::clock_ticks_per_second();
        let is_young = is_born_since(self.listed, ticks_per_s, start_ticks);
        let has_counted_parent =
            || parent(&self.roots, pid).is_some_and(|parent| self.covered.contains(&parent));
        !known.is_empty() && (is_young || has_counted_parent())
    }

    fn open(&mut self, thread: &LiveThread) -> Result<(), Missing> {
        match open(self.event.clone(), self.modes, thread.tid) {
            Ok(counter) => {
                let fresh = Tracked { counter, count: 0, enabled_ns: 0, running_ns: 0 };
                self.counters.push(fresh);
                Ok(())
            }
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(refused(&self.roots, &error)),
        }
    }
}

impl Tracked {
    /// Events since the last call. Where counters take turns on the PMU, the
    /// count is scaled up to the whole time.
    fn change(&mut self) -> Gauge<f64> {
        let now = self.counter.read_count_and_time();
        let now = now.map_err(|error| Missing::because(format!("perf_event: {error}")))?;
        let count = now.count.saturating_sub(self.count);
        let enabled_ns = now.time_enabled.saturating_sub(self.enabled_ns);
        let running_ns = now.time_running.saturating_sub(self.running_ns);
        (self.count, self.enabled_ns, self.running_ns) =
            (now.count, now.time_enabled, now.time_running);
        match (running_ns, enabled_ns) {
            (0, 0) => Ok(count as f64),
            (0, _) => Err(Missing::because(
                "the PMU had no free counter in the epoch: stop other profilers",
            )),
            (running_ns, _) => Ok(count as f64 * (enabled_ns as f64 / running_ns as f64)),
        }
    }
}

fn parent(roots: &Roots, pid: i32) -> Option<i32> {
    let stat = std::fs::read(roots.proc.join(format!("{pid}/stat"))).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let ppid = stat.get(name_end + 2..)?.split(|byte| *byte == b' ').nth(1)?;
    crate::files::number(ppid)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use std::sync::mpsc::channel;

    fn me() -> LiveThread {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        LiveThread { pid: std::process::id().cast_signed(), tid, start_ticks: 1 }
    }

    /// The kernel counts task clock without a PMU: the same code on a real counter.
    fn task_clock() -> Option<Tally<Software>> {
        let mut tally = Tally::new(&Roots::default(), Software::TASK_CLOCK, Modes::User);
        if let Err(error) = tally.read(&[me()], Nanos::from_secs(1)) {
            // Some containers forbid the system call altogether.
            lull_testing::skip(&format!("no task clock: {error}"));
            return None;
        }
        Some(tally)
    }

    fn spin() {
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 20 {
            std::hint::black_box(begin);
        }
    }

    #[test]
    fn threads_started_later_are_counted_and_stay_counted_after_their_exit() {
        let Some(mut tally) = task_clock() else { return };
        let of_thread = |work: fn()| {
            std::thread::spawn(move || {
                work();
                rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)
            })
        };
        let used = of_thread(spin).join().unwrap();
        let counted = tally.read(&[me()], Nanos::from_secs(2)).unwrap();
        assert!(counted > used.tv_nsec.cast_unsigned() / 2, "{counted} of {used:?}");
        assert_eq!(tally.counters.len(), 1, "inherited, not opened");
    }

    #[test]
    fn a_thread_that_is_not_listed_is_not_counted() {
        let Some(mut with) = task_clock() else { return };
        let (go, wait) = channel::<()>();
        let other = std::thread::spawn(move || {
            let _ = wait.recv();
            spin();
            rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)
        });
        // Opened after the other thread began, which is therefore not inherited.
        let mut without = Tally::new(&Roots::default(), Software::TASK_CLOCK, Modes::User);
        without.read(&[me()], Nanos::from_secs(1)).unwrap();
        drop(go);
        let used = other.join().unwrap().tv_nsec.cast_unsigned();
        let with = with.read(&[me()], Nanos::from_secs(2)).unwrap();
        let without = without.read(&[me()], Nanos::from_secs(2)).unwrap();
        assert!(with > without + used / 2, "{with} with the thread, {without} without, {used}");
    }

    #[test]
    fn an_app_that_restarts_is_counted_from_zero() {
        let Some(mut tally) = task_clock() else { return };
        assert_eq!(tally.read(&[], Nanos::from_secs(2)), Ok(0));
        assert!(tally.counters.is_empty());
        tally.read(&[me()], Nanos::from_secs(3)).unwrap();
        assert_eq!(tally.counters.len(), 1);
    }

    #[test]
    fn this_machine_counts_or_says_why_not() {
        let roots = Roots::default();
        match modes(&roots) {
            Ok(modes) => {
                let mut counters = AppCounters::new(&roots, modes);
                counters.read(&[me()], Nanos::from_secs(1)).instructions.unwrap();
                spin();
                let counted = counters.read(&[me()], Nanos::from_secs(2));
                assert!(counted.instructions.unwrap() > 0 && counted.cycles.unwrap() > 0);
                let why = counted.llc_misses.err().map(|why| why.reason);
                assert!(why.is_none_or(|why| why.contains("LLC-load-misses")));
            }
            Err(why) => assert!(!why.reason.is_empty()),
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = |code| {
            let error = io::Error::from_raw_os_error(code);
            refused(&Roots::default(), &error).reason
        };
        assert!(refused(libc::EACCES).contains("CAP_PERFMON"));
        assert!(refused(libc::ENOENT).contains("no PMU"));
        assert!(refused(libc::ENOSYS).contains("perf_event_open"));
    }
}
