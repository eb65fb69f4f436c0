//! Every metric, described once.
//!
//! Help text, JSON keys, Prometheus names and `docs/metrics.md` are derived from [`ALL`]; nothing
//! else in Lull spells a metric's name, unit or meaning.
//!
//! A row is a gauge unless it ends with `Counter`. A gauge is read as [`Sample`]s, one per label
//! set: `control` turns an observation into samples, and a test there fails if one of [`gauges`]
//! is never produced. A gauge that a plant reads of an app as it is ends with a [`Merging`], and
//! its row alone decides how it is stored, merged, recorded and shown. Counters are in `/metrics`
//! only, beside the [`histogram`] of latency.

pub mod histogram;

use crate::{Gauge, SharedText};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A metric's unit; the suffix of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Joules.
    Joules,
    /// Watts.
    Watts,
    /// Hertz.
    Hertz,
    /// A share or ratio without unit.
    Ratio,
    /// Events per second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// A number of things.
    Count,
}

impl Unit {
    /// How the unit ends a name; a plain count has no suffix.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Seconds => "_seconds",
            Self::Joules => "_joules",
            Self::Watts => "_watts",
            Self::Hertz => "_hertz",
            Self::Ratio => "_ratio",
            Self::PerSecond => "_per_second",
            Self::Bytes => "_bytes",
            Self::BytesPerSecond => "_bytes_per_second",
            Self::Count => "",
        }
    }
}

/// The object that a metric is measured on; its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The whole machine: no label.
    Machine,
    /// One app: label `app`.
    App,
    /// One core: label `core`.
    Core,
    /// One class of clients of an app: labels `app` and `client_class`. The label of a sample is
    /// `APP/CLASS`, since no app's name has a slash.
    ClientClass,
    /// One account of a server, a user with a database: labels `app` and `client_account`. The
    /// label of a sample is `APP/USER@DATABASE`.
    ClientAccount,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 5] =
        [Self::Machine, Self::App, Self::Core, Self::ClientClass, Self::ClientAccount];

    /// Returns its name in one word: `app`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::App => "app",
            Self::Core => "core",
            Self::ClientClass => "client_class",
            Self::ClientAccount => "client_account",
        }
    }

    /// The names of its labels.
    pub const fn label_names(self) -> &'static [&'static str] {
        match self {
            Self::Machine => &[],
            Self::App => &["app"],
            Self::Core => &["core"],
            Self::ClientClass => &["app", "client_class"],
            Self::ClientAccount => &["app", "client_account"],
        }
    }

    /// The labels of a sample: names and values.
    pub fn labels(self, label: &str) -> impl Iterator<Item = (&'static str, &str)> {
        let parts = label.splitn(self.label_names().len().max(1), '/');
        self.label_names().iter().copied().zip(parts)
    }
}

/// How the values of several epochs become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merging {
    /// Their mean, weighted by the lengths of the epochs.
    Mean,
    /// The value of the last epoch.
    Last,
}

/// The kind of a metric's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Of one epoch. How those of several epochs become one, for metrics that a plant reads of an
    /// app as they are; `None` for metrics that are derived, or read together with others.
    Gauge(Option<Merging>),
    /// Counted since the agent started.
    Counter,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its place in [`ALL`], by which it is found without a comparison of names.
    pub place: u16,
    /// Name without unit, in snake case.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The object that it is measured on.
    pub scope: Scope,
    /// One sentence of help.
    pub help: &'static str,
    /// The source of the value: kernel file, formula, client; for a counter, the summed values.
    pub source: &'static str,
    /// The kind of its values.
    pub kind: Kind,
}

impl Metric {
    /// The key in JSON output: `tail_latency_seconds`.
    pub fn json_key(&self) -> String {
        format!("{}{}", self.name, self.unit.suffix())
    }

    /// The name of its family in OpenMetrics: `lull_late_requests`.
    pub fn family(&self) -> String {
        format!("lull_{}{}", self.name, self.unit.suffix())
    }

