//! The state of dispatching: which request runs on which core, and when the dispatcher
//! decides on it again. It does no I/O.
//!
//! The rules are those of `lull_sim::dispatch`. A dispatcher decides when a request
//! begins, at the ages that it named, and on running requests when another request
//! arrives or leaves, if its attention covers them. Then it decides on waiting requests,
//! oldest first, while a core is free.

use super::Floor;
use super::pool::Pool;
use lull_control::CoreId;
use lull_control::dispatcher::{CoreChoice, DecisionScope, DispatchRequest, Dispatcher, Meter};
use lull_measure::{Latency, Nanos};
use serde::Serialize;

/// A floor on which nothing can be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchSetupError {
    /// Types without cores, or cores without a type.
    #[error("{0} sets of cores for {1} core types: give one set for each type")]
    Types(usize, usize),
    /// Cores that each take every speed are one set.
    #[error("{0} sets of cores that each take every speed: give one")]
    OneSet(usize),
    /// The type is listed with another number of cores.
    #[error("core type `{0}` has {1} cores listed and {2} counted")]
    Cores(String, usize, usize),
    /// A core that is of two types.
    #[error("core {0} is of two types: name every core once")]
    Twice(CoreId),
}

/// A dispatcher and its measurements, which are swapped together when dispatchers alternate.
pub struct ActiveDispatcher {
    dispatcher: Box<dyn Dispatcher>,
    meter: Option<Meter>,
    /// How long it has been in use; this is the only time that the dispatcher sees.
    served: Nanos,
}

impl ActiveDispatcher {
    /// A dispatcher that has seen nothing yet.
    pub fn new(dispatcher: Box<dyn Dispatcher>) -> Self {
        let meter = dispatcher.measurement_rule().map(Meter::new);
        Self { dispatcher, meter, served: Nanos::ZERO }
    }

    /// Its thresholds, as [`Dispatcher::thresholds`].
    pub fn thresholds(&self) -> &[Nanos] {
        self.dispatcher.thresholds()
    }
}

/// A change of a thread's affinity or of a core's speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// This thread on this core.
    On(i32, CoreId),
    /// This thread on any core of the slowest type.
    Slowest(i32),
    /// This core at the speed of this type, where each core takes every speed.
    Speed(CoreId, usize),
}

/// Core time by type, slowest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Spent {
    /// Seconds in which cores of each type had a request.
    pub busy_s: Vec<f64>,
}

/// The counts of a dispatch.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Latency from arrival to end of requests that ended on a core.
    pub latency: Latency,
    /// Core time by type.
    pub spent: Spent,
    /// Time counted.
    pub span: Nanos,
    /// Moves of requests under way.
    pub moves: u64,
    /// Requests that lost their core at [`Floor::abandon`].
    pub abandoned: u64,
    /// Requests whose thread died.
    pub died: u64,
    /// How often the dispatcher was called.
    pub decisions: u64,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    id: u64,
    tid: i32,
    arrival: Nanos,
    pub(super) on: Option<(usize, CoreId)>,
    /// When it migrated to its present core.
    since: Nanos,
    /// Work done before that, in nanoseconds at speed 1.
    done: f64,
    /// When the dispatcher is called again for its age; [`Nanos::MAX`] for never.
    again: Nanos,
}

/// Requests, cores, and a dispatcher between them.
pub struct DispatchState {
    floor: Floor,
    current: ActiveDispatcher,
    decision_scope: DecisionScope,
    first_come: bool,
    /// When the dispatcher was put in use.
    since: Nanos,
    pub(super) pool: Pool,
    /// All requests, oldest first.
    pub(super) active: Vec<Entry>,
    next_id: u64,
    orders: Vec<Order>,
    tally: Tally,
    busy_ns: Vec<u64>,
    counted_from: Nanos,
    advanced: Nanos,
}

