//! What tests of admission controllers show them.

use super::{Site, Workers};
use crate::registry::ADMISSION_CONTROLLERS;
use lull_control::admission::{
    Admission, Answered, GateObservation, Pace, RoundLimits, RoundObservation, ServerTimes,
};
use lull_control::{Objective, PolicyError};
use lull_measure::{Gauge, Missing, Nanos, Percentile};

/// Connections and their observations.
pub(crate) struct Bench {
    pub(crate) objectives: Vec<Option<Objective>>,
    pub(crate) cores: u32,
    /// The objectives of the server as a whole.
    pub(crate) server_objectives: Vec<Objective>,
    pub(crate) workers: Workers,
    /// Share of the time in which all workers rest.
    pub(crate) rested: f64,
    pub(crate) connections: Gauge<u32>,
    /// Share of the device in use.
    pub(crate) device: f64,
    /// Latency of all that is answered.
    pub(crate) latency: Nanos,
    pub(crate) round: Option<RoundObservation>,
    pub(crate) server: Gauge<ServerTimes>,
    pub(crate) seed: u64,
    pub(crate) is_live: bool,
    now: Nanos,
    answered: Vec<Answered>,
    waiting: Vec<u32>,
}

impl Bench {
    /// Creates this number of connections without objectives.
    pub(crate) fn best_effort(connections: usize) -> Self {
        Self {
            objectives: vec![None; connections],
            cores: 23,
            server_objectives: Vec::new(),
            workers: Workers::Wait,
            rested: 0.0,
            connections: Err(Missing::because("a bench has no connections")),
            device: 0.5,
            latency: Nanos::from_millis(1),
            round: None,
            server: Err(Missing::because("a bench has no server")),
            seed: 0,
            is_live: false,
            now: Nanos::ZERO,
            answered: Vec::new(),
            waiting: vec![1; connections],
        }
    }

    /// The first of them with a p99 of 40 ms.
    pub(crate) fn promised(promised: usize, others: usize) -> Self {
        let mut bench = Self::best_effort(promised + others);
        let bound = Nanos::from_millis(40);
        let tail = Objective::Tail { percentile: Percentile::P99, bound };
        bench.objectives[..promised].fill(Some(tail));
        bench
    }

    /// Time passes in which this many queries a second are answered, spread over
    /// all connections.
    pub(crate) fn pass(&mut self, span: Nanos, per_s: f64) {
        self.now += span;
        let connections = self.objectives.len() as u32;
        let all = (per_s * span.as_secs_f64()).round() as u32;
        let share = |connection: u32| (all + connections - 1 - connection) / connections;
        self.answered = (0..connections)
            .map(|connection| Answered {
                connection,
                latency: self.latency,
                queries: share(connection),
            })
            .filter(|answered| answered.queries > 0)
            .collect();
    }

    /// The same where connections come and go: those that are not open are neither answered nor
    /// wait.
    pub(crate) fn pass_open(&mut self, span: Nanos, per_s: f64, open: &[bool]) {
        self.pass(span, per_s);
        self.answered.retain(|answered| open[answered.connection as usize]);
        let waits = self.waiting.iter_mut().zip(open);
        waits.for_each(|(waiting, open)| *waiting = u32::from(*open));
    }

    /// Changes the bound of every tail that is promised.
    pub(crate) fn set_bounds(&mut self, new: Nanos) {
        for objective in self.objectives.iter_mut().flatten() {
            if let Objective::Tail { bound, .. } = objective {
                *bound = new;
            }
        }
    }

    /// Sets the clock back.
    pub(crate) fn set_back(&mut self, by: Nanos) {
        self.now = self.now.saturating_sub(by);
    }

    pub(crate) fn seen(&mut self) -> GateObservation<'_> {
        GateObservation {
            now: self.now,
            answered: &self.answered,
            waiting: &self.waiting,
            connections: self.connections.clone(),
            under_way: Err(Missing::because("a bench has no transactions")),
            device: Ok(self.device),
            round: self.round,
            rested: Ok(self.rested),
            server: self.server.clone(),
        }
    }

    fn site(&self) -> Site<'_> {
        Site {
            server_objectives: &self.server_objectives,
            workers: self.workers,
            seed: self.seed,
            is_live: self.is_live,
            ..Site::new(&self.objectives, self.cores)
        }
    }
}

/// The admission controller of this name with this config.
pub(crate) fn build(name: &str, config: &str, bench: &Bench) -> Box<dyn Admission> {
    ADMISSION_CONTROLLERS.build(name, &config.parse().unwrap(), &bench.site()).unwrap()
}

/// Why it cannot be built.
pub(crate) fn refused(name: &str, config: &str, bench: &Bench) -> PolicyError {
    ADMISSION_CONTROLLERS.build(name, &config.parse().unwrap(), &bench.site()).err().unwrap()
}

/// Clients in a closed loop without think time, at a gate before a server.
pub(crate) struct ClosedLoop {
    admission: Box<dyn Admission>,
    bench: Bench,
    pub(crate) clients: u32,
    limits: RoundLimits,
}

impl ClosedLoop {
    pub(crate) fn new(admission: Box<dyn Admission>, bench: Bench, clients: u32) -> Self {
        let limits = RoundLimits::open(bench.objectives.len());
        Self { admission, bench, clients, limits }
    }

    /// The present limit.
    pub(crate) fn cap(&self) -> u32 {
        self.limits.cap
    }

    /// Runs for some seconds; `service_s` is the time in service of each of a number of
    /// simultaneous transactions. Returns the limit of every look.
    pub(crate) fn run(&mut self, seconds: u64, service_s: impl Fn(f64) -> f64) -> Vec<u32> {
        let end = self.bench.now + Nanos::from_secs(seconds);
        let mut caps = Vec::new();
        while self.bench.now < end {
            self.admission.decide(&self.bench.seen(), &mut self.limits);
            caps.push(self.limits.cap);
            let Pace::Flow { again } = self.limits.pace else { panic!("{:?}", self.limits) };
            let running = f64::from(self.clients.min(self.limits.cap));
            let per_s = running / service_s(running);
            self.bench.latency = Nanos::from_secs_f64(f64::from(self.clients) / per_s);
            self.bench.pass(again, per_s);
        }
        caps
    }
}
