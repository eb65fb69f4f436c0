//! The times of servers: CPU time of their processes, and the time that their threads wait for a
//! core.
//!
//! An admission controller notices by them that the load behind a limit has changed. Readings are
//! a second apart, because a server may have hundreds of threads, each with a file
//! (`/proc/PID/task/TID/schedstat`): a reading of 512 threads takes a few milliseconds.
//!
//! PostgreSQL has a process for each connection. One that began since the last reading counts
//! whole; what a process used between its last reading and its end is not known.

use super::Runtime;
use crate::apps::ProcessId;
use crate::clock;
use crate::sys::clock::process_cpu_time;
use crate::{Roots, monotonic};
use lull_control::admission::ServerTimes;
use lull_measure::{Gauge, Missing, Nanos};
use std::collections::{BTreeMap, BTreeSet};

/// Time between two readings, at least.
const EVERY: Nanos = Nanos::from_secs(1);

/// Reads what the servers of a page use.
#[derive(Debug)]
pub struct ServerClock {
    roots: Roots,
    last: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    at: Nanos,
    /// The same instant in clock ticks since boot.
    boot_ticks: u64,
    processes: BTreeMap<ProcessId, Used>,
}

/// The resources that a process has used since it began.
#[derive(Debug, Default)]
struct Used {
    cpu: Nanos,
    /// Run-queue wait of each thread.
    waits: BTreeMap<i32, Nanos>,
}

impl ServerClock {
    /// A clock that has read nothing yet.
    pub fn new(roots: &Roots) -> Self {
        Self { roots: roots.clone(), last: None }
    }

    /// Returns what the servers of a page used since the last reading.
    ///
    /// # Errors
    /// Within a second of the last reading, and at the first one.
    pub fn read(&mut self, runtime: &Runtime) -> Gauge<ServerTimes> {
        let is_early = |last: &Reading| monotonic().saturating_sub(last.at) < EVERY;
        if self.last.as_ref().is_some_and(is_early) {
            return Err(Missing::because("the times of a server are read once a second"));
        }
        let processes = runtime.processes(&self.roots);
        self.read_processes(&processes, monotonic())
    }

    fn read_processes(&mut self, processes: &[ProcessId], at: Nanos) -> Gauge<ServerTimes> {
        let boot_ticks = clock::boot_ticks();
        let mut all: BTreeSet<ProcessId> = processes.iter().copied().collect();
        // A server stays known while no connection is open.
        let known = self.last.iter().flat_map(|last| last.processes.keys());
        let is_idle = |it: &&ProcessId| !processes.contains(it) && it.facts(&self.roots).is_some();
        all.extend(known.filter(is_idle));
        let used = |process: ProcessId| Some((process, Used::read(&self.roots, process.pid)?));
        let processes = all.into_iter().filter_map(used).collect();
        let now = Reading { at, boot_ticks, processes };
        let times = self.last.as_ref().map(|last| now.since(last));
        self.last = Some(now);
        times.ok_or_else(|| Missing::because("the times of a server were read for the first time"))
    }
}

impl Reading {
    fn since(&self, last: &Self) -> ServerTimes {
        let span = self.at.saturating_sub(last.at);
        let mut times = ServerTimes { span, cpu: Nanos::ZERO, run_queue: Nanos::ZERO };
        let nothing = Used::default();
        for (process, now) in &self.processes {
            let is_new = process.start_ticks >= last.boot_ticks;
            let before = last.processes.get(process).or(is_new.then_some(&nothing));
            // The use of an older process in the span is unknown when it is first read.
            let Some(before) = before else { continue };
            times.cpu += now.cpu.saturating_sub(before.cpu);
            times.run_queue += now.waited_since(before, span);
        }
        times
    }
}

impl Used {
    /// Returns `None` for a process that has ended since it was listed.
    fn read(roots: &Roots, pid: i32) -> Option<Self> {
        let cpu = process_cpu_time(pid).ok()?;
        Some(Self { cpu, waits: waits(roots, pid) })
    }

