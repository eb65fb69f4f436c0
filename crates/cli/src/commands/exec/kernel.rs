//! Observation of a server's sockets with eBPF, for programs that a preloaded library cannot
//! observe.

use super::super::UsageError;
use super::result::{Quantiles, in_ms};
use crate::say;
use anyhow::Context;
use lull_control::LatencyObservation;
use lull_host::apps::{AppProcesses, ProcessId, ProcessTable};
use lull_host::gauges::queries::Queries;
use lull_host::{Roots, monotonic};
use lull_measure::{Gauge, Latency, Missing};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

/// How often listening sockets are searched and latencies are read.
const READING: Duration = Duration::from_secs(1);
/// The same until a listening socket is found.
const LOOKING: Duration = Duration::from_millis(100);

/// The sums of all observations while the server runs.
pub(super) struct Observed {
    name: String,
    queries: Queries,
    processes: Option<AppProcesses>,
    table: ProcessTable,
    begun: Instant,
    next: Instant,
    latency: Latency,
    /// Why there is no latency, if there is none.
    missing: Option<Missing>,
}

/// The result in its printed form.
#[derive(Debug, Serialize)]
struct ObservedResult {
    name: String,
    mode: &'static str,
    seconds: f64,
    queries: u64,
    /// Latency from reading a query to the beginning of its answer.
    latency: Quantiles,
    /// Why there is no latency at the end.
    missing: Option<String>,
}

impl Observed {
    /// Starts the observation.
    ///
    /// # Errors
    /// If the kernel does not permit it.
    pub(super) fn new(name: &str) -> anyhow::Result<Self> {
        let roots = Roots::default();
        let queries = Queries::new(&roots);
        if let Some(why) = queries.refusal() {
            return Err(UsageError(format!("its sockets cannot be watched: {why}")).into());
        }
        Ok(Self {
            name: name.to_owned(),
            queries,
            processes: None,
            table: ProcessTable::new(&roots).context("cannot list processes")?,
            begun: Instant::now(),
            next: Instant::now(),
            latency: Latency::default(),
            missing: None,
        })
    }

    /// Observes the server with this process and its descendants.
    pub(super) fn follow(&mut self, pid: u32) -> anyhow::Result<()> {
        let root = ProcessId::lookup(&Roots::default(), pid.cast_signed())?;
        self.processes = Some(AppProcesses::of_tree(root));
        Ok(())
    }

    /// Observes the server if an observation is due; returns the time of the next one.
    pub(super) fn poll(&mut self) -> Instant {
        if Instant::now() >= self.next {
            self.take_in();
            let pause = if self.missing.is_some() { LOOKING } else { READING };
            self.next = Instant::now() + pause;
        }
        self.next
    }

    fn take_in(&mut self) {
        let (processes, table) = (&mut self.processes, &mut self.table);
        let seen: Gauge<LatencyObservation> =
            self.queries.latency(|| listed(processes, table), monotonic());
        match seen {
            Ok(seen) => {
                self.latency.merge(&seen.window);
                self.missing = None;
            }
            Err(why) => self.missing = Some(why),
        }
    }

    /// Prints the result.
    pub(super) fn finish(mut self, json: bool) -> anyhow::Result<()> {
        self.take_in();
        let result = ObservedResult {
            name: self.name,
            mode: "ebpf",
            seconds: self.begun.elapsed().as_secs_f64(),
            queries: self.latency.count(),
            latency: Quantiles::of_latency(&self.latency),
            missing: self.missing.map(|why| why.to_string()),
        };
        if json {
            return crate::commands::print_json(&result);
        }
        say::line(&result);
        Ok(())
    }
}

/// Returns the server's current processes.
fn listed(processes: &mut Option<AppProcesses>, table: &mut ProcessTable) -> BTreeSet<i32> {
    let Some(processes) = processes else { return BTreeSet::new() };
    // After a failure the next observation tries again.
    if table.refresh().is_err() || processes.refresh(table).is_err() {
        return BTreeSet::new();
    }
    processes.processes().map(|process| process.pid).collect()
}

impl fmt::Display for ObservedResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seconds, queries, latency, missing, .. } = self;
        write!(out, "{name}: {queries} queries in {seconds:.1} s, seen by the kernel")?;
        if let Some(why) = missing.as_ref().filter(|_| *queries == 0) {
            return write!(out, "\n{name}: {why}");
        }
        let Quantiles { p50_seconds, p95_seconds, p99_seconds, p999_seconds } = latency;
        let [p50, p95, p99, p999] =
            [p50_seconds, p95_seconds, p99_seconds, p999_seconds].map(|it| in_ms(*it));
        write!(out, "\n  at its sockets: p50 {p50}, p95 {p95}, p99 {p99}, p99.9 {p999}")
    }
}
