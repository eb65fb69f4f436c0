//! The interface of a server to its plant.

use super::super::cores::Core;
use super::super::counts::CoreTime;
use super::{OversubscribedServer, Phase, Stage};
use lull_control::Objective;
use lull_control::admission::{Admission, Numbers};
use lull_measure::{Hertz, Joules, Latency, Nanos};

/// Sums at one observation.
#[derive(Debug, Clone)]
pub(in crate::oversubscribed) struct ServerSnapshot {
    pub(in crate::oversubscribed) time: Nanos,
    pub(in crate::oversubscribed) energy: Joules,
    /// Busy and idle time of each core.
    pub(in crate::oversubscribed) cores: Vec<(Nanos, Nanos)>,
    /// Sleeps of each core that have ended.
    pub(in crate::oversubscribed) sleeps: Vec<usize>,
    /// Core time of each party.
    pub(in crate::oversubscribed) spent: Vec<CoreTime>,
    /// Queries that arrived and that were answered, by class.
    pub(in crate::oversubscribed) queries: Vec<(u64, u64)>,
}

impl OversubscribedServer {
    /// Reads everything that counts up.
    pub(in crate::oversubscribed) fn snapshot(&mut self) -> ServerSnapshot {
        self.cores.account(&self.model, self.now_ns);
        let since = Nanos(self.now_ns - self.sums.from_ns);
        let energy = |sum: Joules, core: &Core| sum + core.counts.active + core.counts.idle.energy;
        let times = |core: &Core| (core.counts.busy, core.counts.idle.idle());
        let fixed = self.model.power.fixed.during(since);
        let mut queries = vec![(0, 0); self.model.class.len()];
        for (index, class) in self.class_of.iter().enumerate() {
            queries[*class].0 += self.sums.came[index];
            queries[*class].1 += self.sums.answers[index];
        }
        ServerSnapshot {
            time: self.now(),
            energy: self.cores.all.iter().fold(fixed, energy),
            cores: self.cores.all.iter().map(times).collect(),
            sleeps: self.cores.all.iter().map(|core| core.counts.intervals.len()).collect(),
            spent: self.spent(),
            queries,
        }
    }

    /// Sleeps of a core that have ended since its first so many.
    pub(in crate::oversubscribed) fn sleeps(&self, core: usize, after: usize) -> &[Nanos] {
        self.cores.all[core].counts.intervals.get(after..).unwrap_or_default()
    }

    /// Latencies since the last time, by class; empty the first time.
    pub(in crate::oversubscribed) fn take_windows(&mut self) -> Vec<Latency> {
        let empty = vec![Latency::default(); self.model.class.len()];
        self.windows.replace(empty.clone()).unwrap_or(empty)
    }

    /// Queries of a class that are not answered, and the age of the oldest.
    pub(in crate::oversubscribed) fn outstanding(&self, class: usize) -> (u64, Option<Nanos>) {
        let pending = |index: &usize| {
            self.class_of[*index] == class
                && (self.connections[*index].stage != Stage::Outside
                    || self.gate.waiting[*index] > 0)
        };
        let all = || (0..self.connections.len()).filter(pending);
        let first = all().map(|index| self.connections[index].arrived_ns).min();
        (all().count() as u64, first.map(|arrived_ns| Nanos(self.now_ns - arrived_ns)))
    }

    /// A class or co-runner may use these cores and no others.
    pub(in crate::oversubscribed) fn confine(&mut self, party: usize, cores: Vec<bool>) {
        for index in self.cores.confine(&self.model, party, cores, self.now_ns) {
            self.time_core(index);
        }
    }

    /// Cores that a class or co-runner may use.
    pub(in crate::oversubscribed) fn cores_of(&self, party: usize) -> Vec<bool> {
        self.cores.allowed(party).to_vec()
    }

    /// Whether threads may run on a core.
    pub(in crate::oversubscribed) fn serves(&self, core: usize) -> bool {
        self.cores.may_serve(core)
    }

    /// The frequency of a core.
    pub(in crate::oversubscribed) fn frequency(&self, core: usize) -> Hertz {
        self.cores.all[core].frequency()
    }

    /// Returns the frequency that a policy has set for a core.
    pub(in crate::oversubscribed) fn held(&self, core: usize) -> Option<Hertz> {
        self.cores.all[core].held
    }

    /// A core's frequency is held, or left to the governor again.
    pub(in crate::oversubscribed) fn hold(&mut self, core: usize, held: Option<Hertz>) {
        if self.cores.hold(&self.model, core, held, self.now_ns) {
            self.time_core(core);
        }
    }

    /// The numbers that the admission controller at the gate keeps, if it only keeps them.
    pub(in crate::oversubscribed) fn numbers(&mut self) -> Option<Numbers> {
        self.admission.numbers().copied()
    }

    /// Sets these numbers. They take effect at once, or after the present round: a
    /// round ends with the numbers with which it began.
    pub(in crate::oversubscribed) fn set_numbers(&mut self, numbers: Numbers) {
        let Some(kept) = self.admission.numbers() else { return };
        *kept = numbers;
        if self.phase == Phase::Rest {
            self.gate_timer(self.now_ns);
        }
    }

    /// Changes the objectives of the connections. `rebuild` creates an admission
    /// controller for them if the present one cannot continue.
    ///
    /// # Errors
    /// The error of `rebuild`.
    pub fn retarget<E>(
        &mut self,
        objectives: &[Option<Objective>],
        rebuild: impl FnOnce() -> Result<Box<dyn Admission>, E>,
    ) -> Result<(), E> {
        if !self.admission.retarget(objectives) {
            self.admission = rebuild()?;
        }
        Ok(())
    }
}
