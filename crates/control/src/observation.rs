//! The observation of a plant in one epoch.

use crate::{AppId, Knob, Readings, Setting};
use lull_measure::catalogue::Metric;
use lull_measure::{
    Buckets, Gauge, Hertz, Joules, Latency, Nanos, Percentile, QuantileRange, RequestSample,
};
use std::fmt;

use serde::{Deserialize, Serialize};

/// Everything measured in one epoch. Values are over the epoch unless stated otherwise.
#[derive(Debug, Clone)]
pub struct Observation {
    /// End of the epoch, since the plant began.
    pub time: Nanos,
    /// Its length as it really was.
    pub epoch: Nanos,
    /// Indexed by [`AppId`].
    pub apps: Vec<AppObservation>,
    /// Indexed by core number.
    pub cores: Vec<CoreObservation>,
    /// Energy of the whole machine, with its source.
    pub energy: Gauge<EnergyObservation>,
    /// Share of the epoch in which some task waited for a CPU, in [0, 1].
    pub cpu_pressure: Gauge<f64>,
    /// Interrupts per second, of all cores and devices.
    pub interrupts_per_s: Gauge<f64>,
    /// Packets received and sent per second, of all network hardware.
    pub packets_per_s: Gauge<f64>,
    /// Share of the time of all cores in sleeps longer than the break-even of
    /// the deepest idle state, in [0, 1]; of the cores whose share is known.
    pub c6_opportunity: Gauge<f64>,
    /// How long cores slept at a time, all cores together.
    pub idle_gaps: Gauge<Quantiles>,
    /// Time of threads of all programs from runnable to running.
    pub run_queue_latency: Gauge<Quantiles>,
    /// Knobs found changed by another writer.
    pub foreign: Vec<ForeignChange>,
    /// Apps that were present at the last observation and are now, but none of whose former
    /// processes is left. Arrivals and departures show in [`AppObservation::alive`].
    pub restarted: Vec<AppId>,
}

/// Three quantiles of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// The median.
    pub p50: Nanos,
    /// The 95th percentile.
    pub p95: Nanos,
    /// The 99th percentile.
    pub p99: Nanos,
}

/// The observation of one app.
#[derive(Debug, Clone)]
pub struct AppObservation {
    /// Whether at least one of its threads lives.
    pub alive: bool,
    /// Latency of its requests (latency-critical apps).
    pub latency: Gauge<LatencyObservation>,
    /// Work done (best-effort apps).
    pub progress: Gauge<Progress>,
    /// CPU time, cache misses and all else that is one number a metric.
    pub readings: Readings,
    /// Threads alive at the end of the epoch.
    pub threads: Gauge<u32>,
    /// Classes of its clients, if its gate has any.
    pub client_classes: Vec<ClientClassObservation>,
    /// Accounts of which turns have waited at its gate in the epoch.
    pub client_accounts: Vec<ClientAccountObservation>,
}

/// The observation of one class of clients at the gate of an app.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientClassObservation {
    /// Its name.
    pub name: String,
    /// Its connections at the end of the epoch.
    pub connections: u64,
    /// Connections that run a query or have a transaction open, and do not wait.
    pub under_way: u64,
    /// Connections that wait for a slot.
    pub waiting: u64,
    /// Turns that it began in the epoch.
    pub turns: u64,
    /// Turns that waited before they began.
    pub waits: u64,
    /// How long those waited: median and 99th percentile; `None` without any.
    pub wait_quantiles: Option<(Nanos, Nanos)>,
}

/// The waits of one account, a user with a database, at the gate of an app.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientAccountObservation {
    /// `USER@DATABASE`.
    pub name: String,
    /// Its turns in the epoch that waited before they began.
    pub waits: u64,
    /// How long those waited: median and 99th percentile.
    pub wait_quantiles: (Nanos, Nanos),
}

impl AppObservation {
    /// An app of which nothing is known, for one reason.
    pub fn unknown(why: &lull_measure::Missing) -> Self {
        Self {
            alive: false,
            latency: Err(why.clone()),
            progress: Err(why.clone()),
            readings: Readings::unknown(why),
            threads: Err(why.clone()),
            client_classes: Vec::new(),
            client_accounts: Vec::new(),
        }
    }

    /// The same with the value of one reading, or its own reason.
    #[must_use]
    pub fn with_reading(mut self, metric: &'static Metric, value: Gauge<f64>) -> Self {
        self.readings.set(metric, value);
        self
    }
}

/// Requests of one app.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LatencyObservation {
    /// Latencies of the requests answered in the epoch, from their intended start.
    pub window: Latency,
    /// The buckets that `window` was made from, if the source reports buckets: each latency is
    /// known only as well as its bucket is narrow.
    pub buckets: Buckets,
    /// Requests that were due per second, answered or not.
    pub offered_per_s: f64,
    /// Requests answered per second.
    pub completed_per_s: f64,
    /// Requests that failed per second.
    pub errors_per_s: f64,
    /// Requests sent and not answered at the end.
    pub outstanding: u64,
    /// Age of the oldest unanswered request.
    pub oldest: Option<Nanos>,
    /// Some of the answered requests one by one; due instants count as
    /// [`Observation::time`] does.
    pub sample: RequestSample,
    /// Set if the source reports a tail, and no single requests. The window is then empty, counts
    /// have no meaning, and rates have one only if [`LatencyObservation::has_rates`].
    pub reported: Option<ReportedTail>,
}

