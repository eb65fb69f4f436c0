//! Run queues by the rules of REEF's baselines (SoCC 2025): which thread runs next, and for
//! how long.
//!
//! *Queues* has no slices, which is enough for threads that block long before a slice
//! is over. *Fair* is Linux's CFS (the kernel's `sched-design-CFS`) with each thread in a
//! cgroup of its own and equal weights (cgroup v2 `cpu.weight`, the baseline Cgroup(cpu)):
//! the thread that has run least goes first; a thread that wakes is credited at most a small
//! lag, and preempts one that has run much more. *Central* is ghOSt's `sol` (Humphries et
//! al., SOSP 2021; the baseline ghOSt(sol), with a slice of 1 ms): one queue in order of
//! waking, and an agent that spins on a core of its own. A preempted thread goes to the back
//! of the queue.
//!
//! A thread's `core` is here the one on which it ran last, and `left_ns` of the running
//! thread is as of the core's `since_ns`.

use super::MachineSimulation;
use super::parts::RunQueues;
use super::queue::cores_of;
use super::supply::CorePhase;
use crate::order::{NEVER_NS, round_ns};
use lull_measure::Nanos;
use std::collections::VecDeque;

/// The rule, and its state.
#[derive(Debug, Clone)]
pub(super) struct PerThreadRule {
    rule: RunQueues,
    /// The core on which the scheduler itself spins.
    agent: Option<usize>,
    /// Threads that wait for any core (central).
    line: VecDeque<usize>,
}

impl PerThreadRule {
    pub(super) fn new(rule: RunQueues, cores: usize) -> Self {
        let agent = matches!(rule, RunQueues::Central { .. }).then(|| cores - 1);
        Self { rule, agent, line: VecDeque::new() }
    }

    /// The core on which the scheduler itself spins.
    pub(super) fn agent(&self) -> Option<usize> {
        self.agent
    }

    /// Longest time that a thread runs while another waits.
    fn slice_ns(&self) -> u64 {
        match self.rule {
            RunQueues::Queues => NEVER_NS,
            RunQueues::Fair { slice, .. } | RunQueues::Central { slice, .. } => slice.0,
        }
    }

    /// Time from the decision to a thread's start.
    fn dispatch_ns(&self) -> u64 {
        match self.rule {
            RunQueues::Central { dispatch, .. } => dispatch.0,
            RunQueues::Queues | RunQueues::Fair { .. } => 0,
        }
    }
}

impl MachineSimulation {
    fn rule(&self) -> &PerThreadRule {
        self.per_thread.as_ref().expect("only under a rule for each thread")
    }

    fn rule_mut(&mut self) -> &mut PerThreadRule {
        self.per_thread.as_mut().expect("only under a rule for each thread")
    }

    fn may_run(&self, thread: usize, core: usize) -> bool {
        self.treatment(thread).mask & 1 << core != 0
    }

    /// A thread with work becomes runnable.
    pub(super) fn wake_thread(&mut self, thread: usize) {
        let now_ns = self.now_ns;
        self.threads[thread].ready_ns = now_ns;
        let Some(core) = self.core_for(thread) else {
            return self.rule_mut().line.push_back(thread);
        };
        self.credit_sleep(thread, core);
        self.cores[core].queue.push(thread);
        match self.cores[core].supply.phase {
            CorePhase::Idle { wakes_ns: NEVER_NS, .. } => {
                let awake_ns = self.cores[core].supply.rouse(&self.hardware, now_ns);
                self.idle &= !(1 << core);
                self.set_clock(core, awake_ns);
            }
            CorePhase::Idle { .. } => {}
            CorePhase::Busy => {
                if self.takes_core(thread, core) {
                    self.cut(core);
                }
            }
        }
    }

    /// The previous core if it is idle or no other is, else the next idle one;
    /// `None` if it is to wait in line.
    fn core_for(&self, thread: usize) -> Option<usize> {
        let (allowed, last) = (self.treatment(thread).mask, self.threads[thread].core);
        let count = self.cores.len();
        let idle = self.idle & allowed;
        if idle & 1 << last != 0 {
            return Some(last);
        }
        let ring = (1..count).map(|step| (last + step) % count);
        let mut ring = ring.filter(|core| allowed & 1 << core != 0);
        if idle != 0 {
            return ring.find(|core| idle & 1 << core != 0);
        }
        if self.rule().agent.is_some() {
            return None;
        }
        if allowed & 1 << last != 0 {
            return Some(last);
        }
        Some(ring.min_by_key(|core| self.cores[*core].queue.len()).unwrap_or(last))
    }

