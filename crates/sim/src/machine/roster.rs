//! Apps that arrive at a machine, leave it and are restarted, while it runs.

use super::MachineSimulation;
use super::app::Work;
use super::queue::{NO_TASK, State, neutral};
use crate::order::NEVER_NS;
use lull_control::RosterEvent;
use lull_measure::Latency;

impl MachineSimulation {
    /// Whether an app is on the node.
    pub fn is_present(&self, app: usize) -> bool {
        self.apps[app].present.value() > 0
    }

    /// Lets an app change now. One that is already as it would be stays so, and so does one of
    /// event loops, which is always present.
    pub fn change(&mut self, app: usize, event: RosterEvent) {
        if self.loops.is_some() {
            return;
        }
        if self.is_present(app) && event != RosterEvent::Arrived {
            self.depart(app);
        } else if event != RosterEvent::Arrived {
            return;
        }
        if event != RosterEvent::Departed && !self.is_present(app) {
            self.arrive_app(app);
        }
    }

    /// Lets the changes that are due happen, and waits for the next.
    pub(super) fn roster_event(&mut self) {
        while let Some((_, app, event)) =
            self.roster.pop_front_if(|(due_ns, ..)| *due_ns <= self.now_ns)
        {
            self.change(app, event);
        }
        self.expect_change();
    }

    pub(super) fn expect_change(&mut self) {
        let next_ns = self.roster.front().map_or(NEVER_NS, |(due_ns, ..)| *due_ns);
        self.set_clock(self.refresh_leaf() + 2, next_ns);
    }

    /// Makes an app absent that has not started.
    pub(super) fn withhold(&mut self, app: usize) {
        self.apps[app].present.set(self.now_ns, 0);
        self.contention.remove(app);
    }

    fn arrive_app(&mut self, app: usize) {
        self.apps[app].present.set(self.now_ns, 1);
        self.apps[app].treatment = neutral(self.cores.len(), self.agent());
        if self.is_dispatched(app) {
            // Its free cores were counted when it departed, among those that it had then.
            self.take_cores(0, 0);
        }
        self.contention.admit(app);
        self.start_app(app);
        self.note_machine_change();
    }

    fn depart(&mut self, app: usize) {
        let now_ns = self.now_ns;
        let oldest_ns = self.oldest_ns(app).unwrap_or(now_ns);
        let of_app = |thread: &usize| self.threads[*thread].app == app;
        let mine: Vec<usize> = (0..self.threads.len()).filter(of_app).collect();
        for thread in mine.iter().copied() {
            let core = self.threads[thread].core;
            match self.threads[thread].state {
                State::Sleeping => {}
                State::Queued => self.dequeue(core, thread),
                State::Running => drop(self.halt(core)),
            }
            let clock_ns = self.cores[core].clock_ns;
            let ended = &mut self.threads[thread];
            (ended.state, ended.left_ns, ended.task) = (State::Sleeping, 0.0, NO_TASK);
            (ended.bound, ended.stall_ns) = (None, 0);
            ended.virtual_ns = clock_ns;
        }
        let client = self.client_of(app);
        if let Some(task_queue) = client.and_then(|client| self.task_queue_mut(client)) {
            task_queue.queue.retain(|task| task.owner != app);
        }
        if let Some(task_queue) = self.task_queue_mut(app) {
            task_queue.queue.clear();
            task_queue.free = mine.into_iter().rev().collect();
        }
        let state = &mut self.apps[app];
        if let Some(dispatching) = self.dispatching.as_mut().filter(|it| it.app == app) {
            dispatching.clear(state.treatment.mask);
        }
        if let Work::Phases { threads, waiting, .. } = &mut state.work {
            *waiting = threads.len();
        }
        state.life += 1;
        state.present.set(now_ns, 0);
        state.lost += u64::from(state.outstanding.value());
        state.outstanding.set(now_ns, 0);
        state.window = Latency::default();
        if let Some(windows) = &mut state.windows {
            windows.leave_out(oldest_ns, now_ns);
        }
        self.set_clock(self.cores.len() + app, NEVER_NS);
        self.contention.remove(app);
        self.settle();
        self.note_machine_change();
    }
}
