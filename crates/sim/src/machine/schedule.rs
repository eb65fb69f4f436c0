//! Linux's thread scheduler: waking, run queues, slices, stealing, balancing.

use super::MachineSimulation;
use super::queue::{NORMAL, Rank, State, ThreadScheduling};
use super::queue::{class_of, cores_of, goes_before, take_turns, time_of};
use crate::order::{NEVER_NS, round_ns};
use rand::RngExt;

impl MachineSimulation {
    pub(super) fn treatment(&self, thread: usize) -> &ThreadScheduling {
        &self.apps[self.threads[thread].app].treatment
    }

    /// The cores that a thread may run on.
    fn mask(&self, thread: usize) -> u64 {
        let allowed = self.treatment(thread).mask;
        match self.threads[thread].bound {
            Some(core) if allowed & 1 << core != 0 => 1 << core,
            _ => allowed,
        }
    }

    fn rank(&self, thread: usize) -> Rank {
        self.treatment(thread).rank
    }

    /// Finds a core for a thread that wants to run: an idle one, one that runs
    /// a thread of lower rank, or the shortest queue. The last core it ran on
    /// goes first among equals.
    pub(super) fn place(&mut self, thread: usize, wakes: bool) {
        if self.per_thread.is_some() {
            return self.wake_thread(thread);
        }
        let (mask, rank) = (self.mask(thread), self.rank(thread));
        let last = self.threads[thread].core;
        if let Some(core) = self.idle_core(mask, last) {
            self.arrive(thread, core, wakes);
            return self.begin(core, thread);
        }
        if let Some(core) = self.core_below(mask, rank, last) {
            self.arrive(thread, core, wakes);
            return self.preempt(core, thread);
        }
        let rivals = |core: usize| {
            let state = &self.cores[core];
            let all = state.queue.iter().chain(&state.current);
            let count = all.filter(|other| self.rank(**other) >= rank).count();
            (count, core != last, core)
        };
        let core = cores_of(mask).min_by_key(|core| rivals(*core)).expect("no app lacks cores");
        self.arrive(thread, core, wakes);
        if wakes && self.leads(thread, core) {
            return self.preempt(core, thread);
        }
        self.enqueue(core, thread);
    }

    fn idle_core(&self, mask: u64, last: usize) -> Option<usize> {
        let idle = self.idle & mask;
        if idle & 1 << last != 0 {
            return Some(last);
        }
        cores_of(idle).next()
    }

    /// A core that runs a thread of lower rank: the lowest rank, then the last core.
    fn core_below(&self, mask: u64, rank: Rank, last: usize) -> Option<usize> {
        let running = cores_of(mask).filter_map(|core| {
            let theirs = self.rank(self.cores[core].current?);
            goes_before(rank, theirs).then_some((theirs, core != last, core))
        });
        running.min().map(|(_, _, core)| core)
    }

    /// Whether the running thread is so far ahead in virtual time that a waking one preempts it.
    fn leads(&mut self, thread: usize, core: usize) -> bool {
        let Some(lead) = self.scheduler.wakeup_lead else { return false };
        let Some(current) = self.cores[core].current else { return false };
        let ahead = self.threads[current].virtual_ns - self.threads[thread].virtual_ns;
        let leads = take_turns(self.rank(thread), self.rank(current)) && ahead > lead.0 as f64;
        leads && self.draws_preemption()
    }

    /// Draws whether a wake-up takes a core; always true where all do.
    fn draws_preemption(&mut self) -> bool {
        let chance = self.scheduler.wakeup_chance;
        chance >= 1.0 || self.wakeups.random::<f64>() < chance
    }

    /// Makes a thread one of this core, in the core's virtual time.
    fn arrive(&mut self, thread: usize, core: usize, wakes: bool) {
        self.credit(core);
        let clock_ns = self.cores[core].clock_ns;
        let credit = self.scheduler.sleeper_credit.0 as f64;
        let old_clock_ns = self.cores[self.threads[thread].core].clock_ns;
        let thread = &mut self.threads[thread];
        thread.virtual_ns += clock_ns - old_clock_ns;
        if wakes {
            thread.virtual_ns = thread.virtual_ns.max(clock_ns - credit);
        }
        thread.core = core;
    }

