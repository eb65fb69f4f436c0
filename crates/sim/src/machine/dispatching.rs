//! Requests of one app that a dispatcher assigns to cores one by one.
//!
//! A [`Dispatcher`] decides on which core type a request starts and at which age it moves. It
//! is called at the instants that [`lull_control::dispatcher`] lists, so that thresholds are
//! crossed exactly. A dispatched thread is bound to its core; there it competes with threads of
//! other apps under the rules of the run queues. A move takes time without progress at the full
//! power of the new core (EETL, MICRO-50 2017, section 5.4).

mod displacement;

use super::model::MachineModel;
use super::parts::DispatchPart;
use super::queue::{State, Task};
use super::{MachineSimulation, Timer};
use crate::order::NEVER_NS;
use lull_control::dispatcher::{
    Answer, CoreChoice, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher, Ladder,
    Meter,
};
use lull_measure::Nanos;
use std::collections::VecDeque;

/// The request timer of the dispatcher's measurements.
const MEASUREMENT_TIMER: usize = super::REQUESTS_MAX - 1;

/// One request in the system.
#[derive(Debug, Clone, Copy)]
struct Request {
    id: u64,
    task: Task,
    /// Work left when it last waited for a core.
    left_ns: f64,
    /// Its thread and core, while it has one.
    on: Option<(usize, usize)>,
    /// Sequence number of its valid timer, and the time of that. Older timers of the request
    /// stay in the event queue and are stale.
    timer: u64,
    timer_ns: u64,
}

/// The counts of the dispatcher.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DispatchCounts {
    /// Migrations between core types, or changes of a core's type under a request.
    pub moves: u64,
    /// Requests abandoned because they reached the age `abandon`.
    pub abandoned: u64,
    /// Calls of the dispatcher.
    pub decisions: u64,
    /// The observations that the dispatcher received, and its thresholds after each.
    pub measurements: Vec<MeasurementRecord>,
}

/// One period of the dispatcher's controller.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasurementRecord {
    /// Time since the start of the run, warm-up included.
    pub time: Nanos,
    /// Requests answered since then.
    pub answered: u64,
    /// Measured tail.
    pub tail: Option<Nanos>,
    /// Measured arrivals per second.
    pub rate_per_s: Option<f64>,
    /// The thresholds that the dispatcher chose.
    pub thresholds: Vec<Nanos>,
}

/// The dispatcher and the requests that it decides on.
pub(super) struct Dispatching {
    pub(super) app: usize,
    dispatcher: Box<dyn Dispatcher>,
    ladder: Ladder,
    abandon_ns: u64,
    move_ns: u64,
    slots: Vec<Request>,
    vacant: Vec<u32>,
    /// All requests in order of age: id and slot.
    active: VecDeque<(u64, u32)>,
    waiting: VecDeque<u32>,
    /// The slot of each thread of the machine that has a request.
    of_thread: Vec<u32>,
    /// Cores with a request, and the cores that can be of each type, a bit each.
    taken: u64,
    of_type: Vec<u64>,
    /// Cores of each type without a request that the app may use.
    free: Vec<u32>,
    next_id: u64,
    meter: Option<Meter>,
    measurement_due: u64,
    /// Requests answered or abandoned.
    pub(super) ended: u64,
    pub(super) counts: DispatchCounts,
}

impl Dispatching {
    pub(super) fn new(
        model: &MachineModel,
        (app, part): (usize, &DispatchPart),
        dispatcher: Box<dyn Dispatcher>,
    ) -> Self {
        let ladder = model.ladder().expect("the model is checked");
        let threads = model.app.iter().map(|app| app.threads as usize).sum();
        let all = u64::MAX >> (64 - model.cores);
        let mut of_type = vec![if ladder.scales() { all } else { 0 }; ladder.types().len()];
        for (core, kind) in model.kinds().enumerate() {
            of_type[kind] |= 1 << core;
        }
        Self {
            app,
            abandon_ns: part.abandon.map_or(NEVER_NS, |age| age.0),
            move_ns: part.move_cost.0,
            slots: Vec::new(),
            vacant: Vec::new(),
            active: VecDeque::new(),
            waiting: VecDeque::new(),
            of_thread: vec![u32::MAX; threads],
            taken: 0,
            free: of_type.iter().map(|cores| cores.count_ones()).collect(),
            of_type,
            next_id: 0,
            meter: dispatcher.measurement_rule().map(Meter::new),
            measurement_due: u64::MAX,
            ended: 0,
            counts: DispatchCounts::default(),
            dispatcher,
            ladder,
        }
    }

