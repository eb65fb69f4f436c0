//! The cores: run queues, idle states, frequencies, and the energy of it all.

use super::model::{Governor, ServerModel};
use crate::idle::{self, Ledger};
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
    queue: VecDeque<(u32, f64)>,
    frequency: Hertz,
    governor: idle::Governor,
    /// Threads that ran here last and wait for I/O.
    io_waiters: u32,
    /// Everything below is up to date as of this time.
    counted_ns: u64,
    pub(super) counts: CoreCounts,
    /// Load since the governor last looked.
    load_ns: u64,
    /// When the thread ends, or the core is awake.
    pub(super) due_ns: u64,
    /// Which of its events is the valid one.
    pub(super) due: u64,
}

/// What a core counted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CoreCounts {
    pub(super) busy: Nanos,
    pub(super) active: Joules,
    pub(super) idle: Ledger,
    /// Hertz times nanoseconds.
    pub(super) hertz_ns: f64,
    pub(super) busy_hertz_ns: f64,
    /// Idle intervals that have ended.
    pub(super) intervals: Vec<Nanos>,
}

impl CoreCounts {
    fn new(states: usize) -> Self {
        Self {
            busy: Nanos::ZERO,
            active: Joules(0.0),
            idle: Ledger::new(states),
            hertz_ns: 0.0,
            busy_hertz_ns: 0.0,
            intervals: Vec::new(),
        }
    }
}

/// All cores of a server.
#[derive(Debug, Clone)]
pub(super) struct Cores {
    pub(super) all: Vec<Core>,
    /// Cores that each class may use, by core.
    pub(super) allowed: Vec<Vec<bool>>,
    /// Core on which each thread ran last.
    last: Vec<usize>,
    class_of: Vec<usize>,
    /// Cores that a thread is idle on, to leave a full search early.
    idle: u32,
}

impl Cores {
    pub(super) fn new(model: &ServerModel) -> Self {
        let count = model.cores as usize;
        let class_of = model.classes();
        let frequency = match model.frequency.governor {
            Governor::Performance => model.frequency.highest,
            Governor::Powersave | Governor::Ondemand { .. } => model.frequency.lowest,
        };
        let core = Core {
            state: State::Idle { state: 0, since_ns: 0, wakes: false },
            thread: None,
            left: 0.0,
            paced_ns: 0,
            queue: VecDeque::new(),
            frequency,
            governor: idle::Governor::new(model.idle_rule),
            io_waiters: 0,
            counted_ns: 0,
            counts: CoreCounts::new(model.idle.len()),
            load_ns: 0,
            due_ns: NEVER_NS,
            due: u64::MAX,
        };
        Self {
            all: vec![core; count],
            allowed: vec![vec![true; count]; model.class.len()],
            last: (0..class_of.len()).map(|thread| thread % count).collect(),
            class_of,
            idle: count as u32,
        }
    }

    /// A thread with work becomes runnable; the core that is to be timed anew.
    pub(super) fn wake(
        &mut self,
        model: &ServerModel,
        thread: u32,
        work: f64,
        now_ns: u64,
    ) -> Option<usize> {
        let index = self.core_for(thread);
        let core = &mut self.all[index];
        core.queue.push_back((thread, work));
        let State::Idle { state, since_ns, wakes: false } = core.state else { return None };
        core.account(model, now_ns);
        core.state = State::Idle { state, since_ns, wakes: true };
        self.idle -= 1;
        core.due_ns = now_ns + model.idle[state].exit.0;
        Some(index)
    }

    /// The previous core if it is idle or no other is, else the next idle one.
    fn core_for(&self, thread: u32) -> usize {
        let allowed = &self.allowed[self.class_of[thread as usize]];
        let last = self.last[thread as usize];
        let count = self.all.len();
        if allowed[last] && self.all[last].may_take() {
            return last;
        }
        let ring = (1..count).map(|step| (last + step) % count).filter(|index| allowed[*index]);
        if self.idle > 0
            && let Some(idle) = ring.clone().find(|index| self.all[*index].may_take())
        {
            return idle;
        }
        if allowed[last] {
            return last;
        }
        ring.min_by_key(|index| self.all[*index].queue.len()).unwrap_or(last)
    }

    /// A core's event: it has woken up, or its thread has ended its work, in
    /// which case that thread is told.
    pub(super) fn ring(&mut self, model: &ServerModel, index: usize, now_ns: u64) -> Option<u32> {
        let core = &mut self.all[index];
        core.account(model, now_ns);
        if let State::Idle { since_ns, .. } = core.state {
            let stay = Nanos(now_ns - since_ns);
            core.governor.woke(stay);
            core.counts.intervals.push(stay);
            core.state = State::Busy;
            return None;
        }
        core.thread.take()
    }

    /// The core takes its next thread, from its own queue or the longest one
    /// that may give it one, or goes idle.
    pub(super) fn dispatch(&mut self, model: &ServerModel, index: usize, now_ns: u64) {
        let next = self.all[index].queue.pop_front().or_else(|| self.pull(index));
        let core = &mut self.all[index];
        core.account(model, now_ns);
        match next {
            Some((thread, work)) => {
                core.state = State::Busy;
                core.thread = Some(thread);
                core.left = work + model.costs.switch.0 as f64;
                core.pace(model, now_ns);
                self.last[thread as usize] = index;
            }
            None => {
                let state = core.governor.choose(&model.idle, None, core.io_waiters);
                core.state = State::Idle { state, since_ns: now_ns, wakes: false };
                core.due_ns = NEVER_NS;
                self.idle += 1;
            }
        }
    }

