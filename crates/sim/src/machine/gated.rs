//! The state of the gated server: its connections, their queries and the gate's rounds.

use super::device::Storage;
use super::gate::Gate;
use super::gated_totals::GateTotals;
use super::model::MachineModel;
use super::open_queries::{Demands, OpenQueries};
use super::parts::{GateModel, Query};
use crate::model::Draw;
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_control::Objective;
use lull_control::admission::{
    Admission, Answered, GateLimits, GateObservation, RoundObservation, ServerTimes,
};
use lull_measure::{Latency, Missing, Nanos};
use lull_oncall::ClassShare;
use std::ops::Range;

/// A connection of one of the machine's gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionId {
    pub(super) gate: usize,
    /// Its number at the gate.
    pub(super) index: usize,
}

/// Where a connection's query is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// No query, or one at the gate.
    Outside,
    /// Its first work.
    Before,
    /// On the device or waiting for it.
    Io,
    /// Its second work.
    After,
    /// A check by its self-serving worker, which has a core or waits for one.
    Look,
}

/// How the self-serving worker of a connection waits at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The worker does not poll.
    None,
    /// The worker sleeps between looks, or looks.
    Looks,
    /// Its turn has come, which it sees with its next look.
    Due,
}

/// One connection and its query.
pub(super) struct Connection {
    /// The app whose connection it is, and its worker.
    pub(super) app: usize,
    pub(super) thread: usize,
    pub(super) works: Stream,
    pub(super) stage: Stage,
    pub(super) query: Demands,
    /// The valid event that ends its turn without a query.
    pub(super) lease: u64,
    pub(super) wait: Wait,
}

/// Samplers of a query's parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueryDraws {
    pub(super) before: Draw,
    pub(super) io: Draw,
    pub(super) after: Draw,
    pub(super) round_trip: Draw,
}

/// Where the gate's rounds are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A timer will start the next round or decision.
    Rest,
    /// A round is under way since a time.
    Round(u64),
    /// A round is due, and starts with the next query.
    Starved,
}

/// Sums since the warm-up.
#[derive(Debug, Clone, Default)]
pub(super) struct GatedSums {
    pub(super) answers: Vec<u64>,
    pub(super) arrivals: Vec<u64>,
    /// Thread time in R and D, and query time, in ns, up to `passed_ns`.
    pub(super) running_ns: f64,
    pub(super) disk_ns: f64,
    pub(super) query_ns: f64,
    pub(super) work: f64,
    pub(super) instructions: f64,
    pub(super) started: u64,
    pub(super) gate: GateTotals,
}

/// Latencies of groups of connections, of answers since a time.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupLog {
    since_ns: u64,
    groups: Vec<Range<usize>>,
    latency: Vec<Latency>,
}

/// The state of a gated server.
pub(super) struct GatedServer {
    pub(super) model: GateModel,
    /// The number of its first connection among those of all gates.
    pub(super) first: usize,
    pub(super) draws: QueryDraws,
    /// Its queries, if clients send them at a rate.
    pub(super) open: Option<OpenQueries>,
    pub(super) admission: Box<dyn Admission>,
    pub(super) gate: Gate,
    pub(super) gate_due: u64,
    pub(super) phase: Phase,
    pub(super) round: Option<RoundObservation>,
    pub(super) answered: Vec<Answered>,
    pub(super) storage: Storage,
    pub(super) device_due: u64,
    /// Device starts and time at the last decision.
    decided: (u64, u64),
    pub(super) connections: Vec<Connection>,
    /// The connection of each thread of the machine.
    pub(super) of_thread: Vec<u32>,
    /// Queries in service, threads that run or want to, threads in I/O, queries in all.
    pub(super) in_service: u32,
    pub(super) runnable: u32,
    pub(super) in_io: u32,
    pub(super) queries: u32,
    passed_ns: u64,
    /// Cores, and the time of threads on them and waiting for them since the last decision.
    cores: f64,
    on_core_ns: f64,
    queued_ns: f64,
    pub(super) sums: GatedSums,
}

