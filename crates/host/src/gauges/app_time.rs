//! CPU time, run-queue wait and context switches of an app.
//!
//! Nothing is lost or counted twice when threads and processes come and go:
//!
//! - CPU time of a process is that of its process clock, which keeps the time
//!   of exited threads. A child that was born and reaped between two readings
//!   shows in its parent's `cutime` (proc_pid_stat(5)); what was already
//!   counted of a reaped child is taken off.
//! - Wait and switches are sums over threads of `/proc/PID/task/TID/schedstat`,
//!   of a main thread `/proc/PID/schedstat`. A new thread counts from its birth.
//!   What a thread did between the last reading and its exit is lost: the kernel
//!   keeps it nowhere.
//!
//! A thread that is waiting now shows its wait when it gets to run.
//!
//! Of a process with one thread nothing more is read while its clock has not moved: without CPU
//! time it was not switched to, has waited for no child, and has not ended.

use super::unreadable;
use crate::Roots;
use crate::apps::ProcessId;
use crate::files::{HotFile, number, numbers};
use crate::sys::clock::process_cpu_time;
use crate::threads::LiveThread;
use lull_measure::{Gauge, Missing, Nanos};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Returns the means by which CPU time of apps is read.
///
/// # Errors
/// If the kernel keeps no scheduler statistics.
pub fn probe(roots: &Roots) -> Result<String, Missing> {
    let mut file = HotFile::new(roots.proc.join("self/schedstat"));
    let counts = read_schedstat(&mut file).map_err(|error| unreadable(file.path(), &error))?;
    // A task that reads this has been switched to at least once.
    if counts.switches == 0 {
        return Err(Missing::because(
            "the kernel keeps no run-queue statistics (CONFIG_SCHED_INFO)",
        ));
    }
    let clock = if roots.is_own_proc() { "process CPU clock" } else { "/proc/PID/stat" };
    Ok(format!("{clock}, /proc/PID/task/TID/schedstat"))
}

/// The usage of an app between two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct AppUse {
    /// CPU time.
    pub cpu: Gauge<Nanos>,
    /// Time that threads were runnable without running.
    pub wait: Gauge<Nanos>,
    /// How often a thread was switched to.
    pub switches: Gauge<u64>,
}

/// The gauge of one app.
#[derive(Debug)]
pub struct AppTime {
    roots: Roots,
    ticks_per_s: u64,
    processes: BTreeMap<i32, Process>,
    threads: BTreeMap<(i32, u64), Thread>,
    /// CPU time of vanished processes that may yet show in a parent's `cutime`.
    owed: Nanos,
    /// When the threads of the last reading were listed, since boot.
    listed: Nanos,
    round: u64,
}

#[derive(Debug)]
struct Process {
    stat: HotFile,
    last: Reading,
    /// Whether a thread of it runs, or it only waits to be waited for.
    is_alive: bool,
    /// Its threads at the last reading.
    threads: usize,
    round: u64,
}

/// Times of a process since it began.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    /// When it began; distinguishes it from a later process with the same id.
    start_ticks: u64,
    /// CPU time of its own threads, exited ones too.
    own: Nanos,
    /// CPU time of the children it has waited for.
    reaped: Nanos,
    /// Its first thread has ended; others may still run.
    is_ended: bool,
}

#[derive(Debug)]
struct Thread {
    file: HotFile,
    last: Counts,
    round: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    wait: Nanos,
    switches: u64,
}

/// The sums of one reading.
#[derive(Debug, Default)]
struct Sums {
    own: Nanos,
    reaped: Nanos,
    vanished: Nanos,
    wait: Nanos,
    switches: u64,
    no_cpu: Option<Missing>,
    no_wait: Option<Missing>,
}