    /// A thread from the longest queue that has one for this core.
    fn pull(&mut self, to: usize) -> Option<(u32, f64)> {
        let Self { all, allowed, class_of, .. } = self;
        let may = |(thread, _): &(u32, f64)| allowed[class_of[*thread as usize]][to];
        let waiting = |core: &&mut Core| core.queue.iter().filter(|one| may(one)).count();
        let longest = all.iter_mut().max_by_key(waiting)?;
        let place = longest.queue.iter().position(may)?;
        longest.queue.remove(place)
    }

    /// A thread begins or ends to wait for I/O.
    pub(super) fn io(&mut self, model: &ServerModel, thread: u32, begins: bool, now_ns: u64) {
        let core = &mut self.all[self.last[thread as usize]];
        core.account(model, now_ns);
        if begins {
            core.io_waiters += 1;
        } else {
            core.io_waiters -= 1;
        }
    }

    /// The frequency governor looks at all cores; those that are to be timed anew.
    pub(super) fn tick(&mut self, model: &ServerModel, now_ns: u64) -> Vec<usize> {
        let Governor::Ondemand { period, up, .. } = model.frequency.governor else {
            return Vec::new();
        };
        let mut changed = Vec::new();
        for (index, core) in self.all.iter_mut().enumerate() {
            core.account(model, now_ns);
            let load = core.load_ns as f64 / period.0 as f64;
            core.load_ns = 0;
            let wanted = ondemand(model, load, up);
            if wanted != core.frequency {
                core.left = core.left_at(model, now_ns);
                core.frequency = wanted;
                if core.thread.is_some() {
                    core.pace(model, now_ns);
                    changed.push(index);
                }
            }
        }
        changed
    }

    /// Brings all counts up to date.
    pub(super) fn account(&mut self, model: &ServerModel, now_ns: u64) {
        self.all.iter_mut().for_each(|core| core.account(model, now_ns));
    }

    /// Forgets what was counted.
    pub(super) fn forget(&mut self, model: &ServerModel) {
        for core in &mut self.all {
            core.counts = CoreCounts::new(model.idle.len());
        }
    }

    /// Whether a core is idle although a thread that may run on it is queued,
    /// other than the one that its own core is waking up for.
    #[cfg(test)]
    pub(super) fn wastes(&self) -> bool {
        let queued = |index: usize| {
            let all = self.all.iter().flat_map(|core| {
                let wakes = matches!(core.state, State::Idle { wakes: true, .. });
                core.queue.iter().skip(usize::from(wakes))
            });
            all.clone().any(|(thread, _)| self.allowed[self.class_of[*thread as usize]][index])
        };
        let mut cores = self.all.iter().enumerate();
        cores.any(|(index, core)| core.may_take() && queued(index))
    }

    /// Threads that run or want to.
    #[cfg(test)]
    pub(super) fn runnable(&self) -> usize {
        let one = |core: &Core| core.queue.len() + usize::from(core.thread.is_some());
        self.all.iter().map(one).sum()
    }
}

/// Linux's proportional rule, rounded up to a step.
fn ondemand(model: &ServerModel, load: f64, up: f64) -> Hertz {
    let frequency = &model.frequency;
    if load > up {
        return frequency.highest;
    }
    let range = (frequency.highest.0 - frequency.lowest.0) as f64;
    let steps = (load * range / frequency.step.0 as f64).ceil() as u64;
    frequency.highest.min(Hertz(frequency.lowest.0 + steps * frequency.step.0))
}

impl Core {
    /// Idle, and not already woken for somebody.
    fn may_take(&self) -> bool {
        matches!(self.state, State::Idle { wakes: false, .. })
    }

    /// Work left now, at the highest frequency.
    fn left_at(&self, model: &ServerModel, now_ns: u64) -> f64 {
        if self.thread.is_none() {
            return self.left;
        }
        let pace = self.frequency.0 as f64 / model.frequency.highest.0 as f64;
        (self.left - (now_ns - self.paced_ns) as f64 * pace).max(0.0)
    }

    /// Times the end of the thread's work.
    fn pace(&mut self, model: &ServerModel, now_ns: u64) {
        let pace = self.frequency.0 as f64 / model.frequency.highest.0 as f64;
        self.paced_ns = now_ns;
        self.due_ns = now_ns + round_ns(self.left / pace);
    }

    /// Brings its counts up to date.
    fn account(&mut self, model: &ServerModel, now_ns: u64) {
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

fn io_is_busy(model: &ServerModel) -> bool {
    matches!(model.frequency.governor, Governor::Ondemand { io_is_busy: true, .. })
}

/// Power of a running core: `base + dynamic (f / highest) (V / highest V)^2`,
/// the voltage linear in the frequency.
pub(super) fn active_power(model: &ServerModel, at: Hertz) -> lull_measure::Watts {
    let (power, frequency) = (&model.power, &model.frequency);
    let (low, high) = (frequency.lowest.0 as f64, frequency.highest.0 as f64);
    let above = if high > low { (at.0 as f64 - low) / (high - low) } else { 1.0 };
    let volts = power.voltage_ratio + (1.0 - power.voltage_ratio) * above;
    let dynamic = power.active_dynamic.0 * at.0 as f64 / high * volts * volts;
    lull_measure::Watts(power.active_base.0 + dynamic)
}
