//! One simulated machine, made of the parts that a model names.
//!
//! Cores have run queues. Under Linux's rules they have weights, real-time priorities,
//! affinity, slices, stealing and a cost of switching; other rules stand for other schedulers
//! ([`RunQueues`]). Everything else is optional:
//!
//! - core types of different speed and power ([`CoreTypes`]), and a dispatcher that assigns the
//!   requests of an app to them one by one ([`DispatchPart`]);
//! - frequencies with a governor ([`Scaling`]), duty cycles ([`DutyCycle`]), idle states
//!   ([`crate::idle`]), power;
//! - a last-level cache divided by ways, and memory with a bandwidth ([`Cache`], [`Memory`]);
//! - a network card whose interrupts and polling take core time ([`Card`]);
//! - servers with a worker for each connection behind an on-call gate, each with its storage
//!   device ([`GateModel`]).
//!
//! Apps serve requests with a few threads, serve the calls of tiers, serve connections behind
//! the gate, serve connections as event loops on cores that step on their own ([`EventLoops`]),
//! send requests as clients, or compute, with or without barriers. They slow each
//! other down through cores, cache and memory. Policies reach the machine as [`MachinePlant`],
//! through the interface that hosts have.
//!
//! ```
//! use lull_measure::Nanos;
//! use lull_sim::machine::{MachineModel, MachineSimulation};
//!
//! let model: MachineModel = toml::from_str(r#"
//!     name = "two cores"
//!     cores = 2
//!     frequency = "2GHz"
//!
//!     [[app]]
//!     name = "search"
//!     threads = 2
//!     [app.activity.requests]
//!     work = { mean = "1ms" }
//!     load = [{ from = "0s", rate-per-s = 800.0 }]
//!
//!     [[app]]
//!     name = "batch"
//!     threads = 2
//!     activity = "endless"
//! "#)?;
//! let mut machine = MachineSimulation::new(&model, 1, 0)?;
//! machine.run_until(Nanos::from_secs(10));
//! let totals = machine.totals();
//! assert!(totals.apps[0].answered > 7000);
//! let busy: f64 = totals.apps.iter().map(|app| app.busy_cores).sum();
//! assert!((busy - 2.0).abs() < 1e-9, "some thread always wants to run");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Work is drawn when a request arrives, from a stream of its own for each
//! app, so that all policies receive the same requests with the same work.
//! Simultaneous multithreading and sockets are not modelled.

mod app;
mod called;
mod card;
mod check;
mod connections;
mod contention;
mod device;
mod dispatching;
mod duty;
mod event_loops;
mod events;
mod gate;
mod gated;
mod gated_totals;
mod level;
mod load;
mod loops;
mod model;
mod open_queries;
mod pace;
mod parts;
mod per_thread;
mod plant;
mod polling;
mod presence;
mod queue;
mod requests;
mod roster;
mod schedule;
mod shared_pace;
mod source;
mod supply;
mod totals;
mod windows;

pub use crate::governor::Governor;
pub use dispatching::{DispatchCounts, MeasurementRecord};
pub use event_loops::{EventLoops, Merge, PingPong, Stack, Traffic};
pub use gated_totals::{CoreTime, EnergyParts, GateTotals, GatedTotals, MeanThreads};
pub use load::LoadStep;
pub use loops::{EventLoopTotals, InterruptRecord};
pub use model::{
    Activity, Cache, ClosedClients, LinuxScheduler, LocalClient, MachineApp, MachineModel, Memory,
    MemoryUse, REFRESH, Throttle,
};
pub(crate) use parts::lease;
pub use parts::{
    Card, Contention, CoreTypes, Device, DispatchPart, DutyCycle, GateClass, GateModel, Order,
    Polling, Power, Query, RunQueues, Scaling, TurnShare, gates,
};
pub use plant::{MachinePlant, MachinePlantError};
pub use presence::Presence;
pub use totals::{MachineAppTotals, MachineTotals};
pub use windows::Windows;