impl AppTime {
    /// Creates the gauge of an app without readings.
    pub fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            ticks_per_s: rustix::param::clock_ticks_per_second(),
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            owed: Nanos::ZERO,
            listed: Nanos::MAX,
            round: 0,
        }
    }

    /// Returns the app's usage since the last call; the first call only starts the count.
    ///
    /// `live` are its threads, those of one process in sequence, of a listing made at `listed`
    /// since boot: a thread that is new in the next listing and younger than this one counts from
    /// its birth.
    pub fn read(&mut self, live: &[LiveThread], listed: Nanos) -> AppUse {
        self.read_after(live, listed, |_| None)
    }

    /// As [`AppTime::read`]; `known` are CPU times of processes that were already read at the end
    /// of this epoch.
    pub(crate) fn read_after(
        &mut self,
        live: &[LiveThread],
        listed: Nanos,
        known: impl Fn(i32) -> Option<Nanos>,
    ) -> AppUse {
        self.round += 1;
        let mut sums = Sums::default();
        for of_process in live.chunk_by(|one, next| one.pid == next.pid) {
            if self.is_idle(of_process, &known) {
                continue;
            }
            self.read_process(of_process[0].pid, of_process.len(), &mut sums);
            of_process.iter().for_each(|thread| self.read_thread(thread, &mut sums));
        }
        let late = self.late(sums.reaped, sums.vanished);
        let round = self.round;
        self.threads.retain(|_, thread| thread.round == round);
        self.listed = listed;
        let or_missing = |missing: Option<Missing>| missing.map_or(Ok(()), Err);
        let waited = or_missing(sums.no_wait);
        AppUse {
            cpu: or_missing(sums.no_cpu).map(|()| sums.own + late),
            wait: waited.clone().map(|()| sums.wait),
            switches: waited.map(|()| sums.switches),
        }
    }

    /// Whether a process of the app ran at the last reading.
    pub fn any_alive(&self) -> bool {
        self.processes.values().any(|process| process.is_alive)
    }

    /// The processes of the app that ran at the last reading.
    pub fn alive(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let running = self.processes.iter().filter(|(_, process)| process.is_alive);
        running.map(|(pid, process)| ProcessId { pid: *pid, start_ticks: process.last.start_ticks })
    }

    /// Whether a process has not run since the last reading, which then holds for this one.
    fn is_idle(&mut self, threads: &[LiveThread], known: impl Fn(i32) -> Option<Nanos>) -> bool {
        let [main] = threads else { return false };
        let Some(process) = self.processes.get_mut(&main.pid) else { return false };
        let Some(thread) = self.threads.get_mut(&(main.tid, main.start_ticks)) else {
            return false;
        };
        let Reading { start_ticks, own, is_ended, .. } = process.last;
        let was_same = process.threads == 1 && start_ticks == main.start_ticks && !is_ended;
        if !was_same || !self.roots.is_own_proc() {
            return false;
        }
        let now = known(main.pid).or_else(|| process_cpu_time(main.pid).ok());
        let is_idle = now == Some(own);
        if is_idle {
            (process.round, thread.round) = (self.round, self.round);
        }
        is_idle
    }

    fn read_process(&mut self, pid: i32, threads: usize, sums: &mut Sums) {
        let process = self.processes.entry(pid).or_insert_with(|| Process {
            stat: HotFile::new(self.roots.proc.join(format!("{pid}/stat"))),
            last: Reading::default(),
            is_alive: false,
            threads: 0,
            round: 0,
        });
        let now = match process.read(pid, self.roots.is_own_proc(), self.ticks_per_s) {
            Ok(now) => now,
            Err(error) if is_gone(&error) => return,
            Err(error) => {
                process.round = self.round;
                sums.no_cpu = Some(unreadable(process.stat.path(), &error));
                return;
            }
        };
        let last = std::mem::replace(&mut process.last, now);
        process.is_alive = !now.is_ended || threads > 1;
        process.threads = threads;
        process.round = self.round;
        let is_same = last.start_ticks == now.start_ticks;
        let from = match is_same {
            true => last,
            false if is_born_since(self.listed, self.ticks_per_s, now.start_ticks) => {
                Reading::default()
            }
            false => now,
        };
        if !is_same {
            sums.vanished += last.own + last.reaped;
        }
        sums.own += now.own.saturating_sub(from.own);
        sums.reaped += now.reaped.saturating_sub(from.reaped);
    }

    fn read_thread(&mut self, live: &LiveThread, sums: &mut Sums) {
        let is_young = is_born_since(self.listed, self.ticks_per_s, live.start_ticks);
        let mut is_new = false;
        let entry = self.threads.entry((live.tid, live.start_ticks));
        let thread = entry.or_insert_with(|| {
            is_new = true;
            Thread {
                file: HotFile::new(schedstat_of(&self.roots, live)),
                last: Counts::default(),
                round: 0,
            }
        });
        match read_schedstat(&mut thread.file) {
            Ok(now) => {
                if !is_new || is_young {
                    sums.wait += now.wait.saturating_sub(thread.last.wait);
                    sums.switches += now.switches.saturating_sub(thread.last.switches);
                }
                thread.last = now;
                thread.round = self.round;
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => sums.no_wait = Some(unreadable(thread.file.path(), &error)),
        }
    }

    /// CPU time of children that were never seen, out of all that was reaped.
    fn late(&mut self, reaped: Nanos, replaced: Nanos) -> Nanos {
        let round = self.round;
        let gone = self.processes.extract_if(.., |_, process| process.round != round);
        let gone: Nanos = gone.map(|(_, process)| process.last.own + process.last.reaped).sum();
        let vanished = gone + replaced;
        let seen = self.owed + vanished;
        // A parent may reap a child one reading after the child is seen to be
        // gone, never later than that to our knowledge: an orphan never shows.
        self.owed = seen.saturating_sub(reaped).min(vanished);
        reaped.saturating_sub(seen)
    }
}