    /// How many requests are older than the one with this id.
    fn older_than(&self, id: u64) -> usize {
        self.active.partition_point(|(other, _)| *other < id)
    }

    /// Adds a request that waits.
    fn add(&mut self, task: Task) -> u32 {
        let (on, timer, timer_ns) = (None, u64::MAX, NEVER_NS);
        let left_ns = task.work_ns;
        let request = Request { id: self.next_id, task, left_ns, on, timer, timer_ns };
        self.next_id += 1;
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(request);
            (self.slots.len() - 1) as u32
        });
        debug_assert!(
            (slot as usize) < MEASUREMENT_TIMER,
            "more requests wait than timers distinguish"
        );
        self.slots[slot as usize] = request;
        self.active.push_back((request.id, slot));
        self.waiting.push_back(slot);
        slot
    }

    /// Removes a request that is answered or abandoned.
    fn remove(&mut self, slot: u32) {
        let place = self.older_than(self.slots[slot as usize].id);
        self.active.remove(place);
        self.stop_timer(slot);
        self.vacant.push(slot);
        self.ended += 1;
    }

    fn stop_timer(&mut self, slot: u32) {
        let request = &mut self.slots[slot as usize];
        (request.timer, request.timer_ns) = (u64::MAX, NEVER_NS);
    }

    /// Counts free cores among those that the app may use.
    pub(super) fn count_free(&mut self, allowed: u64) {
        for (free, cores) in self.free.iter_mut().zip(&self.of_type) {
            *free = (cores & allowed & !self.taken).count_ones();
        }
    }

    /// Forgets all requests, whose app departs.
    pub(super) fn clear(&mut self, allowed: u64) {
        self.slots.clear();
        self.vacant.clear();
        self.active.clear();
        self.waiting.clear();
        self.taken = 0;
        self.count_free(allowed);
    }

    /// When the oldest request that waits was due.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.active.front().map(|(_, slot)| self.slots[*slot as usize].task.arrived_ns)
    }
}

impl MachineSimulation {
    /// Takes what the dispatcher did since the counts were restarted.
    pub fn take_dispatch_counts(&mut self) -> DispatchCounts {
        let dispatching = self.dispatching.as_mut();
        dispatching.map_or_else(DispatchCounts::default, |it| std::mem::take(&mut it.counts))
    }

    fn dispatching(&mut self) -> &mut Dispatching {
        self.dispatching.as_mut().expect("only a dispatcher has requests")
    }

    pub(super) fn is_dispatched(&self, app: usize) -> bool {
        self.dispatching.as_ref().is_some_and(|dispatching| dispatching.app == app)
    }

    /// Schedules the first measurement by time.
    pub(super) fn start_dispatching(&mut self) {
        if self.dispatching.is_some() {
            self.schedule_measurement();
        }
    }

    fn schedule_measurement(&mut self) {
        let next = self.dispatching().meter.as_ref().map_or(Nanos::MAX, Meter::next);
        if next != Nanos::MAX {
            let due = self.set_timer(next.0.max(self.now_ns), Timer::Request, MEASUREMENT_TIMER);
            self.dispatching().measurement_due = due;
        }
    }

    /// A request of the dispatched app arrives.
    pub(super) fn dispatch_arrival(&mut self, task: Task) {
        let now_ns = self.now_ns;
        let dispatching = self.dispatching();
        let slot = dispatching.add(task);
        let abandon_ns = dispatching.abandon_ns;
        if let Some(meter) = &mut dispatching.meter {
            meter.arrived(Nanos(now_ns));
        }
        if abandon_ns != NEVER_NS {
            self.set_request_timer(slot, abandon_ns);
        }
        self.redispatch();
    }

    /// A dispatched thread has ended its request and sleeps.
    pub(super) fn dispatched_ends(&mut self, thread: usize) {
        let latency = Nanos(self.now_ns - self.threads[thread].task.arrived_ns);
        let slot = self.dispatching().of_thread[thread];
        self.release(slot);
        let dispatching = self.dispatching();
        dispatching.remove(slot);
        if dispatching.meter.as_mut().is_some_and(|meter| meter.answered(latency)) {
            self.measure();
        }
        self.redispatch();
    }

