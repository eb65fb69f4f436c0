//! One replication of an oversubscribed server.

mod reading;
mod steered;

use super::cores::Cores;
use super::counts::OversubscribedTotals;
use super::device::{DeviceStep, Storage};
use super::gate::Gate;
use super::model::{Governor, OversubscribedModel, OversubscribedModelError};
use crate::heap::MinHeap;
use crate::model::Draw;
use crate::order::{Key, NEVER_NS, round_ns};
use crate::replication::{Replication, RunLength, Stream, StreamPurpose};
use lull_control::admission::{Admission, Answered, Pace, RoundSeen, Seen};
use lull_measure::{Latency, Missing, Nanos};
use reading::ServerSums;
pub(super) use steered::ServerSnapshot;

/// Where a connection's query is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No query, or one at the gate.
    Outside,
    /// Its first work.
    Before,
    /// On the device or waiting for it.
    Io,
    /// Its second work.
    After,
}

/// One connection and its query.
#[derive(Debug, Clone)]
struct Connection {
    works: Stream,
    stage: Stage,
    arrived_ns: u64,
    before: f64,
    io: f64,
    after: f64,
    /// The valid event that ends its turn for want of a query.
    lease: u64,
}

/// What an event is about; with an index it is a key's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    Core,
    Io,
    Arrival,
    Device,
    Tick,
    Gate,
    Lease,
}

const INDEX_BITS: u32 = 20;

/// Samplers of a query's parts.
#[derive(Debug, Clone, Copy)]
struct Parts {
    before: Draw,
    io: Draw,
    after: Draw,
    round_trip: Draw,
}

/// Where the gate's rounds are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A timer will start the next round or decision.
    Rest,
    /// A round is under way since a time.
    Round(u64),
    /// A round is due, and starts with the next query.
    Starved,
}

/// A server under one admission controller, one replication.
pub struct OversubscribedServer {
    model: OversubscribedModel,
    class_of: Vec<usize>,
    admission: Box<dyn Admission>,
    now_ns: u64,
    events: MinHeap<Key>,
    sequence: u64,
    cores: Cores,
    storage: Storage,
    device_due: u64,
    gate: Gate,
    gate_due: u64,
    phase: Phase,
    round: Option<RoundSeen>,
    answered: Vec<Answered>,
    /// Device starts and time at the last decision.
    decided: (u64, u64),
    connections: Vec<Connection>,
    parts: Parts,
    /// Queries in service, threads that run or want to, threads in I/O, queries in all.
    in_service: u32,
    runnable: u32,
    in_io: u32,
    queries: u32,
    sums: ServerSums,
    /// Latencies since a plant last took them, by class; none without a plant.
    windows: Option<Vec<Latency>>,
}

