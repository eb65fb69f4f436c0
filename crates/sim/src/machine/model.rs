//! One machine and its apps as plain data.

use super::event_loops::EventLoops;
use super::load::LoadStep;
use super::parts::{
    self, Card, CoreTypes, DispatchPart, DutyCycle, GateModel, Power, RunQueues, Scaling,
};
use super::presence::Presence;
use crate::idle::{IdleRule, IdleState};
use crate::model::Distribution;
use crate::replication::{Replication, StreamPurpose};
use lull_control::dispatcher::{CoreSpeed, Ladder, LadderError, Supply};
use lull_measure::{Hertz, Nanos};
use lull_workload::arrivals::Process;
use serde::{Deserialize, Serialize};

/// How often cache shares and memory latency are brought up to date where a
/// model does not say.
pub const REFRESH: Nanos = Nanos::from_millis(10);

/// A machine on which apps run side by side. Every part but cores, run queues and apps is
/// optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MachineModel {
    /// A name for people.
    pub name: String,
    /// Number of cores, at most 64.
    pub cores: u16,
    /// Highest frequency of the cores, at which work is measured.
    pub frequency: Hertz,
    /// Core types; without them all cores are alike and of speed 1.
    #[serde(default)]
    pub core_types: Option<CoreTypes>,
    /// How much all running threads are slowed for each unit of running speed beyond the first:
    /// pace 1/(1 + x (sum of speeds - 1)).
    #[serde(default)]
    pub interference: f64,
    /// The lower frequencies and their governor; without them the frequency is fixed.
    #[serde(default)]
    pub scaling: Option<Scaling>,
    /// Cores that compute for a share of the time only.
    #[serde(default)]
    pub duty_cycle: Option<DutyCycle>,
    /// Idle states of a core, shallowest first; without any a core wakes at once.
    #[serde(default)]
    pub idle: Vec<IdleState>,
    /// How a core chooses its idle state.
    #[serde(default)]
    pub idle_rule: IdleRule,
    /// Power; without it, energy is not measured.
    #[serde(default)]
    pub power: Option<Power>,
    /// How threads share cores.
    #[serde(default)]
    pub scheduler: LinuxScheduler,
    /// Rules of the run queues in place of Linux's; of `scheduler` only the cost of a
    /// switch remains.
    #[serde(default)]
    pub run_queues: Option<RunQueues>,
    /// The last-level cache; without one, work does not depend on ways.
    #[serde(default)]
    pub cache: Option<Cache>,
    /// Main memory; without it, bandwidth is endless.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// How often cache shares and memory latency are brought up to date.
    #[serde(default = "refresh")]
    pub refresh: Nanos,
    /// The network card; without one, requests reach their apps at no cost.
    #[serde(default)]
    pub card: Option<Card>,
    /// The servers behind gates, whose workers are the threads of `connections` apps. One may be
    /// written as a table, several as an array of tables.
    #[serde(default, deserialize_with = "parts::gates")]
    pub gate: Vec<GateModel>,
    /// The app whose requests a dispatcher assigns to cores.
    #[serde(default)]
    pub dispatch: Option<DispatchPart>,
    /// The apps.
    pub app: Vec<MachineApp>,
}

/// How threads share cores: run queues as Linux's fair and real-time classes
/// have them, in a few numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct LinuxScheduler {
    /// How long a thread runs before a waiting one of its class gets the core.
    pub slice: Nanos,
    /// The same among real-time threads of one priority (Linux: 100 ms).
    pub real_time_slice: Nanos,
    /// Time of a switch to another thread than the core's last one.
    pub switch_cost: Nanos,
    /// Additional time of a switch to a thread of another app, which finds the core's
    /// own caches cold.
    pub cold_cost: Nanos,
    /// How far the running thread must be ahead in virtual time for a waking
    /// one of its class to take the core at once; never if absent.
    pub wakeup_lead: Option<Nanos>,
    /// Probability that such a wake-up takes the core. Linux's fair class decides by
    /// rules that depend on a core's whole history (eligibility, protected slices); this
    /// model replaces them by a probability.
    pub wakeup_chance: f64,
    /// How much virtual time a sleeper may lag behind, so that it soon runs.
    pub sleeper_credit: Nanos,
    /// Interval between two balancings of run queues. Idle cores pull threads at once.
    pub balance: Nanos,
}

/// A last-level cache divided by ways.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cache {
    /// Ways that there are, at most 64.
    pub ways: u32,
    /// Ways of the machine on which work was measured; `ways` if absent.
    #[serde(default)]
    pub reference_ways: Option<u32>,
    /// Size of one way.
    pub way_bytes: u64,
}

