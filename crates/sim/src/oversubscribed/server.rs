//! One run of an oversubscribed server.

mod reading;
mod steered;

use super::cores::Cores;
use super::counts::Served;
use super::device::{Next, Storage};
use super::gate::Gate;
use super::model::{Governor, ServerModel, ServerModelError};
use crate::heap::MinHeap;
use crate::model::Draw;
use crate::order::{Key, NEVER_NS, round_ns};
use crate::random::{Stream, Streams, Use};
use lull_control::admission::{Admission, Answered, Pace, RoundSeen, Seen};
use lull_measure::{Latency, Missing, Nanos};
use reading::Sums;
pub(super) use steered::Meter;

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
enum Purpose {
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
    /// A timer will start what comes next.
    Rest,
    /// A round is under way since a time.
    Round(u64),
    /// A round is due, and starts with the next query.
    Starved,
}

/// A server under one admission controller, one replication.
pub struct Server {
    model: ServerModel,
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
    sums: Sums,
    /// Latencies since a plant last took them, by class; none without a plant.
    windows: Option<Vec<Latency>>,
}

impl Server {
    /// A server whose connections all send their first query within one round trip.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn new(
        model: &ServerModel,
        admission: Box<dyn Admission>,
        seed: u64,
        replication: u64,
    ) -> Result<Self, ServerModelError> {
        model.check()?;
        let streams = Streams { seed, replication };
        let count = model.connections() as usize;
        let connection = |index| Connection {
            works: streams.stream(Use::Work, index),
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
            storage: Storage::new(model.device, streams.stream(Use::Device, 0)),
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
            sums: Sums::default(),
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
        model: &ServerModel,
        admission: Box<dyn Admission>,
        (seed, replication): (u64, u64),
        (warmup, length): (Nanos, Nanos),
    ) -> Result<Served, ServerModelError> {
        let mut server = Self::new(model, admission, seed, replication)?;
        server.run_until(warmup);
        server.forget();
        server.run_until(warmup + length);
        Ok(server.served())
    }

    fn start(&mut self) {
        for index in 0..self.connections.len() {
            let trip = self.parts.round_trip.sample(&mut self.connections[index].works);
            // Spread over one round trip, so that they do not come as one.
            let share = index as f64 / self.connections.len() as f64;
            self.schedule(round_ns(trip * share), Purpose::Arrival, index);
        }
        if let Governor::Ondemand { period, .. } = self.model.frequency.governor {
            self.schedule(period.0, Purpose::Tick, 0);
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

    /// Simulated time.
    pub fn now(&self) -> Nanos {
        Nanos(self.now_ns)
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

    /// Time passes without anything happening.
    fn pass(&mut self, to_ns: u64) {
        let span_ns = (to_ns - self.now_ns) as f64;
        self.sums.running_ns += span_ns * f64::from(self.runnable);
        self.sums.disk_ns += span_ns * f64::from(self.in_io);
        self.sums.query_ns += span_ns * f64::from(self.queries);
        self.now_ns = to_ns;
    }

    fn schedule(&mut self, at_ns: u64, purpose: Purpose, index: usize) -> u64 {
        self.sequence += 1;
        let owner = (purpose as u32) << INDEX_BITS | index as u32;
        self.events.push(Key::new(at_ns, self.sequence, owner));
        self.sequence
    }

    fn act(&mut self, key: Key) {
        self.sums.events += 1;
        let (kind, index) = owner_of(key);
        match kind {
            Purpose::Core if self.cores.all[index].due == key.sequence() => self.core(index),
            Purpose::Io => self.io_ends(index as u32),
            Purpose::Arrival => self.arrive(index as u32),
            Purpose::Device if self.device_due == key.sequence() => self.pump(),
            Purpose::Tick => self.tick(),
            Purpose::Gate if self.gate_due == key.sequence() => self.decide(),
            Purpose::Lease if self.connections[index].lease == key.sequence() => {
                self.lapse(index as u32);
            }
            // Stale: timed anew since.
            Purpose::Core | Purpose::Device | Purpose::Gate | Purpose::Lease => {}
        }
    }

    /// Schedules a core's next event.
    fn time_core(&mut self, index: usize) {
        let due_ns = self.cores.all[index].due_ns;
        let sequence = match due_ns {
            NEVER_NS => u64::MAX,
            _ => self.schedule(due_ns, Purpose::Core, index),
        };
        self.cores.all[index].due = sequence;
    }

    fn core(&mut self, index: usize) {
        if let Some(thread) = self.cores.ring(&self.model, index, self.now_ns) {
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
            self.schedule(self.now_ns + period.0, Purpose::Tick, 0);
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
                Next::Start(index) => {
                    let io_ns = round_ns(self.connections[index as usize].io);
                    self.schedule(self.now_ns + io_ns, Purpose::Io, index as usize);
                }
                Next::At(at_ns) => {
                    self.device_due = self.schedule(at_ns, Purpose::Device, 0);
                    return;
                }
                Next::Rest => return,
            }
        }
    }

    fn io_ends(&mut self, index: u32) {
        self.storage.end();
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
        self.schedule(self.now_ns + round_ns(trip), Purpose::Arrival, number);
        if self.gate.answered(index) {
            let over_ns = self.now_ns + self.model.lease.0;
            self.connections[number].lease = self.schedule(over_ns, Purpose::Lease, number);
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
        self.gate_due = self.schedule(at_ns, Purpose::Gate, 0);
    }

    /// Asks the admission controller, and goes on as it says.
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

    /// Starts a round, or waits for somebody to start it for: a query, or the
    /// next decision if those who wait have no allowance now.
    fn start_round(&mut self, turns: u32, again: Nanos, overlaps: bool) {
        let listed = self.gate.start_round(turns.max(1));
        let nobody = listed == 0 && self.gate.running == 0;
        if nobody && self.gate.waiting.iter().all(|queries| *queries == 0) {
            self.phase = Phase::Starved;
            return;
        }
        if nobody || overlaps {
            self.gate_timer(self.now_ns + again.0.max(100_000));
        }
        self.phase = if nobody { Phase::Rest } else { Phase::Round(self.now_ns) };
        self.sums.gate.rounds += u64::from(!nobody);
    }

    /// Whether a core rests while somebody waits for it.
    #[cfg(test)]
    pub(super) fn wastes(&self) -> bool {
        let co_runners: u32 = self.model.co_runner.iter().map(|app| app.threads).sum();
        self.cores.wastes() || self.cores.runnable() != (self.runnable + co_runners) as usize
    }
}

fn owner_of(key: Key) -> (Purpose, usize) {
    let purpose = match key.owner() >> INDEX_BITS {
        0 => Purpose::Core,
        1 => Purpose::Io,
        2 => Purpose::Arrival,
        3 => Purpose::Device,
        4 => Purpose::Tick,
        5 => Purpose::Gate,
        _ => Purpose::Lease,
    };
    (purpose, (key.owner() & ((1 << INDEX_BITS) - 1)) as usize)
}
