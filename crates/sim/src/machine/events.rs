//! The events of a machine, and what its threads do when their work ends.

use super::app::Work;
use super::queue::State;
use super::{INDEX_BITS, MachineSimulation, REQUEST_OWNERS, Timer};
use crate::order::Key;
use lull_measure::Nanos;

/// Work below this, in nanoseconds, is rounding and done.
const DONE_NS: f64 = 1.0;

impl MachineSimulation {
    /// Runs all events before `until` and moves the clock there. An event at `until` itself runs
    /// too if it is a timer, such as a decision of the gate, or an event of cores under
    /// `run-queues` or of event loops; under Linux's rules it belongs to the next epoch.
    pub fn run_until(&mut self, until: Nanos) {
        match self.loops.is_some() {
            true => self.run_loops(until),
            false => self.run_while(until, |_| true),
        }
        self.now_ns = self.now_ns.max(until.0);
    }

    /// Runs those events as long as this holds before each.
    pub(crate) fn run_while(&mut self, until: Nanos, goes_on: impl Fn(&Self) -> bool) {
        while goes_on(self) {
            let (clock, timer) = self.next_keys();
            let key = clock.min(timer);
            let is_included = timer < clock || self.per_thread.is_some();
            if key.time_ns() > until.0 || (key.time_ns() == until.0 && !is_included) {
                break;
            }
            self.act(clock, timer);
        }
    }

    /// The next events of the clocks and of the timers.
    #[inline(always)]
    pub(super) fn next_keys(&mut self) -> (Key, Key) {
        if self.runs_changed {
            self.interfere();
        }
        (self.clocks.first(), self.timers.peek().unwrap_or(Key::NEVER))
    }

    /// Runs the earlier of both.
    #[inline(always)]
    pub(super) fn act(&mut self, clock: Key, timer: Key) {
        let key = clock.min(timer);
        debug_assert!(key.time_ns() >= self.now_ns, "time never goes back");
        self.now_ns = key.time_ns();
        self.events += 1;
        if timer < clock {
            self.timers.pop();
            self.timer_event(key);
        } else {
            self.clock_event(key.owner() as usize);
        }
    }

    fn clock_event(&mut self, leaf: usize) {
        let app = leaf.wrapping_sub(self.cores.len());
        if leaf < self.cores.len() {
            match self.per_thread {
                None => self.core_event(leaf),
                Some(_) => self.per_thread_event(leaf),
            }
        } else if app < self.apps.len() {
            self.arrival(app);
        } else {
            match leaf - self.refresh_leaf() {
                0 => self.refresh(),
                1 => {
                    self.balance();
                    self.set_clock(leaf, self.now_ns + self.scheduler.balance.0);
                }
                2 => self.roster_event(),
                _ => {
                    self.runs_changed = true;
                    let first = self.shared.as_ref().map(|shared| shared.first);
                    first.into_iter().for_each(|core| self.core_event(core));
                }
            }
        }
    }

    fn timer_event(&mut self, key: Key) {
        if let Some(request) = (key.owner() as usize).checked_sub(REQUEST_OWNERS) {
            return self.request_timer(request, key.sequence());
        }
        let index = (key.owner() & ((1 << INDEX_BITS) - 1)) as usize;
        let timer = match key.owner() >> INDEX_BITS {
            0 => return self.tick(),
            1 => Timer::Io,
            2 => Timer::Arrival,
            3 => Timer::Device,
            4 => Timer::Gate,
            5 => Timer::Lease,
            6 => return self.interrupt(index),
            7 => return self.end_round(index),
            8 => Timer::Look,
            _ => return self.pause(index),
        };
        self.gated_event(timer, index, key.sequence());
    }

    /// Schedules a timer. Returns its sequence number.
    pub(super) fn set_timer(&mut self, at_ns: u64, timer: Timer, index: usize) -> u64 {
        self.sequence += 1;
        let owner = ((timer as u32) << INDEX_BITS) + index as u32;
        self.timers.push(Key::new(at_ns, self.sequence, owner));
        self.sequence
    }

    /// The running thread has done its work, or its slice is over.
    fn core_event(&mut self, core: usize) {
        self.credit(core);
        let Some(current) = self.cores[core].current else { return };
        // A core of another type does more work in a nanosecond.
        if self.threads[current].left_ns <= DONE_NS.max(self.cores[core].supply.speed) {
            self.finish(core, current);
        } else {
            self.end_slice(core);
        }
    }

    fn finish(&mut self, core: usize, thread: usize) {
        let app = self.threads[thread].app;
        match &mut self.apps[app].work {
            Work::Requests(_) | Work::Clients(_) => self.finish_task(core, thread),
            Work::Phases { threads, waiting, .. } => {
                *waiting += 1;
                if *waiting == threads.len() {
                    self.next_phase(app, Some(core));
                } else {
                    self.sleep(core, thread);
                }
            }
            Work::Endless | Work::EventLoops => self.retime(core),
            Work::Connections { .. } => {
                self.sleep(core, thread);
                self.work_ends(thread);
            }
        }
    }

    /// A thread that serves a connection has done its work.
    pub(super) fn work_ends(&mut self, thread: usize) {
        self.threads[thread].state = State::Sleeping;
        self.worker_ends(thread);
    }

    pub(super) fn sleep(&mut self, core: usize, thread: usize) {
        self.halt(core);
        self.threads[thread].state = State::Sleeping;
        self.pick(core);
    }

    /// All threads pass the barrier; the last to arrive runs on `core` still.
    pub(super) fn next_phase(&mut self, app: usize, core: Option<usize>) {
        let Work::Phases { draw, stream, threads, waiting } = &mut self.apps[app].work else {
            return;
        };
        *waiting = 0;
        let all = threads.clone();
        for thread in &all {
            self.threads[*thread].left_ns = draw.sample(stream);
        }
        core.into_iter().for_each(|core| self.retime(core));
        for thread in all {
            if self.threads[thread].state == State::Sleeping {
                self.place(thread, true);
            }
        }
    }
}
