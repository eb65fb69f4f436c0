//! One machine shared by several apps: the co-location node.
//!
//! Cores have run queues with weights, real-time priorities, affinity, slices,
//! stealing and a cost of switching. Latency-critical apps serve a queue of
//! requests with a few threads; best-effort apps compute, with or without
//! barriers. Apps slow each other down through the ways of the last-level
//! cache and through memory bandwidth ([`NodeModel`] says how). Policies reach
//! it as [`NodePlant`], through the seam that hosts have.
//!
//! ```
//! use lull_measure::Nanos;
//! use lull_sim::node::{NodeSimulation, NodeModel};
//!
//! let model: NodeModel = toml::from_str(r#"
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
//! let mut node = NodeSimulation::new(&model, 1, 0)?;
//! node.run_until(Nanos::from_secs(10));
//! let totals = node.totals();
//! assert!(totals.apps[0].answered > 7000);
//! let busy: f64 = totals.apps.iter().map(|app| app.busy_cores).sum();
//! assert!((busy - 2.0).abs() < 1e-9, "some thread always wants to run");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Work is drawn when a request arrives, from a stream of its own for each
//! app, so that all policies receive the same requests with the same work. The
//! machine has one frequency and no power model; simultaneous multithreading
//! and sockets are not modelled.

mod check;
mod contention;
mod knobs;
mod level;
mod model;
mod plant;
mod presence;
mod queue;
mod requests;
mod schedule;
mod totals;

pub use model::{
    Activity, Cache, ClosedClients, LoadStep, Memory, MemoryUse, NodeApp, NodeClient, NodeModel, NodeScheduler,
    REFRESH, Throttle,
};
pub use plant::{NodePlant, NodePlantError};
pub use presence::Presence;
pub use totals::{NodeAppTotals, NodeTotals};

use crate::model::{Draw, ModelError};
use crate::order::{Key, NEVER_NS, round_ns};
use crate::replication::{Replication, Stream, StreamPurpose};
use crate::tree::WinnerTree;
use contention::Contention;
use level::TimeWeightedCount;
use lull_measure::{Latency, Nanos};
use presence::DueChange;
use queue::{CoreState, NO_TASK, State, Task, TaskQueue, Thread, ThreadScheduling};
use requests::Requests;
use std::collections::VecDeque;
use totals::NodeBaseline;

/// Work below this, in nanoseconds, is rounding and done.
const DONE_NS: f64 = 1.0;

/// One replication of a node.
#[derive(Debug, Clone)]
pub struct NodeSimulation {
    now_ns: u64,
    sequence: u64,
    events: u64,
    /// One leaf a core, one an app's arrivals, the refresh, the balance, the roster.
    clocks: WinnerTree,
    cores: Vec<CoreState>,
    threads: Vec<Thread>,
    apps: Vec<AppState>,
    scheduler: NodeScheduler,
    wakeups: Stream,
    contention: Contention,
    refresh_ns: u64,
    /// Changes of the roster to come.
    roster: VecDeque<DueChange>,
    /// Cores without anything to run, a bit each.
    idle: u64,
    /// Threads that wait, by class.
    queued: [usize; 3],
    /// Whether any thread waits.
    pressure: TimeWeightedCount,
    frequency_hz: f64,
    baseline: NodeBaseline,
}

/// One app.
#[derive(Debug, Clone)]
struct AppState {
    treatment: ThreadScheduling,
    work: Work,
    ipc: f64,
    /// Work done per time on a core.
    pace: f64,
    running: TimeWeightedCount,
    queued: TimeWeightedCount,
    outstanding: TimeWeightedCount,
    /// 1 while it is on the node.
    present: TimeWeightedCount,
    /// How often it has departed.
    life: u32,
    /// `running` at the last refresh.
    ran_ns: u128,
    arrived: u64,
    answered: u64,
    /// Requests that it left unanswered when it departed.
    lost: u64,
    switches: u64,
    work_ns: f64,
    /// Since the window was last taken.
    window: Latency,
    /// Since the start of what is counted.
    latency: Latency,
    /// Every latency, if `keep_log` was called.
    log: Option<Vec<Nanos>>,
}