impl DispatchState {
    /// An empty dispatch at time 0.
    ///
    /// # Errors
    /// The error of [`Floor::check`].
    pub fn new(floor: Floor, dispatcher: Box<dyn Dispatcher>) -> Result<Self, DispatchSetupError> {
        floor.check()?;
        Ok(Self {
            decision_scope: dispatcher.decision_scope(),
            first_come: dispatcher.first_come(),
            current: ActiveDispatcher::new(dispatcher),
            since: Nanos::ZERO,
            pool: Pool::new(&floor),
            active: Vec::new(),
            next_id: 1,
            orders: Vec::new(),
            tally: Tally::default(),
            busy_ns: vec![0; floor.ladder.types().len()],
            counted_from: Nanos::ZERO,
            advanced: Nanos::ZERO,
            floor,
        })
    }

    /// Begins a request of this thread that arrived at `arrival`; returns its number, never 0.
    pub fn arrive(&mut self, now: Nanos, arrival: Nanos, tid: i32) -> u64 {
        self.advance(now);
        let id = self.next_id;
        self.next_id += 1;
        let arrival = arrival.min(now);
        let place = self.active.partition_point(|other| other.arrival <= arrival);
        let again = Nanos::MAX;
        let entry = Entry { id, tid, arrival, on: None, since: now, done: 0.0, again };
        self.active.insert(place, entry);
        let clock = self.clock(now);
        if let Some(meter) = &mut self.current.meter {
            meter.arrived(clock);
        }
        self.settle(now);
        id
    }

    /// The request has ended. One that is not known (it was taken off) is no matter.
    pub fn leave(&mut self, now: Nanos, id: u64) {
        let entry = self.find(id).map(|index| self.active[index]);
        let latency = entry.map_or(Nanos::ZERO, |entry| now.saturating_sub(entry.arrival));
        self.end(now, id, latency);
    }

    /// The request has ended, and took this long: its end is noticed later than it was.
    pub fn end(&mut self, now: Nanos, id: u64, latency: Nanos) {
        self.advance(now);
        let Some(entry) = self.remove(id) else { return };
        self.tally.latency.record(latency);
        // A request that arrived under another dispatcher says nothing about this one.
        let ours = entry.arrival >= self.since;
        let ends = ours && self.current.meter.as_mut().is_some_and(|meter| meter.answered(latency));
        if ends {
            self.measure(now);
        }
        self.settle(now);
    }

    /// Counts a request that began and ended unnoticed.
    pub fn count_answer(&mut self, now: Nanos, latency: Nanos) {
        self.advance(now);
        self.tally.latency.record(latency);
        let clock = self.clock(now);
        let ends = self.current.meter.as_mut().is_some_and(|meter| {
            meter.arrived(clock);
            meter.answered(latency)
        });
        if ends {
            self.measure(now);
            self.settle(now);
        }
    }

    /// Forgets a request that gets no answer.
    pub fn drop_request(&mut self, now: Nanos, id: u64) {
        self.advance(now);
        if self.remove(id).is_some() {
            self.settle(now);
        }
    }