    fn enqueue(&mut self, core: usize, thread: usize) {
        self.threads[thread].state = State::Queued;
        self.cores[core].queue.push(thread);
        let app = self.threads[thread].app;
        self.apps[app].queued.increment(self.now_ns);
        self.queued[class_of(self.apps[app].treatment.rank)] += 1;
        self.note_pressure();
        self.retime(core);
    }

    pub(super) fn dequeue(&mut self, core: usize, thread: usize) {
        let queue = &mut self.cores[core].queue;
        let at = queue.iter().position(|other| *other == thread).expect("it is queued here");
        queue.remove(at);
        debug_assert_eq!(self.threads[thread].state, State::Queued, "only queued threads wait");
        let app = self.threads[thread].app;
        self.apps[app].queued.decrement(self.now_ns);
        let queued = &mut self.queued[class_of(self.apps[app].treatment.rank)];
        debug_assert!(*queued > 0, "the class has a waiting thread");
        *queued -= 1;
        self.note_pressure();
    }

    fn note_pressure(&mut self) {
        let waits = u32::from(self.queued != [0; 3]);
        if waits != self.pressure.value() {
            self.pressure.set(self.now_ns, waits);
        }
        self.note_waste();
    }

    /// Counts the cores that could run a waiting thread and are idle, because none may run there.
    fn note_waste(&mut self) {
        let waiting: usize = self.queued.iter().sum();
        let wasted = self.idle.count_ones().min(waiting as u32);
        if wasted != self.wasted.value() {
            self.wasted.set(self.now_ns, wasted);
        }
    }

    /// Starts a thread on a core without a running one.
    fn begin(&mut self, core: usize, thread: usize) {
        let slice = match self.rank(thread) > NORMAL {
            true => self.scheduler.real_time_slice,
            false => self.scheduler.slice,
        };
        debug_assert!(self.cores[core].current.is_none(), "a core runs one thread at a time");
        let (now_ns, app) = (self.now_ns, self.threads[thread].app);
        let last = self.cores[core].last;
        let switches = last != Some(thread);
        let cold = last.is_some_and(|last| self.threads[last].app != app);
        let mut cost = if switches { self.scheduler.switch_cost.0 } else { 0 };
        cost += if cold { self.scheduler.cold_cost.0 } else { 0 };
        cost += self.threads[thread].stall_ns;
        let awake_ns = match self.hardware.sleeps() {
            true => self.cores[core].supply.rouse(&self.hardware, now_ns),
            false => now_ns,
        };
        let state = &mut self.cores[core];
        state.current = Some(thread);
        state.last = Some(thread);
        state.transferred = cold;
        state.counted_ns = now_ns;
        state.since_ns = awake_ns.max(state.polls_until_ns).max(state.changes_until_ns) + cost;
        state.slice_end_ns = now_ns + slice.0;
        state.busy.set(now_ns, 1);
        self.idle &= !(1 << core);
        self.threads[thread].state = State::Running;
        let app = &mut self.apps[app];
        app.switches += u64::from(switches);
        app.running.increment(now_ns);
        if cold {
            app.transfers += 1;
            app.transferred.increment(now_ns);
        }
        self.note_waste();
        self.retime(core);
    }

    /// Takes the running thread off a core, which then has none.
    pub(super) fn halt(&mut self, core: usize) -> Option<usize> {
        self.credit(core);
        let state = &mut self.cores[core];
        let rest_ns = state.since_ns.saturating_sub(self.now_ns);
        let thread = state.current.take()?;
        let transferred = std::mem::take(&mut state.transferred);
        let halted = &mut self.threads[thread];
        // The cost of a move is the last part of the time without progress before `since_ns`.
        halted.stall_ns = halted.stall_ns.min(rest_ns);
        let app = &mut self.apps[halted.app];
        app.running.decrement(self.now_ns);
        if transferred {
            app.transferred.decrement(self.now_ns);
        }
        if let Some(shared) = &mut self.shared {
            shared.stop(core);
            self.runs_changed = true;
        }
        Some(thread)
    }

    /// A thread takes a core from the one that runs there.
    fn preempt(&mut self, core: usize, thread: usize) {
        let Some(evicted) = self.halt(core) else { return self.begin(core, thread) };
        self.begin(core, thread);
        let mask = self.mask(evicted);
        match self.idle_core(mask, core) {
            Some(other) => {
                self.arrive(evicted, other, false);
                self.begin(other, evicted);
            }
            None => self.enqueue(core, evicted),
        }
    }

