//! The sums of a server, and the totals computed from them.

use super::super::counts::{
    ClassTotals, CoreTime, EnergyParts, GateTotals, MeanThreads, OversubscribedTotals,
};
use super::OversubscribedServer;
use lull_measure::Nanos;

/// Sums since the warm-up.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerSums {
    pub(super) from_ns: u64,
    pub(super) classes: Vec<ClassTotals>,
    pub(super) answers: Vec<u64>,
    pub(super) came: Vec<u64>,
    /// Thread time in R and D, and query time, in ns.
    pub(super) running_ns: f64,
    pub(super) disk_ns: f64,
    pub(super) query_ns: f64,
    pub(super) work: f64,
    pub(super) instructions: f64,
    pub(super) started: u64,
    pub(super) gate: GateTotals,
    pub(super) events: u64,
}

impl OversubscribedServer {
    /// Returns the simulated time.
    pub fn now(&self) -> Nanos {
        Nanos(self.now_ns)
    }

    /// Restarts all counts.
    pub fn forget(&mut self) {
        self.cores.account(&self.model, self.now_ns);
        self.cores.forget(&self.model);
        self.gate.most_running = self.gate.running;
        self.sums = ServerSums {
            from_ns: self.now_ns,
            classes: vec![ClassTotals::default(); self.model.class.len()],
            answers: vec![0; self.connections.len()],
            came: vec![0; self.connections.len()],
            started: self.storage.started(),
            ..ServerSums::default()
        };
    }

    /// What was counted since the warm-up.
    pub fn served(&mut self) -> OversubscribedTotals {
        self.cores.account(&self.model, self.now_ns);
        let sums = &self.sums;
        let span = Nanos(self.now_ns - sums.from_ns);
        let mean = |total_ns: f64| total_ns / (span.0 as f64).max(1.0);
        let (running, disk) = (mean(sums.running_ns), mean(sums.disk_ns));
        let mut served = OversubscribedTotals {
            span,
            classes: sums.classes.clone(),
            answers: sums.answers.clone(),
            came: sums.came.clone(),
            energy: EnergyParts {
                fixed: self.model.power.fixed.during(span),
                ..EnergyParts::default()
            },
            busy: Nanos::ZERO,
            residency: vec![Nanos::ZERO; self.model.idle.len()],
            entries: vec![0; self.model.idle.len()],
            intervals: Vec::new(),
            mean_hertz: 0.0,
            busy_hertz: 0.0,
            instructions: if sums.work > 0.0 { sums.instructions / sums.work } else { 1.0 },
            device: self.storage.share(self.storage.started() - sums.started, span.as_secs_f64()),
            threads: MeanThreads {
                running,
                disk,
                sleeping: self.connections.len() as f64 - running - disk,
                queries: mean(sums.query_ns),
            },
            most_turns: self.gate.most_running,
            gate: sums.gate,
            spent: self.spent(),
            events: sums.events,
        };
        self.add_cores(&mut served);
        served
    }

    /// Core time of each party.
    pub(in crate::oversubscribed) fn spent(&self) -> Vec<CoreTime> {
        let parties = self.model.class.len() + self.model.co_runner.len();
        let mut all = vec![CoreTime::default(); parties];
        for core in &self.cores.all {
            for (sum, spent) in all.iter_mut().zip(&core.counts.spent) {
                sum.cpu += spent.cpu;
                sum.work_ns += spent.work_ns;
                sum.starts += spent.starts;
                sum.waited += spent.waited;
            }
        }
        all
    }

    fn add_cores(&self, served: &mut OversubscribedTotals) {
        let (mut hertz_ns, mut busy_hertz_ns) = (0.0, 0.0);
        for core in &self.cores.all {
            let counts = &core.counts;
            served.energy.active += counts.active;
            served.energy.idle += counts.idle.energy;
            served.busy += counts.busy;
            served.intervals.extend(&counts.intervals);
            for (state, (stay, entries)) in
                counts.idle.residency.iter().zip(&counts.idle.entries).enumerate()
            {
                served.residency[state] += *stay;
                served.entries[state] += entries;
            }
            hertz_ns += counts.hertz_ns;
            busy_hertz_ns += counts.busy_hertz_ns;
        }
        let core_ns = served.span.0 as f64 * self.cores.all.len() as f64;
        served.mean_hertz = hertz_ns / core_ns.max(1.0);
        served.busy_hertz = busy_hertz_ns / (served.busy.0 as f64).max(1.0);
    }
}

impl ClassTotals {
    /// Takes note of an answer.
    pub(super) fn record(&mut self, latency: Nanos) {
        self.latency.record(latency);
        let seconds = latency.as_secs_f64();
        self.sum_s += seconds;
        self.sum_s2 += seconds * seconds;
    }
}