use crate::heap::MinHeap;
use crate::model::ModelError;
use crate::order::{Key, NEVER_NS};
use crate::replication::{Replication, Stream, StreamPurpose};
use crate::tree::WinnerTree;
use app::{AppState, Work};
use called::Returned;
use card::CardState;
use contention::MemorySystem;
use dispatching::Dispatching;
use gated::{GatedServer, GroupLog};
use level::TimeWeightedCount;
use loops::EventLoopCores;
use lull_control::admission::Admission;
use lull_control::dispatcher::Dispatcher;
use lull_measure::Nanos;
use per_thread::PerThreadRule;
use presence::DueChange;
use queue::{CoreState, NO_TASK, State, TaskQueue, Thread};
use shared_pace::SharedPace;
use source::{GivenRequests, RequestSource, Requests};
use std::collections::VecDeque;
use std::fmt;
use supply::Hardware;
use totals::MachineBaseline;

/// The purpose of a timer; with an index it makes a key's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// The frequency governor samples.
    Tick,
    /// An I/O of a connection ends.
    Io,
    /// A connection's next query arrives.
    Arrival,
    /// The storage device has a token.
    Device,
    /// The gate's next decision.
    Gate,
    /// A turn ends because the connection has no query.
    Lease,
    /// The card interrupts a core.
    Interrupt,
    /// A round of polling is over.
    Round,
    /// A self-serving worker checks for its turn.
    Look,
    /// A period of a core's duty cycle begins.
    Duty,
    /// A dispatched request reaches an age, or the dispatcher is shown measurements. The last,
    /// for its index may have more bits.
    Request,
}

/// Bits of the index in a timer's owner.
const INDEX_BITS: u32 = 20;
/// The first owner of a request's timer, and how many there can be.
const REQUEST_OWNERS: usize = (Timer::Request as usize) << INDEX_BITS;
const REQUESTS_MAX: usize = (1 << crate::order::OWNER_BITS) - REQUEST_OWNERS;

/// The controllers that decide on single requests of a machine.
#[derive(Default)]
pub struct Controllers {
    /// The controller at each gate.
    pub admission: Vec<Box<dyn Admission>>,
    /// The dispatcher of an app's requests.
    pub dispatcher: Option<Box<dyn Dispatcher>>,
}

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controllers").finish_non_exhaustive()
    }
}

impl From<Option<Box<dyn Admission>>> for Controllers {
    fn from(admission: Option<Box<dyn Admission>>) -> Self {
        Self { admission: admission.into_iter().collect(), ..Self::default() }
    }
}

/// One replication of a machine.
pub struct MachineSimulation {
    now_ns: u64,
    sequence: u64,
    events: u64,
    /// Leaves: one a core, one for each app's arrivals, the refresh, the balance, the roster, and
    /// the first end of work at the shared pace.
    clocks: WinnerTree,
    /// Everything that is scheduled once.
    timers: MinHeap<Key>,
    hardware: Hardware,
    cores: Vec<CoreState>,
    threads: Vec<Thread>,
    apps: Vec<AppState>,
    scheduler: LinuxScheduler,
    /// The rule in place of Linux's.
    per_thread: Option<PerThreadRule>,
    /// The servers behind gates, in the order of the model.
    gated: Vec<GatedServer>,
    /// The gate whose controller compares settings; one at a time.
    surveyed: Option<usize>,
    /// Latencies of groups of their connections, if `keep_groups` was called.
    groups: GroupLog,
    card: Option<Box<CardState>>,
    /// The cores of an app of event loops, which step on their own.
    loops: Option<Box<EventLoopCores>>,
    wakeups: Stream,
    dispatching: Option<Box<Dispatching>>,
    duty_cycle: Option<DutyCycle>,
    contention: MemorySystem,
    /// How much running threads slow each other down, if they do.
    shared: Option<Box<SharedPace>>,
    /// Whether the running threads have changed, so that the shared pace must be computed again.
    /// Until then the next event is not known.
    runs_changed: bool,
    refresh_ns: u64,
    /// Changes of the roster to come.
    roster: VecDeque<DueChange>,
    /// Work of tiers that is done and has not been taken.
    returned: Vec<Returned>,
    /// Cores without anything to run that no thread has woken, a bit each.
    idle: u64,
    /// Threads that wait, by class.
    queued: [usize; 3],
    /// Whether any thread waits.
    pressure: TimeWeightedCount,
    /// Cores that are idle while as many threads wait that may not run there; counted under
    /// Linux's rules only.
    wasted: TimeWeightedCount,
    baseline: MachineBaseline,
}