impl GatedServer {
    /// The server behind a gate of a checked model, whose apps' threads are numbered in order.
    pub(super) fn new(
        model: &MachineModel,
        number: usize,
        admission: Box<dyn Admission>,
        streams: Replication,
    ) -> Self {
        let gate = model.gate[number].clone();
        let earlier = model.gate[..number].iter().flat_map(|gate| model.behind(gate));
        let first: usize = earlier.map(|(_, app)| app.threads as usize).sum();
        let mut connections = Vec::new();
        let mut of_thread = Vec::new();
        for (app, described) in model.app.iter().enumerate() {
            let serves = model.behind(&gate).any(|(number, _)| number == app);
            for _ in 0..described.threads {
                of_thread.push(if serves { connections.len() as u32 } else { u32::MAX });
                if serves {
                    let works = streams.stream(StreamPurpose::Work, first + connections.len());
                    connections.push(Connection::new(app, of_thread.len() - 1, works));
                }
            }
        }
        let (shares, classes) = client_classes(model, &gate, &connections);
        let Query { before, io, after, round_trip } = gate.query;
        let draws = QueryDraws {
            before: before.draw(),
            io: io.draw(),
            after: after.draw(),
            round_trip: round_trip.draw(),
        };
        let order = streams.stream(StreamPurpose::Device, number);
        let mut new = Self {
            first,
            draws,
            open: OpenQueries::new(model, &gate, streams),
            admission,
            gate: Gate::new(connections.len()).with_classes(&shares, &classes),
            gate_due: u64::MAX,
            phase: Phase::Rest,
            round: None,
            answered: Vec::new(),
            storage: Storage::new(gate.device, order),
            device_due: u64::MAX,
            decided: (0, 0),
            connections,
            of_thread,
            in_service: 0,
            runnable: 0,
            in_io: 0,
            queries: 0,
            passed_ns: 0,
            cores: f64::from(model.cores),
            on_core_ns: 0.0,
            queued_ns: 0.0,
            sums: GatedSums::default(),
            model: gate,
        };
        new.forget(0);
        new
    }

    /// Restarts all counts.
    pub(super) fn forget(&mut self, now_ns: u64) {
        self.passed_ns = now_ns;
        self.gate.most_running = self.gate.running;
        self.sums = GatedSums {
            answers: vec![0; self.connections.len()],
            arrivals: vec![0; self.connections.len()],
            started: self.storage.started(),
            ..GatedSums::default()
        };
    }

    /// Brings the integrals of the counts up to date.
    pub(super) fn pass(&mut self, to_ns: u64) {
        debug_assert!(self.in_service <= self.queries, "a query in service is a query");
        let span_ns = (to_ns - self.passed_ns) as f64;
        self.sums.running_ns += span_ns * f64::from(self.runnable);
        self.sums.disk_ns += span_ns * f64::from(self.in_io);
        self.sums.query_ns += span_ns * f64::from(self.queries);
        let runnable = f64::from(self.runnable);
        self.on_core_ns += span_ns * runnable.min(self.cores);
        self.queued_ns += span_ns * (runnable - self.cores).max(0.0);
        self.passed_ns = to_ns;
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// When the oldest unanswered query of an app arrived.
    pub(super) fn oldest_ns(&self, app: usize) -> Option<u64> {
        let own = self.pending().filter(|connection| connection.app == app);
        let sent = own.map(|connection| connection.query.arrived_ns).min();
        sent.or_else(|| self.open.as_ref()?.oldest_ns())
    }

    /// When each query arrived that is at the gate or in service.
    fn under_way_ns(&self) -> impl Iterator<Item = u64> + '_ {
        self.pending().map(|connection| connection.query.arrived_ns)
    }

    /// The connections whose query is at the gate or in service.
    fn pending(&self) -> impl Iterator<Item = &Connection> {
        let all = self.connections.iter().enumerate();
        let pending = all.filter(|(index, connection)| {
            let due = connection.wait == Wait::Due || self.gate.waiting[*index] > 0;
            connection.stage != Stage::Outside || due
        });
        pending.map(|(_, connection)| connection)
    }

    /// The numbers that the admission controller keeps, if it only keeps them.
    pub(super) fn numbers(&mut self) -> Option<GateLimits> {
        self.admission.numbers().copied()
    }

    /// Changes the objectives of the connections. `rebuild` creates an admission
    /// controller for them if the present one cannot continue.
    ///
    /// # Errors
    /// The error of `rebuild`.
    pub(super) fn retarget<E>(
        &mut self,
        objectives: &[Option<Objective>],
        rebuild: impl FnOnce() -> Result<Box<dyn Admission>, E>,
    ) -> Result<(), E> {
        if !self.admission.retarget(objectives) {
            self.admission = rebuild()?;
        }
        Ok(())
    }

    /// Draws the demands of the next query of a connection, which sends it now.
    pub(super) fn draw(&mut self, index: usize, now_ns: u64) {
        let query = self.draws.demands(&mut self.connections[index].works, now_ns);
        self.queries += 1;
        self.send(index, query);
    }

    /// A connection sends a query.
    pub(super) fn send(&mut self, index: usize, query: Demands) {
        let connection = &mut self.connections[index];
        connection.query = query;
        connection.lease = u64::MAX;
        self.sums.arrivals[index] += 1;
    }

