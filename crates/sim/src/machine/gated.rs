//! The state of the gated server: its connections, their queries and the gate's rounds.

use super::device::Storage;
use super::gate::Gate;
use super::gated_totals::GateTotals;
use super::model::MachineModel;
use super::parts::{GateModel, Query};
use crate::model::Draw;
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_control::Objective;
use lull_control::admission::{Admission, Answered, Numbers, RoundSeen, Seen, ServerTimes};
use lull_measure::{Latency, Missing, Nanos};
use lull_oncall::ClassShare;

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
    /// A look of its self-serving worker, which has a core or wants one.
    Look,
}

/// How the self-serving worker of a connection waits at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// It does not.
    None,
    /// It sleeps between looks, or looks.
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
    pub(super) arrived_ns: u64,
    pub(super) before: f64,
    pub(super) io: f64,
    pub(super) after: f64,
    /// The valid event that ends its turn for want of a query.
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
    pub(super) came: Vec<u64>,
    /// Thread time in R and D, and query time, in ns, up to `passed_ns`.
    pub(super) running_ns: f64,
    pub(super) disk_ns: f64,
    pub(super) query_ns: f64,
    pub(super) work: f64,
    pub(super) instructions: f64,
    pub(super) started: u64,
    pub(super) gate: GateTotals,
}

/// Latencies of the first connections, by promise, of answers since a time.
#[derive(Debug, Clone, Default)]
pub(super) struct PromiseLog {
    since_ns: u64,
    /// The promise of each of them.
    of_connection: Vec<usize>,
    latency: Vec<Latency>,
}

/// The state of the gated server.
pub(super) struct GatedServer {
    pub(super) model: GateModel,
    pub(super) draws: QueryDraws,
    pub(super) admission: Box<dyn Admission>,
    pub(super) gate: Gate,
    pub(super) gate_due: u64,
    pub(super) phase: Phase,
    pub(super) round: Option<RoundSeen>,
    pub(super) answered: Vec<Answered>,
    pub(super) promises: PromiseLog,
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
    /// The gated server of a checked model, whose apps' threads are numbered in order.
    pub(super) fn new(
        model: &MachineModel,
        gate: GateModel,
        admission: Box<dyn Admission>,
        streams: Replication,
    ) -> Self {
        let mut connections = Vec::new();
        let mut of_thread = Vec::new();
        for (app, described) in model.app.iter().enumerate() {
            let serves = model.connected().any(|(number, _)| number == app);
            for _ in 0..described.threads {
                of_thread.push(if serves { connections.len() as u32 } else { u32::MAX });
                if serves {
                    let works = streams.stream(StreamPurpose::Work, connections.len());
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
        let order = streams.stream(StreamPurpose::Device, 0);
        let mut new = Self {
            draws,
            admission,
            gate: Gate::new(connections.len()).with_classes(&shares, &classes),
            gate_due: u64::MAX,
            phase: Phase::Rest,
            round: None,
            answered: Vec::new(),
            promises: PromiseLog::default(),
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
            came: vec![0; self.connections.len()],
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
        own.map(|connection| connection.arrived_ns).min()
    }

    /// When each query arrived that is at the gate or in service.
    fn under_way_ns(&self) -> impl Iterator<Item = u64> + '_ {
        self.pending().map(|connection| connection.arrived_ns)
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
    pub(super) fn numbers(&mut self) -> Option<Numbers> {
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

    /// Draws the demands of a connection's next query.
    pub(super) fn draw(&mut self, index: usize, now_ns: u64) {
        let (draws, connection) = (&mut self.draws, &mut self.connections[index]);
        let works = &mut connection.works;
        connection.before = draws.before.sample(works);
        connection.io = draws.io.sample(works);
        connection.after = draws.after.sample(works);
        connection.arrived_ns = now_ns;
        connection.lease = u64::MAX;
        self.queries += 1;
        self.sums.came[index] += 1;
    }

    /// What the admission controller sees at a decision.
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
        let seen = Seen {
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
}

/// Returns how the classes of clients share the turns, and the class of each connection; no share
/// without classes.
fn client_classes(
    model: &MachineModel,
    gate: &GateModel,
    connections: &[Connection],
) -> (Vec<ClassShare>, Vec<u32>) {
    let of_app = |app: usize| {
        let name = &model.app[app].name;
        gate.client_class.iter().position(|class| class.app == *name).map_or(0, |at| at + 1)
    };
    let classes = connections.iter().map(|connection| of_app(connection.app) as u32);
    // The model is checked: all shares are sound.
    let own = gate.client_class.iter().filter_map(|class| class.share.in_gate());
    let shares = std::iter::once(ClassShare::default()).chain(own);
    let shares = if gate.client_class.is_empty() { Vec::new() } else { shares.collect() };
    (shares, classes.collect())
}

impl PromiseLog {
    /// Each promise is for as many connections as it states, in their order.
    pub(super) fn new(connections: &[u32], since: Nanos) -> Self {
        let of_connection = connections.iter().enumerate();
        let of_connection = of_connection
            .flat_map(|(promise, count)| std::iter::repeat_n(promise, *count as usize));
        Self {
            since_ns: since.0,
            of_connection: of_connection.collect(),
            latency: vec![Latency::default(); connections.len()],
        }
    }

    /// Records an answer, if its connection has a promise.
    pub(super) fn record(&mut self, connection: usize, latency: Nanos, now_ns: u64) {
        let promise = self.of_connection.get(connection).filter(|_| now_ns >= self.since_ns);
        promise.into_iter().for_each(|promise| self.latency[*promise].record(latency));
    }

    /// The latencies of each promise.
    pub(super) fn latencies(&self) -> &[Latency] {
        &self.latency
    }
}

impl Connection {
    fn new(app: usize, thread: usize, works: Stream) -> Self {
        let (stage, lease, wait) = (Stage::Outside, u64::MAX, Wait::None);
        let (arrived_ns, before, io, after) = (0, 0.0, 0.0, 0.0);
        Self { app, thread, works, stage, arrived_ns, before, io, after, lease, wait }
    }

    /// Whether its query needs the device, or work after it; else it is answered after its first
    /// work, without another wake-up of its worker.
    pub(super) fn has_io(&self) -> bool {
        self.io > 0.0 || self.after > 0.0
    }
}