    /// The name for Prometheus: `lull_tail_latency_seconds`, `lull_late_requests_total`.
    pub fn prometheus_name(&self) -> String {
        match self.kind {
            Kind::Gauge(_) => self.family(),
            Kind::Counter => format!("{}_total", self.family()),
        }
    }

    /// How its values of several epochs become one, if a plant reads it of an app as it is.
    pub const fn merging(&self) -> Option<Merging> {
        match self.kind {
            Kind::Gauge(merging) => merging,
            Kind::Counter => None,
        }
    }
}

impl Serialize for Metric {
    /// A metric is written as its JSON key wherever one is referred to.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.json_key())
    }
}

impl<'de> Deserialize<'de> for &'static Metric {
    /// The gauge with this JSON key; counters have none.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let key = String::deserialize(from)?;
        let known = gauges().find(|metric| metric.json_key() == key);
        known.ok_or_else(|| D::Error::custom(format!("there is no metric `{key}`")))
    }
}

/// One value of one metric.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The metric.
    pub metric: &'static Metric,
    /// The app's name, the core's number, or both names of a class of clients
    /// ([`Scope::ClientClass`]); empty for the machine.
    pub label: SharedText,
    /// The value in the metric's unit, or why there is none.
    pub value: Gauge<f64>,
}

/// The kind of a row: a gauge that is derived, a gauge that states its merging, or a counter.
macro_rules! kind {
    () => {
        Kind::Gauge(None)
    };
    (Counter) => {
        Kind::Counter
    };
    ($merging:ident) => {
        Kind::Gauge(Some(Merging::$merging))
    };
}

/// Declares each metric as a constant, and lists all of them.
macro_rules! metrics {
    ($(
        $name:ident = $text:literal, $unit:ident, $scope:ident,
        $help:literal, $source:literal $(, $kind:ident)?;
    )*) => {
        /// Every row, by which the compiler numbers them.
        #[allow(
            non_camel_case_types,
            clippy::upper_case_acronyms,
            reason = "they have the names of the constants"
        )]
        enum Row { $($name),* }

        $(
            #[doc = $help]
            pub const $name: &Metric = &Metric {
                place: Row::$name as u16,
                name: $text,
                unit: Unit::$unit,
                scope: Scope::$scope,
                help: $help,
                source: $source,
                kind: kind!($($kind)?),
            };
        )*

        /// Every metric there is, in the order of the docs: gauges, then counters.
        pub const ALL: &[&Metric] = &[$($name),*];
    };
}

/// Returns every gauge, in the order of the docs.
pub fn gauges() -> impl Iterator<Item = &'static Metric> {
    ALL.iter().copied().filter(|metric| matches!(metric.kind, Kind::Gauge(_)))
}

/// Returns every counter, in the order of the docs.
pub fn counters() -> impl Iterator<Item = &'static Metric> {
    ALL.iter().copied().filter(|metric| metric.kind == Kind::Counter)
}