    /// Shows the admission controller its observation at a decision.
    pub(super) fn decision(&mut self, now_ns: u64) {
        let (starts, then_ns) = self.decided;
        let span_s = Nanos(now_ns - then_ns).as_secs_f64();
        let device = if span_s > 0.0 {
            Ok(self.storage.share(self.storage.started() - starts, span_s))
        } else {
            Err(Missing::because("no time has passed since the last decision"))
        };
        self.pass(now_ns);
        let server = Ok(ServerTimes {
            span: Nanos(now_ns - then_ns),
            cpu: Nanos(self.on_core_ns as u64),
            run_queue: Nanos(self.queued_ns as u64),
        });
        (self.on_core_ns, self.queued_ns) = (0.0, 0.0);
        let under_way: Vec<Nanos> = self.under_way_ns().map(|at| Nanos(now_ns - at)).collect();
        let seen = GateObservation {
            now: Nanos(now_ns),
            answered: &self.answered,
            waiting: &self.gate.waiting,
            connections: Ok(self.connections.len() as u32),
            under_way: Ok(&under_way),
            device,
            round: self.round.take(),
            rested: Err(Missing::because("workers of this model wait at the gate and never rest")),
            server,
        };
        self.admission.decide(&seen, &mut self.gate.admission);
        self.gate.admission.pace = self.gate.admission.pace.of_waiting();
        self.answered.clear();
        self.decided = (self.storage.started(), now_ns);
        self.sums.gate.decisions += 1;
        self.gate.decided();
        self.gate_due = u64::MAX;
    }

    /// A query of clients at a rate is due. Returns the connection that sends it now.
    pub(super) fn due(&mut self, now_ns: u64) -> Option<usize> {
        let open = self.open.as_mut()?;
        let query = self.draws.demands(&mut open.works, now_ns);
        self.queries += 1;
        let Some(index) = open.free.pop_front() else {
            open.backlog.push_back(query);
            return None;
        };
        self.send(index as usize, query);
        Some(index as usize)
    }

    /// A connection of clients at a rate is free. Returns whether it sends a query that waited.
    pub(super) fn freed(&mut self, index: usize) -> bool {
        let Some(open) = &mut self.open else { return false };
        match open.backlog.pop_front() {
            Some(query) => {
                self.send(index, query);
                true
            }
            None => {
                open.free.push_back(index as u32);
                false
            }
        }
    }
}

/// Returns how the classes of clients share the turns, and the class of each connection; no share
/// without classes.
fn client_classes(
    model: &MachineModel,
    gate: &GateModel,
    connections: &[Connection],
) -> (Vec<ClassShare>, Vec<u32>) {
    let each = gate.client_class.iter();
    let mut left: Vec<u32> = each.map(|class| class.connections.unwrap_or(u32::MAX)).collect();
    let classes = connections.iter().map(|connection| {
        let name = &model.app[connection.app].name;
        let mut all = gate.client_class.iter().zip(&mut left).zip(1..);
        let found = all.find(|((class, left), _)| class.app == *name && **left > 0);
        found.map_or(0, |((_, left), class)| {
            *left -= 1;
            class
        })
    });
    let classes = classes.collect();
    // The model is checked: all shares are sound.
    let own = gate.client_class.iter().filter_map(|class| class.share.in_gate());
    let shares = std::iter::once(ClassShare::default()).chain(own);
    let shares = if gate.client_class.is_empty() { Vec::new() } else { shares.collect() };
    (shares, classes)
}

impl GroupLog {
    pub(super) fn new(groups: &[Range<usize>], since: Nanos) -> Self {
        let latency = vec![Latency::default(); groups.len()];
        Self { since_ns: since.0, groups: groups.to_vec(), latency }
    }

    /// Records an answer on a connection, by its number among those of all gates.
    pub(super) fn record(&mut self, connection: usize, latency: Nanos, now_ns: u64) {
        if now_ns < self.since_ns {
            return;
        }
        let all = self.groups.iter().zip(&mut self.latency);
        let own = all.filter(|(group, _)| group.contains(&connection));
        own.for_each(|(_, of_group)| of_group.record(latency));
    }

    /// The latencies of each group.
    pub(super) fn latencies(&self) -> &[Latency] {
        &self.latency
    }
}

impl Connection {
    fn new(app: usize, thread: usize, works: Stream) -> Self {
        let (stage, lease, wait) = (Stage::Outside, u64::MAX, Wait::None);
        Self { app, thread, works, stage, query: Demands::default(), lease, wait }
    }

    /// Whether its query needs the device, or work after it; else it is answered after its first
    /// work, without another wake-up of its worker.
    pub(super) fn has_io(&self) -> bool {
        self.query.io > 0.0 || self.query.after > 0.0
    }
}

impl QueryDraws {
    /// Draws the demands of a query that is due now.
    pub(super) fn demands(&self, works: &mut Stream, now_ns: u64) -> Demands {
        Demands {
            before: self.before.sample(works),
            io: self.io.sample(works),
            after: self.after.sample(works),
            arrived_ns: now_ns,
        }
    }
}
