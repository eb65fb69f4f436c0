//! The cores: run queues, idle states, frequencies and energy.

mod steer;

use super::counts::CoreTime;
use super::model::{Governor, OversubscribedModel};
use super::schedule::{Ready, RunQueues};
use crate::idle::{self, IdleTotals};
use crate::order::{NEVER_NS, round_ns};
use lull_measure::{Hertz, Joules, Nanos};
use std::collections::VecDeque;

/// What a core does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Runs a thread.
    Busy,
    /// Idle in a state since a time; `wakes` once it is on its way out.
    Idle { state: usize, since_ns: u64, wakes: bool },
}

/// One core.
#[derive(Debug, Clone)]
pub(super) struct Core {
    state: State,
    /// The thread that runs, and its work left at the highest frequency when
    /// `paced_ns` was.
    thread: Option<u32>,
    left: f64,
    paced_ns: u64,
    /// When it began to run, when its work ends, and its slice.
    began_ns: u64,
    ends_ns: u64,
    slice_ns: u64,
    /// Its party.
    party: usize,
    /// The thread that was preempted last: if it continues, there is no switch to pay.
    cut: Option<u32>,
    queue: VecDeque<Ready>,
    frequency: Hertz,
    /// The frequency that a policy has set, which overrides the governor.
    pub(super) held: Option<Hertz>,
    governor: idle::IdleGovernor,
    /// Threads that ran here last and wait for I/O.
    io_waiters: u32,
    /// Everything below is up to date as of this time.
    counted_ns: u64,
    pub(super) counts: CoreCounts,
    /// Load since the governor last looked.
    load_ns: u64,
    /// When the thread ends or is cut, or the core is awake.
    pub(super) due_ns: u64,
    /// Which of its events is the valid one.
    pub(super) due: u64,
}

/// What a core counted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CoreCounts {
    pub(super) busy: Nanos,
    pub(super) active: Joules,
    pub(super) idle: IdleTotals,
    /// Hertz times nanoseconds.
    pub(super) hertz_ns: f64,
    pub(super) busy_hertz_ns: f64,
    /// Idle intervals that have ended.
    pub(super) intervals: Vec<Nanos>,
    /// What each party had.
    pub(super) spent: Vec<CoreTime>,
}

impl CoreCounts {
    fn new(model: &OversubscribedModel) -> Self {
        Self {
            busy: Nanos::ZERO,
            active: Joules(0.0),
            idle: IdleTotals::new(model.idle.len()),
            hertz_ns: 0.0,
            busy_hertz_ns: 0.0,
            intervals: Vec::new(),
            spent: vec![CoreTime::default(); model.class.len() + model.co_runner.len()],
        }
    }
}

/// All cores of a server.
#[derive(Debug, Clone)]
pub(super) struct Cores {
    pub(super) all: Vec<Core>,
    /// Cores that each party may use, by core.
    allowed: Vec<Vec<bool>>,
    /// Core on which each thread ran last.
    last: Vec<usize>,
    party_of: Vec<usize>,
    /// Since when each thread has wanted to run.
    ready_ns: Vec<u64>,
    schedule: RunQueues,
    /// Cores that were woken for threads which had to leave another.
    roused: Vec<usize>,
    /// Cores that a thread is idle on, to leave a full search early.
    idle: u32,
}

impl Cores {
    pub(super) fn new(model: &OversubscribedModel) -> Self {
        let count = model.cores as usize;
        let party_of = model.parties();
        let frequency = match model.frequency.governor {
            Governor::Performance => model.frequency.highest,
            Governor::Powersave | Governor::Ondemand { .. } => model.frequency.lowest,
        };
        let core = Core {
            state: State::Idle { state: 0, since_ns: 0, wakes: false },
            thread: None,
            left: 0.0,
            paced_ns: 0,
            began_ns: 0,
            ends_ns: NEVER_NS,
            slice_ns: NEVER_NS,
            party: usize::MAX,
            cut: None,
            queue: VecDeque::new(),
            frequency,
            held: None,
            governor: idle::IdleGovernor::new(model.idle_rule),
            io_waiters: 0,
            counted_ns: 0,
            counts: CoreCounts::new(model),
            load_ns: 0,
            due_ns: NEVER_NS,
            due: u64::MAX,
        };
        let parties = model.class.len() + model.co_runner.len();
        let mut cores = Self {
            all: vec![core; count],
            allowed: vec![vec![true; count]; parties],
            last: (0..party_of.len()).map(|thread| thread % count).collect(),
            ready_ns: vec![0; party_of.len()],
            schedule: RunQueues::new(model.scheduler, party_of.len(), count),
            party_of,
            roused: Vec::new(),
            idle: count as u32,
        };
        if let Some(agent) = cores.schedule.agent() {
            cores.all[agent].state = State::Busy;
            cores.idle -= 1;
            cores.allowed.iter_mut().for_each(|may| may[agent] = false);
        }
        cores
    }

