//! Totals of a node.

use super::NodeSimulation;
use lull_measure::{Latency, Nanos};

/// Counters when counting began.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeBaseline {
    time_ns: u64,
    apps: Vec<AppCounters>,
    busy_ns: Vec<u128>,
    pressure_ns: u128,
}

/// An app's running totals.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AppCounters {
    pub(super) arrived: u64,
    pub(super) answered: u64,
    pub(super) lost: u64,
    pub(super) present_ns: u128,
    pub(super) is_present: bool,
    pub(super) life: u32,
    pub(super) switches: u64,
    pub(super) work_ns: f64,
    pub(super) busy_ns: u128,
    pub(super) queued_ns: u128,
    pub(super) outstanding_ns: u128,
}

/// Totals of a node over the counted time.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeTotals {
    /// The counted time.
    pub span: Nanos,
    /// By number in the model.
    pub apps: Vec<NodeAppTotals>,
    /// Share of the time that each core was not idle, in [0, 1].
    pub utilisation: Vec<f64>,
    /// Share of the time in which some thread waited for a core.
    pub pressure: f64,
    /// Events of the whole run.
    pub events: u64,
}

/// Totals of one app over the counted time.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeAppTotals {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were unanswered when the app departed.
    pub lost: u64,
    /// How long the app was on the node.
    pub present: Nanos,
    /// Their latencies.
    pub latency: Latency,
    /// Mean number of requests unanswered.
    pub outstanding: f64,
    /// Work done per second: seconds alone with all resources.
    pub work_per_s: f64,
    /// Cores used, switches included.
    pub busy_cores: f64,
    /// Threads that waited for a core, on average.
    pub queued: f64,
    /// Switches to one of its threads.
    pub switches: u64,
    /// Instructions per cycle of the cores used; 0 if it used none.
    pub ipc: f64,
}

impl NodeSimulation {
    /// Restarts all counts.
    pub fn forget(&mut self) {
        let now_ns = self.now_ns;
        self.baseline = NodeBaseline {
            time_ns: now_ns,
            apps: (0..self.apps.len()).map(|app| self.counters(app)).collect(),
            busy_ns: self.cores.iter().map(|core| core.busy.integral_at(now_ns)).collect(),
            pressure_ns: self.pressure.integral_at(now_ns),
        };
        for app in &mut self.apps {
            app.latency.clear();
            app.log.iter_mut().for_each(Vec::clear);
        }
    }

    /// Records every single latency of an app from now on.
    pub fn keep_log(&mut self, app: usize) {
        self.apps[app].log = Some(Vec::new());
    }

    /// Returns the recorded latencies of an app, in order of completion.
    pub fn log(&self, app: usize) -> &[Nanos] {
        self.apps[app].log.as_deref().unwrap_or_default()
    }

    /// What was counted.
    pub fn totals(&self) -> NodeTotals {
        let now_ns = self.now_ns;
        let span_ns = (now_ns - self.baseline.time_ns) as f64;
        let cores = self.cores.iter().zip(&self.baseline.busy_ns);
        let busy = cores.map(|(core, before)| core.busy.integral_at(now_ns) - before);
        let pressure_ns = self.pressure.integral_at(now_ns) - self.baseline.pressure_ns;
        NodeTotals {
            span: Nanos(now_ns - self.baseline.time_ns),
            apps: (0..self.apps.len()).map(|app| self.app_totals(app, span_ns)).collect(),
            utilisation: busy.map(|busy_ns| busy_ns as f64 / span_ns).collect(),
            pressure: pressure_ns as f64 / span_ns,
            events: self.events,
        }
    }

    fn app_totals(&self, app: usize, span_ns: f64) -> NodeAppTotals {
        let state = &self.apps[app];
        let counted = self.counters(app).since(&self.baseline.apps[app]);
        let busy_ns = counted.busy_ns as f64;
        NodeAppTotals {
            arrived: counted.arrived,
            answered: counted.answered,
            lost: counted.lost,
            present: Nanos(counted.present_ns as u64),
            latency: state.latency.clone(),
            outstanding: counted.outstanding_ns as f64 / span_ns,
            work_per_s: counted.work_ns / span_ns,
            busy_cores: busy_ns / span_ns,
            queued: counted.queued_ns as f64 / span_ns,
            switches: counted.switches,
            ipc: if busy_ns > 0.0 { state.ipc * counted.work_ns / busy_ns } else { 0.0 },
        }
    }

    /// Returns an app's counters now. Changes no state, so that an observation does not
    /// change the simulation.
    pub(super) fn counters(&self, app: usize) -> AppCounters {
        let (state, now_ns) = (&self.apps[app], self.now_ns);
        let running = self
            .cores
            .iter()
            .filter(|core| core.current.is_some_and(|thread| self.threads[thread].app == app));
        let uncounted = running.map(|core| now_ns.saturating_sub(core.since_ns) as f64);
        AppCounters {
            arrived: state.arrived,
            answered: state.answered,
            lost: state.lost,
            present_ns: state.present.integral_at(now_ns),
            is_present: state.present.value() > 0,
            life: state.life,
            switches: state.switches,
            work_ns: state.work_ns + uncounted.sum::<f64>() * state.pace,
            busy_ns: state.running.integral_at(now_ns),
            queued_ns: state.queued.integral_at(now_ns),
            outstanding_ns: state.outstanding.integral_at(now_ns),
        }
    }
}

impl AppCounters {
    /// Returns the differences to earlier counters.
    pub(super) fn since(&self, then: &Self) -> Self {
        Self {
            arrived: self.arrived - then.arrived,
            answered: self.answered - then.answered,
            lost: self.lost - then.lost,
            present_ns: self.present_ns - then.present_ns,
            is_present: self.is_present,
            life: self.life,
            switches: self.switches - then.switches,
            work_ns: self.work_ns - then.work_ns,
            busy_ns: self.busy_ns - then.busy_ns,
            queued_ns: self.queued_ns - then.queued_ns,
            outstanding_ns: self.outstanding_ns - then.outstanding_ns,
        }
    }
}