    /// Returns the run-queue wait since another reading, which was this long ago. A thread that it
    /// lacks has begun since, or could not be read then: it has waited for that long at most.
    fn waited_since(&self, before: &Self, span: Nanos) -> Nanos {
        let of_thread = |(thread, now): (&i32, &Nanos)| match before.waits.get(thread) {
            Some(then) => now.saturating_sub(*then),
            None => span.min(*now),
        };
        self.waits.iter().map(of_thread).sum()
    }
}

/// Returns the run-queue wait of each thread of a process. A thread that ends meanwhile, and
/// all threads where the kernel keeps no such statistics, are left out.
fn waits(roots: &Roots, pid: i32) -> BTreeMap<i32, Nanos> {
    let threads = roots.proc.join(format!("{pid}/task"));
    let entries = std::fs::read_dir(threads).into_iter().flatten().flatten();
    let of_thread = |entry: std::fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
        let wait = text.split_whitespace().nth(1)?.parse().ok()?;
        Some((thread, Nanos(wait)))
    };
    entries.filter_map(of_thread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use std::process::Command;

    fn own() -> ProcessId {
        ProcessId::lookup(&Roots::default(), std::process::id().cast_signed()).unwrap()
    }

    #[test]
    fn the_cpu_time_of_a_process_is_that_since_the_last_reading() {
        let mut clock = ServerClock::new(&Roots::default());
        assert!(clock.read_processes(&[own()], Nanos::from_secs(1)).is_err(), "the first");
        let before = process_cpu_time(own().pid).unwrap();
        while process_cpu_time(own().pid).unwrap() < before + Nanos::from_millis(20) {}
        let times = clock.read_processes(&[own()], Nanos::from_secs(3)).unwrap();
        assert!(times.cpu >= Nanos::from_millis(20), "{times:?}");
        assert_eq!(times.span, Nanos::from_secs(2));
        let before = process_cpu_time(own().pid).unwrap();
        while process_cpu_time(own().pid).unwrap() < before + Nanos::from_millis(20) {}
        let idle = clock.read_processes(&[], Nanos::from_secs(4)).unwrap();
        assert!(idle.cpu >= Nanos::from_millis(20), "no connection is open: {idle:?}");
    }

    #[test]
    fn the_cpu_time_of_a_process_counts_from_its_begin_if_it_began_since_the_last_reading() {
        let mut clock = ServerClock::new(&Roots::default());
        assert!(clock.read_processes(&[], Nanos::from_secs(1)).is_err(), "the first");
        let loops = "i=0; while [ $i -lt 9999999 ]; do i=$((i + 1)); done";
        let mut busy = Command::new("sh").args(["-c", loops]).spawn().unwrap();
        let pid = busy.id().cast_signed();
        let process = ProcessId::lookup(&Roots::default(), pid).unwrap();
        while process_cpu_time(pid).unwrap() < Nanos::from_millis(20) {
            std::thread::yield_now();
        }
        let new = clock.read_processes(&[process], Nanos::from_secs(2)).unwrap();
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(new.cpu >= Nanos::from_millis(20), "{new:?}");
        // This process is older than the last reading, which does not have it.
        let old = clock.read_processes(&[own()], Nanos::from_secs(3)).unwrap();
        assert_eq!(old.cpu, Nanos::ZERO);
    }

    #[test]
    fn the_run_queue_is_that_of_all_threads_since_the_last_reading() {
        let tree = Tree::new();
        let write = |thread: i32, wait: u64| {
            tree.write(&format!("proc/5/task/{thread}/schedstat"), &format!("7 {wait} 9\n"));
        };
        write(5, 100);
        write(6, 1000);
        let used = || Used { cpu: Nanos::ZERO, waits: waits(&tree.roots(), 5) };
        let first = used();
        write(5, 150);
        write(7, 4000);
        let waited = |span| used().waited_since(&first, Nanos(span));
        assert_eq!(waited(9000), Nanos(4050), "6 stood still, 7 is new");
        assert_eq!(waited(1000), Nanos(1050), "7 is older than the first reading, which lacks it");
        assert!(waits(&tree.roots(), 8).is_empty());
    }
}