    /// A thread with work becomes runnable. Returns the core whose event must be
    /// rescheduled.
    pub(super) fn wake(
        &mut self,
        model: &OversubscribedModel,
        thread: u32,
        work: f64,
        now_ns: u64,
    ) -> Option<usize> {
        self.ready_ns[thread as usize] = now_ns;
        let Some(index) = self.core_for(thread) else {
            self.schedule.line().push_back((thread, work));
            return None;
        };
        self.schedule.wakes(thread, self.last[thread as usize], index);
        let core = &mut self.all[index];
        core.queue.push_back((thread, work));
        match core.state {
            State::Idle { state, since_ns, wakes: false } => {
                core.account(model, now_ns);
                core.state = State::Idle { state, since_ns, wakes: true };
                self.idle -= 1;
                core.due_ns = now_ns + model.idle[state].exit.0;
                Some(index)
            }
            State::Idle { .. } => None,
            State::Busy => {
                let running = core.thread?;
                let for_ns = now_ns - core.began_ns;
                let preempts = self.schedule.preempts(thread, running, for_ns);
                (preempts && core.cut_at(now_ns)).then_some(index)
            }
        }
    }

    /// The previous core if it is idle or no other is, else the next idle one;
    /// `None` if it is to wait in line.
    fn core_for(&self, thread: u32) -> Option<usize> {
        let allowed = &self.allowed[self.party_of[thread as usize]];
        let last = self.last[thread as usize];
        let count = self.all.len();
        if allowed[last] && self.all[last].may_take() {
            return Some(last);
        }
        let ring = (1..count).map(|step| (last + step) % count).filter(|index| allowed[*index]);
        if self.idle > 0
            && let Some(idle) = ring.clone().find(|index| self.all[*index].may_take())
        {
            return Some(idle);
        }
        if self.schedule.is_central() {
            return None;
        }
        if allowed[last] {
            return Some(last);
        }
        Some(ring.min_by_key(|index| self.all[*index].queue.len()).unwrap_or(last))
    }

    /// Handles a core's event: it has woken up, or its thread has ended its work or its
    /// slice. Returns the thread if its work has ended.
    pub(super) fn ring(
        &mut self,
        model: &OversubscribedModel,
        index: usize,
        now_ns: u64,
    ) -> Option<u32> {
        let core = &mut self.all[index];
        core.account(model, now_ns);
        if let State::Idle { since_ns, .. } = core.state {
            let stay = Nanos(now_ns - since_ns);
            core.governor.woke(stay);
            core.counts.intervals.push(stay);
            core.state = State::Busy;
            return None;
        }
        let left = core.left_at(model, now_ns);
        let thread = core.thread.take()?;
        self.schedule.ran(thread, now_ns - core.began_ns);
        if now_ns >= core.ends_ns {
            return Some(thread);
        }
        core.cut = Some(thread);
        self.ready_ns[thread as usize] = now_ns;
        self.put_back(model, index, (thread, left), now_ns);
        None
    }

    /// A preempted thread waits again.
    fn put_back(&mut self, model: &OversubscribedModel, index: usize, ready: Ready, now_ns: u64) {
        if !self.allowed[self.party_of[ready.0 as usize]][index] {
            let roused = self.wake(model, ready.0, ready.1, now_ns);
            self.roused.extend(roused);
        } else if self.schedule.is_central() {
            self.schedule.line().push_back(ready);
        } else {
            self.all[index].queue.push_back(ready);
        }
    }

