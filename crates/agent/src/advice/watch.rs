//! Watches a running server from outside, and changes nothing.
//!
//! eBPF programs count its queries ([`QueryPhases`]); CPU time, run-queue waits and the use of
//! the cores come from `/proc`, and are all that remains where the kernel refuses the programs.

use super::observation::{Interval, Observation, Queries, Sums};
use anyhow::{Context, bail};
use lull_host::apps::{AppHandle, ProcessTable, Target};
use lull_host::bpf::PhasesSeen;
use lull_host::gauges::app_time::AppTime;
use lull_host::gauges::query_phases::QueryPhases;
use lull_host::gauges::utilisation::Utilisation;
use lull_host::listener::Listener;
use lull_host::sys::sched::affinity_of;
use lull_host::{Roots, monotonic};
use lull_measure::{Gauge, Missing, Nanos};
use rustix::time::{ClockId, clock_gettime};
use std::thread::sleep;
use std::time::Duration;

/// Length of an interval: short, because the number of queries under way varies within tenths
/// of a second, and long enough for some dozens of answers at a thousand a second.
const INTERVAL: Duration = Duration::from_millis(50);
/// Intervals between two readings of `/proc`.
const INTERVALS_PER_READING: u64 = 20;

/// More queries under way than threads are followed.
const UNDER_WAY_MAX: f64 = 16_384.0;

/// A running server that is watched.
#[derive(Debug)]
pub struct ServerWatch {
    roots: Roots,
    app: AppHandle,
    table: ProcessTable,
    /// Its first process.
    pid: i32,
    listener: Option<Listener>,
    /// Most connections at any reading.
    connections: usize,
    phases: Gauge<QueryPhases>,
    cores: Vec<usize>,
    time: AppTime,
    utilisation: Utilisation,
}

/// Sums of the readings from `/proc` in a watch.
#[derive(Debug, Default)]
struct ProcSums {
    cpu: Nanos,
    queued: Nanos,
    /// Sum over readings of the cores in use, and how many readings there were.
    busy_cores: f64,
    readings: u32,
}

impl ServerWatch {
    /// Finds a server that runs and begins to watch it.
    ///
    /// # Errors
    /// If nothing of that name runs, or it cannot be a server.
    pub fn begin(target: &Target) -> anyhow::Result<Self> {
        let roots = Roots::default();
        let mut app = AppHandle::attach("server", target, &roots)?;
        let table = ProcessTable::new(&roots).context("cannot list processes")?;
        app.refresh(&table)?;
        let Some(first) = app.processes().next() else {
            bail!("{} has no process: is the server running?", app.place());
        };
        let cores = affinity_of(first.pid)
            .with_context(|| format!("cannot read the cores of process {}", first.pid))?;
        let cores: Vec<usize> = cores.iter().map(|core| usize::from(core.0)).collect();
        let listener = Listener::find(&roots, app.processes().map(|process| process.pid));
        let phases = match &listener {
            Some(listener) => QueryPhases::begin(&roots, listener),
            None => Err(Missing::because("it listens at no TCP port; unix sockets are not seen")),
        };
        let possible = cores.last().map_or(0, |last| last + 1);
        let utilisation = Utilisation::new(&roots, possible);
        let time = AppTime::new(&roots);
        let pid = first.pid;
        Ok(Self {
            roots,
            app,
            table,
            pid,
            listener,
            connections: 0,
            phases,
            cores,
            time,
            utilisation,
        })
    }

    /// Its first process.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Watches the server for this long.
    ///
    /// # Errors
    /// If the server ends meanwhile.
    pub fn observe(mut self, length: Nanos) -> anyhow::Result<Observation> {
        let mut proc = ProcSums::default();
        self.read_proc(&mut ProcSums::default())?;
        let begun = monotonic();
        let mut readings = vec![self.read_phases()];
        let end = begun.saturating_add(length);
        while monotonic() < end {
            for _ in 0..INTERVALS_PER_READING {
                let left = Duration::from_nanos(end.saturating_sub(monotonic()).0);
                sleep(left.min(INTERVAL));
                readings.push(self.read_phases());
                if left <= INTERVAL {
                    break;
                }
            }
            self.read_proc(&mut proc)?;
        }
        let time = monotonic().saturating_sub(begun);
        let queries = self.phases.as_ref().map_err(Clone::clone).map(|_| queries(&readings));
        Ok(Observation {
            time,
            cores: self.cores.len(),
            busy_cores: proc.busy_cores / f64::from(proc.readings.max(1)),
            server_cores: proc.cpu.as_secs_f64() / time.as_secs_f64(),
            queued_threads: proc.queued.as_secs_f64() / time.as_secs_f64(),
            connections: self.connections,
            queries,
        })
    }

    fn read_phases(&self) -> (Nanos, PhasesSeen) {
        self.phases.as_ref().map_or_else(|_| Default::default(), QueryPhases::read)
    }

    /// Adds what `/proc` reports since the last call.
    fn read_proc(&mut self, sums: &mut ProcSums) -> anyhow::Result<()> {
        let listed = clock_gettime(ClockId::Boottime);
        self.table.refresh().context("cannot list processes")?;
        self.app.refresh(&self.table)?;
        if self.app.threads().is_empty() {
            bail!("the server ended while it was watched: {} has no process", self.app.place());
        }
        let listed = Nanos(listed.tv_sec as u64 * 1_000_000_000 + listed.tv_nsec as u64);
        let used = self.time.read(self.app.threads(), listed);
        sums.cpu += used.cpu.unwrap_or(Nanos::ZERO);
        sums.queued += used.wait.unwrap_or(Nanos::ZERO);
        let open = self.listener.as_ref().map_or(0, |at| at.connections(&self.roots, self.pid));
        self.connections = self.connections.max(open);
        let shares = self.utilisation.read();
        let of_core = |core: &usize| shares.get(*core)?.as_ref().ok().copied();
        sums.busy_cores += self.cores.iter().filter_map(of_core).sum::<f64>();
        sums.readings += 1;
        Ok(())
    }
}

fn queries(readings: &[(Nanos, PhasesSeen)]) -> Queries {
    let intervals = readings.windows(2).map(|pair| interval(pair[0], pair[1]));
    // A reading within an update, whose core the host has stopped, is off by the machine's age.
    let intervals = intervals.filter(|one| one.under_way < UNDER_WAY_MAX).collect();
    let (Some((_, first)), Some((_, last))) = (readings.first(), readings.last()) else {
        return Queries::default();
    };
    let seconds = |of: fn(&PhasesSeen) -> Nanos| of(last).saturating_sub(of(first)).as_secs_f64();
    let sums = Sums {
        answered: last.answered - first.answered,
        lasted_seconds: seconds(|seen| seen.lasted),
        queued_seconds: seconds(|seen| seen.queued),
        blocked_seconds: seconds(|seen| seen.blocked),
        disk_seconds: seconds(|seen| seen.disk),
        cpu_seconds: seconds(|seen| seen.cpu),
        switches: last.switches - first.switches,
    };
    Queries { intervals, sums, displaced: last.displaced - first.displaced }
}

fn interval((from, old): (Nanos, PhasesSeen), (to, new): (Nanos, PhasesSeen)) -> Interval {
    let length = to.saturating_sub(from);
    Interval {
        seconds: length.as_secs_f64(),
        // The integral wraps, and a race may leave it a little below zero.
        under_way: (new.under_way.wrapping_sub(old.under_way) as i64).max(0) as f64
            / length.0.max(1) as f64,
        answered: new.answered - old.answered,
        cpu_seconds: new.cpu.saturating_sub(old.cpu).as_secs_f64(),
    }
}
