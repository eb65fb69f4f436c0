//! The machine of a recording as a node of the simulator.
//!
//! Latency-critical apps serve requests of the recorded rates; clients that
//! ran on the machine are apps that no policy steers, a thread each; best-effort
//! apps compute without end. All other work on the cores is one more app
//! that no policy sees. Neither cache nor memory is modelled, because a record under one
//! policy does not show what an app would do with other ways or less bandwidth.

use super::arrivals::{irregularity, load, process};
use super::recording::{RecordedEpoch, Recording};
use super::tally::Tally;
use lull_control::AppSpec;
use lull_measure::{Hertz, Nanos};
use lull_sim::machine::{
    Activity, LinuxScheduler, LoadStep, LocalClient, MachineApp, MachineModel, MemoryUse,
};
use lull_sim::model::{Distribution, Shape};
use lull_workload::arrivals::Process;
use serde::Serialize;

/// Largest number of modelled threads of an app; more than there are cores.
const MOST_THREADS: u32 = 64;
/// Largest cost of a pass of a request through its client, the kernel's part included: ours,
/// generous for a loop on epoll.
const PASS_MOST_NS: f64 = 100_000.0;
/// Cores' worth of other work that is not worth modelling.
const NEGLIGIBLE: f64 = 0.005;
/// Rate that keeps a schedule legal where nothing was due.
const HARDLY_PER_S: f64 = 1e-6;
/// Cost of a context switch: two microseconds, usual on servers (ours).
const SWITCH: Nanos = Nanos::from_micros(2);

/// The fitted parameters of an app.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AppFit {
    /// Mean CPU time of a request, in nanoseconds.
    pub work_ns: f64,
    /// Mean time of a request that is neither work nor waiting for a core, in nanoseconds.
    pub delay_ns: f64,
    /// Squared coefficient of variation of both.
    pub cv2: f64,
}

/// The fitted parameters of a recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// Time slice of a thread, after which another thread of its class runs.
    pub slice: Nanos,
    /// Share of waking threads behind the running one in virtual time that take
    /// its core immediately.
    pub wakeup_chance: f64,
    /// Share of the CPU time outside the apps that the clients use.
    pub client_share: f64,
    /// Mean length of the work of all other processes on the machine.
    pub others_work: Nanos,
    /// Indexed by app; best-effort apps have none.
    pub apps: Vec<Option<AppFit>>,
}

/// Parameters that are read from a recording and not fitted.
#[derive(Debug, Clone)]
pub(super) struct Known {
    cores: u16,
    /// Indexed by app.
    threads: Vec<u32>,
    arrivals: Vec<Process>,
    clients: Vec<bool>,
    /// Cores' worth of time that no app used.
    pub(super) rest: f64,
    /// Requests per second through clients on the machine.
    client_rate_per_s: f64,
}

impl Known {
    pub(super) fn from_recording(recording: &Recording) -> Self {
        let apps = 0..recording.apps.len();
        let arrivals = apps.clone().map(|app| {
            let samples = recording.counted().filter_map(move |epoch| epoch.apps.get(app));
            let sampled = || process(irregularity(samples.map(|seen| &seen.sample)));
            recording.clients[app].unwrap_or_else(sampled)
        });
        let tally = Tally::recorded(recording, recording.counted());
        let used: f64 = tally.apps.iter().map(|app| app.cpu_s).sum();
        let busy = recording
            .counted()
            .map(|epoch| epoch.busy_cores.map_or(0.0, |busy| busy * epoch.length.as_secs_f64()));
        let through = apps.clone().filter(|app| recording.clients[*app].is_some());
        let requests: f64 = through.map(|app| tally.apps[app].answered).sum();
        Self {
            cores: recording.machine.cores.len() as u16,
            arrivals: arrivals.collect(),
            threads: apps.map(|app| threads(recording, app)).collect(),
            clients: recording.clients.iter().map(Option::is_some).collect(),
            rest: (busy.sum::<f64>() - used).max(0.0) / tally.span_s,
            client_rate_per_s: requests / tally.span_s,
        }
    }

    /// Work of one pass of a request through its client.
    fn pass_ns(&self, client_share: f64) -> f64 {
        let share = client_share * self.rest * 1e9;
        (share / (2.0 * self.client_rate_per_s)).clamp(1.0, PASS_MOST_NS)
    }

    /// Cores' worth of time that neither apps nor clients used.
    fn others(&self, client_share: f64) -> f64 {
        let clients = 2.0 * self.client_rate_per_s * self.pass_ns(client_share) / 1e9;
        if self.client_rate_per_s > 0.0 { (self.rest - clients).max(0.0) } else { self.rest }
    }

    /// Whether clients ran on the machine.
    pub(super) fn has_clients(&self) -> bool {
        self.client_rate_per_s > 0.0
    }
}