impl fmt::Debug for MachineSimulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, events) = (self.now(), self.events);
        f.debug_struct("MachineSimulation").field("now", &now).field("events", &events).finish()
    }
}

impl MachineSimulation {
    /// A fresh replication of a machine without a gate.
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub fn new(model: &MachineModel, seed: u64, replication: u64) -> Result<Self, ModelError> {
        Self::behind(model, None, Replication { seed, number: replication })
    }

    /// A fresh replication, with an admission controller at each gate of the model, and a
    /// dispatcher if it has an app for it.
    ///
    /// # Errors
    /// If the model cannot be simulated, or a part lacks its controller or a controller its part.
    pub fn behind(
        model: &MachineModel,
        controllers: impl Into<Controllers>,
        streams: Replication,
    ) -> Result<Self, ModelError> {
        let Controllers { admission, dispatcher } = controllers.into();
        model.check()?;
        check::check_controllers(model, admission.len())?;
        let gated = admission.into_iter().enumerate();
        let gated = gated
            .map(|(number, admission)| GatedServer::new(model, number, admission, streams))
            .collect();
        let mut node = Self::without_apps(model, gated, streams);
        for number in 0..model.app.len() {
            node.add_app(model, number, streams);
        }
        let dispatched = check::dispatched(model, dispatcher)?;
        node.dispatching = dispatched.map(|(app, part, dispatcher)| {
            Box::new(Dispatching::new(model, (app, part), dispatcher))
        });
        node.start(model);
        Ok(node)
    }

    fn without_apps(model: &MachineModel, gated: Vec<GatedServer>, streams: Replication) -> Self {
        let cores = usize::from(model.cores);
        let hardware = Hardware::new(model);
        let kinds = model.kinds().enumerate();
        let parties = if model.run_queues.is_some() { model.app.len() } else { 0 };
        let mut new = Self {
            now_ns: 0,
            sequence: 0,
            events: 0,
            clocks: WinnerTree::new(cores + model.app.len() + 4),
            timers: MinHeap::new(),
            cores: kinds.map(|core| CoreState::new(&hardware, core, parties)).collect(),
            hardware,
            threads: Vec::new(),
            apps: Vec::new(),
            scheduler: model.scheduler,
            per_thread: model.run_queues.map(|rule| PerThreadRule::new(rule, cores)),
            gated,
            surveyed: None,
            groups: GroupLog::default(),
            card: model.card.as_ref().map(|card| {
                let hash = streams.stream(StreamPurpose::Route, 0);
                Box::new(CardState::new(card, cores, hash))
            }),
            loops: EventLoopCores::new(model, streams).map(Box::new),
            wakeups: streams.stream(StreamPurpose::Wakeups, 0),
            dispatching: None,
            duty_cycle: model.duty_cycle.clone(),
            contention: MemorySystem::new(model),
            shared: SharedPace::new(model.interference, cores).map(Box::new),
            runs_changed: false,
            refresh_ns: model.refresh.0,
            roster: presence::due_changes(model.app.iter().map(|app| &app.presence)),
            returned: Vec::new(),
            idle: u64::MAX >> (64 - cores),
            queued: [0; 3],
            pressure: TimeWeightedCount::default(),
            wasted: TimeWeightedCount::default(),
            baseline: MachineBaseline::default(),
        };
        if let Some(agent) = new.agent() {
            new.cores[agent].supply.phase = supply::CorePhase::Busy;
            new.idle &= !(1 << agent);
        }
        new
    }

