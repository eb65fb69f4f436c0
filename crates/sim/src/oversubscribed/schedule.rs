//! Three schedulers of threads: which thread runs next, and for how long.
//!
//! *Queues* has no slices, which is enough for threads that block long before a slice
//! is over. *Fair* is Linux's CFS (the kernel's `sched-design-CFS`) reduced to what
//! matters here: the thread that has run least goes first; a thread that wakes is
//! credited at most a small lag, and preempts one that has run much more. One cgroup
//! per thread with equal weights (cgroup v2 `cpu.weight`, the baseline Cgroup(cpu) of
//! REEF) is equivalent. *Central* is ghOSt's `sol` (Humphries et al., SOSP 2021; the
//! baseline ghOSt(sol) of REEF, with a slice of 1 ms): one queue in order of waking,
//! and an agent that spins on a core of its own. A preempted thread goes to the back
//! of the queue.

use super::model::ThreadScheduler;
use crate::order::NEVER_NS;
use std::collections::VecDeque;

/// A thread that waits for a core, and its work left.
pub(super) type Ready = (u32, f64);

/// What a scheduler keeps.
#[derive(Debug, Clone)]
pub(super) struct RunQueues {
    rule: ThreadScheduler,
    /// Time that each thread has run, by the clock of the core that it is on (fair).
    ran_ns: Vec<f64>,
    /// That clock: the most that the least of a core's threads had run so far.
    clock_ns: Vec<f64>,
    /// Threads that wait for any core (central).
    line: VecDeque<Ready>,
}

impl RunQueues {
    pub(super) fn new(rule: ThreadScheduler, threads: usize, cores: usize) -> Self {
        let (ran_ns, clock_ns) = (vec![0.0; threads], vec![0.0; cores]);
        Self { rule, ran_ns, clock_ns, line: VecDeque::new() }
    }

    /// The core on which the scheduler itself spins.
    pub(super) fn agent(&self) -> Option<usize> {
        matches!(self.rule, ThreadScheduler::Central { .. }).then(|| self.clock_ns.len() - 1)
    }

    /// Returns whether threads that find no idle core wait in one queue.
    pub(super) fn is_central(&self) -> bool {
        self.agent().is_some()
    }

    /// Longest time that a thread runs while another waits.
    pub(super) fn slice_ns(&self) -> u64 {
        match self.rule {
            ThreadScheduler::Queues => NEVER_NS,
            ThreadScheduler::Fair { slice, .. } | ThreadScheduler::Central { slice, .. } => slice.0,
        }
    }

    /// Time from the decision to a thread's start.
    pub(super) fn dispatch_ns(&self) -> u64 {
        match self.rule {
            ThreadScheduler::Central { dispatch, .. } => dispatch.0,
            ThreadScheduler::Queues | ThreadScheduler::Fair { .. } => 0,
        }
    }

    /// Returns the one queue.
    pub(super) fn line(&mut self) -> &mut VecDeque<Ready> {
        &mut self.line
    }

    /// The same, to look at.
    #[cfg(test)]
    pub(super) fn in_line(&self) -> impl Iterator<Item = &Ready> {
        self.line.iter()
    }

    /// A thread goes from one core's clock to another's.
    pub(super) fn moves(&mut self, thread: u32, from: usize, to: usize) {
        self.ran_ns[thread as usize] += self.clock_ns[to] - self.clock_ns[from];
    }

    /// A thread that slept after it ran on one core wakes on another.
    pub(super) fn wakes(&mut self, thread: u32, from: usize, to: usize) {
        let ThreadScheduler::Fair { credit, .. } = self.rule else { return };
        self.moves(thread, from, to);
        let ran_ns = &mut self.ran_ns[thread as usize];
        *ran_ns = ran_ns.max(self.clock_ns[to] - credit.0 as f64);
    }

    /// A thread begins to run on a core.
    pub(super) fn begins(&mut self, thread: u32, core: usize) {
        let clock_ns = &mut self.clock_ns[core];
        *clock_ns = clock_ns.max(self.ran_ns[thread as usize]);
    }

    /// A thread has run for so long.
    pub(super) fn ran(&mut self, thread: u32, span_ns: u64) {
        self.ran_ns[thread as usize] += span_ns as f64;
    }

    /// Returns the index in a queue of the thread that is next.
    pub(super) fn next(&self, queue: &VecDeque<Ready>) -> Option<usize> {
        let ran_ns = |place: usize| self.ran_ns[queue[place].0 as usize];
        match self.rule {
            ThreadScheduler::Fair { .. } => {
                (0..queue.len()).min_by(|a, b| ran_ns(*a).total_cmp(&ran_ns(*b)))
            }
            ThreadScheduler::Queues | ThreadScheduler::Central { .. } => {
                (!queue.is_empty()).then_some(0)
            }
        }
    }

    /// Whether one that has woken takes the place of one that has been running so long.
    pub(super) fn preempts(&self, woken: u32, running: u32, for_ns: u64) -> bool {
        let ThreadScheduler::Fair { preempt, .. } = self.rule else { return false };
        let ahead_ns = self.ran_ns[running as usize] + for_ns as f64 - self.ran_ns[woken as usize];
        ahead_ns > preempt.0 as f64
    }
}