metrics! {
    TAIL_LATENCY = "tail_latency", Seconds, App,
        "Latency at the percentile of the app's first tail objective.",
        "the app's latency source (client push)";
    TAIL_BOUND = "tail_bound", Seconds, App,
        "Bound of the app's first tail objective.", "config";
    TAIL_OBJECTIVE = "tail_objective", Ratio, App,
        "Share of requests that may not be later than the bound: 0.95 of an objective p95.",
        "config";
    TAIL_RESOLUTION = "tail_resolution", Seconds, App,
        "Width of the range in which the tail latency lies, where the latency source reports \
         buckets.",
        "the bucket of an OTLP histogram";
    LATENCY_P50 = "latency_p50", Seconds, App,
        "Median latency.", "the app's latency source (client push)";
    LATENCY_P95 = "latency_p95", Seconds, App,
        "95th percentile of latency.", "the app's latency source (client push)";
    LATENCY_P99 = "latency_p99", Seconds, App,
        "99th percentile of latency.", "the app's latency source (client push)";
    LATENCY_P999 = "latency_p999", Seconds, App,
        "99.9th percentile of latency.", "the app's latency source (client push)";
    LATENCY_MEAN = "latency_mean", Seconds, App,
        "Mean latency.", "the app's latency source (client push)";
    OFFERED = "offered_requests", PerSecond, App,
        "Requests that were due, whether or not they were answered.",
        "the app's latency source (client push)";
    COMPLETED = "completed_requests", PerSecond, App,
        "Requests answered.", "the app's latency source (client push)";
    OUTSTANDING = "outstanding_requests", Count, App,
        "Requests sent and not answered at the end of the epoch.",
        "the app's latency source (client push)";
    SLACK = "slack", Ratio, App,
        "(bound - measured)/bound of the first tail objective; negative where it is missed.",
        "derived";
    TOLERANCE = "tolerance", Ratio, App,
        "A = 1 - ideal/bound: the slow-down the bound leaves room for.", "Ah-Q eq. 11";
    INTERFERENCE = "interference", Ratio, App,
        "R = 1 - ideal/measured: the slow-down suffered.", "Ah-Q eq. 12";
    REMAINING_TOLERANCE = "remaining_tolerance", Ratio, App,
        "ReT: the room left before the bound.", "Ah-Q eq. 13";
    UNTOLERATED = "untolerated_interference", Ratio, App,
        "Q: the slow-down beyond the bound.", "Ah-Q eq. 14";
    PROGRESS = "progress", PerSecond, App,
        "Work done by a best-effort app, in its own unit.",
        "push, instructions retired, or CPU time; the record says which";
    CPU = "cpu", Ratio, App,
        "CPU time used, in cores.",
        "the process CPU clock; /proc/PID/stat for reaped children", Mean;
    RUN_QUEUE_WAIT = "run_queue_wait", Ratio, App,
        "Time its threads were runnable but not running, in cores.",
        "/proc/PID/task/TID/schedstat", Mean;
    RUN_QUEUE_P99 = "run_queue_p99", Seconds, App,
        "99th percentile of the time for which its runnable threads wait for a core; where an app \
         has an objective of run-queue latency.",
        "eBPF at sched_switch", Last;
    RUN_QUEUE_THROTTLED = "run_queue_throttled", Ratio, App,
        "Time for which its threads could run and the quota of their cgroup (`cpu.max`) kept them \
         off, in cores; no part of `run_queue_p99`. Where an app has an objective of run-queue \
         latency, as the following.",
        "eBPF at sched_switch, `throttled_clock_pelt_time` of the run queue", Mean;
    RUN_QUEUE_BEHIND_OWN = "run_queue_behind_own", Ratio, App,
        "Time for which its threads waited while other threads of it had their core, in cores.",
        "eBPF at sched_switch", Mean;
    RUN_QUEUE_BEHIND_APPS = "run_queue_behind_apps", Ratio, App,
        "Time for which its threads waited while threads of other apps had their core, in cores.",
        "eBPF at sched_switch", Mean;
    RUN_QUEUE_BEHIND_OTHERS = "run_queue_behind_others", Ratio, App,
        "Time for which its threads waited while threads of no app, such as the kernel's, had \
         their core, in cores.",
        "eBPF at sched_switch", Mean;
    CONTEXT_SWITCHES = "context_switches", PerSecond, App,
        "Context switches of its threads.", "/proc/PID/task/TID/schedstat", Mean;
    INSTRUCTIONS = "instructions", PerSecond, App,
        "Instructions retired.", "perf_event", Mean;
    CYCLES = "cycles", PerSecond, App,
        "Core cycles spent.", "perf_event", Mean;
    LLC_MISSES = "llc_misses", PerSecond, App,
        "Reads that the last-level cache could not answer.", "perf_event LLC-load-misses", Mean;
    INSTRUCTIONS_PER_REQUEST = "instructions_per_request", Count, App,
        "Instructions retired over requests answered in the epoch (IPQ).",
        "derived from `instructions` and `completed_requests`";
    CPU_PER_REQUEST = "cpu_per_request", Seconds, App,
        "CPU time used over requests answered in the epoch.",
        "derived from `cpu` and `completed_requests`";
    CACHE_OCCUPANCY = "cache_occupancy", Bytes, App,
        "Last-level cache that the app fills now, all sockets together.",
        "resctrl llc_occupancy of the app's group", Last;
    MEMORY_BANDWIDTH = "memory_bandwidth", BytesPerSecond, App,
        "Bytes between cache and memory on the app's behalf.",
        "resctrl mbm_total_bytes of the app's group", Mean;
    MEMORY_PRESSURE = "memory_pressure", Ratio, App,
        "Share of the epoch in which some task of the app's cgroup waited for memory.",
        "memory.pressure of its cgroup (PSI)", Mean;
    THREADS = "threads", Count, App,
        "Threads alive at the end of the epoch.", "/proc/PID/task";
    PRESENT = "present", Count, App,
        "1 if a process of the app runs at the end of the epoch, else 0.", "/proc/PID/stat";
    APP_CORES = "app_cores", Count, App,
        "Cores the app may run on.", "the knob's state";
    APP_WAYS = "app_cache_ways", Count, App,
        "Ways of the last-level cache that the app may fill.", "the knob's state";
    APP_BANDWIDTH = "app_memory_bandwidth_share", Ratio, App,
        "Share of the peak memory bandwidth that the app may use.", "the knob's state";
    CLIENT_CONNECTIONS = "client_connections", Count, ClientClass,
        "Connections of the class's clients at the end of the epoch.",
        "the page of the on-call runtime";
    CLIENT_UNDER_WAY = "client_under_way", Count, ClientClass,
        "Connections of the class that run a query or have a transaction open.",
        "the page of the on-call runtime";
    CLIENT_WAITING = "client_waiting", Count, ClientClass,
        "Connections of the class that wait for a slot at the gate.",
        "the page of the on-call runtime";
    CLIENT_TURNS = "client_turns", PerSecond, ClientClass,
        "Turns that the class began at the gate.", "the page of the on-call runtime";
    CLIENT_WAIT_P50 = "client_wait_p50", Seconds, ClientClass,
        "Median wait at the gate of the class's turns that waited.",
        "the page of the on-call runtime";
    CLIENT_WAIT_P99 = "client_wait_p99", Seconds, ClientClass,
        "99th percentile of the wait at the gate of the class's turns that waited.",
        "the page of the on-call runtime";
    ACCOUNT_WAIT_P50 = "account_wait_p50", Seconds, ClientAccount,
        "Median wait at the gate of the account's turns that waited.",
        "the page of the on-call runtime";
    ACCOUNT_WAIT_P99 = "account_wait_p99", Seconds, ClientAccount,
        "99th percentile of the wait at the gate of the account's turns that waited.",
        "the page of the on-call runtime";
    CORE_UTILISATION = "core_utilisation", Ratio, Core,
        "Share of the epoch the core was not idle.", "/proc/stat";
    CORE_IDLE_RESIDENCY = "core_idle_residency", Ratio, Core,
        "Share of the epoch spent in idle states, all states together.",
        "cpuidle/state*/time";
    CORE_DEEP_IDLE_RESIDENCY = "core_deep_idle_residency", Ratio, Core,
        "Share of the epoch spent in the deepest idle state that the core has.",
        "cpuidle/stateN/time of the last state";
    CORE_C6_OPPORTUNITY = "core_c6_opportunity", Ratio, Core,
        "Share of the core's time in sleeps longer than the break-even of its deepest idle state.",
        "eBPF at cpu_idle, REEF eq. 2";
    CORE_FREQUENCY = "core_frequency", Hertz, Core,
        "Core frequency.", "cpufreq/cpuinfo_avg_freq, else cpufreq/scaling_cur_freq";
    ENTROPY_SYSTEM = "entropy_system", Ratio, Machine,
        "E_S: how much co-location hurts, 0 best, 1 worst.", "Ah-Q eq. 17";
    ENTROPY_LC = "entropy_lc", Ratio, Machine,
        "E_LC: mean untolerated interference of latency-critical apps.", "Ah-Q eq. 15";
    ENTROPY_BE = "entropy_be", Ratio, Machine,
        "E_BE: one minus the harmonic mean of best-effort progress.", "Ah-Q eq. 16";
    POWER = "power", Watts, Machine,
        "Mean power.",
        "RAPL (powercap, else perf), else a power meter, else a stated model; \
         the record says which";
    ENERGY = "energy", Joules, Machine,
        "Energy of the epoch.",
        "RAPL (powercap, else perf), else a power meter, else a stated model; \
         the record says which";
    ENERGY_PER_REQUEST = "energy_per_request", Joules, Machine,
        "Energy over all requests completed in the epoch.", "derived";
    CPU_PRESSURE = "cpu_pressure", Ratio, Machine,
        "Share of the epoch in which some task waited for a CPU.", "/proc/pressure/cpu";
    INTERRUPTS = "interrupts", PerSecond, Machine,
        "Interrupts of all cores and devices.", "/proc/stat";
    PACKETS = "packets", PerSecond, Machine,
        "Packets received and sent by all network hardware.",
        "/sys/class/net/*/statistics";
    C6_OPPORTUNITY = "c6_opportunity", Ratio, Machine,
        "Share of the time of all cores in sleeps longer than the break-even of their deepest idle \
         state.",
        "eBPF at cpu_idle, REEF eq. 2";
    IDLE_GAP_P50 = "idle_gap_p50", Seconds, Machine,
        "Median time that a core sleeps before something wakes it.", "eBPF at cpu_idle";
    IDLE_GAP_P95 = "idle_gap_p95", Seconds, Machine,
        "95th percentile of the time that a core sleeps at a time.", "eBPF at cpu_idle";
    IDLE_GAP_P99 = "idle_gap_p99", Seconds, Machine,
        "99th percentile of the time that a core sleeps at a time.", "eBPF at cpu_idle";
    RUN_QUEUE_LATENCY_P50 = "run_queue_latency_p50", Seconds, Machine,
        "Median time for which a runnable thread waits for a core.",
        "eBPF at sched_wakeup and sched_switch";
    RUN_QUEUE_LATENCY_P95 = "run_queue_latency_p95", Seconds, Machine,
        "95th percentile of the time for which runnable threads wait for a core.",
        "eBPF at sched_wakeup and sched_switch";
    RUN_QUEUE_LATENCY_P99 = "run_queue_latency_p99", Seconds, Machine,
        "99th percentile of the time for which runnable threads wait for a core.",
        "eBPF at sched_wakeup and sched_switch";
    EPOCH = "epoch", Seconds, Machine,
        "Length of the epoch as it really was.", "the plant's clock";
    DISCOVERY_SILENCE = "discovery_silence", Seconds, Machine,
        "Time since the source of `agent.discover` last answered, or since the agent began; \
         meanwhile the agent continues with the apps that it knows.",
        "the watch of the API server";

    // Counters, which only grow from the start of the agent: the difference of two scrapes is
    // exact, over any number of machines.
    REQUESTS = "requests", Count, App,
        "Requests answered.", "the app's latency source", Counter;
    LATE_REQUESTS = "late_requests", Count, App,
        "Requests answered later than the bound of the app's first tail objective.",
        "the app's latency source", Counter;
    FAILED_REQUESTS = "failed_requests", Count, App,
        "Requests that failed.", "the app's latency source", Counter;
    JUDGED_TIME = "judged_time", Seconds, App,
        "Time of the epochs with a tail latency that can be compared with its bound.",
        "`tail_latency_seconds`", Counter;
    MISSED_TIME = "missed_time", Seconds, App,
        "Time of the epochs whose tail latency is above its bound.",
        "`tail_latency_seconds`", Counter;
    SILENT_TIME = "silent_time", Seconds, App,
        "Time of the epochs in which the latency of a latency-critical app is missing while it \
         runs.",
        "the app's latency source", Counter;
    WORK = "work", Count, App,
        "Work done by a best-effort app, in its own unit.", "`progress_per_second`", Counter;
    CPU_TIME = "cpu_time", Seconds, App, "CPU time used.", "`cpu_ratio`", Counter;
    CLIENT_TURNS_TOTAL = "client_turns", Count, ClientClass,
        "Turns that a class of clients began at the gate.", "`client_turns_per_second`", Counter;
    CLIENT_WAITS = "client_waits", Count, ClientClass,
        "Turns of a class of clients that waited at the gate before they began.",
        "the page of the on-call runtime", Counter;
    ACCOUNT_WAITS = "account_waits", Count, ClientAccount,
        "Turns of a user with a database that waited at the gate before they began.",
        "the page of the on-call runtime", Counter;
    CONSUMED_ENERGY = "consumed_energy", Joules, Machine,
        "Energy of all epochs whose energy is known.", "`energy_joules`", Counter;
    EPOCHS = "epochs", Count, Machine, "Epochs.", "the control loop", Counter;
    OBSERVED_TIME = "observed_time", Seconds, Machine,
        "Time of all epochs.", "`epoch_seconds`", Counter;
    SAFE_TIME = "safe_time", Seconds, Machine,
        "Time of the epochs in the SLO-safe state.", "the control loop", Counter;
    SAFE_STATES = "safe_states", Count, Machine,
        "How often the SLO-safe state began.", "the journal", Counter;
    SETTINGS = "settings", Count, Machine,
        "Settings that took effect.", "the journal", Counter;
    REFUSED_SETTINGS = "refused_settings", Count, Machine,
        "Settings that the kernel refused.", "the journal", Counter;
    HELD_SETTINGS = "held_settings", Count, Machine,
        "Settings that the policy decided on and that a limit or a dry run held back.",
        "the journal", Counter;
    FOREIGN_CHANGES = "foreign_changes", Count, Machine,
        "Changes of a knob by another program.", "the journal", Counter;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let gauges = gauges().map(Metric::prometheus_name);
        // Of a counter the family, which is its name in OpenMetrics without `_total`.
        let families = counters().map(Metric::family);
        let histogram = [histogram::LATENCY_HISTOGRAM.to_owned()];
        let names: BTreeSet<_> = gauges.chain(families).chain(histogram).collect();
        assert_eq!(names.len(), ALL.len() + 1);
        for name in names {
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
        }
    }

    #[test]
    fn every_metric_knows_its_place() {
        assert!(ALL.iter().enumerate().all(|(at, metric)| usize::from(metric.place) == at));
    }

    #[test]
    fn every_help_is_one_sentence() {
        for metric in ALL {
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(!metric.source.is_empty(), "{}", metric.name);
        }
    }

    #[test]
    fn a_class_of_clients_has_the_labels_of_its_app_and_its_own() {
        let labels = |scope: Scope, label| scope.labels(label).collect::<Vec<_>>();
        let class = [("app", "db"), ("client_class", "a/b")];
        assert_eq!(labels(Scope::ClientClass, "db/a/b"), class);
        let account = [("app", "db"), ("client_account", "web@shop")];
        assert_eq!(labels(Scope::ClientAccount, "db/web@shop"), account);
        assert_eq!(labels(Scope::App, "db"), [("app", "db")]);
        assert_eq!(labels(Scope::Machine, ""), []);
        assert!(Scope::ALL.iter().all(|scope| {
            let wanted = if *scope == Scope::Machine { "machine" } else { scope.name() };
            scope.label_names().last().copied().unwrap_or("machine") == wanted
        }));
    }

    #[test]
    fn one_description_gives_both_names() {
        assert_eq!(TAIL_LATENCY.json_key(), "tail_latency_seconds");
        assert_eq!(THREADS.prometheus_name(), "lull_threads");
        assert_eq!(LATE_REQUESTS.prometheus_name(), "lull_late_requests_total");
        assert_eq!(CONSUMED_ENERGY.prometheus_name(), "lull_consumed_energy_joules_total");
    }
}