    /// Returns the cores whose events must be rescheduled because threads had to leave
    /// another core.
    pub(super) fn roused(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.roused)
    }

    /// The core takes its next thread, from its own queue or the longest one
    /// that may give it one, or goes idle.
    pub(super) fn dispatch(&mut self, model: &OversubscribedModel, index: usize, now_ns: u64) {
        let next = self.take(index);
        let core = &mut self.all[index];
        core.account(model, now_ns);
        let cut = core.cut.take();
        match next {
            Some((thread, work)) => {
                let switch_ns = model.costs.switch.0 + self.schedule.dispatch_ns();
                let costs_ns = if cut == Some(thread) { 0 } else { switch_ns };
                core.state = State::Busy;
                core.thread = Some(thread);
                core.party = self.party_of[thread as usize];
                let spent = &mut core.counts.spent[core.party];
                spent.starts += u64::from(cut != Some(thread));
                spent.waited += Nanos(now_ns - self.ready_ns[thread as usize]);
                core.left = work + costs_ns as f64;
                core.began_ns = now_ns;
                core.slice_ns = now_ns.saturating_add(self.schedule.slice_ns());
                core.pace(model, now_ns);
                self.last[thread as usize] = index;
                self.schedule.begins(thread, index);
            }
            None => {
                let state = core.governor.choose(&model.idle, None, core.io_waiters);
                core.state = State::Idle { state, since_ns: now_ns, wakes: false };
                core.due_ns = NEVER_NS;
                self.idle += 1;
            }
        }
    }

    fn take(&mut self, index: usize) -> Option<Ready> {
        if let Some(place) = self.schedule.next(&self.all[index].queue) {
            return self.all[index].queue.remove(place);
        }
        if !self.schedule.is_central() {
            return self.pull(index);
        }
        let Self { schedule, allowed, party_of, .. } = self;
        let may = |ready: &Ready| allowed[party_of[ready.0 as usize]][index];
        let place = schedule.line().iter().position(may)?;
        schedule.line().remove(place)
    }

    /// A thread from the longest queue that has one for this core.
    fn pull(&mut self, to: usize) -> Option<Ready> {
        let Self { all, allowed, party_of, .. } = self;
        let may = |ready: &Ready| allowed[party_of[ready.0 as usize]][to];
        let waiting = |index: &usize| all[*index].queue.iter().filter(|one| may(one)).count();
        let longest = (0..all.len()).max_by_key(waiting)?;
        let place = all[longest].queue.iter().position(may)?;
        let ready = all[longest].queue.remove(place)?;
        self.schedule.moves(ready.0, longest, to);
        Some(ready)
    }

    /// A thread begins or ends to wait for I/O.
    pub(super) fn io(
        &mut self,
        model: &OversubscribedModel,
        thread: u32,
        begins: bool,
        now_ns: u64,
    ) {
        let core = &mut self.all[self.last[thread as usize]];
        core.account(model, now_ns);
        if begins {
            core.io_waiters += 1;
        } else {
            debug_assert!(core.io_waiters > 0, "a thread of this core waited for I/O");
            core.io_waiters -= 1;
        }
    }

    /// The frequency governor samples all cores. Returns those whose events must be
    /// rescheduled.
    pub(super) fn tick(&mut self, model: &OversubscribedModel, now_ns: u64) -> Vec<usize> {
        let Governor::Ondemand { period, up, .. } = model.frequency.governor else {
            return Vec::new();
        };
        let mut changed = Vec::new();
        for (index, core) in self.all.iter_mut().enumerate() {
            core.account(model, now_ns);
            let load = core.load_ns as f64 / period.0 as f64;
            core.load_ns = 0;
            let wanted = core.held.unwrap_or_else(|| ondemand(model, load, up));
            if core.change(model, wanted, now_ns) {
                changed.push(index);
            }
        }
        changed
    }

    /// Brings all counts up to date.
    pub(super) fn account(&mut self, model: &OversubscribedModel, now_ns: u64) {
        self.all.iter_mut().for_each(|core| core.account(model, now_ns));
    }

    /// Forgets what was counted.
    pub(super) fn forget(&mut self, model: &OversubscribedModel) {
        for core in &mut self.all {
            core.counts = CoreCounts::new(model);
        }
    }
}