    /// The core of a request has none any more.
    fn release(&mut self, slot: u32) {
        let Some((thread, core)) = self.dispatching().slots[slot as usize].on.take() else {
            return;
        };
        self.threads[thread].bound = None;
        self.take_cores(1 << core, 0);
    }

    /// Cores lose and get a request.
    pub(super) fn take_cores(&mut self, released: u64, taken: u64) {
        let app = self.dispatching().app;
        let allowed = self.apps[app].treatment.mask;
        let dispatching = self.dispatching();
        dispatching.taken = dispatching.taken & !released | taken;
        dispatching.count_free(allowed);
    }

    /// A request has reached the age of its timer, or a measurement is due.
    pub(super) fn request_timer(&mut self, index: usize, sequence: u64) {
        let now_ns = self.now_ns;
        let dispatching = self.dispatching();
        if index == MEASUREMENT_TIMER {
            if dispatching.measurement_due == sequence {
                self.measure();
            }
            return;
        }
        let slot = index as u32;
        let Some(request) = dispatching.slots.get(index).copied() else { return };
        if request.timer != sequence {
            return;
        }
        dispatching.stop_timer(slot);
        if now_ns - request.task.arrived_ns >= dispatching.abandon_ns {
            return self.abandon(slot);
        }
        let older = dispatching.older_than(request.id);
        if self.decide_request(slot, older) {
            if request.on.is_none() {
                self.dispatching().waiting.retain(|waiting| *waiting != slot);
            }
            self.redispatch();
        }
    }

    /// A thread leaves its core or the queue before it, its work up to date.
    fn take_off(&mut self, thread: usize) {
        let core = self.threads[thread].core;
        match self.threads[thread].state {
            State::Running => drop(self.halt(core)),
            State::Queued => {
                self.dequeue(core, thread);
                self.retime(core);
            }
            State::Sleeping => {}
        }
    }

    /// Passes the measurements of a period to the dispatcher, whose new thresholds apply to
    /// running requests too.
    fn measure(&mut self) {
        let now = self.now();
        let dispatching = self.dispatching();
        let Some(meter) = &mut dispatching.meter else { return };
        let seen: DispatchObservation = meter.read(now, dispatching.active.len());
        dispatching.dispatcher.adjust(&seen);
        dispatching.counts.measurements.push(MeasurementRecord {
            time: seen.now,
            answered: dispatching.ended,
            tail: seen.tail,
            rate_per_s: seen.rate_per_s,
            thresholds: dispatching.dispatcher.thresholds().to_vec(),
        });
        self.schedule_measurement();
        self.decide_running(usize::MAX);
        self.redispatch();
    }

    /// Calls the dispatcher for the running requests among the `oldest` oldest.
    fn decide_running(&mut self, oldest: usize) {
        let mut left = self.dispatching().taken.count_ones();
        let oldest = oldest.min(self.dispatching().active.len());
        for older in 0..oldest {
            let dispatching = self.dispatching();
            let slot = dispatching.active[older].1;
            if left == 0 {
                return;
            }
            if dispatching.slots[slot as usize].on.is_some() {
                left -= 1;
                self.decide_request(slot, older);
            }
        }
    }

    /// Calls the dispatcher for all requests that an arrival or a departure concerns: first the
    /// oldest running ones, because they may free cores, then the waiting ones, while there are
    /// free cores.
    pub(super) fn redispatch(&mut self) {
        match self.dispatching().dispatcher.decision_scope() {
            DecisionScope::Ages => {}
            DecisionScope::Oldest(most) => self.decide_running(most),
            DecisionScope::All => self.decide_running(usize::MAX),
        }
        let mut index = 0;
        loop {
            let dispatching = self.dispatching();
            let Some(slot) = dispatching.waiting.get(index).copied() else { return };
            if dispatching.free.iter().all(|free| *free == 0) {
                return;
            }
            let older = dispatching.older_than(dispatching.slots[slot as usize].id);
            if self.decide_request(slot, older) {
                self.dispatching().waiting.remove(index);
            } else if self.dispatching().dispatcher.first_come() {
                return;
            } else {
                index += 1;
            }
        }
    }