    /// A thread goes from one core's clock to another's.
    fn move_clock(&mut self, thread: usize, from: usize, to: usize) {
        self.threads[thread].virtual_ns += self.cores[to].clock_ns - self.cores[from].clock_ns;
    }

    /// A thread that slept after it ran on one core wakes on another.
    fn credit_sleep(&mut self, thread: usize, to: usize) {
        let RunQueues::Fair { credit, .. } = self.rule().rule else { return };
        self.move_clock(thread, self.threads[thread].core, to);
        let least_ns = self.cores[to].clock_ns - credit.0 as f64;
        let virtual_ns = &mut self.threads[thread].virtual_ns;
        *virtual_ns = virtual_ns.max(least_ns);
    }

    /// Whether a thread that has woken takes a core from the one that runs there.
    fn takes_core(&self, woken: usize, core: usize) -> bool {
        let RunQueues::Fair { preempt, .. } = self.rule().rule else { return false };
        let Some(running) = self.cores[core].current else { return false };
        let for_ns = self.now_ns - self.cores[core].counted_ns;
        let ahead_ns = self.threads[running].virtual_ns + for_ns as f64;
        ahead_ns - self.threads[woken].virtual_ns > preempt.0 as f64
    }

    /// Ends the slice of the running thread now, unless its work is over anyway.
    fn cut(&mut self, core: usize) {
        let state = &mut self.cores[core];
        if state.ends_ns.min(state.slice_end_ns) > self.now_ns {
            state.slice_end_ns = self.now_ns;
            self.set_clock(core, self.now_ns);
        }
    }

    /// A core has woken up, or its thread has ended its work or its slice.
    pub(super) fn per_thread_event(&mut self, core: usize) {
        let now_ns = self.now_ns;
        self.account(core);
        if let CorePhase::Idle { .. } = self.cores[core].supply.phase {
            self.cores[core].supply.wake_up(now_ns);
        } else {
            let left_ns = self.left_of(core);
            let Some(thread) = self.cores[core].current.take() else { return };
            self.apps[self.threads[thread].app].running.decrement(now_ns);
            let state = &mut self.cores[core];
            self.threads[thread].virtual_ns += (now_ns - state.counted_ns) as f64;
            if now_ns >= state.ends_ns {
                self.work_ends(thread);
            } else {
                state.cut = Some(thread);
                self.threads[thread].left_ns = left_ns;
                self.threads[thread].ready_ns = now_ns;
                self.put_back(core, thread);
            }
        }
        self.dispatch(core);
    }

    /// A preempted thread waits again.
    fn put_back(&mut self, core: usize, thread: usize) {
        if !self.may_run(thread, core) {
            self.wake_thread(thread);
        } else if self.rule().agent.is_some() {
            self.rule_mut().line.push_back(thread);
        } else {
            self.cores[core].queue.push(thread);
        }
    }

    /// The core takes its next thread, from its own queue or the longest one
    /// that may give it one, or goes idle.
    fn dispatch(&mut self, core: usize) {
        let next = self.take(core);
        self.account(core);
        let now_ns = self.now_ns;
        let cut = self.cores[core].cut.take();
        let Some(thread) = next else {
            self.cores[core].supply.rest(&self.hardware, now_ns);
            self.idle |= 1 << core;
            return self.set_clock(core, NEVER_NS);
        };
        let switches = cut != Some(thread);
        let rule = self.rule();
        let switch_ns = self.scheduler.switch_cost.0 + rule.dispatch_ns();
        let slice_ns = rule.slice_ns();
        let app = self.threads[thread].app;
        self.apps[app].running.increment(now_ns);
        let started = &mut self.threads[thread];
        started.left_ns += if switches { switch_ns as f64 } else { 0.0 };
        started.core = core;
        let state = &mut self.cores[core];
        state.current = Some(thread);
        state.party = app;
        let spent = &mut state.spent[app];
        spent.starts += u64::from(switches);
        spent.waited += Nanos(now_ns - started.ready_ns);
        state.counted_ns = now_ns;
        state.slice_end_ns = now_ns.saturating_add(slice_ns);
        state.clock_ns = state.clock_ns.max(started.virtual_ns);
        self.pace(core);
    }

    /// Times the end of the running thread's work.
    fn pace(&mut self, core: usize) {
        let Some(thread) = self.cores[core].current else { return };
        let pace = self.pace_of(core);
        let state = &mut self.cores[core];
        state.since_ns = self.now_ns;
        let span_ns = round_ns(self.threads[thread].left_ns / pace);
        state.ends_ns = self.now_ns.saturating_add(span_ns);
        let due_ns = state.ends_ns.min(state.slice_end_ns);
        self.set_clock(core, due_ns);
    }

