//! One app on the host: its threads, its gauges and its knobs.

use super::present::Presence;
use crate::Roots;
use crate::apps::{self, AppHandle, ProcessTable};
use crate::gauges::counters::Modes;
use crate::gauges::memory_pressure;
use crate::gauges::push::PushGauge;
use crate::gauges::queries::Queries;
use crate::gauges::reported::Reported;
use crate::gauges::{AppEpoch, AppGauges};
use crate::knobs::{Affinity, ThreadKnob, Threads};
use crate::oncall::Watch;
use crate::sys::sched::SchedState;
use crate::threads::LiveThread;
use lull_control::{
    AppId, AppSpec, ClientAccountObservation, ClientClassObservation, LatencyObservation, Progress,
    ProgressSource, Readings,
};
use lull_measure::catalogue::{CPU, INSTRUCTIONS};
use lull_measure::{Gauge, Missing, Nanos};
use std::path::Path;

/// Where an app's latency is read, fixed for a run.
#[derive(Debug)]
pub enum LatencyFrom {
    /// Its clients push it.
    Push,
    /// The library that it runs with reports it.
    OnCall(Watch),
    /// The kernel sees it at its sockets.
    Sockets(Queries),
    /// Its service exports histograms, which this text names, as windows at the agent's socket.
    Otlp(String),
    /// Another program computes its tail.
    Reported(Reported),
    /// The kernel sees how long its threads wait for a core.
    RunQueue,
    /// The kernel sees for which share of the time tasks of its cgroup wait for memory.
    MemoryPressure,
}

/// Where an app's progress is read, fixed for a run: rates from two sources
/// cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressFrom {
    /// The app pushes it.
    Push,
    /// Instructions retired.
    Instructions,
    /// CPU time.
    CpuTime,
}

/// An app, started or found.
#[derive(Debug)]
pub struct HostApp {
    /// The description that policies receive.
    pub spec: AppSpec,
    /// Its processes.
    pub handle: AppHandle,
    /// The source of its latency (latency-critical apps).
    pub latency: LatencyFrom,
    /// Where its progress is read (best-effort apps).
    pub progress: ProgressFrom,
}

/// The waits of an app's threads in an epoch, as the kernel reports them.
pub(super) struct AppWaits {
    pub(super) for_cores: Gauge<LatencyObservation>,
    /// Share of the epoch in which some task waited for memory.
    pub(super) for_memory: Gauge<f64>,
    /// The length of the epoch.
    pub(super) span: Nanos,
}

/// An app during a run.
#[derive(Debug)]
pub(super) struct RunningApp {
    pub(super) handle: AppHandle,
    pub(super) cores: ThreadKnob<Affinity>,
    pub(super) scheduling: ThreadKnob<SchedState>,
    pub(super) progress: ProgressFrom,
    latency: LatencyFrom,
    gauges: AppGauges,
    pub(super) presence: Presence,
    /// The last complaint about listing its processes, reported once.
    complaint: Option<String>,
}

impl RunningApp {
    pub(super) fn new(app: HostApp, roots: &Roots, modes: &Result<Modes, Missing>) -> Self {
        Self {
            handle: app.handle,
            cores: ThreadKnob::default(),
            scheduling: ThreadKnob::default(),
            latency: app.latency,
            progress: app.progress,
            gauges: AppGauges::new(roots, modes),
            presence: Presence::default(),
            complaint: None,
        }
    }

    pub(super) fn threads(&self) -> &[LiveThread] {
        self.handle.threads()
    }

    /// Lists its threads again; returns a fault, once.
    pub(super) fn refresh(&mut self, table: &ProcessTable) -> Option<String> {
        self.handle.claim_all();
        let error = self.handle.refresh(table).err().map(|error| error.to_string());
        let complaint = error.or_else(|| self.handle.complaint());
        let is_new = complaint != self.complaint;
        self.complaint.clone_from(&complaint);
        complaint.filter(|_| is_new).map(|text| format!("{}: {text}", self.handle.name()))
    }

    /// Returns the app's work in `span`, which ends now; processes were listed at `listed` since
    /// boot, and `group` is its resctrl group.
    pub(super) fn work(&mut self, span: Nanos, listed: Nanos, group: Option<&Path>) -> Readings {
        self.gauges.read(AppEpoch {
            threads: self.handle.threads(),
            refreshed: Some(&self.handle),
            span,
            listed,
            group,
            is_by_cgroup: self.handle.is_assigned(),
            usage_us: self.handle.usage_us(),
        })
    }

