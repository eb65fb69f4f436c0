//! One replication of a dispatched machine.

mod cores;

use super::model::{DispatchModel, DispatchModelError, top_speeds};
use super::outcome::{BeatRecord, DispatchTotals};
use super::source::Source;
use crate::heap::MinHeap;
use crate::order::{Key, NEVER_NS};
use crate::replication::{Replication, RunLength};
use lull_control::dispatcher::{Answer, Ask, Attention, Dispatcher, Ladder, Meter, Place};
use lull_measure::Nanos;
use std::collections::VecDeque;

/// The core type of a request that waits.
const NO_CORE_TYPE: usize = usize::MAX;

/// One request in the system.
#[derive(Debug, Clone, Copy)]
struct Request {
    id: u64,
    arrival_ns: u64,
    /// All its work, in nanoseconds at speed 1.
    work: f64,
    /// Work left when it last started on a core.
    left: f64,
    /// Virtual time of its end on its present core.
    end: f64,
    kind: usize,
    /// Index in the list of running requests.
    at: usize,
    /// Sequence number of its valid timer, and the time of that. Older timers of the
    /// request stay in the event queue and are stale.
    timer: u64,
    timer_ns: u64,
}

/// A machine under one dispatcher: one replication.
pub struct DispatchSimulation {
    ladder: Ladder,
    speeds: Vec<f64>,
    dispatcher: Box<dyn Dispatcher>,
    attention: Attention,
    first_come: bool,
    model: DispatchModel,

    now_ns: u64,
    /// Virtual time: it passes at the common pace of all running requests.
    virtual_ns: f64,
    pace: f64,
    watts: f64,
    static_watts: f64,

    slots: Vec<Request>,
    vacant: Vec<u32>,
    /// All requests in order of age: id and slot.
    active: VecDeque<(u64, u32)>,
    waiting: VecDeque<u32>,
    /// Slots of running requests, and the virtual times of their ends.
    running: Vec<u32>,
    ends: Vec<f64>,
    /// Idle cores and running requests by type.
    free: Vec<u32>,
    busy: Vec<u32>,

    timers: MinHeap<Key>,
    sequence: u64,
    source: Source,
    abandon_ns: u64,

    meter: Option<Meter>,
    answered: u64,
    counts: DispatchTotals,
    counted_from_ns: u64,
}

/// What happens next.
#[derive(Clone, Copy)]
enum NextEvent {
    End(usize),
    Timer(Key),
    Beat,
    Arrival,
}