    /// Calls the dispatcher for a request. Returns whether the request started or moved.
    fn decide_request(&mut self, slot: u32, older: usize) -> bool {
        let request = self.dispatching().slots[slot as usize];
        let age_ns = self.now_ns - request.task.arrived_ns;
        let (mut left_ns, mut on) = (request.left_ns, None);
        if let Some((thread, core)) = request.on {
            self.credit(self.threads[thread].core);
            left_ns = self.threads[thread].left_ns;
            on = Some(self.cores[core].supply.kind);
        }
        let dispatching = self.dispatching();
        let dispatch_request = DispatchRequest {
            age: Nanos(age_ns),
            done: Nanos((request.task.work_ns - left_ns) as u64),
            on,
            older,
            active: dispatching.active.len(),
            work: Some(Nanos(request.task.work_ns as u64)),
            free: &dispatching.free,
        };
        let Answer { place, again } = dispatching.dispatcher.place(&dispatch_request);
        dispatching.counts.decisions += 1;
        let goes = match place {
            CoreChoice::On(kind)
                if on != Some(kind) && dispatch_request.can(kind, &dispatching.ladder) =>
            {
                Some(kind)
            }
            _ => None,
        };
        let wanted = again.filter(|age| age.0 > age_ns).map_or(NEVER_NS, |age| age.0);
        let age_ns = wanted.min(dispatching.abandon_ns);
        match age_ns {
            NEVER_NS => dispatching.stop_timer(slot),
            age_ns => self.set_request_timer(slot, age_ns),
        }
        if let Some(kind) = goes {
            self.start_on(slot, kind);
        }
        goes.is_some()
    }

    fn set_request_timer(&mut self, slot: u32, age_ns: u64) {
        let request = &self.dispatching().slots[slot as usize];
        let at_ns = request.task.arrived_ns.saturating_add(age_ns);
        if request.timer_ns == at_ns {
            return;
        }
        let timer = self.set_timer(at_ns.max(self.now_ns), Timer::Request, slot as usize);
        let request = &mut self.dispatching().slots[slot as usize];
        (request.timer, request.timer_ns) = (timer, at_ns);
    }

    /// Starts a request on a core of a type, from the queue or another core.
    fn start_on(&mut self, slot: u32, kind: usize) {
        let dispatching = self.dispatching();
        let (app, move_ns, scales) =
            (dispatching.app, dispatching.move_ns, dispatching.ladder.scales());
        let request = dispatching.slots[slot as usize];
        let usable = dispatching.of_type[kind] & !dispatching.taken;
        let core = (usable & self.apps[app].treatment.mask).trailing_zeros() as usize;
        match request.on {
            Some((thread, core)) if scales => {
                self.stall(thread, move_ns);
                self.set_kind(core, kind);
                self.dispatching().counts.moves += 1;
            }
            Some((thread, from)) => {
                let left = self.threads[thread].core;
                self.take_off(thread);
                self.threads[thread].stall_ns = move_ns;
                self.bind(slot, thread, core);
                self.take_cores(1 << from, 1 << core);
                self.place(thread, false);
                self.pick_if_idle(left);
                self.dispatching().counts.moves += 1;
            }
            None => {
                let task_queue = self.task_queue_mut(app).expect("the model is checked");
                let thread = task_queue.free.pop().expect("as many threads as cores");
                self.threads[thread].task = request.task;
                self.threads[thread].left_ns = request.left_ns;
                self.bind(slot, thread, core);
                self.take_cores(0, 1 << core);
                if scales {
                    self.set_kind(core, kind);
                }
                self.place(thread, true);
            }
        }
    }

    fn bind(&mut self, slot: u32, thread: usize, core: usize) {
        self.threads[thread].bound = Some(core);
        let dispatching = self.dispatching();
        dispatching.of_thread[thread] = slot;
        dispatching.slots[slot as usize].on = Some((thread, core));
    }

    /// A core whose thread has just left takes another.
    fn pick_if_idle(&mut self, core: usize) {
        if self.cores[core].current.is_none() {
            self.pick(core);
        }
    }

    /// Stops a thread's progress for some time from now, or from when it runs. The rest of an
    /// earlier move passes in the same time.
    fn stall(&mut self, thread: usize, span_ns: u64) {
        if span_ns == 0 {
            return;
        }
        if self.threads[thread].state == State::Running {
            let core = self.threads[thread].core;
            self.credit(core);
            let state = &mut self.cores[core];
            state.since_ns = state.since_ns.max(self.now_ns + span_ns);
        }
        self.threads[thread].stall_ns = span_ns;
    }
}