    /// Gives a core without a running thread to the best one that waits, here
    /// or elsewhere.
    pub(super) fn pick(&mut self, core: usize) {
        let local = self.best(core, |_| true);
        let class = local.map(|thread| class_of(self.rank(thread)));
        let better = class.map_or(0, |class| class + 1);
        let waits_elsewhere = self.queued[better..].iter().any(|count| *count > 0);
        let stolen = if waits_elsewhere { self.steal(core, better) } else { None };
        match stolen.or(local) {
            Some(thread) => {
                self.dequeue(self.threads[thread].core, thread);
                if self.threads[thread].core != core {
                    self.retime(self.threads[thread].core);
                    self.arrive(thread, core, false);
                }
                self.begin(core, thread);
            }
            None => {
                if self.cores[core].polls_until_ns <= self.now_ns {
                    self.rest(core);
                }
                self.idle |= 1 << core;
                self.note_waste();
                self.retime(core);
            }
        }
    }

    /// A core without a thread and without packets to poll goes idle, or stays so.
    pub(super) fn rest(&mut self, core: usize) {
        self.cores[core].busy.set(self.now_ns, 0);
        if self.hardware.sleeps() {
            self.cores[core].supply.rest(&self.hardware, self.now_ns);
        }
    }

    /// Returns the queued thread that runs next: the highest real-time rank in order of arrival,
    /// else the least virtual time.
    fn best(&self, core: usize, may: impl Fn(usize) -> bool) -> Option<usize> {
        let order = |thread: usize| {
            let rank = self.rank(thread);
            if rank > NORMAL {
                (-f64::from(rank), 0.0)
            } else {
                (0.0, self.threads[thread].virtual_ns)
            }
        };
        let queue = self.cores[core].queue.iter().copied().filter(|thread| may(*thread));
        queue.min_by(|a, b| {
            let (a, b) = (order(*a), order(*b));
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
        })
    }

    /// A thread of at least this class from the longest queue that has one for this core.
    fn steal(&self, core: usize, least_class: usize) -> Option<usize> {
        let fits = |thread: usize| {
            self.mask(thread) & 1 << core != 0 && class_of(self.rank(thread)) >= least_class
        };
        let mut found: Option<(usize, usize)> = None;
        for (other, state) in self.cores.iter().enumerate() {
            let length = state.queue.len();
            if other == core || found.is_some_and(|(longest, _)| longest >= length) {
                continue;
            }
            if let Some(thread) = self.best(other, fits) {
                found = Some((length, thread));
            }
        }
        found.map(|(_, thread)| thread)
    }

    /// The slice of a running thread is over: the next one's turn, if it is due.
    pub(super) fn end_slice(&mut self, core: usize) {
        let current = self.cores[core].current.expect("a slice is a thread's");
        let rank = self.rank(current);
        let next = self.best(core, |other| take_turns(self.rank(other), rank));
        let due = next.is_some_and(|next| {
            rank > NORMAL || self.threads[next].virtual_ns < self.threads[current].virtual_ns
        });
        let Some(next) = next.filter(|_| due) else { return self.retime(core) };
        self.dequeue(core, next);
        self.halt(core);
        self.begin(core, next);
        self.enqueue(core, current);
    }

    /// Accounts core time and work of the running thread up to now.
    pub(super) fn credit(&mut self, core: usize) {
        let now_ns = self.now_ns;
        let state = &mut self.cores[core];
        let Some(current) = state.current else { return };
        let thread = &mut self.threads[current];
        let app = &mut self.apps[thread.app];
        let span_ns = (now_ns - state.counted_ns) as f64;
        state.counted_ns = now_ns;
        thread.virtual_ns += app.treatment.virtual_ns(span_ns);
        if now_ns > state.since_ns {
            let span_ns = match &mut self.shared {
                Some(shared) => shared.take_ns(core, now_ns),
                None => (now_ns - state.since_ns) as f64,
            };
            let work_ns = span_ns * (app.pace * state.supply.speed);
            state.since_ns = now_ns;
            thread.left_ns -= work_ns;
            thread.stall_ns = 0;
            app.work_ns += work_ns;
        }
        let queued = state.queue.iter().map(|other| self.threads[*other].virtual_ns);
        let least = queued.fold(self.threads[current].virtual_ns, f64::min);
        state.clock_ns = state.clock_ns.max(least);
    }