/// Main memory as one server whose latency rises with its load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Memory {
    /// Most bytes per second.
    pub peak_bytes_per_s: f64,
    /// `q` of the latency factor `1 + q u²/(1 - u)` at utilisation `u`.
    pub queueing: f64,
    /// How apps can be throttled; not at all if absent (Intel's parts before 2017).
    #[serde(default)]
    pub throttle: Option<Throttle>,
}

/// A throttle on the memory traffic of apps, in percent of the peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Throttle {
    /// Least share that an app can be throttled to.
    pub min_percent: u8,
    /// Granularity.
    pub step_percent: u8,
}

/// An app of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MachineApp {
    /// Unique name.
    pub name: String,
    /// Its threads.
    pub threads: u32,
    /// Their activity.
    pub activity: Activity,
    /// Their use of cache and memory.
    #[serde(default)]
    pub memory: MemoryUse,
    /// Instructions per cycle, alone with all resources.
    #[serde(default = "one")]
    pub ipc: f64,
    /// When it is on the node; always by default.
    #[serde(default)]
    pub presence: Presence,
}

/// The activity of an app's threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Activity {
    /// They serve requests in order of arrival, one each at a time.
    Requests {
        /// Work of a request: time on a core alone with all resources.
        work: Distribution,
        /// Arrival rate over time; empty if clients send them one after another.
        #[serde(default)]
        load: Vec<LoadStep>,
        /// Clients that each wait for the answer before they send again, instead of a rate.
        #[serde(default)]
        closed: Option<ClosedClients>,
        /// How their gaps vary.
        #[serde(default)]
        arrivals: Process,
        /// Time of a request besides queueing and work: links, devices. It occupies no resource of
        /// the node.
        #[serde(default)]
        delay: Option<Distribution>,
        /// The client that sends the requests, if it runs on this node too.
        #[serde(default)]
        client: Option<LocalClient>,
    },
    /// They serve the calls of a tier of the same name, one piece of work each at a time
    /// ([`crate::hosts`]).
    Called,
    /// Event loops: one on each core serves the connections that the card hashes to its core. The
    /// machine has no other app, and each core runs on its own.
    EventLoops(Box<EventLoops>),
    /// They send the requests of other apps and take their answers.
    Clients,
    /// Each serves one connection behind a gate ([`MachineModel::gate`]).
    Connections,
    /// They compute without end.
    Endless,
    /// Each works through a phase, then waits for all others at a barrier.
    Phases {
        /// Work of one thread in one phase.
        work: Distribution,
    },
}

/// Clients that each think, send a request, and wait for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClosedClients {
    /// How many.
    pub clients: u32,
    /// Time from an answer to the next request, and before the first one.
    pub think: Distribution,
}

/// The client of an app's requests, as one that runs on the node itself.
///
/// A request is due, is sent when a thread of the client has done its work, is
/// served, and is answered when the client has done as much work again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LocalClient {
    /// An app whose activity is `clients`.
    pub app: String,
    /// Work of sending a request, and again of taking its answer.
    pub work: Distribution,
}

/// The demand of a thread's work on the memory system, measured alone.
///
/// Of the time that work takes alone, `share` waits for memory. With `w` ways the misses are `m(w)
/// = floor + (1 - floor) exp(-w / ways)`, and that share grows with `m(w)` and with memory latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MemoryUse {
    /// Share of its time that waits for memory, in [0, 1].
    pub share: f64,
    /// Bytes per second of one running thread.
    pub bytes_per_s: f64,
    /// Misses that no cache avoids, relative to those without cache, in (0, 1].
    pub floor: f64,
    /// Ways by which the avoidable misses fall to 1/e.
    pub ways: f64,
}

impl Default for LinuxScheduler {
    /// Linux's fair class on eight cores in round numbers, no wake-up
    /// preemption; 10 us for a switch with its cold caches.
    fn default() -> Self {
        Self {
            slice: Nanos::from_millis(4),
            real_time_slice: Nanos::from_millis(100),
            switch_cost: Nanos::from_micros(10),
            cold_cost: Nanos::ZERO,
            wakeup_lead: None,
            wakeup_chance: 1.0,
            sleeper_credit: Nanos::from_millis(12),
            balance: Nanos::from_millis(4),
        }
    }
}

impl Default for MemoryUse {
    /// Work that never leaves its core.
    fn default() -> Self {
        Self { share: 0.0, bytes_per_s: 0.0, floor: 1.0, ways: 1.0 }
    }
}

impl MachineModel {
    /// A machine of these cores under Linux's scheduler, without any other part or app.
    pub fn plain(name: &str, cores: u16, frequency: Hertz) -> Self {
        Self { name: name.to_owned(), cores, frequency, refresh: REFRESH, ..Self::default() }
    }

    /// The app of event loops, if that is what the machine runs.
    pub fn event_loops(&self) -> Option<&EventLoops> {
        self.app.iter().find_map(|app| match &app.activity {
            Activity::EventLoops(loops) => Some(loops.as_ref()),
            _ => None,
        })
    }