impl DispatchSimulation {
    /// An empty node before its first arrival.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn new(
        model: &DispatchModel,
        dispatcher: Box<dyn Dispatcher>,
        seed: u64,
        replication: u64,
    ) -> Result<Self, DispatchModelError> {
        model.check()?;
        let ladder = model.ladder()?;
        let types = ladder.types().len();
        let free: Vec<u32> = (0..types).map(|kind| ladder.cores(kind) as u32).collect();
        let mut node = Self {
            speeds: ladder.types().iter().map(|one| one.speed).collect(),
            attention: dispatcher.attention(),
            first_come: dispatcher.first_come(),
            meter: dispatcher.beat().map(Meter::new),
            source: Source::new(model, Replication { seed, number: replication }),
            abandon_ns: model.abandon.map_or(NEVER_NS, |age| age.0),
            counts: DispatchTotals::empty(types),
            busy: vec![0; types],
            model: model.clone(),
            ladder,
            dispatcher,
            free,
            now_ns: 0,
            virtual_ns: 0.0,
            pace: 1.0,
            watts: 0.0,
            static_watts: 0.0,
            slots: Vec::new(),
            vacant: Vec::new(),
            active: VecDeque::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            ends: Vec::new(),
            timers: MinHeap::new(),
            sequence: 0,
            answered: 0,
            counted_from_ns: 0,
        };
        node.static_watts = model.static_watts.0 * top_speeds(&node.ladder);
        node.changed();
        Ok(node)
    }

    /// Runs until this many more requests are answered or abandoned.
    pub fn run(&mut self, requests: u64) {
        let until = self.answered.saturating_add(requests);
        while self.answered < until {
            self.step();
        }
    }

    /// Runs all events before `until` and moves the clock there.
    pub fn run_until(&mut self, until: Nanos) {
        loop {
            let (time_ns, next) = self.next();
            if time_ns >= until.0 {
                break;
            }
            self.act(time_ns, next);
        }
        self.advance(until.0.max(self.now_ns));
    }

    /// Returns the number of requests that have arrived and are not answered or abandoned.
    pub fn in_system(&self) -> usize {
        self.active.len()
    }

    /// Restarts all counts, at the end of a warm-up.
    pub fn forget(&mut self) {
        self.counts = DispatchTotals::empty(self.speeds.len());
        self.counted_from_ns = self.now_ns;
    }

    /// Returns the totals.
    pub fn outcome(mut self) -> DispatchTotals {
        self.counts.span = Nanos(self.now_ns - self.counted_from_ns);
        self.counts
    }

    /// Runs a warm-up and then a counted part, and returns the totals of the latter.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn measure(
        model: &DispatchModel,
        dispatcher: Box<dyn Dispatcher>,
        Replication { seed, number }: Replication,
        requests: RunLength<u64>,
    ) -> Result<DispatchTotals, DispatchModelError> {
        let mut node = Self::new(model, dispatcher, seed, number)?;
        node.run(requests.warmup);
        node.forget();
        node.counts.latencies_ns.reserve(requests.counted as usize);
        node.run(requests.counted);
        Ok(node.outcome())
    }

    fn step(&mut self) {
        let (time_ns, next) = self.next();
        self.act(time_ns, next);
    }

    fn act(&mut self, time_ns: u64, next: NextEvent) {
        self.advance(time_ns);
        match next {
            NextEvent::End(at) => {
                self.counts.events += 1;
                self.leave(at, true);
            }
            NextEvent::Timer(key) => self.ring(key),
            NextEvent::Beat => self.beat(),
            NextEvent::Arrival => {
                self.counts.events += 1;
                self.arrive();
            }
        }
    }

    /// The earliest of ends, timers, beats and arrivals; in this order at one time.
    fn next(&mut self) -> (u64, NextEvent) {
        let mut best = (self.source.next_ns, NextEvent::Arrival);
        if let Some(meter) = &self.meter
            && meter.next().0 <= best.0
        {
            best = (meter.next().0, NextEvent::Beat);
        }
        while let Some(key) = self.timers.peek() {
            if self.slots[key.owner() as usize].timer != key.sequence() {
                self.timers.pop();
                continue;
            }
            if key.time_ns() <= best.0 {
                best = (key.time_ns(), NextEvent::Timer(key));
            }
            break;
        }
        let mut first = (f64::INFINITY, 0);
        for (at, end) in self.ends.iter().enumerate() {
            if *end < first.0 {
                first = (*end, at);
            }
        }
        let span = (first.0 - self.virtual_ns) / self.pace;
        let end_ns = self.now_ns.saturating_add(span.max(0.0).ceil() as u64);
        if end_ns <= best.0 && !self.ends.is_empty() {
            (end_ns, NextEvent::End(first.1))
        } else {
            best
        }
    }

    /// Advances the clock to `time_ns` and adds up energy and busy time.
    #[inline]
    fn advance(&mut self, time_ns: u64) {
        debug_assert!(time_ns >= self.now_ns, "time never goes back");
        let span = (time_ns - self.now_ns) as f64;
        self.now_ns = time_ns;
        self.virtual_ns += span * self.pace;
        self.counts.energy.0 += span * 1e-9 * self.watts;
        for (busy_s, busy) in self.counts.busy_s.iter_mut().zip(&self.busy) {
            *busy_s += span * 1e-9 * f64::from(*busy);
        }
    }

    fn arrive(&mut self) {
        let (id, work) = self.source.draw(&self.model.load);
        let request = Request {
            id,
            arrival_ns: self.now_ns,
            work,
            left: work,
            end: f64::INFINITY,
            kind: NO_CORE_TYPE,
            at: 0,
            timer: u64::MAX,
            timer_ns: NEVER_NS,
        };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = request;
                slot
            }
            None => {
                self.slots.push(request);
                (self.slots.len() - 1) as u32
            }
        };
        self.active.push_back((id, slot));
        self.waiting.push_back(slot);
        if let Some(meter) = &mut self.meter {
            meter.arrived(Nanos(self.now_ns));
        }
        if self.abandon_ns != NEVER_NS {
            self.set_timer(slot, self.abandon_ns);
        }
        self.settle();
    }

    /// A running request leaves: answered or abandoned.
    fn leave(&mut self, at: usize, answered: bool) {
        let slot = self.running[at];
        let kind = self.slots[slot as usize].kind;
        self.stop(at);
        self.give_back(kind);
        self.changed();
        self.forget_request(slot, answered);
        self.settle();
    }

    fn forget_request(&mut self, slot: u32, answered: bool) {
        let request = self.slots[slot as usize];
        let place = self.older_than(request.id);
        self.active.remove(place);
        self.stop_timer(slot);
        self.vacant.push(slot);
        self.answered += 1;
        if !answered {
            self.counts.abandoned += 1;
            return;
        }
        let latency_ns = self.now_ns - request.arrival_ns;
        self.counts.latencies_ns.push(latency_ns);
        let ends = self.meter.as_mut().is_some_and(|meter| meter.answered(Nanos(latency_ns)));
        if ends {
            self.beat();
        }
    }

    /// A request has reached the age of its timer.
    fn ring(&mut self, key: Key) {
        self.timers.pop();
        self.counts.events += 1;
        let slot = key.owner();
        self.stop_timer(slot);
        let request = self.slots[slot as usize];
        if self.now_ns - request.arrival_ns >= self.abandon_ns {
            if request.kind != NO_CORE_TYPE {
                return self.leave(request.at, false);
            }
            self.waiting.retain(|waiting| *waiting != slot);
            return self.forget_request(slot, false);
        }
        let older = self.older_than(request.id);
        if self.ask(slot, older) {
            self.settle();
        }
    }

    /// Passes the measurements of a period to the dispatcher.
    fn beat(&mut self) {
        let Some(meter) = &mut self.meter else { return };
        let seen = meter.read(Nanos(self.now_ns), self.active.len());
        self.dispatcher.adjust(&seen);
        self.counts.beats.push(BeatRecord {
            time: seen.now,
            answered: self.answered,
            tail: seen.tail,
            rate_per_s: seen.rate_per_s,
            thresholds: self.dispatcher.thresholds().to_vec(),
        });
        self.ask_all_running();
    }

    /// Calls the dispatcher for all running requests, because new thresholds apply to
    /// them too.
    fn ask_all_running(&mut self) {
        self.ask_running(self.active.len());
        self.settle();
    }

    /// Calls the dispatcher for the running requests among the `oldest` oldest.
    fn ask_running(&mut self, oldest: usize) {
        let mut left = self.running.len();
        for older in 0..oldest {
            let slot = self.active[older].1;
            if left == 0 {
                return;
            }
            if self.slots[slot as usize].kind != NO_CORE_TYPE {
                left -= 1;
                self.ask(slot, older);
            }
        }
    }

    /// Calls the dispatcher for all requests that an arrival or a departure concerns:
    /// first the oldest running ones, because they may free cores, then the waiting
    /// ones, while there are free cores.
    fn settle(&mut self) {
        let oldest = match self.attention {
            Attention::Ages => 0,
            Attention::Oldest(most) => most.min(self.active.len()),
            Attention::All => self.active.len(),
        };
        self.ask_running(oldest);
        let mut index = 0;
        while index < self.waiting.len() && self.running.len() < self.ladder.all_cores() {
            let slot = self.waiting[index];
            let older = self.older_than(self.slots[slot as usize].id);
            if self.ask(slot, older) {
                self.waiting.remove(index);
            } else if self.first_come {
                return;
            } else {
                index += 1;
            }
        }
    }

    /// How many requests are older than the one with this id.
    fn older_than(&self, id: u64) -> usize {
        self.active.partition_point(|(other, _)| *other < id)
    }

    /// Calls the dispatcher for a request. Returns whether the request started or moved.
    fn ask(&mut self, slot: u32, older: usize) -> bool {
        let request = self.slots[slot as usize];
        let age_ns = self.now_ns - request.arrival_ns;
        let ask = Ask {
            age: Nanos(age_ns),
            done: Nanos((request.work - self.work_left(&request)) as u64),
            on: (request.kind != NO_CORE_TYPE).then_some(request.kind),
            older,
            active: self.active.len(),
            work: Some(Nanos(request.work as u64)),
            free: &self.free,
        };
        let Answer { place, again } = self.dispatcher.place(&ask);
        self.counts.asked += 1;
        let goes = match place {
            Place::On(kind) if ask.on != Some(kind) && ask.can(kind, &self.ladder) => Some(kind),
            _ => None,
        };
        let wanted = again.filter(|age| age.0 > age_ns).map_or(NEVER_NS, |age| age.0);
        if wanted.min(self.abandon_ns) != NEVER_NS {
            self.set_timer(slot, wanted.min(self.abandon_ns));
        } else {
            self.stop_timer(slot);
        }
        if let Some(kind) = goes {
            self.go(slot, kind);
        }
        goes.is_some()
    }

    fn set_timer(&mut self, slot: u32, age_ns: u64) {
        let request = &mut self.slots[slot as usize];
        let at_ns = request.arrival_ns.saturating_add(age_ns);
        if request.timer_ns == at_ns {
            return;
        }
        self.sequence += 1;
        (request.timer, request.timer_ns) = (self.sequence, at_ns);
        self.timers.push(Key::new(at_ns, self.sequence, slot));
    }

    fn stop_timer(&mut self, slot: u32) {
        let request = &mut self.slots[slot as usize];
        (request.timer, request.timer_ns) = (u64::MAX, NEVER_NS);
    }

    fn work_left(&self, request: &Request) -> f64 {
        if request.kind == NO_CORE_TYPE {
            return request.left;
        }
        // During a migration its cost counts as work, so clamp to the work at the start.
        ((request.end - self.virtual_ns) * self.speeds[request.kind]).clamp(0.0, request.left)
    }
}
