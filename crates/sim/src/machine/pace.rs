//! The pace of cores: frequencies with their governor, and the memory system's state.

use super::{MachineSimulation, Timer};
use lull_measure::Hertz;

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
        let (Some(period), Some(scaling)) = (self.hardware.period(), self.hardware.scaling) else {
            return;
        };
        let each = usize::from(scaling.domain);
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

    /// Changes the pace of a core's running thread with its frequency.
    pub(super) fn change_frequency(&mut self, core: usize, to: Hertz) {
        if to == self.cores[core].supply.frequency {
            return;
        }
        self.before_pace(core);
        self.cores[core].supply.set_frequency(&self.hardware, to);
        self.after_pace(core);
    }

    /// Brings the work of a core's running thread up to date, before its pace changes.
    fn before_pace(&mut self, core: usize) {
        self.account(core);
        match self.per_thread {
            None => self.credit(core),
            Some(_) => self.settle_work(core),
        }
    }

    /// Times a core's running thread again, after its pace has changed.
    fn after_pace(&mut self, core: usize) {
        match self.per_thread {
            None => self.retime(core),
            Some(_) => self.retime_work(core),
        }
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
