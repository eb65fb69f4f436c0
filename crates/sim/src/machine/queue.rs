//! Cores with their run queues, threads, and the order of threads.

use super::gated_totals::CoreTime;
use super::level::TimeWeightedCount;
use super::supply::{Hardware, Supply};
use crate::order::NEVER_NS;
use std::collections::VecDeque;

/// No request.
pub(super) const NO_TASK: Task = Task {
    owner: usize::MAX,
    life: 0,
    connection: 0,
    pass: Pass::Serve,
    arrived_ns: 0,
    work_ns: 0.0,
    client_ns: 0.0,
    served_ns: 0.0,
    delay_ns: 0.0,
};
/// Weight of a thread of nice 0.
pub(super) const NICE_0_WEIGHT: f64 = 1024.0;
/// Weight of SCHED_IDLE threads (Linux: 3).
pub(super) const IDLE_WEIGHT: f64 = 3.0;

/// Scheduling class and priority: 0 is SCHED_IDLE, 1 is SCHED_OTHER, higher ones are
/// the SCHED_RR priority plus 1. A higher rank preempts a lower one; ranks 0 and 1
/// share a core by weight.
pub(super) type Rank = u8;
pub(super) const IDLE: Rank = 0;
pub(super) const NORMAL: Rank = 1;

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Sleeping,
    Queued,
    Running,
}

/// One thread.
#[derive(Debug, Clone)]
pub(super) struct Thread {
    pub(super) app: usize,
    pub(super) state: State,
    /// Where it is, or was last.
    pub(super) core: usize,
    /// Work left, in nanoseconds alone.
    pub(super) left_ns: f64,
    /// Weighted time on cores, relative to the clock of its core.
    pub(super) virtual_ns: f64,
    /// Its task, while it serves requests.
    pub(super) task: Task,
    /// The time since which it is runnable, under a rule for each thread.
    pub(super) ready_ns: u64,
    /// The core that a dispatcher has chosen for it.
    pub(super) bound: Option<usize>,
    /// Time without progress when it next runs, which is the cost of a move. Stays set while the
    /// thread runs, so that a thread that is halted during the move has the rest still to pay.
    pub(super) stall_ns: u64,
}

/// One pass of a request through the threads of an app.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// The app whose request it is.
    pub(super) owner: usize,
    /// How often the app had departed when the request was due.
    pub(super) life: u32,
    /// The client or connection of that app that sent it.
    pub(super) connection: u32,
    pub(super) pass: Pass,
    /// When the request was due.
    pub(super) arrived_ns: u64,
    /// Work of this pass.
    pub(super) work_ns: f64,
    /// Work of its client's next pass.
    pub(super) client_ns: f64,
    /// Work of its server.
    pub(super) served_ns: f64,
    /// Its further delay.
    pub(super) delay_ns: f64,
}

/// Where a request is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Its client sends it.
    Send,
    /// Its app serves it.
    Serve,
    /// Its client takes the answer.
    Take,
}

/// Tasks that wait for threads, and threads that wait for tasks.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskQueue {
    pub(super) queue: VecDeque<Task>,
    /// The last that became free goes first: its caches are warm.
    pub(super) free: Vec<usize>,
}

/// One core.
#[derive(Debug, Clone)]
pub(super) struct CoreState {
    pub(super) current: Option<usize>,
    /// The thread that ran last.
    pub(super) last: Option<usize>,
    /// Whether the running thread followed one of another app.
    pub(super) transferred: bool,
    pub(super) queue: Vec<usize>,
    /// Time up to which the running thread's core time is accounted for.
    pub(super) counted_ns: u64,
    /// Time up to which its work is accounted for; later than now during a switch.
    pub(super) since_ns: u64,
    pub(super) slice_end_ns: u64,
    /// Virtual time of its fair queue; never goes back.
    pub(super) clock_ns: f64,
    pub(super) busy: TimeWeightedCount,
    pub(super) supply: Supply,
    /// When the core's last round of polling is over.
    pub(super) polls_until_ns: u64,
    /// When the core's last change of frequency is over. No thread makes progress before.
    pub(super) changes_until_ns: u64,
    /// When the running thread's work ends, under a rule for each thread.
    pub(super) ends_ns: u64,
    /// The app whose thread runs or ran last, under a rule for each thread.
    pub(super) party: usize,
    /// The thread that was preempted last: if it continues, there is no switch to pay.
    pub(super) cut: Option<usize>,
    /// Core time of each app, under a rule for each thread.
    pub(super) spent: Vec<CoreTime>,
}

impl CoreState {
    /// A core of this number and type without a thread.
    pub(super) fn new(hardware: &Hardware, (number, kind): (usize, usize), apps: usize) -> Self {
        Self {
            current: None,
            last: None,
            transferred: false,
            queue: Vec::new(),
            counted_ns: 0,
            since_ns: 0,
            slice_end_ns: NEVER_NS,
            clock_ns: 0.0,
            busy: TimeWeightedCount::default(),
            supply: Supply::new(hardware, kind, number),
            polls_until_ns: 0,
            changes_until_ns: 0,
            ends_ns: NEVER_NS,
            party: usize::MAX,
            cut: None,
            spent: vec![CoreTime::default(); apps],
        }
    }

    /// Returns the number of runnable threads.
    pub(super) fn load(&self) -> usize {
        self.queue.len() + usize::from(self.current.is_some())
    }
}

/// How the threads of an app are scheduled.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ThreadScheduling {
    /// Cores they may run on.
    pub(super) mask: u64,
    pub(super) rank: Rank,
    pub(super) weight: f64,
}

impl ThreadScheduling {
    /// Converts time on a core to virtual time.
    #[inline]
    pub(super) fn virtual_ns(&self, span_ns: f64) -> f64 {
        // The same without the division, which every event would wait for.
        if self.weight == NICE_0_WEIGHT { span_ns } else { span_ns * NICE_0_WEIGHT / self.weight }
    }
}

/// How the threads of new processes are scheduled.
pub(super) fn neutral(cores: usize, agent: Option<usize>) -> ThreadScheduling {
    let agent = agent.map_or(0, |core| 1 << core);
    let mask = u64::MAX >> (64 - cores) & !agent;
    ThreadScheduling { mask, rank: NORMAL, weight: NICE_0_WEIGHT }
}

/// How long work takes at a pace.
#[inline]
pub(super) fn time_of(work_ns: f64, pace: f64) -> f64 {
    // As above, without the division: an app without contention has pace 1.
    if pace == 1.0 { work_ns } else { work_ns / pace }
}

/// The weight of a nice value: a quarter more a step (Linux's table, unrounded).
pub(super) fn weight_of_nice(nice: i8) -> f64 {
    NICE_0_WEIGHT * 1.25_f64.powi(-i32::from(nice))
}

/// Index of a rank's class among idle, normal and real-time.
pub(super) const fn class_of(rank: Rank) -> usize {
    if rank > NORMAL { 2 } else { rank as usize }
}

/// Whether a waking thread of rank `ours` takes the core from one of rank `theirs`.
pub(super) const fn goes_before(ours: Rank, theirs: Rank) -> bool {
    ours > theirs
}

/// Whether threads of both ranks take turns.
pub(super) const fn take_turns(ours: Rank, theirs: Rank) -> bool {
    ours == theirs || (ours <= NORMAL && theirs <= NORMAL)
}

/// The cores of a mask, ascending.
pub(super) fn cores_of(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let core = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(core)
    })
}