/// Linux's proportional rule, rounded up to a step.
fn ondemand(model: &OversubscribedModel, load: f64, up: f64) -> Hertz {
    let frequency = &model.frequency;
    if load > up {
        return frequency.highest;
    }
    let range = (frequency.highest.0 - frequency.lowest.0) as f64;
    let steps = (load * range / frequency.step.0 as f64).ceil() as u64;
    frequency.highest.min(Hertz(frequency.lowest.0 + steps * frequency.step.0))
}

impl Core {
    /// Returns whether it is idle and no thread has woken it yet.
    fn may_take(&self) -> bool {
        matches!(self.state, State::Idle { wakes: false, .. })
    }

    /// Frequency now.
    pub(super) fn frequency(&self) -> Hertz {
        self.frequency
    }

    /// Changes the frequency. Returns whether its event must be rescheduled.
    fn change(&mut self, model: &OversubscribedModel, wanted: Hertz, now_ns: u64) -> bool {
        if wanted == self.frequency {
            return false;
        }
        self.account(model, now_ns);
        self.left = self.left_at(model, now_ns);
        self.frequency = wanted;
        if self.thread.is_some() {
            self.pace(model, now_ns);
        }
        self.thread.is_some()
    }

    /// The thread's slice is over now; `false` if its work is anyway.
    fn cut_at(&mut self, now_ns: u64) -> bool {
        if self.due_ns <= now_ns {
            return false;
        }
        self.slice_ns = now_ns;
        self.due_ns = now_ns;
        true
    }

    /// Work left now, at the highest frequency.
    fn left_at(&self, model: &OversubscribedModel, now_ns: u64) -> f64 {
        if self.thread.is_none() {
            return self.left;
        }
        let pace = self.frequency.0 as f64 / model.frequency.highest.0 as f64;
        (self.left - (now_ns - self.paced_ns) as f64 * pace).max(0.0)
    }

    /// Times the end of the thread's work.
    fn pace(&mut self, model: &OversubscribedModel, now_ns: u64) {
        let pace = self.frequency.0 as f64 / model.frequency.highest.0 as f64;
        self.paced_ns = now_ns;
        self.ends_ns = now_ns.saturating_add(round_ns(self.left / pace));
        self.due_ns = self.ends_ns.min(self.slice_ns);
    }

    /// Brings its counts up to date.
    fn account(&mut self, model: &OversubscribedModel, now_ns: u64) {
        debug_assert!(now_ns >= self.counted_ns, "time never goes back");
        let span = Nanos(now_ns - self.counted_ns);
        if span == Nanos::ZERO {
            return;
        }
        let hertz_ns = self.frequency.0 as f64 * span.0 as f64;
        self.counts.hertz_ns += hertz_ns;
        match self.state {
            State::Busy => {
                self.counts.busy += span;
                self.counts.active += active_power(model, self.frequency).during(span);
                self.counts.busy_hertz_ns += hertz_ns;
                self.load_ns += span.0;
                if let Some(spent) = self.counts.spent.get_mut(self.party) {
                    let pace = self.frequency.0 as f64 / model.frequency.highest.0 as f64;
                    spent.cpu += span;
                    spent.work_ns += span.0 as f64 * pace;
                }
            }
            State::Idle { state, since_ns, .. } => {
                let part = (Nanos(self.counted_ns - since_ns), Nanos(now_ns - since_ns));
                self.counts.idle.spend_part(&model.idle, state, part, self.frequency);
                if self.io_waiters > 0 && io_is_busy(model) {
                    self.load_ns += span.0;
                }
            }
        }
        self.counted_ns = now_ns;
    }
}

fn io_is_busy(model: &OversubscribedModel) -> bool {
    matches!(model.frequency.governor, Governor::Ondemand { io_is_busy: true, .. })
}

/// Power of a running core: `base + dynamic (f / highest) (V / highest V)^2`,
/// the voltage linear in the frequency.
pub(super) fn active_power(model: &OversubscribedModel, at: Hertz) -> lull_measure::Watts {
    let (power, frequency) = (&model.power, &model.frequency);
    let (low, high) = (frequency.lowest.0 as f64, frequency.highest.0 as f64);
    let above = if high > low { (at.0 as f64 - low) / (high - low) } else { 1.0 };
    let volts = power.voltage_ratio + (1.0 - power.voltage_ratio) * above;
    let dynamic = power.active_dynamic.0 * at.0 as f64 / high * volts * volts;
    lull_measure::Watts(power.active_base.0 + dynamic)
}