    /// Returns the thread and the core of each request that has one.
    pub fn placed(&self) -> impl Iterator<Item = (i32, CoreId)> + '_ {
        self.active.iter().filter_map(|entry| Some((entry.tid, entry.on?.1)))
    }

    /// The thread of a request is no more.
    pub fn end_thread(&mut self, now: Nanos, tid: i32) {
        self.advance(now);
        while let Some(id) = self.active.iter().find(|entry| entry.tid == tid).map(|dead| dead.id) {
            self.remove(id);
            self.tally.died += 1;
        }
        self.settle(now);
    }

    /// Decides on all requests whose age is due, and removes requests that are too old.
    pub fn tick(&mut self, now: Nanos) {
        self.advance(now);
        self.abandon(now);
        let mut moved = false;
        for index in 0..self.active.len() {
            if self.active[index].again <= now {
                moved |= self.decide(index, now);
            }
        }
        let clock = self.clock(now);
        if self.current.meter.as_ref().is_some_and(|meter| meter.next() <= clock) {
            self.measure(now);
            moved = true;
        }
        if moved {
            self.settle(now);
        }
    }

    /// When [`DispatchState::tick`] has something to do; [`Nanos::MAX`]: not by itself.
    pub fn next_due(&self) -> Nanos {
        let decisions = self.active.iter().map(|entry| entry.again);
        let oldest = self.active.first();
        let abandoned = oldest.map(|entry| entry.arrival.saturating_add(self.floor.abandon));
        let measurement =
            self.current.meter.as_ref().map(Meter::next).filter(|at| *at < Nanos::MAX);
        let measurement =
            measurement.map(|at| at.saturating_sub(self.current.served).saturating_add(self.since));
        decisions.chain(abandoned).chain(measurement).min().unwrap_or(Nanos::MAX)
    }

    /// Whether a request has a core, or is not known any more: it need not wait.
    pub fn may_run(&self, id: u64) -> bool {
        self.find(id).is_none_or(|index| self.active[index].on.is_some())
    }

    /// Threads with a request under way.
    pub fn threads(&self) -> impl Iterator<Item = i32> + '_ {
        self.active.iter().map(|entry| entry.tid)
    }

    /// Requests that have begun and not ended.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Takes the pending orders for threads, in their order.
    pub fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Whether there are orders.
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Lets another dispatcher decide from here on, for those under way too.
    pub fn exchange(&mut self, now: Nanos, next: ActiveDispatcher) -> ActiveDispatcher {
        self.advance(now);
        let served = self.clock(now);
        let mut before = std::mem::replace(&mut self.current, next);
        before.served = served;
        self.since = now;
        self.decision_scope = self.current.dispatcher.decision_scope();
        self.first_come = self.current.dispatcher.first_come();
        self.decide_running(self.active.len(), now);
        self.settle(now);
        before
    }

    /// Returns the counts since the last call.
    pub fn take_tally(&mut self, now: Nanos) -> Tally {
        self.advance(now);
        let busy_s = self.busy_ns.iter().map(|busy_ns| *busy_ns as f64 / 1e9).collect();
        self.tally.spent = Spent { busy_s };
        self.tally.span = now.saturating_sub(self.counted_from);
        self.busy_ns.fill(0);
        self.counted_from = now;
        std::mem::take(&mut self.tally)
    }

    /// Returns the cores for threads that have lost theirs.
    pub(super) fn floor(&self) -> &Floor {
        &self.floor
    }

    /// The dispatcher's own time: what passes while others decide is not in it.
    fn clock(&self, now: Nanos) -> Nanos {
        self.current.served + now.saturating_sub(self.since)
    }

    fn advance(&mut self, now: Nanos) {
        let span_ns = now.saturating_sub(self.advanced).0;
        self.advanced = self.advanced.max(now);
        for (busy_ns, busy) in self.busy_ns.iter_mut().zip(self.pool.busy()) {
            *busy_ns += span_ns * u64::from(*busy);
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.active.iter().position(|entry| entry.id == id)
    }

    /// Takes a request out and its core back.
    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.active.remove(self.find(id)?);
        if let Some((kind, core)) = entry.on {
            self.pool.give_back(kind, core);
        }
        Some(entry)
    }

    /// Removes requests that are too old, because a request that never ends must not
    /// hold its core, and the requests that wait for the core, for ever.
    fn abandon(&mut self, now: Nanos) {
        let too_old = |entry: &Entry| now.saturating_sub(entry.arrival) >= self.floor.abandon;
        let mut any = false;
        while let Some(entry) = self.active.first().copied().filter(too_old) {
            self.active.remove(0);
            if let Some((kind, core)) = entry.on {
                self.pool.give_back(kind, core);
            }
            self.tally.abandoned += 1;
            self.orders.push(Order::Slowest(entry.tid));
            any = true;
        }
        if any {
            self.settle(now);
        }
    }

    /// Shows the dispatcher the measurements; new thresholds apply to all requests under way.
    fn measure(&mut self, now: Nanos) {
        let clock = self.clock(now);
        let Some(meter) = &mut self.current.meter else { return };
        let seen = meter.read(clock, self.active.len());
        self.current.dispatcher.adjust(&seen);
        self.decide_running(self.active.len(), now);
    }

    /// Calls the dispatcher for the running ones among the oldest requests.
    fn decide_running(&mut self, oldest: usize, now: Nanos) {
        for index in 0..oldest.min(self.active.len()) {
            if self.active[index].on.is_some() {
                self.decide(index, now);
            }
        }
    }

    fn settle(&mut self, now: Nanos) {
        match self.decision_scope {
            DecisionScope::Ages => {}
            DecisionScope::Oldest(most) => self.decide_running(most, now),
            DecisionScope::All => self.decide_running(self.active.len(), now),
        }
        self.decide_waiting(now);
        let idle = self.pool.slow_down_idle();
        self.orders.extend(idle.into_iter().map(|core| Order::Speed(core, 0)));
    }

    /// Decides on waiting requests, oldest first, while there are idle cores.
    fn decide_waiting(&mut self, now: Nanos) {
        let cores = self.floor.ladder.all_cores();
        for index in 0..self.active.len() {
            if self.pool.running() >= cores {
                return;
            }
            if self.active[index].on.is_none() && !self.decide(index, now) && self.first_come {
                return;
            }
        }
    }

    /// Calls the dispatcher for a request; returns whether the request moved.
    fn decide(&mut self, index: usize, now: Nanos) -> bool {
        let entry = self.active[index];
        let age = now.saturating_sub(entry.arrival);
        let request = DispatchRequest {
            age,
            done: Nanos(self.done(&entry, now) as u64),
            on: entry.on.map(|(kind, _)| kind),
            older: index,
            active: self.active.len(),
            work: None,
            free: self.pool.free(),
        };
        let answer = self.current.dispatcher.place(&request);
        self.tally.decisions += 1;
        let again = answer.again.filter(|again| *again > age);
        self.active[index].again =
            again.map_or(Nanos::MAX, |again| entry.arrival.saturating_add(again));
        let CoreChoice::On(kind) = answer.place else { return false };
        let known = kind < self.floor.ladder.types().len();
        let goes = known && request.on != Some(kind) && request.can(kind, &self.floor.ladder);
        goes && self.start_on(index, kind, now)
    }

    /// Work done, by its time on each type.
    fn done(&self, entry: &Entry, now: Nanos) -> f64 {
        let here = entry.on.map_or(0.0, |(kind, _)| {
            now.saturating_sub(entry.since).0 as f64 * self.floor.ladder.types()[kind].speed
        });
        entry.done + here
    }

    /// Moves a request to a core of the type, or its own core to that speed.
    fn start_on(&mut self, index: usize, kind: usize, now: Nanos) -> bool {
        let done = self.done(&self.active[index], now);
        let before = self.active[index].on;
        let core = match before {
            Some((from, core)) if self.pool.scales() => {
                self.pool.change(from, kind);
                Some(core)
            }
            _ => self.pool.take(kind),
        };
        let Some(core) = core else { return false };
        let entry = &mut self.active[index];
        (entry.done, entry.since, entry.on) = (done, now, Some((kind, core)));
        if self.pool.must_set(core, kind) {
            self.orders.push(Order::Speed(core, kind));
        }
        let tid = entry.tid;
        if before.is_none_or(|(_, old)| old != core) {
            self.orders.push(Order::On(tid, core));
        }
        if let Some((from, old)) = before {
            if old != core {
                self.pool.give_back(from, old);
            }
            self.tally.moves += 1;
        }
        true
    }
}