impl OversubscribedServer {
    /// A server whose connections all send their first query within one round trip.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn new(
        model: &OversubscribedModel,
        admission: Box<dyn Admission>,
        seed: u64,
        replication: u64,
    ) -> Result<Self, OversubscribedModelError> {
        model.check()?;
        let streams = Replication { seed, number: replication };
        let count = model.connections() as usize;
        let connection = |index| Connection {
            works: streams.stream(StreamPurpose::Work, index),
            stage: Stage::Outside,
            arrived_ns: 0,
            before: 0.0,
            io: 0.0,
            after: 0.0,
            lease: u64::MAX,
        };
        let query = &model.query;
        let mut server = Self {
            class_of: model.classes(),
            admission,
            now_ns: 0,
            events: MinHeap::new(),
            sequence: 0,
            cores: Cores::new(model),
            storage: Storage::new(model.device, streams.stream(StreamPurpose::Device, 0)),
            device_due: u64::MAX,
            gate: Gate::new(count),
            gate_due: u64::MAX,
            phase: Phase::Rest,
            round: None,
            answered: Vec::new(),
            decided: (0, 0),
            connections: (0..count).map(connection).collect(),
            parts: Parts {
                before: query.before.draw(),
                io: query.io.draw(),
                after: query.after.draw(),
                round_trip: query.round_trip.draw(),
            },
            in_service: 0,
            runnable: 0,
            in_io: 0,
            queries: 0,
            sums: ServerSums::default(),
            windows: None,
            model: model.clone(),
        };
        server.forget();
        server.start();
        Ok(server)
    }

    /// Runs a server for a warm-up, then for a length that is counted.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn measure(
        model: &OversubscribedModel,
        admission: Box<dyn Admission>,
        Replication { seed, number }: Replication,
        RunLength { warmup, counted }: RunLength<Nanos>,
    ) -> Result<OversubscribedTotals, OversubscribedModelError> {
        let mut server = Self::new(model, admission, seed, number)?;
        server.run_until(warmup);
        server.forget();
        server.run_until(warmup + counted);
        Ok(server.served())
    }

    fn start(&mut self) {
        for index in 0..self.connections.len() {
            let trip = self.parts.round_trip.sample(&mut self.connections[index].works);
            // Spread first arrivals over one round trip, so that they are not simultaneous.
            let share = index as f64 / self.connections.len() as f64;
            self.schedule(round_ns(trip * share), EventKind::Arrival, index);
        }
        if let Governor::Ondemand { period, .. } = self.model.frequency.governor {
            self.schedule(period.0, EventKind::Tick, 0);
        }
        let threads = self.model.parties().len();
        for thread in self.connections.len()..threads {
            // A co-runner's work never ends.
            if let Some(core) = self.cores.wake(&self.model, thread as u32, f64::INFINITY, 0) {
                self.time_core(core);
            }
        }
        self.gate_timer(0);
    }

    /// Advances to a time.
    pub fn run_until(&mut self, time: Nanos) {
        while let Some(key) = self.events.peek()
            && key.time_ns() <= time.0
        {
            self.events.pop();
            self.pass(key.time_ns());
            self.act(key);
        }
        self.pass(time.0);
    }

    /// Advances the clock and the integrals of the counts.
    fn pass(&mut self, to_ns: u64) {
        debug_assert!(to_ns >= self.now_ns, "time never goes back");
        debug_assert!(self.in_service <= self.queries, "a query in service is a query");
        let span_ns = (to_ns - self.now_ns) as f64;
        self.sums.running_ns += span_ns * f64::from(self.runnable);
        self.sums.disk_ns += span_ns * f64::from(self.in_io);
        self.sums.query_ns += span_ns * f64::from(self.queries);
        self.now_ns = to_ns;
    }

    fn schedule(&mut self, at_ns: u64, purpose: EventKind, index: usize) -> u64 {
        self.sequence += 1;
        let owner = (purpose as u32) << INDEX_BITS | index as u32;
        self.events.push(Key::new(at_ns, self.sequence, owner));
        self.sequence
    }

    fn act(&mut self, key: Key) {
        self.sums.events += 1;
        let (kind, index) = owner_of(key);
        match kind {
            EventKind::Core if self.cores.all[index].due == key.sequence() => self.core(index),
            EventKind::Io => self.io_ends(index as u32),
            EventKind::Arrival => self.arrive(index as u32),
            EventKind::Device if self.device_due == key.sequence() => self.pump(),
            EventKind::Tick => self.tick(),
            EventKind::Gate if self.gate_due == key.sequence() => self.decide(),
            EventKind::Lease if self.connections[index].lease == key.sequence() => {
                self.lapse(index as u32);
            }
            // Stale: the owner has been rescheduled since.
            EventKind::Core | EventKind::Device | EventKind::Gate | EventKind::Lease => {}
        }
    }

    /// Schedules a core's next event.
    fn time_core(&mut self, index: usize) {
        let due_ns = self.cores.all[index].due_ns;
        let sequence = match due_ns {
            NEVER_NS => u64::MAX,
            _ => self.schedule(due_ns, EventKind::Core, index),
        };
        self.cores.all[index].due = sequence;
    }

    fn core(&mut self, index: usize) {
        if let Some(thread) = self.cores.ring(&self.model, index, self.now_ns) {
            debug_assert!(self.runnable > 0, "a thread that ends its work was runnable");
            self.runnable -= 1;
            self.work_ends(thread);
        }
        self.cores.dispatch(&self.model, index, self.now_ns);
        self.time_core(index);
        for roused in self.cores.roused() {
            self.time_core(roused);
        }
    }

    fn tick(&mut self) {
        for index in self.cores.tick(&self.model, self.now_ns) {
            self.time_core(index);
        }
        if let Governor::Ondemand { period, .. } = self.model.frequency.governor {
            self.schedule(self.now_ns + period.0, EventKind::Tick, 0);
        }
    }

    /// A connection sends its next query, whose demands are drawn now, so that
    /// every admission controller meets the same ones.
    fn arrive(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let works = &mut connection.works;
        connection.before = self.parts.before.sample(works);
        connection.io = self.parts.io.sample(works);
        connection.after = self.parts.after.sample(works);
        connection.arrived_ns = self.now_ns;
        connection.lease = u64::MAX;
        self.queries += 1;
        self.sums.came[index as usize] += 1;
        if self.gate.offer(index) {
            self.begin(index, Nanos::ZERO);
        } else if self.phase == Phase::Starved {
            self.decide();
        } else {
            self.admit();
        }
    }

    /// A query enters service.
    fn begin(&mut self, index: u32, extra: Nanos) {
        self.in_service += 1;
        let connection = &mut self.connections[index as usize];
        connection.stage = Stage::Before;
        let work = connection.before;
        let gated = if self.gate.is_open() { Nanos::ZERO } else { self.model.costs.intercept };
        self.run(index, work, (extra + gated).0 as f64);
    }

    /// A thread becomes runnable with work, which others inflate.
    fn run(&mut self, index: u32, work: f64, extra: f64) {
        let inflated = work * self.model.contention.instructions(self.in_service);
        self.sums.work += work;
        self.sums.instructions += inflated;
        self.runnable += 1;
        let total = inflated + extra;
        if let Some(core) = self.cores.wake(&self.model, index, total, self.now_ns) {
            self.time_core(core);
        }
    }

    /// A thread has done its work on a core.
    fn work_ends(&mut self, index: u32) {
        if self.connections[index as usize].stage == Stage::After {
            return self.answer(index);
        }
        self.connections[index as usize].stage = Stage::Io;
        self.in_io += 1;
        self.cores.io(&self.model, index, true, self.now_ns);
        self.storage.submit(index);
        self.pump();
    }

    /// The device starts what it can.
    fn pump(&mut self) {
        self.device_due = u64::MAX;
        loop {
            match self.storage.next(self.now_ns) {
                DeviceStep::Start(index) => {
                    let io_ns = round_ns(self.connections[index as usize].io);
                    self.schedule(self.now_ns + io_ns, EventKind::Io, index as usize);
                }
                DeviceStep::At(at_ns) => {
                    self.device_due = self.schedule(at_ns, EventKind::Device, 0);
                    return;
                }
                DeviceStep::Rest => return,
            }
        }
    }

    fn io_ends(&mut self, index: u32) {
        self.storage.end();
        debug_assert!(self.in_io > 0, "an I/O that ends was in flight");
        self.in_io -= 1;
        self.cores.io(&self.model, index, false, self.now_ns);
        let connection = &mut self.connections[index as usize];
        connection.stage = Stage::After;
        let work = connection.after;
        self.run(index, work, 0.0);
        self.pump();
    }

    /// A query is answered, and its client's next one is on its way.
    fn answer(&mut self, index: u32) {
        debug_assert!(self.in_service > 0, "an answered query was in service");
        self.in_service -= 1;
        self.queries -= 1;
        let number = index as usize;
        let connection = &mut self.connections[number];
        connection.stage = Stage::Outside;
        let latency = Nanos(self.now_ns - connection.arrived_ns);
        let trip = self.parts.round_trip.sample(&mut connection.works);
        self.sums.answers[number] += 1;
        self.sums.classes[self.class_of[number]].record(latency);
        if let Some(windows) = &mut self.windows {
            windows[self.class_of[number]].record(latency);
        }
        self.answered.push(Answered { connection: index, latency, queries: 1 });
        self.schedule(self.now_ns + round_ns(trip), EventKind::Arrival, number);
        if self.gate.answered(index) {
            let over_ns = self.now_ns + self.model.lease.0;
            self.connections[number].lease = self.schedule(over_ns, EventKind::Lease, number);
        }
        self.admit();
    }

    fn lapse(&mut self, index: u32) {
        self.gate.lapse(index);
        self.admit();
    }

    /// Starts the turns that may start, and ends the round if it is over.
    fn admit(&mut self) {
        while let Some(index) = self.gate.admit() {
            self.sums.gate.turns += u64::from(!self.gate.is_open());
            self.begin(index, self.model.costs.wake);
        }
        let Phase::Round(since_ns) = self.phase else { return };
        if !self.gate.round_is_over() {
            return;
        }
        self.round = Some(RoundSeen {
            turns: self.gate.turns,
            queries: self.gate.answers,
            took: Nanos(self.now_ns - since_ns),
        });
        self.phase = Phase::Rest;
        if let Pace::Rounds { pause, every: None, .. } = self.gate.admission.pace {
            self.gate_timer(self.now_ns + pause.0);
        }
    }

    fn gate_timer(&mut self, at_ns: u64) {
        self.gate_due = self.schedule(at_ns, EventKind::Gate, 0);
    }

    /// Calls the admission controller and applies its decision.
    fn decide(&mut self) {
        let (starts, then_ns) = self.decided;
        let span_s = Nanos(self.now_ns - then_ns).as_secs_f64();
        let device = if span_s > 0.0 {
            Ok(self.storage.share(self.storage.started() - starts, span_s))
        } else {
            Err(Missing::because("no time has passed since the last decision"))
        };
        let seen = Seen {
            now: self.now(),
            answered: &self.answered,
            waiting: &self.gate.waiting,
            device,
            round: self.round.take(),
            rested: Err(Missing::because("workers of this model wait at the gate and never rest")),
        };
        self.admission.decide(&seen, &mut self.gate.admission);
        self.gate.admission.pace = self.gate.admission.pace.of_waiting();
        self.answered.clear();
        self.decided = (self.storage.started(), self.now_ns);
        self.sums.gate.decisions += 1;
        self.gate.decided();
        self.gate_due = u64::MAX;
        match self.gate.admission.pace {
            Pace::Open { again } | Pace::Flow { again } => {
                self.phase = Phase::Rest;
                self.gate_timer(self.now_ns + again.0.max(1));
            }
            Pace::Rounds { turns, pause, every } => {
                self.start_round(turns, every.unwrap_or(pause), every.is_some());
            }
            Pace::Rests { pause, .. } => self.start_round(u32::MAX, pause, false),
        }
        self.admit();
    }

    /// Starts a round. If no connection can be listed, the round starts with the next
    /// query, or at the next decision if all waiting connections lack an allowance.
    fn start_round(&mut self, turns: u32, again: Nanos, overlaps: bool) {
        let listed = self.gate.start_round(turns.max(1));
        let is_empty = listed == 0 && self.gate.running == 0;
        if is_empty && self.gate.waiting.iter().all(|queries| *queries == 0) {
            self.phase = Phase::Starved;
            return;
        }
        if is_empty || overlaps {
            self.gate_timer(self.now_ns + again.0.max(100_000));
        }
        self.phase = if is_empty { Phase::Rest } else { Phase::Round(self.now_ns) };
        self.sums.gate.rounds += u64::from(!is_empty);
    }

    /// Returns whether a core is idle while a thread waits for it.
    #[cfg(test)]
    pub(super) fn wastes(&self) -> bool {
        let co_runners: u32 = self.model.co_runner.iter().map(|app| app.threads).sum();
        self.cores.wastes() || self.cores.runnable() != (self.runnable + co_runners) as usize
    }
}

fn owner_of(key: Key) -> (EventKind, usize) {
    let purpose = match key.owner() >> INDEX_BITS {
        0 => EventKind::Core,
        1 => EventKind::Io,
        2 => EventKind::Arrival,
        3 => EventKind::Device,
        4 => EventKind::Tick,
        5 => EventKind::Gate,
        _ => EventKind::Lease,
    };
    (purpose, (key.owner() & ((1 << INDEX_BITS) - 1)) as usize)
}
