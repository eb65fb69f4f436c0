//! Totals of a machine with idle states and of its gated server.

use lull_measure::{Joules, Latency, Nanos, Percentile, Watts, efficiency, ideal_batch};

/// Totals of one run after its warm-up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatedTotals {
    /// Simulated time that was counted.
    pub span: Nanos,
    /// Latencies by class of connections.
    pub classes: Vec<Latency>,
    /// Queries answered, by connection.
    pub answers: Vec<u64>,
    /// Queries that arrived, by connection.
    pub arrivals: Vec<u64>,
    /// Energy of the cores and of the rest.
    pub energy: EnergyParts,
    /// Busy time of all cores.
    pub busy: Nanos,
    /// Busy time as each core type; empty if all cores are alike.
    pub busy_as: Vec<Nanos>,
    /// Time of all cores in each idle state.
    pub residency: Vec<Nanos>,
    /// Entries of all cores into each idle state.
    pub entries: Vec<u64>,
    /// Idle intervals of all cores that ended in it.
    pub intervals: Vec<Nanos>,
    /// Mean frequency of the cores, over all time, in hertz.
    pub mean_hertz: f64,
    /// The same over busy time only.
    pub busy_hertz: f64,
    /// Instructions spent on queries, relative to those that they take alone.
    pub instructions: f64,
    /// Share of the device's rate in use.
    pub device: f64,
    /// Mean threads by state.
    pub threads: MeanThreads,
    /// Most turns that were held at a time at one gate.
    pub most_turns: u32,
    /// Turns, rounds and decisions of the gate.
    pub gate: GateTotals,
    /// Core time of each class, and then of each co-runner.
    pub spent: Vec<CoreTime>,
    /// Events.
    pub events: u64,
}

/// Core time of a class of connections or of a co-runner.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CoreTime {
    /// Time on cores.
    pub cpu: Nanos,
    /// Work done in it: ns of a core at its highest frequency, which is what
    /// instructions are here.
    pub work_ns: f64,
    /// Times that a thread of it began to run.
    pub starts: u64,
    /// Time that its threads were runnable before they ran first: queues, and cores that wake up.
    pub waited: Nanos,
}

/// Parts of the energy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EnergyParts {
    /// Energy of running cores.
    pub active: Joules,
    /// Energy of idle cores, entries included.
    pub idle: Joules,
    /// Energy of all that is not a core.
    pub fixed: Joules,
}

/// Mean numbers of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MeanThreads {
    /// Threads on a core or waiting for one (R).
    pub running: f64,
    /// Threads in I/O (D).
    pub disk: f64,
    /// Threads without a query, or parked at the gate (S).
    pub sleeping: f64,
    /// Queries between arrival and answer.
    pub queries: f64,
}

/// The totals of the gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateTotals {
    /// Turns begun.
    pub turns: u64,
    /// Rounds begun.
    pub rounds: u64,
    /// Calls of the admission controller.
    pub decisions: u64,
}

impl std::iter::Sum for GateTotals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            turns: sum.turns + one.turns,
            rounds: sum.rounds + one.rounds,
            decisions: sum.decisions + one.decisions,
        })
    }
}

impl EnergyParts {
    /// All of it.
    pub fn total(&self) -> Joules {
        self.active + self.idle + self.fixed
    }
}

impl GatedTotals {
    /// Queries answered per second.
    pub fn throughput_per_s(&self) -> f64 {
        self.answers.iter().sum::<u64>() as f64 / self.span.as_secs_f64()
    }

    /// The same of one class.
    pub fn class_per_s(&self, class: usize) -> f64 {
        self.classes[class].count() as f64 / self.span.as_secs_f64()
    }

    /// Mean time from a thread's wake-up to its running, of the classes' threads.
    pub fn start_delay(&self) -> Nanos {
        let classes = &self.spent[..self.classes.len()];
        let starts: u64 = classes.iter().map(|spent| spent.starts).sum();
        let waited: Nanos = classes.iter().map(|spent| spent.waited).sum();
        waited / starts.max(1)
    }

    /// Work per second of a co-runner, in cores at their highest frequency.
    pub fn co_runner_cores(&self, index: usize) -> f64 {
        self.spent[self.classes.len() + index].work_ns / (self.span.0 as f64).max(1.0)
    }

    /// Latencies of all classes.
    pub fn latency(&self) -> Latency {
        let mut all = Latency::default();
        self.classes.iter().for_each(|class| all.merge(class));
        all
    }

    /// Mean power; zero over an empty span.
    pub fn power(&self) -> Watts {
        self.energy.total().over(self.span).unwrap_or_default()
    }

    /// EE(TPP), in queries per joule.
    pub fn efficiency(&self) -> Option<f64> {
        efficiency::throughput_per_power(self.throughput_per_s(), self.power())
    }

    /// EE(Px), in queries per joule.
    pub fn tail_efficiency(&self, at: Percentile) -> Option<f64> {
        let rate = self.throughput_per_s();
        efficiency::tail_efficiency(rate, self.power(), &self.latency(), at)
    }

    /// A tail over the mean; `None` without answers.
    pub fn tail_over_mean(&self, at: Percentile) -> Option<f64> {
        let latency = self.latency();
        Some(latency.quantile(at)?.0 as f64 / latency.mean()?.0 as f64)
    }

    /// Share of all core time in one idle state.
    pub fn residency_share(&self, state: usize) -> f64 {
        let all: Nanos = self.residency.iter().copied().sum::<Nanos>() + self.busy;
        self.residency[state].0 as f64 / all.0 as f64
    }

    /// C6 opportunity for a break-even time (REEF, equation 2).
    pub fn c6_opportunity(&self, threshold: Nanos) -> Option<f64> {
        ideal_batch::c6_opportunity(self.intervals.iter().copied(), self.busy, threshold)
    }

    /// Jain's index of the connections' throughputs, in (0, 1]; `None` without answers.
    pub fn fairness(&self) -> Option<f64> {
        let sum: f64 = self.answers.iter().map(|count| *count as f64).sum();
        let squares: f64 = self.answers.iter().map(|count| (*count as f64).powi(2)).sum();
        (squares > 0.0).then(|| sum * sum / (self.answers.len() as f64 * squares))
    }
}