/// A tail that another program, such as Prometheus, has computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReportedTail {
    /// The percentile.
    pub at: Percentile,
    /// The tail; `None` if no request was answered, or nothing new was reported.
    pub tail: Option<Nanos>,
    /// Requests per second, if that is reported, too.
    pub per_s: Option<f64>,
}

impl LatencyObservation {
    /// Creates a reading from what a server measures over a span: requests that were
    /// answered in it, how many wait at its end, since when the oldest waits, and how
    /// many waited at its beginning.
    pub fn on_server(
        window: Latency,
        span: Nanos,
        (outstanding, oldest): (u64, Option<Nanos>),
        were_outstanding: u64,
    ) -> Self {
        let per_s = |count: u64| count as f64 / span.max(Nanos(1)).as_secs_f64();
        let arrived = (window.count() + outstanding).saturating_sub(were_outstanding);
        Self {
            offered_per_s: per_s(arrived),
            completed_per_s: per_s(window.count()),
            outstanding,
            oldest,
            window,
            ..Self::default()
        }
    }

    /// Whether the rates of requests offered and completed are known.
    pub fn has_rates(&self) -> bool {
        self.reported.is_none_or(|reported| reported.per_s.is_some())
    }

    /// The tail of this epoch alone; `None` if no request was answered.
    pub fn tail(&self, at: Percentile) -> Option<Nanos> {
        match self.reported {
            Some(reported) if reported.at == at => reported.tail,
            Some(_) => None,
            None => self.window.quantile(at),
        }
    }

    /// The range in which the tail of this epoch lies, if the source reports buckets; `None`
    /// without requests, and where each latency is known.
    pub fn tail_range(&self, at: Percentile) -> Option<QuantileRange> {
        self.buckets.quantile_range(at)
    }
}

/// Work done by an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Work per second.
    pub per_s: f64,
    /// The counted unit.
    pub source: ProgressSource,
}

/// Where an app's progress is read; later ones say less about useful work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressSource {
    /// The app reports it, in this unit.
    Pushed(String),
    /// Instructions retired.
    Instructions,
    /// CPU time, blind to cache and memory interference.
    CpuTime,
    /// A simulated app's work.
    Simulated,
}

impl fmt::Display for ProgressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pushed(unit) => f.write_str(unit),
            Self::Instructions => f.write_str("instructions"),
            Self::CpuTime => f.write_str("CPU seconds"),
            Self::Simulated => f.write_str("simulated work"),
        }
    }
}

/// The observation of one core.
#[derive(Debug, Clone)]
pub struct CoreObservation {
    /// Share of the epoch not idle, in [0, 1].
    pub utilisation: Gauge<f64>,
    /// Share of the epoch in idle states, in [0, 1].
    pub idle_residency: Gauge<f64>,
    /// Share of the epoch in the deepest idle state that there is, in [0, 1].
    pub deep_idle_residency: Gauge<f64>,
    /// Share of the time in sleeps longer than the break-even of that state, in [0, 1].
    pub c6_opportunity: Gauge<f64>,
    /// Frequency now.
    pub frequency: Gauge<Hertz>,
}

impl CoreObservation {
    /// A core of which nothing is known, for one reason.
    pub fn unknown(why: &lull_measure::Missing) -> Self {
        Self {
            utilisation: Err(why.clone()),
            idle_residency: Err(why.clone()),
            deep_idle_residency: Err(why.clone()),
            c6_opportunity: Err(why.clone()),
            frequency: Err(why.clone()),
        }
    }
}

/// Energy of an epoch, with its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyObservation {
    /// Energy of the epoch.
    pub energy: Joules,
    /// The source of the figure.
    pub source: EnergySource,
}

/// The source of an energy figure. Shown wherever the figure is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergySource {
    /// A meter, such as `RAPL package-0`.
    Measured(String),
    /// A model, with its formula and constants.
    Modelled(String),
}

impl fmt::Display for EnergySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured(meter) => write!(f, "measured by {meter}"),
            Self::Modelled(model) => write!(f, "modelled: {model}"),
        }
    }
}

/// A knob that another writer changed since Lull set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignChange {
    /// The knob.
    pub knob: Knob,
    /// The setting by Lull.
    pub ours: Setting,
    /// The setting found instead.
    pub found: Setting,
    /// The owner of the thread or file, for people: `thread 4711 of memcached`.
    pub whom: String,
}

impl Observation {
    /// An epoch of which nothing is known but when it was, for one reason.
    pub fn unknown(time: Nanos, epoch: Nanos, why: &lull_measure::Missing) -> Self {
        Self {
            time,
            epoch,
            apps: Vec::new(),
            cores: Vec::new(),
            energy: Err(why.clone()),
            cpu_pressure: Err(why.clone()),
            interrupts_per_s: Err(why.clone()),
            packets_per_s: Err(why.clone()),
            c6_opportunity: Err(why.clone()),
            idle_gaps: Err(why.clone()),
            run_queue_latency: Err(why.clone()),
            foreign: Vec::new(),
            restarted: Vec::new(),
        }
    }

    /// Returns the observation of one app; `None` for an app the plant does not know.
    pub fn app(&self, app: AppId) -> Option<&AppObservation> {
        self.apps.get(app.index())
    }

    /// Requests completed by all apps in the epoch; `None` if no app has latency,
    /// or one has only a tail.
    pub fn completed(&self) -> Option<u64> {
        let counts = || self.apps.iter().filter_map(|app| app.latency.as_ref().ok());
        if counts().any(|seen| seen.reported.is_some()) {
            return None;
        }
        let counts = counts();
        counts.map(|seen| seen.window.count()).reduce(|sum, count| sum + count)
    }
}
