//! The gauges of a machine and of its apps, one file each.
//!
//! A gauge of an app is its file, its field of `AppGauges` and its line in `APP_GAUGES`; its
//! name and how it is merged, recorded and shown are defined in `lull_measure::catalogue`.
//!
//! Each gauge keeps its last reading and returns the change since.
//! `probe` reports by which means it reads, or why it cannot read on this machine.

pub mod app_time;
pub mod cache;
pub mod counters;
pub mod energy;
pub mod events;
pub mod frequency;
pub mod idle;
pub mod memory_pressure;
pub mod pressure;
pub mod push;
pub mod queries;
pub mod query_phases;
pub mod reported;
pub mod run_queue;
pub mod traffic;
pub mod utilisation;

use crate::Roots;
use crate::apps::{AppHandle, ProcessId};
use crate::files::read_text;
use crate::threads::LiveThread;
use app_time::{AppTime, AppUse};
use cache::{CacheMonitor, CacheUse};
use counters::{AppCounters, Counted, Modes};
use lull_control::Readings;
use lull_measure::catalogue::{
    CACHE_OCCUPANCY, CONTEXT_SWITCHES, CPU, CYCLES, INSTRUCTIONS, LLC_MISSES, MEMORY_BANDWIDTH,
    MEMORY_PRESSURE, RUN_QUEUE_WAIT,
};
use lull_measure::{Gauge, Missing, Nanos};
use memory_pressure::MemoryPressure;
use std::io;
use std::path::Path;

/// The gauges of one app, with the last reading of each.
#[derive(Debug)]
pub(crate) struct AppGauges {
    time: AppTime,
    counters: Result<AppCounters, Missing>,
    cache: CacheMonitor,
    memory_pressure: MemoryPressure,
}

/// The epoch of an app that ends now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppEpoch<'a> {
    /// Its threads now.
    pub(crate) threads: &'a [LiveThread],
    /// Its processes as of a refresh at the end of the epoch, if there was one.
    pub(crate) refreshed: Option<&'a AppHandle>,
    /// The length of the epoch.
    pub(crate) span: Nanos,
    /// When processes were listed, since boot.
    pub(crate) listed: Nanos,
    /// Its resctrl group, if it has one.
    pub(crate) group: Option<&'a Path>,
    /// Whether its processes are those of a cgroup that a discovery has assigned.
    pub(crate) is_by_cgroup: bool,
    /// The CPU time of its cgroup in microseconds, if it was read: none of its tasks has run while
    /// it stays.
    pub(crate) usage_us: Option<u64>,
}

/// Reads one gauge of an app, or several from one source.
type ReadGauge = fn(&mut AppGauges, AppEpoch<'_>, &mut Readings);

/// Every gauge of an app, in the order in which they are read.
const APP_GAUGES: &[ReadGauge] = &[read_time, read_counters, read_cache, read_memory_pressure];

impl AppGauges {
    pub(crate) fn new(roots: &Roots, modes: &Result<Modes, Missing>) -> Self {
        Self {
            time: AppTime::new(roots),
            counters: modes.clone().map(|modes| AppCounters::new(roots, modes)),
            cache: CacheMonitor::default(),
            memory_pressure: MemoryPressure::new(roots),
        }
    }

    /// Reads every gauge at the end of an epoch.
    pub(crate) fn read(&mut self, epoch: AppEpoch<'_>) -> Readings {
        let mut readings = Readings::unknown(&Missing::because("the host has no such gauge"));
        for read in APP_GAUGES {
            read(self, epoch, &mut readings);
        }
        readings
    }

    /// Whether one of the app's processes ran at the last reading.
    pub(crate) fn any_alive(&self) -> bool {
        self.time.any_alive()
    }

    /// The processes of the app that ran at the last reading.
    pub(crate) fn alive(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.time.alive()
    }
}

fn read_time(gauges: &mut AppGauges, epoch: AppEpoch<'_>, into: &mut Readings) {
    let AppUse { cpu, wait, switches } = {
        let known = |pid| epoch.refreshed?.cpu_time_of(pid);
        gauges.time.read_after(epoch.threads, epoch.listed, known)
    };
    let cores = |time: Nanos| time.as_secs_f64() / epoch.span.as_secs_f64();
    into.set(CPU, cpu.map(cores));
    into.set(RUN_QUEUE_WAIT, wait.map(cores));
    into.set(CONTEXT_SWITCHES, switches.map(|count| per_s(count, epoch.span)));
}

fn read_counters(gauges: &mut AppGauges, epoch: AppEpoch<'_>, into: &mut Readings) {
    let counted = match &mut gauges.counters {
        Ok(counters) => counters.read(epoch.threads, epoch.listed),
        Err(why) => Counted::unknown(why),
    };
    let rate = |count: u64| per_s(count, epoch.span);
    into.set(INSTRUCTIONS, counted.instructions.map(rate));
    into.set(CYCLES, counted.cycles.map(rate));
    into.set(LLC_MISSES, counted.llc_misses.map(rate));
}

fn read_cache(gauges: &mut AppGauges, epoch: AppEpoch<'_>, into: &mut Readings) {
    let CacheUse { occupancy_bytes, bandwidth_bytes_per_s } =
        gauges.cache.read(epoch.group, epoch.span);
    into.set(CACHE_OCCUPANCY, occupancy_bytes);
    into.set(MEMORY_BANDWIDTH, bandwidth_bytes_per_s);
}

fn read_memory_pressure(gauges: &mut AppGauges, epoch: AppEpoch<'_>, into: &mut Readings) {
    let is_idle = into.get(CPU) == Ok(0.0);
    into.set(MEMORY_PRESSURE, gauges.memory_pressure.read(epoch, is_idle));
}

fn per_s(count: u64, span: Nanos) -> f64 {
    count as f64 / span.as_secs_f64()
}

/// A file that could not be read, as the reason why a gauge is missing.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Missing {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root to read it",
        _ => "",
    };
    Missing::because(format!("{} cannot be read: {error}{hint}", path.display()))
}

/// Returns the reason why perf may not count, with the remedy: this level, or less.
fn not_allowed(roots: &Roots, level: i8) -> String {
    let now = read_text(&roots.proc.join("sys/kernel/perf_event_paranoid"));
    let now = now.unwrap_or_else(|_| "unreadable".to_owned());
    format!(
        "perf_event_paranoid is {now}: set it to {level} or lower \
         (sysctl kernel.perf_event_paranoid={level}) or give CAP_PERFMON"
    )
}

/// Share of lost observations up to which those that are left describe the epoch.
const MAX_LOST_SHARE: f64 = 0.01;

/// Whether the counts of eBPF programs in an epoch describe it although this many were lost.
pub(crate) fn are_few(lost: u64, counted: u64) -> bool {
    lost as f64 <= MAX_LOST_SHARE * counted as f64
}

/// Checks that eBPF programs counted nearly all observations of an epoch. `what` names the
/// observations in the plural, `cause` why they are lost.
pub(crate) fn check_lost(counted: u64, lost: u64, what: &str, cause: &str) -> Gauge<()> {
    if are_few(lost, counted) {
        return Ok(());
    }
    let all = counted + lost;
    Err(Missing::because(format!("{lost} of {all} {what} were lost: {cause}")))
}

/// The first reading has nothing to be compared with.
pub(crate) fn first_reading() -> Missing {
    Missing::because("first reading: a change needs two")
}