/// The work of an app's threads.
#[derive(Debug, Clone)]
enum Work {
    Requests(Box<Requests>),
    Clients(TaskQueue),
    Endless,
    Phases { draw: Draw, stream: Stream, threads: Vec<usize>, waiting: usize },
}

impl NodeSimulation {
    /// A fresh replication.
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub fn new(model: &NodeModel, seed: u64, replication: u64) -> Result<Self, ModelError> {
        model.check()?;
        let cores = usize::from(model.cores);
        let streams = Replication { seed, number: replication };
        let mut node = Self {
            now_ns: 0,
            sequence: 0,
            events: 0,
            clocks: WinnerTree::new(cores + model.app.len() + 3),
            cores: vec![CoreState::default(); cores],
            threads: Vec::new(),
            apps: Vec::new(),
            scheduler: model.scheduler,
            wakeups: streams.stream(StreamPurpose::Wakeups, 0),
            contention: Contention::new(model),
            refresh_ns: model.refresh.0,
            roster: presence::due_changes(model.app.iter().map(|app| &app.presence)),
            idle: u64::MAX >> (64 - cores),
            queued: [0; 3],
            pressure: TimeWeightedCount::default(),
            frequency_hz: model.frequency.0 as f64,
            baseline: NodeBaseline::default(),
        };
        for number in 0..model.app.len() {
            node.add_app(model, number, streams);
        }
        for (app, described) in model.app.iter().enumerate() {
            match described.presence.begins_present() {
                true => node.start_app(app),
                false => node.withhold(app),
            }
        }
        node.set_clock(node.refresh_leaf(), node.refresh_ns);
        node.set_clock(node.refresh_leaf() + 1, node.scheduler.balance.0);
        node.expect_change();
        node.forget();
        Ok(node)
    }