    /// The apps whose threads serve connections, in order.
    pub fn connected(&self) -> impl Iterator<Item = (usize, &MachineApp)> {
        let apps = self.app.iter().enumerate();
        apps.filter(|(_, app)| matches!(app.activity, Activity::Connections))
    }

    /// The apps behind a gate of the machine, in order.
    pub fn behind<'m>(
        &'m self,
        gate: &'m GateModel,
    ) -> impl Iterator<Item = (usize, &'m MachineApp)> {
        self.connected().filter(move |(_, app)| gate.serves(&app.name))
    }

    /// The number of the gate of an app whose threads serve connections.
    pub(super) fn gate_of(&self, app: &MachineApp) -> Option<usize> {
        self.gate.iter().position(|gate| gate.serves(&app.name))
    }

    /// The core types as a dispatcher sees them: one of speed 1 if the cores are alike.
    ///
    /// # Errors
    /// If the types are not ordered or there is no core.
    pub fn ladder(&self) -> Result<Ladder, LadderError> {
        match self.core_types.clone() {
            Some(CoreTypes { types, supply }) => Ladder::new(types, supply),
            None => {
                let cores = u32::from(self.cores);
                Ladder::new(vec![CoreSpeed::new("core", 1.0, 1.0)], Supply::Fixed(vec![cores]))
            }
        }
    }

    /// Draws a profile: the work of this many requests of the dispatched app, as an operator
    /// would measure it before choosing a dispatcher; empty without such an app.
    pub fn profile(&self, requests: usize, seed: u64) -> Vec<Nanos> {
        let app = self.dispatch.as_ref().and_then(|part| self.app_named(&part.app));
        let Some(Activity::Requests { work, .. }) = app.map(|app| &self.app[app].activity) else {
            return Vec::new();
        };
        let draw = work.draw();
        let mut stream = Replication { seed, number: 0 }.stream(StreamPurpose::Profile, 0);
        (0..requests).map(|_| Nanos(draw.sample(&mut stream) as u64)).collect()
    }

    /// The type of each core at the start.
    pub(super) fn kinds(&self) -> impl Iterator<Item = usize> {
        let counts = match self.core_types.as_ref().map(|all| &all.supply) {
            Some(Supply::Fixed(counts)) => counts.clone(),
            Some(Supply::Any(_)) | None => vec![u32::from(self.cores)],
        };
        let kinds = counts.into_iter().enumerate();
        kinds.flat_map(|(kind, count)| std::iter::repeat_n(kind, count as usize))
    }

    /// Number of the random streams of an app's requests or phases: connections have streams of
    /// the same purposes, by their number.
    pub(super) fn stream_of(&self, app: usize) -> usize {
        self.connected().map(|(_, app)| app.threads as usize).sum::<usize>() + app
    }

    /// Number of the app of this name.
    pub fn app_named(&self, name: &str) -> Option<usize> {
        self.app.iter().position(|app| app.name == name)
    }
}

impl Activity {
    /// Serves Poisson arrivals whose clients run on another machine.
    pub fn requests(work: Distribution, load: Vec<LoadStep>) -> Self {
        let arrivals = Process::Poisson;
        Self::Requests { work, load, closed: None, arrivals, delay: None, client: None }
    }
}

impl MachineApp {
    /// An app whose work never leaves its core, always present.
    pub fn new(name: &str, threads: u32, activity: Activity) -> Self {
        Self {
            name: name.to_owned(),
            threads,
            activity,
            memory: MemoryUse::default(),
            ipc: one(),
            presence: Presence::default(),
        }
    }

    /// The name of the app whose threads send its requests, if they run on the machine too.
    pub fn client(&self) -> Option<&str> {
        let Activity::Requests { client, .. } = &self.activity else { return None };
        client.as_ref().map(|it| it.app.as_str())
    }

    /// Whether it serves requests or queries.
    pub fn serves(&self) -> bool {
        let computes = matches!(self.activity, Activity::Endless | Activity::Phases { .. });
        !computes && !matches!(self.activity, Activity::Clients)
    }
}

const fn refresh() -> Nanos {
    REFRESH
}

const fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_app_shares_a_random_stream_with_a_connection() {
        let phases = || Activity::Phases { work: Distribution::constant(Nanos(1)) };
        let app = |threads, activity| MachineApp::new("", threads, activity);
        let connections = || Activity::Connections;
        let app = vec![app(2, phases()), app(3, connections()), app(1, phases())];
        let model = MachineModel { app, ..MachineModel::plain("", 1, Hertz(1)) };
        // Connections draw from streams 0 to 2.
        assert_eq!([model.stream_of(0), model.stream_of(2)], [3, 5]);
    }
}
