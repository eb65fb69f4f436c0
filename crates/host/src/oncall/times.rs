//! What servers use: CPU time of their processes, and the time that their threads wait for a core.
//!
//! An admission controller notices by them that the load behind a limit has changed. Readings are
//! a second apart, because a server may have hundreds of threads, each with a file
//! (`/proc/PID/task/TID/schedstat`): a reading of 512 threads takes a few milliseconds.

use super::Runtime;
use crate::apps::ProcessId;
use crate::sys::clock::process_cpu_time;
use crate::{Roots, monotonic};
use lull_control::admission::ServerTimes;
use lull_measure::{Gauge, Missing, Nanos};
use std::collections::BTreeMap;

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
    /// CPU time of each process since it began.
    cpu: BTreeMap<(i32, u64), Nanos>,
    /// Run-queue wait of each thread since it began.
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
        // A process that has ended since it was listed has no clock.
        let cpu = processes.iter().filter_map(|process| {
            let used = process_cpu_time(process.pid).ok()?;
            Some(((process.pid, process.start_ticks), used))
        });
        let waits = processes.iter().flat_map(|process| waits(&self.roots, process.pid));
        let now = Reading { at, cpu: cpu.collect(), waits: waits.collect() };
        let times = self.last.as_ref().map(|last| now.since(last));
        self.last = Some(now);
        times.ok_or_else(|| Missing::because("the times of a server were read for the first time"))
    }
}

impl Reading {
    fn since(&self, last: &Self) -> ServerTimes {
        ServerTimes {
            span: self.at.saturating_sub(last.at),
            cpu: grown(&self.cpu, &last.cpu),
            run_queue: grown(&self.waits, &last.waits),
        }
    }
}

/// Returns by how much the sum of times has grown of those that both readings have.
fn grown<K: Ord>(now: &BTreeMap<K, Nanos>, last: &BTreeMap<K, Nanos>) -> Nanos {
    let both = now.iter().filter_map(|(key, now)| Some(now.saturating_sub(*last.get(key)?)));
    both.sum()
}

/// Returns the run-queue wait of each thread of a process. A thread that ends meanwhile, and
/// all threads where the kernel keeps no such statistics, are left out.
fn waits(roots: &Roots, pid: i32) -> Vec<(i32, Nanos)> {
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
        let gone = clock.read_processes(&[], Nanos::from_secs(4)).unwrap();
        assert_eq!((gone.cpu, gone.run_queue), (Nanos::ZERO, Nanos::ZERO));
    }

    #[test]
    fn the_run_queue_is_that_of_threads_that_both_readings_have() {
        let tree = Tree::new();
        let write = |thread: i32, wait: u64| {
            tree.write(&format!("proc/5/task/{thread}/schedstat"), &format!("7 {wait} 9\n"));
        };
        write(5, 100);
        write(6, 1000);
        let first: BTreeMap<i32, Nanos> = waits(&tree.roots(), 5).into_iter().collect();
        write(5, 150);
        write(7, 4000);
        let second = waits(&tree.roots(), 5).into_iter().collect();
        assert_eq!(grown(&second, &first), Nanos(50), "of 5; 6 stood still, 7 is new");
        assert_eq!(waits(&tree.roots(), 8), []);
    }
}