    /// The latency of its requests in the epoch that ends `now`, at `deadline`
    /// if all went to plan; `push` is the agent's socket, if it has one.
    pub(super) fn latency(
        &mut self,
        id: AppId,
        push: Option<&mut PushGauge>,
        waits: AppWaits,
        deadline: Nanos,
        now: Nanos,
    ) -> Gauge<LatencyObservation> {
        match &mut self.latency {
            LatencyFrom::Push => push.ok_or_else(no_socket)?.latency(id, deadline),
            LatencyFrom::Otlp(what) => {
                let exported = push.ok_or_else(no_socket)?.latency(id, deadline);
                exported.map_err(|why| Missing::because(format!("{what}, by OTLP: {why}")))
            }
            LatencyFrom::OnCall(watch) => watch.latency(),
            LatencyFrom::Sockets(queries) => {
                let threads = self.handle.threads();
                queries.latency(|| threads.iter().map(|thread| thread.pid).collect(), now)
            }
            LatencyFrom::Reported(reported) => reported.harvest(now),
            LatencyFrom::RunQueue => waits.for_cores,
            // A histogram takes 200 kB and there may be hundreds of apps, so only such apps have
            // one.
            LatencyFrom::MemoryPressure => memory_pressure::latency(waits.for_memory, waits.span),
        }
    }

    /// How the classes of its clients fared in the epoch that ends now; none without a gate that
    /// has classes.
    pub(super) fn client_classes(&mut self) -> Vec<ClientClassObservation> {
        match &mut self.latency {
            LatencyFrom::OnCall(watch) => watch.client_classes(),
            _ => Vec::new(),
        }
    }

    /// How long turns have waited at its gate by user and database in the epoch that ends now.
    pub(super) fn client_accounts(&mut self) -> Vec<ClientAccountObservation> {
        match &mut self.latency {
            LatencyFrom::OnCall(watch) => watch.client_accounts(),
            _ => Vec::new(),
        }
    }

    /// Whether its latency is that of its threads in run queues.
    pub(super) const fn is_judged_by_waits(&self) -> bool {
        matches!(self.latency, LatencyFrom::RunQueue)
    }

    /// Messages about the app's page: servers that do not use it, and an operator's bypass.
    pub(super) fn page_notices(&mut self) -> Vec<String> {
        let messages = match &mut self.latency {
            LatencyFrom::OnCall(watch) => watch.notices(),
            _ => Vec::new(),
        };
        messages.iter().map(|text| format!("{}: {text}", self.handle.name())).collect()
    }

    /// The runtime that it was started with, if its gate makes workers wait.
    pub(super) fn gated(&self) -> Option<&Watch> {
        match &self.latency {
            LatencyFrom::OnCall(watch) if watch.gate().is_some() => Some(watch),
            _ => None,
        }
    }

    /// Whether its oldest process has ended since it was found.
    pub(super) fn has_lost_leader(&self) -> bool {
        self.presence.leader.as_ref().is_some_and(|(_, leader)| apps::has_ended(leader))
    }

    /// Whether one of its processes runs, as of the last [`RunningApp::work`].
    pub(super) fn is_alive(&self) -> bool {
        self.gauges.any_alive()
    }

    /// Whether the threads of its next processes are set as the former ones were.
    pub(super) fn has_settings(&self) -> bool {
        self.cores.is_set() || self.scheduling.is_set()
    }

    /// Whether all processes that ran at the last [`RunningApp::work`] were others at the one
    /// before.
    pub(super) fn note_restart(&mut self) -> bool {
        self.presence.observe(self.gauges.alive().collect())
    }
}

pub(super) fn no_socket() -> Missing {
    Missing::because("the agent has no socket to push to: give it one in its configuration")
}

/// Progress from the source that needs nothing pushed.
pub(super) fn progress(readings: &Readings, from: ProgressFrom) -> Gauge<Progress> {
    let (rate, source) = match from {
        ProgressFrom::Instructions => (INSTRUCTIONS, ProgressSource::Instructions),
        ProgressFrom::CpuTime | ProgressFrom::Push => (CPU, ProgressSource::CpuTime),
    };
    readings.get(rate).map(|per_s| Progress { per_s, source })
}

/// The threads of an app and the table they are found in.
pub(super) struct Listed<'a> {
    pub(super) handle: &'a mut AppHandle,
    pub(super) table: &'a mut ProcessTable,
}

impl Threads for Listed<'_> {
    fn list(&self) -> &[LiveThread] {
        self.handle.threads()
    }

    fn refresh(&mut self) {
        // An error of the listing is reported by the refresh of the next epoch.
        let _ = self.table.refresh_changed();
        let _ = self.handle.refresh(self.table);
    }
}
