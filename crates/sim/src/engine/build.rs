//! From a checked model to an engine at time 0.

use super::lane::Lane;
use super::power::{Domain, MachineParts};
use super::program::compile;
use super::request::{Fifo, NONE, Requests};
use super::samples::Samples;
use super::server::{Counts, Permits, Server};
use super::source::SourceState;
use super::tally::Tally;
use super::tier::TierState;
use super::watch::Watches;
use super::{AppState, Engine, PoolGroup};
use crate::model::{App, Discipline, Draw, Model, ModelError, Source, Tier, Unit, conflict};
use crate::replication::{Replication, StreamPurpose};
use crate::timers::{TimerPurpose, Timers};
use crate::tree::WinnerTree;

impl Engine {
    /// Creates one replication of a model, at time 0, with all clients thinking.
    ///
    /// # Errors
    /// If the model cannot be simulated; the error names the key.
    pub fn new(model: &Model, seed: u64, replication: u64) -> Result<Self, ModelError> {
        let hosted = model.tier.iter().position(|tier| tier.host.is_some());
        if let Some(tier) = hosted {
            let why = "servers that are machines run in a system with hosts, not in the engine";
            conflict(format!("tier[{tier}].host"), why)?;
        }
        Self::hosted(model, seed, replication)
    }

    /// The same for a model whose servers may be machines, which the caller runs.
    ///
    /// # Errors
    /// If the model cannot be simulated; the error names the key.
    pub(crate) fn hosted(model: &Model, seed: u64, replication: u64) -> Result<Self, ModelError> {
        model.check()?;
        let streams = Replication { seed, number: replication };
        let mut engine = Self::empty(model);
        for tier in &model.tier {
            engine.add_tier(model, tier, streams);
        }
        for pool in &model.pool {
            let per = pool.per.as_ref().and_then(|name| engine.servers_of(name));
            let servers = per.unwrap_or(0..1);
            let (first, first_server) = (engine.permits.len() as u32, servers.start as u32);
            engine.pools.push(PoolGroup { first, first_server });
            let permits = servers.map(|_| Permits::new(pool.size, pool.backlog));
            engine.permits.extend(permits);
        }
        let leaves = engine.lanes.len() + model.app.len();
        engine.clocks = WinnerTree::new(leaves);
        for (index, app) in model.app.iter().enumerate() {
            engine.add_app(app, index, streams);
        }
        Ok(engine)
    }

    fn empty(model: &Model) -> Self {
        let programs = compile(model);
        let amounts = programs.amounts.iter().map(Vec::len).max().unwrap_or(0);
        // A closed app has at most as many requests in flight as clients.
        let clients = model.app.iter().map(|app| match &app.source {
            Source::Closed(closed) => closed.clients as usize,
            Source::Open(_) => 0,
        });
        let requests = Requests::new(clients.sum(), amounts, programs.visits);
        Self {
            now_ns: 0,
            sequence: 0,
            events: 0,
            pause_at: 0,
            clocks: WinnerTree::new(1),
            timers: Timers::new(),
            lanes: Vec::new(),
            domains: Vec::new(),
            hardware: MachineParts::default(),
            servers: Vec::new(),
            queues: Vec::new(),
            permits: Vec::new(),
            pools: Vec::new(),
            tiers: Vec::new(),
            tier_names: model.tier.iter().map(|tier| tier.name.clone()).collect(),
            apps: Vec::new(),
            classes: classes(&model.app).len(),
            class_of: model.app.iter().map(|app| class_of(&model.app, app)).collect(),
            programs,
            requests,
            ready: Vec::new(),
            away: Vec::new(),
            watches: Watches::default(),
            limits: model.limits,
            fault: None,
            counted_since_ns: 0,
            #[cfg(debug_assertions)]
            in_flight_at_start: 0,
        }
    }

    fn add_tier(&mut self, model: &Model, tier: &Tier, streams: Replication) {
        let index = self.tiers.len();
        let first = self.servers.len() as u32;
        let stream = streams.stream(StreamPurpose::Route, index);
        self.tiers.push(TierState::new(first, tier.servers, &tier.routing, stream));
        let machine = model.machine_of(tier);
        let ids = self.hardware.add(&machine);
        for _ in 0..tier.servers {
            self.add_server(tier, index as u32, ids, machine.cores.len() as u32);
        }
    }

    fn add_server(&mut self, tier: &Tier, index: u32, (machine, group): (u32, u32), groups: u32) {
        let first_lane = self.lanes.len() as u32;
        for group in group..group + groups {
            self.add_lanes(machine, group, tier.discipline == Discipline::Sharing);
        }
        let queues = match tier.discipline {
            Discipline::Priority | Discipline::Preemptive => self.classes,
            Discipline::Fcfs | Discipline::Sharing => 0,
        };
        let threads = tier.threads.map_or(NONE, |threads| {
            self.permits.push(Permits::new(threads, tier.backlog));
            self.permits.len() as u32 - 1
        });
        self.servers.push(Server {
            first_lane,
            lanes: self.lanes.len() as u32 - first_lane,
            queue: Fifo::EMPTY,
            first_queue: self.queues.len() as u32,
            threads,
            tier: index,
            pending: 0,
            discipline: tier.discipline,
            counts: Counts::default(),
        });
        self.queues.resize(self.queues.len() + queues, Fifo::EMPTY);
    }

    /// Adds one lane per frequency domain of a core group.
    fn add_lanes(&mut self, machine: u32, group: u32, shared: bool) {
        let server = self.servers.len() as u32;
        let cores = &self.hardware.groups[group as usize];
        let speed = self.hardware.speed(group, cores.start);
        let each = if cores.domain == 0 { cores.count } else { cores.domain };
        for number in 0..cores.domains() {
            let count = each.min(cores.count - number * each);
            self.lanes.push(Lane::new(server, count, speed, shared));
            self.domains.push(Domain::new(group, machine, cores));
        }
    }

    fn add_app(&mut self, app: &App, index: usize, streams: Replication) {
        let mut source = SourceState::new(&app.source, streams, index);
        if let Source::Closed(closed) = &app.source {
            for time in source.first_think_times(closed.clients) {
                self.set_timer(time, TimerPurpose::Think, index);
            }
        }
        let draws = &self.programs.amounts[index];
        let draws: Vec<(Draw, bool)> =
            draws.iter().map(|(work, at_arrival)| (work.draw(), *at_arrival)).collect();
        let at_arrival = draws.iter().filter(|(_, at_arrival)| *at_arrival);
        let units: Vec<Unit> = at_arrival.map(|(draw, _)| *draw.unit()).collect();
        self.apps.push(AppState {
            name: app.name.clone(),
            entry: self.programs.entries[index],
            class: self.class_of[index],
            source,
            draws,
            work: Samples::new(streams.stream(StreamPurpose::Work, index), &units),
            path: streams.stream(StreamPurpose::Path, index),
            arrived: 0,
            answered: 0,
            lost: 0,
            response_ns: 0,
            latency: Tally::new(),
        });
        if self.apps[index].source.has_phases() {
            self.phase(index);
        } else {
            let next = self.apps[index].source.next_ns();
            self.set_source(index, next);
        }
    }
}

/// The distinct priorities, ascending.
fn classes(apps: &[App]) -> Vec<u8> {
    let mut all: Vec<u8> = apps.iter().map(|app| app.priority).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The dense class of an app's priority.
fn class_of(apps: &[App], app: &App) -> u8 {
    classes(apps).iter().position(|priority| *priority == app.priority).unwrap_or(0) as u8
}