/// Threads of an app that matter: for endless work those that wanted to run,
/// else those that there were.
fn threads(recording: &Recording, app: usize) -> u32 {
    let spec = &recording.apps[app];
    let seen = || recording.counted().filter_map(|epoch| epoch.apps.get(app));
    let alive = seen().filter_map(|seen| seen.threads).max().or(spec.threads);
    if spec.is_latency_critical() {
        return alive.unwrap_or(1).clamp(1, MOST_THREADS);
    }
    let wanted: Vec<f64> = seen().filter_map(|seen| Some(seen.cpu? + seen.waiting?)).collect();
    let mean = wanted.iter().sum::<f64>() / wanted.len() as f64;
    let wanting = if mean.is_finite() { Some(mean.round() as u32) } else { alive };
    wanting.unwrap_or(1).clamp(1, MOST_THREADS)
}

impl Fit {
    /// The start of the search: CPU time per request as recorded, no delay,
    /// exponential; a scheduler as Linux's.
    pub(super) fn first(recording: &Recording) -> Self {
        let tally = Tally::recorded(recording, recording.counted());
        let app = |(spec, sum): (&AppSpec, &super::tally::AppTally)| {
            let work_ns = 1e9 * sum.cpu_s / sum.answered.max(1.0);
            let first = AppFit { work_ns: work_ns.max(1_000.0), delay_ns: 0.0, cv2: 1.0 };
            spec.is_latency_critical().then_some(first)
        };
        Self {
            slice: Nanos::from_millis(3),
            wakeup_chance: 1.0,
            client_share: 1.0,
            others_work: Nanos::from_millis(2),
            apps: recording.apps.iter().zip(&tally.apps).map(app).collect(),
        }
    }

    /// The node, for the load of these epochs, and how long they last.
    pub(super) fn node<'a>(
        &self,
        recording: &Recording,
        known: &Known,
        epochs: &(impl Iterator<Item = &'a RecordedEpoch> + Clone),
    ) -> (MachineModel, Nanos) {
        let mut end = Nanos::ZERO;
        let mut app = Vec::new();
        let mut clients = Vec::new();
        for (at, spec) in recording.apps.iter().enumerate() {
            let activity = match &self.apps[at] {
                None => Activity::Endless,
                Some(fit) => {
                    let (steps, length) = load(epochs.clone(), at);
                    end = length;
                    let client = known.clients[at].then(|| format!("clients of {}", spec.name));
                    clients.extend(client.clone());
                    self.requests(fit, legal(steps), known.arrivals[at], client, known)
                }
            };
            app.push(node_app(&spec.name, known.threads[at], activity));
        }
        app.extend(clients.iter().map(|name| node_app(name, 1, Activity::Clients)));
        let others = known.others(self.client_share);
        if others > NEGLIGIBLE {
            let rate_per_s = others / self.others_work.as_secs_f64();
            let work = Distribution::exponential(self.others_work);
            let load = vec![LoadStep { from: Nanos::ZERO, rate_per_s }];
            let threads = u32::from(known.cores);
            app.push(node_app("the rest of the machine", threads, Activity::requests(work, load)));
        }
        let scheduler = LinuxScheduler {
            slice: self.slice,
            wakeup_lead: Some(Nanos::ZERO),
            wakeup_chance: self.wakeup_chance,
            switch_cost: SWITCH,
            ..LinuxScheduler::default()
        };
        let (name, frequency) = (&recording.machine.name, Hertz(1_000_000_000));
        let plain = MachineModel::plain(name, known.cores, frequency);
        let model = MachineModel { scheduler, app, ..plain };
        (model, end)
    }

    fn requests(
        &self,
        fit: &AppFit,
        load: Vec<LoadStep>,
        arrivals: Process,
        client: Option<String>,
        known: &Known,
    ) -> Activity {
        let spread = |mean_ns: f64, cv2: f64| Distribution {
            mean: Nanos((mean_ns as u64).max(1)),
            shape: if cv2 > 0.0 { Shape::Lognormal { cv2 } } else { Shape::Constant },
        };
        let pass = spread(known.pass_ns(self.client_share), 0.0);
        Activity::Requests {
            work: spread(fit.work_ns, fit.cv2),
            load,
            closed: None,
            arrivals,
            delay: (fit.delay_ns >= 1.0).then(|| spread(fit.delay_ns, fit.cv2)),
            client: client.map(|app| LocalClient { app, work: pass }),
        }
    }
}

/// Makes a schedule valid that has only zero rates.
fn legal(mut steps: Vec<LoadStep>) -> Vec<LoadStep> {
    if let Some(last) = steps.last_mut() {
        last.rate_per_s = last.rate_per_s.max(HARDLY_PER_S);
    }
    steps
}

fn node_app(name: &str, threads: u32, activity: Activity) -> MachineApp {
    MachineApp {
        name: name.to_owned(),
        threads,
        activity,
        memory: MemoryUse::default(),
        ipc: 1.0,
        presence: Default::default(),
    }
}

/// The apps as policies know them, with progress in the simulator's unit:
/// seconds of work. Recorded work per CPU second joins both.
pub(super) fn simulated_specs(recording: &Recording) -> Vec<AppSpec> {
    let tally = Tally::recorded(recording, recording.counted());
    let each = recording.apps.iter().zip(&tally.apps).map(|(spec, sum)| {
        let per_work = if sum.work > 0.0 { sum.cpu_s / sum.work } else { 1.0 };
        let solo_per_s = spec.solo_per_s.map(|solo| solo * per_work);
        AppSpec { solo_per_s, ..spec.clone() }
    });
    each.collect()
}