impl Process {
    fn read(&mut self, pid: i32, own_proc: bool, ticks_per_s: u64) -> io::Result<Reading> {
        // Read first, so that events between the two reads advance the clock.
        let clock = own_proc.then(|| process_cpu_time(pid)).transpose()?;
        let mut buffer = [0; 1024];
        let content = self.stat.read_first(&mut buffer)?;
        let stat = Stat::parse(content).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "fields 14 to 22 are missing")
        })?;
        let nanos = |ticks| Nanos(ticks * (1_000_000_000 / ticks_per_s));
        Ok(Reading {
            start_ticks: stat.start,
            own: clock.unwrap_or_else(|| nanos(stat.own)),
            reaped: nanos(stat.reaped),
            is_ended: matches!(stat.state, b'Z' | b'X'),
        })
    }
}

/// Whether something that is new began after the last listing, so that all it
/// did is new.
///
/// Ticks are coarse: what began in the tick of the listing was not listed
/// then, or it would be known.
pub(crate) fn is_born_since(listed: Nanos, ticks_per_s: u64, start_ticks: u64) -> bool {
    let last_ticks = u128::from(listed.0) * u128::from(ticks_per_s) / 1_000_000_000;
    u128::from(start_ticks) >= last_ticks
}

/// The fields of a `stat` file, in clock ticks.
struct Stat {
    state: u8,
    own: u64,
    reaped: u64,
    start: u64,
}

impl Stat {
    fn parse(content: &[u8]) -> Option<Self> {
        // The name in parentheses may hold anything, spaces and parentheses too.
        let name_end = content.iter().rposition(|byte| *byte == b')')?;
        let words = content.get(name_end + 2..)?.split(|byte| *byte == b' ');
        let state = *words.clone().next()?.first()?;
        // Field 3 comes first here; 14 to 17 are utime stime cutime cstime, 22 is starttime.
        let mut fields = words.skip(11).map(number);
        let mut next = || fields.next().flatten();
        let (own, reaped) = (next()? + next()?, next()? + next()?);
        Some(Self { state, own, reaped, start: fields.nth(4)?? })
    }
}

/// The statistics of a thread. Those of a process are those of its main thread, by a shorter path.
fn schedstat_of(roots: &Roots, thread: &LiveThread) -> PathBuf {
    let LiveThread { pid, tid, .. } = thread;
    match pid == tid && roots.is_own_proc() {
        true => roots.proc.join(format!("{pid}/schedstat")),
        false => roots.proc.join(format!("{pid}/task/{tid}/schedstat")),
    }
}

/// `schedstat` holds: time on a CPU, time waiting for one, times switched to.
fn read_schedstat(file: &mut HotFile) -> io::Result<Counts> {
    let mut buffer = [0; 80];
    let mut fields = numbers(file.read_first(&mut buffer)?).skip(1);
    match (fields.next(), fields.next()) {
        (Some(wait_ns), Some(switches)) => Ok(Counts { wait: Nanos(wait_ns), switches }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "does not hold three numbers")),
    }
}

/// Whether a thread ended between listing and reading, which is not an error.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH) || error.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
mod tests;
