//! The pace of cores: frequencies with their governor, and the memory system's state.

use super::{MachineSimulation, Timer};
use lull_measure::{Hertz, Nanos};

impl MachineSimulation {
    /// Brings the counts of a core up to date.
    pub(super) fn account(&mut self, core: usize) {
        if !self.hardware.sleeps() {
            return;
        }
        let state = &mut self.cores[core];
        let busy = state.supply.account(&self.hardware, self.now_ns);
        if let Some(spent) = state.spent.get_mut(state.party) {
            spent.cpu += busy;
            spent.work_ns += busy.0 as f64 * (self.apps[state.party].pace * state.supply.speed);
        }
    }

    /// The frequency governor samples the load of every domain.
    pub(super) fn tick(&mut self) {
        let (Some(period), each) = (self.hardware.period(), self.hardware.domain) else {
            return;
        };
        for first in (0..self.cores.len()).step_by(each) {
            let domain = first..(first + each).min(self.cores.len());
            let mut load: f64 = 0.0;
            for core in domain.clone() {
                self.account(core);
                load = load.max(self.cores[core].supply.take_load(period));
            }
            for core in domain {
                let to = self.cores[core].supply.sampled(&self.hardware, load);
                self.change_frequency(core, to);
            }
        }
        self.set_timer(self.now_ns + period.0, Timer::Tick, 0);
    }

    /// Changes the frequency of a core, which then computes nothing until the change is over.
    pub(super) fn change_frequency(&mut self, core: usize, to: Hertz) {
        if to == self.cores[core].supply.frequency {
            return;
        }
        self.before_pace(core);
        let supply = &mut self.cores[core].supply;
        supply.set_pace(&self.hardware, supply.kind, to);
        self.runs_changed = self.shared.is_some();
        if let Some(loops) = &mut self.loops {
            loops.set_frequency(core, to);
        }
        let latency = self.hardware.scaling.as_ref().map_or(Nanos::ZERO, |scaling| scaling.latency);
        self.stop_until(core, self.now_ns + latency.0);
        self.after_pace(core);
    }

    /// A core computes nothing until then.
    pub(super) fn stop_until(&mut self, core: usize, until_ns: u64) {
        let state = &mut self.cores[core];
        state.changes_until_ns = state.changes_until_ns.max(until_ns);
        if state.current.is_some() {
            state.since_ns = state.since_ns.max(state.changes_until_ns);
        }
    }

    /// Brings the work of a core's running thread up to date, before its pace changes.
    pub(super) fn before_pace(&mut self, core: usize) {
        self.account(core);
        match self.per_thread {
            None => self.credit(core),
            Some(_) => self.settle_work(core),
        }
    }

    /// Times a core's running thread again, after its pace has changed.
    pub(super) fn after_pace(&mut self, core: usize) {
        match self.per_thread {
            None => self.retime(core),
            Some(_) => self.retime_work(core),
        }
    }

    /// All running threads slow each other down by how fast they run together. Done once an
    /// event, in which no time passes.
    pub(super) fn interfere(&mut self) {
        self.runs_changed = false;
        let Some(shared) = &mut self.shared else { return };
        shared.set_pace(self.now_ns);
        let end_ns = shared.find_first(self.now_ns);
        self.set_clock(self.refresh_leaf() + 3, end_ns);
    }

    /// Makes a core one of another type.
    pub(super) fn set_kind(&mut self, core: usize, kind: usize) {
        self.before_pace(core);
        let supply = &mut self.cores[core].supply;
        supply.set_pace(&self.hardware, kind, supply.frequency);
        self.runs_changed = self.shared.is_some();
        self.after_pace(core);
    }

    /// Updates cache shares and memory latency, and with them the paces of all apps.
    pub(super) fn refresh(&mut self) {
        let (now_ns, refresh_ns) = (self.now_ns, self.refresh_ns);
        let running = self.apps.iter_mut().map(|app| {
            let ran_ns = app.running.integral_at(now_ns);
            let span_ns = ran_ns - std::mem::replace(&mut app.ran_ns, ran_ns);
            span_ns as f64 / refresh_ns as f64
        });
        self.contention.refresh(running);
        for core in 0..self.cores.len() {
            self.before_pace(core);
        }
        for (number, app) in self.apps.iter_mut().enumerate() {
            app.pace = 1.0 / self.contention.slowdown(number);
        }
        for core in 0..self.cores.len() {
            self.after_pace(core);
        }
        self.set_clock(self.refresh_leaf(), now_ns + refresh_ns);
    }
}