    /// Work of the running thread that is left now.
    fn left_of(&self, core: usize) -> f64 {
        let state = &self.cores[core];
        let Some(thread) = state.current else { return 0.0 };
        let done_ns = (self.now_ns - state.since_ns) as f64 * self.pace_of(core);
        (self.threads[thread].left_ns - done_ns).max(0.0)
    }

    /// Work per time of the running thread.
    fn pace_of(&self, core: usize) -> f64 {
        self.apps[self.cores[core].party].pace * self.cores[core].supply.speed
    }

    /// Brings a core's work up to date, before its pace changes.
    pub(super) fn settle_work(&mut self, core: usize) {
        self.account(core);
        let left_ns = self.left_of(core);
        if let Some(thread) = self.cores[core].current {
            self.threads[thread].left_ns = left_ns;
            self.cores[core].since_ns = self.now_ns;
        }
    }

    /// Times the running thread again, after its pace has changed.
    pub(super) fn retime_work(&mut self, core: usize) {
        self.pace(core);
    }

    fn take(&mut self, core: usize) -> Option<usize> {
        if let Some(at) = self.next_of(core) {
            return Some(self.cores[core].queue.remove(at));
        }
        if self.rule().agent.is_none() {
            return self.pull(core);
        }
        let at = self.rule().line.iter().position(|thread| self.may_run(*thread, core))?;
        self.rule_mut().line.remove(at)
    }

    /// Index in a core's queue of the thread that is next.
    fn next_of(&self, core: usize) -> Option<usize> {
        let queue = &self.cores[core].queue;
        let ran_ns = |at: usize| self.threads[queue[at]].virtual_ns;
        match self.rule().rule {
            RunQueues::Fair { .. } => {
                (0..queue.len()).min_by(|a, b| ran_ns(*a).total_cmp(&ran_ns(*b)))
            }
            RunQueues::Queues | RunQueues::Central { .. } => (!queue.is_empty()).then_some(0),
        }
    }

    /// A thread from the longest queue that has one for this core.
    fn pull(&mut self, to: usize) -> Option<usize> {
        let may = |thread: &usize| self.may_run(*thread, to);
        let waiting =
            |core: &usize| self.cores[*core].queue.iter().filter(|thread| may(thread)).count();
        let longest = (0..self.cores.len()).max_by_key(waiting)?;
        let at = self.cores[longest].queue.iter().position(may)?;
        let thread = self.cores[longest].queue.remove(at);
        self.move_clock(thread, longest, to);
        Some(thread)
    }

    /// Threads of an app that are where they may not run any more go elsewhere.
    pub(super) fn evict(&mut self, app: usize) {
        let mut displaced = Vec::new();
        let allowed = self.apps[app].treatment.mask;
        let forbidden = !allowed & (u64::MAX >> (64 - self.cores.len()));
        for core in cores_of(forbidden) {
            let threads = &self.threads;
            let leaves = |thread: &usize| threads[*thread].app == app;
            let queue = std::mem::take(&mut self.cores[core].queue);
            let (go, stay): (Vec<_>, Vec<_>) = queue.into_iter().partition(leaves);
            self.cores[core].queue = stay;
            displaced.extend(go.into_iter().map(|thread| (core, thread)));
            let running = self.cores[core].current;
            if running.is_some_and(|thread| self.threads[thread].app == app) {
                self.cut(core);
            }
        }
        for (core, thread) in displaced {
            self.move_clock(thread, core, self.threads[thread].core);
            self.wake_thread(thread);
        }
    }

    /// Whether a core is idle although a thread that may run on it is queued,
    /// other than the one that its own core is waking up for.
    #[cfg(test)]
    pub(crate) fn wastes(&self) -> bool {
        let queued = |index: usize| {
            let all = self.cores.iter().flat_map(|core| {
                let wakes = matches!(core.supply.phase, CorePhase::Idle { .. });
                core.queue.iter().skip(usize::from(wakes))
            });
            let mut all = all.chain(&self.rule().line);
            all.any(|thread| self.may_run(*thread, index))
        };
        let runnable = self.gated.iter().map(|gated| gated.runnable).sum::<u32>();
        let endless = |thread: &&super::queue::Thread| {
            matches!(self.apps[thread.app].work, super::Work::Endless)
        };
        let endless = self.threads.iter().filter(endless).count();
        cores_of(self.idle).any(queued) || self.runnable() != runnable as usize + endless
    }

    /// Returns the number of runnable threads.
    #[cfg(test)]
    fn runnable(&self) -> usize {
        self.cores.iter().map(super::queue::CoreState::load).sum::<usize>() + self.rule().line.len()
    }
}