    fn add_app(&mut self, model: &NodeModel, number: usize, streams: Replication) {
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
        }));
        let work = match &app.activity {
            Activity::Endless => Work::Endless,
            Activity::Phases { work } => Work::Phases {
                draw: work.draw(),
                stream: streams.stream(StreamPurpose::Work, number),
                threads: threads.collect(),
                waiting: app.threads as usize,
            },
            Activity::Clients => {
                Work::Clients(TaskQueue { free: threads.rev().collect(), ..TaskQueue::default() })
            }
            Activity::Requests { .. } => {
                let requests = Requests::new(model, number, threads, streams);
                Work::Requests(Box::new(requests.expect("the activity is requests")))
            }
        };
        let pace = 1.0 / self.contention.slowdown(number);
        let treatment = presence::neutral(self.cores.len());
        self.apps.push(AppState::new(work, app.ipc, pace, treatment));
    }

    fn start_app(&mut self, app: usize) {
        match &self.apps[app].work {
            Work::Requests(_) => self.expect_arrival(app),
            Work::Clients(_) => {}
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

    /// Now, since the start.
    pub fn now(&self) -> Nanos {
        Nanos(self.now_ns)
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Runs all events before `until` and moves the clock there.
    pub fn run_until(&mut self, until: Nanos) {
        loop {
            let key = self.clocks.first();
            if key.time_ns() >= until.0 {
                break;
            }
            debug_assert!(key.time_ns() >= self.now_ns, "time never goes back");
            self.now_ns = key.time_ns();
            self.events += 1;
            let leaf = key.owner() as usize;
            let app = leaf.wrapping_sub(self.cores.len());
            if leaf < self.cores.len() {
                self.core_event(leaf);
            } else if app < self.apps.len() {
                self.arrival(app);
            } else {
                match leaf - self.refresh_leaf() {
                    0 => self.refresh(),
                    1 => {
                        self.balance();
                        self.set_clock(leaf, self.now_ns + self.scheduler.balance.0);
                    }
                    _ => self.roster_event(),
                }
            }
        }
        self.now_ns = self.now_ns.max(until.0);
    }

    fn refresh_leaf(&self) -> usize {
        self.cores.len() + self.apps.len()
    }

    fn set_clock(&mut self, leaf: usize, time_ns: u64) {
        if time_ns == NEVER_NS {
            return self.clocks.set(leaf, Key::NEVER);
        }
        self.sequence += 1;
        self.clocks.set(leaf, Key::new(time_ns, self.sequence, leaf as u32));
    }

    /// The running thread has done its work, or its slice is over.
    fn core_event(&mut self, core: usize) {
        self.credit(core);
        let Some(current) = self.cores[core].current else { return };
        if self.threads[current].left_ns <= DONE_NS {
            self.finish(core, current);
        } else {
            self.end_slice(core);
        }
    }

    fn finish(&mut self, core: usize, thread: usize) {
        let app = self.threads[thread].app;
        match &mut self.apps[app].work {
            Work::Requests(_) | Work::Clients(_) => self.finish_task(core, thread),
            Work::Phases { threads, waiting, .. } => {
                *waiting += 1;
                if *waiting == threads.len() {
                    self.next_phase(app, Some(core));
                } else {
                    self.sleep(core, thread);
                }
            }
            Work::Endless => self.retime(core),
        }
    }

    fn sleep(&mut self, core: usize, thread: usize) {
        self.halt(core);
        self.threads[thread].state = State::Sleeping;
        self.pick(core);
    }

    /// All threads pass the barrier; the last to arrive runs on `core` still.
    fn next_phase(&mut self, app: usize, core: Option<usize>) {
        let Work::Phases { draw, stream, threads, waiting } = &mut self.apps[app].work else {
            return;
        };
        *waiting = 0;
        let all = threads.clone();
        for thread in &all {
            self.threads[*thread].left_ns = draw.sample(stream);
        }
        core.into_iter().for_each(|core| self.retime(core));
        for thread in all {
            if self.threads[thread].state == State::Sleeping {
                self.place(thread, true);
            }
        }
    }

    /// Updates cache shares and memory latency, and with them the paces of all apps.
    fn refresh(&mut self) {
        let (now_ns, refresh_ns) = (self.now_ns, self.refresh_ns);
        let running = self.apps.iter_mut().map(|app| {
            let ran_ns = app.running.integral_at(now_ns);
            let span_ns = ran_ns - std::mem::replace(&mut app.ran_ns, ran_ns);
            span_ns as f64 / refresh_ns as f64
        });
        self.contention.refresh(running);
        for core in 0..self.cores.len() {
            self.credit(core);
        }
        for (number, app) in self.apps.iter_mut().enumerate() {
            app.pace = 1.0 / self.contention.slowdown(number);
        }
        for core in 0..self.cores.len() {
            self.retime(core);
        }
        self.set_clock(self.refresh_leaf(), now_ns + refresh_ns);
    }
}

impl AppState {
    fn new(work: Work, ipc: f64, pace: f64, treatment: ThreadScheduling) -> Self {
        Self {
            treatment,
            work,
            ipc,
            pace,
            running: TimeWeightedCount::default(),
            queued: TimeWeightedCount::default(),
            outstanding: TimeWeightedCount::default(),
            present: TimeWeightedCount::at_start(1),
            life: 0,
            ran_ns: 0,
            arrived: 0,
            answered: 0,
            lost: 0,
            switches: 0,
            work_ns: 0.0,
            window: Latency::default(),
            latency: Latency::default(),
            log: None,
        }
    }

    fn answer(&mut self, now_ns: u64, task: Task) {
        let latency = Nanos(now_ns - task.arrived_ns + round_ns(task.delay_ns));
        self.answered += 1;
        self.outstanding.fall(now_ns);
        self.window.record(latency);
        self.latency.record(latency);
        if let Some(log) = &mut self.log {
            log.push(latency);
        }
    }
}