    fn start(&mut self, model: &MachineModel) {
        self.start_connections();
        if let Some(period) = self.hardware.period() {
            self.set_timer(period.0, Timer::Tick, 0);
        }
        for (app, described) in model.app.iter().enumerate() {
            match described.presence.begins_present() {
                true => self.start_app(app),
                false => self.withhold(app),
            }
        }
        (0..self.gated.len()).for_each(|gate| self.gate_timer(gate, 0));
        if let Some(loops) = &mut self.loops {
            let cores = self.cores.iter().enumerate();
            cores.for_each(|(core, state)| loops.set_frequency(core, state.supply.frequency));
        }
        let cycled = model.duty_cycle.iter().flat_map(|cycle| &cycle.cores);
        cycled.for_each(|core| self.pause(usize::from(*core)));
        self.start_dispatching();
        let is_linux = self.per_thread.is_none() && self.loops.is_none();
        if is_linux || model.cache.is_some() || model.memory.is_some() {
            self.set_clock(self.refresh_leaf(), self.refresh_ns);
        }
        if is_linux {
            self.set_clock(self.refresh_leaf() + 1, self.scheduler.balance.0);
        }
        self.expect_change();
        self.forget();
    }

    /// The core on which the scheduler itself spins.
    fn agent(&self) -> Option<usize> {
        self.per_thread.as_ref().and_then(PerThreadRule::agent)
    }

    fn add_app(&mut self, model: &MachineModel, number: usize, streams: Replication) {
        let app = &model.app[number];
        let first = self.threads.len();
        let threads = first..first + app.threads as usize;
        self.threads.extend(threads.clone().map(|thread| Thread {
            app: number,
            state: State::Sleeping,
            core: thread % self.cores.len(),
            left_ns: 0.0,
            virtual_ns: 0.0,
            task: NO_TASK,
            ready_ns: 0,
            bound: None,
            stall_ns: 0,
        }));
        let work = match &app.activity {
            Activity::Connections => {
                Work::Connections { gate: model.gate_of(app).expect("the model is checked") }
            }
            Activity::Endless => Work::Endless,
            Activity::EventLoops(_) => Work::EventLoops,
            Activity::Phases { work } => Work::Phases {
                draw: work.draw(),
                stream: streams.stream(StreamPurpose::Work, model.stream_of(number)),
                threads: threads.collect(),
                waiting: app.threads as usize,
            },
            Activity::Clients => {
                Work::Clients(TaskQueue { free: threads.rev().collect(), ..TaskQueue::default() })
            }
            Activity::Requests { .. } | Activity::Called => {
                let requests = Requests::new(model, number, threads, streams);
                Work::Requests(Box::new(requests.expect("the activity is requests or calls")))
            }
        };
        let pace = 1.0 / self.contention.slowdown(number);
        let treatment = queue::neutral(self.cores.len(), self.agent());
        self.apps.push(AppState::new(work, app.ipc, pace, treatment));
    }

    fn start_app(&mut self, app: usize) {
        match &self.apps[app].work {
            Work::Requests(_) | Work::Connections { .. } => self.expect_arrival(app),
            Work::Clients(_) | Work::EventLoops => {}
            Work::Phases { .. } => self.next_phase(app, None),
            Work::Endless => {
                for thread in 0..self.threads.len() {
                    if self.threads[thread].app == app {
                        self.threads[thread].left_ns = f64::INFINITY;
                        self.place(thread, true);
                    }
                }
            }
        }
    }

    /// Lets these requests arrive for an app that has not begun, in place of its own.
    pub(crate) fn feed(&mut self, app: usize, each: GivenRequests) {
        let Work::Requests(requests) = &mut self.apps[app].work else { return };
        requests.source = RequestSource::Given { each, work_ns: 0.0 };
        self.expect_arrival(app);
    }

    /// Requests that the dispatcher's app has answered or abandoned.
    pub(crate) fn dispatched(&self) -> u64 {
        self.dispatching.as_ref().map_or(0, |dispatching| dispatching.ended)
    }

    /// Now, since the start.
    pub fn now(&self) -> Nanos {
        Nanos(self.now_ns)
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn refresh_leaf(&self) -> usize {
        self.cores.len() + self.apps.len()
    }

    fn set_clock(&mut self, leaf: usize, time_ns: u64) {
        if time_ns != NEVER_NS {
            self.sequence += 1;
            self.clocks.set(leaf, Key::new(time_ns, self.sequence, leaf as u32));
        } else if self.clocks.is_set(leaf) {
            self.clocks.set(leaf, Key::NEVER);
        }
    }
}