    /// Sets a core's clock to its next event.
    pub(super) fn retime(&mut self, core: usize) {
        let now_ns = self.now_ns;
        let Some(current) = self.cores[core].current else {
            return self.set_clock(core, NEVER_NS);
        };
        let rank = self.rank(current);
        let state = &self.cores[core];
        let rival = state.queue.iter().any(|other| take_turns(self.rank(*other), rank));
        let thread = &self.threads[current];
        let pace = self.apps[thread.app].pace * state.supply.speed;
        let span_ns = time_of(thread.left_ns, pace).max(0.0);
        let end_ns = match &mut self.shared {
            Some(shared) => {
                self.runs_changed = true;
                shared.set_end(core, state.supply.speed, now_ns, state.since_ns, span_ns)
            }
            None => state.since_ns.saturating_add(round_ns(span_ns)),
        };
        if !rival {
            return self.set_clock(core, end_ns.max(now_ns));
        }
        let slice_ns = match rank > NORMAL {
            true => self.scheduler.real_time_slice.0,
            false => self.scheduler.slice.0,
        };
        let state = &mut self.cores[core];
        if state.slice_end_ns <= now_ns {
            // A thread that ran alone has renewed its slice each time it ended.
            let passed = (now_ns - state.slice_end_ns) / slice_ns + 1;
            state.slice_end_ns += passed * slice_ns;
        }
        let next_ns = end_ns.min(state.slice_end_ns);
        self.set_clock(core, next_ns.max(now_ns));
    }

    /// Moves waiting threads from long queues to short ones.
    pub(super) fn balance(&mut self) {
        if self.queued == [0; 3] {
            return;
        }
        for core in 0..self.cores.len() {
            let load = self.cores[core].load();
            let fits = |thread: usize| self.mask(thread) & 1 << core != 0;
            let longer =
                (0..self.cores.len()).filter(|other| self.cores[*other].load() >= load + 2);
            let with = longer.filter_map(|other| {
                let last = self.cores[other].queue.iter().rev().find(|thread| fits(**thread))?;
                Some((self.cores[other].load(), other, *last))
            });
            let Some((_, other, thread)) = with.max_by_key(|(load, _, _)| *load) else { continue };
            self.dequeue(other, thread);
            self.retime(other);
            self.place(thread, false);
        }
    }

    /// Changes how an app's threads are scheduled from now on.
    pub(super) fn treat(&mut self, app: usize, treatment: ThreadScheduling) {
        if self.apps[app].treatment == treatment {
            return;
        }
        if self.per_thread.is_some() {
            self.apps[app].treatment = treatment;
            return self.evict(app);
        }
        (0..self.cores.len()).for_each(|core| self.credit(core));
        // Dequeue under the old treatment and place again under the new one: the counts
        // of waiting threads are by class, which may change.
        let mine: Vec<usize> =
            (0..self.threads.len()).filter(|thread| self.threads[*thread].app == app).collect();
        let mut displaced = Vec::new();
        for thread in mine {
            let core = self.threads[thread].core;
            match self.threads[thread].state {
                State::Sleeping => {}
                State::Queued => {
                    self.dequeue(core, thread);
                    displaced.push(thread);
                }
                State::Running if treatment.mask & 1 << core == 0 => {
                    self.halt(core);
                    displaced.push(thread);
                }
                State::Running => {}
            }
        }
        self.apps[app].treatment = treatment;
        if self.is_dispatched(app) {
            self.rebind(&displaced);
            displaced.retain(|thread| self.threads[*thread].state != State::Sleeping);
        }
        displaced.into_iter().for_each(|thread| self.place(thread, false));
        self.settle();
        if self.is_dispatched(app) {
            self.take_cores(0, 0);
            self.redispatch();
        }
    }

    /// Every core runs the best thread that it may.
    pub(super) fn settle(&mut self) {
        for core in 0..self.cores.len() {
            let Some(current) = self.cores[core].current else {
                self.pick(core);
                continue;
            };
            let rank = self.rank(current);
            match self.best(core, |other| goes_before(self.rank(other), rank)) {
                Some(other) => {
                    self.dequeue(core, other);
                    self.preempt(core, other);
                }
                None => self.retime(core),
            }
        }
    }
}
