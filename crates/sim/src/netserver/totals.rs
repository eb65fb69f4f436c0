//! Totals of a network server.

use super::NetServer;
use super::parts::CoreSums;
use lull_measure::{Joules, Latency, Nanos};

/// Totals of a network server since counting began.
#[derive(Debug, Clone)]
pub struct NetServerTotals {
    /// How long that was.
    pub span: Nanos,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests answered.
    pub answered: u64,
    /// Their latencies.
    pub latency: Latency,
    /// Energy of all packages with their cores.
    pub energy: Joules,
    /// Cycles of all cores.
    pub cycles: f64,
    /// Time of all cores neither idle nor leaving an idle state.
    pub busy: Nanos,
    /// Interrupts of all vectors.
    pub interrupts: u64,
    /// Frames received.
    pub rx_packets: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Times that a core left an idle state.
    pub wakeups: u64,
    /// Time of all cores in each idle state.
    pub residency: Vec<Nanos>,
}

/// Sums when counting began.
#[derive(Debug, Clone, Default)]
pub(super) struct NetServerBaseline {
    since: Nanos,
    cores: Vec<CoreSums>,
    energy: Joules,
    /// Latencies that were taken out of the windows since.
    taken: Latency,
}

impl NetServer {
    /// Counts from now on: a warm-up is forgotten.
    pub fn forget(&mut self) {
        for core in &mut self.cores {
            core.window.clear();
        }
        self.baseline = NetServerBaseline {
            since: self.now(),
            cores: self.sums(),
            energy: self.energy(),
            taken: Latency::default(),
        };
    }

    /// What was counted up to now.
    pub fn totals(&self) -> NetServerTotals {
        let mut latency = self.baseline.taken.clone();
        for core in &self.cores {
            latency.merge(&core.window);
        }
        let (now, then) = (self.sums(), &self.baseline.cores);
        let sum = |of: &dyn Fn(&CoreSums) -> u64| {
            let pairs = now.iter().zip(then);
            pairs.map(|(now, then)| of(now) - of(then)).sum::<u64>()
        };
        let cycles = now.iter().zip(then).map(|(now, then)| now.cycles - then.cycles).sum();
        let states = self.model.idle.len();
        let residency = |state: usize| Nanos(sum(&|sums| sums.idle.residency[state].0));
        NetServerTotals {
            span: self.now() - self.baseline.since,
            arrived: sum(&|sums| sums.arrived),
            answered: sum(&|sums| sums.answered),
            latency,
            energy: self.energy() - self.baseline.energy,
            cycles,
            busy: Nanos(sum(&|sums| sums.busy_ns)),
            interrupts: sum(&|sums| sums.card.interrupts),
            rx_packets: sum(&|sums| sums.card.received),
            tx_packets: sum(&|sums| sums.card.sent),
            wakeups: sum(&|sums| sums.wakeups),
            residency: (0..states).map(residency).collect(),
        }
    }

    /// Energy since the start.
    pub fn energy(&self) -> Joules {
        let packages: Joules = (0..self.packages.len()).map(|it| self.energy_of(it)).sum();
        packages + self.sums().iter().map(|sums| sums.idle.energy).sum()
    }

    /// Latencies since they were taken last.
    pub(super) fn take_window(&mut self) -> Latency {
        let mut window = Latency::default();
        for core in &mut self.cores {
            window.merge(&core.window);
            core.window.clear();
        }
        self.baseline.taken.merge(&window);
        window
    }

    pub(super) fn sums(&self) -> Vec<CoreSums> {
        self.cores.iter().map(|core| core.sums(&self.config)).collect()
    }
}

impl NetServerTotals {
    /// Mean power over the span, in watts.
    pub fn watts(&self) -> f64 {
        self.energy.over(self.span).map_or(0.0, |watts| watts.0)
    }

    /// Requests answered per second.
    pub fn answered_per_s(&self) -> f64 {
        self.answered as f64 / self.span.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}
