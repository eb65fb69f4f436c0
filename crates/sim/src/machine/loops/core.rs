//! One core of an app of event loops: its vector of the network card, polling, and the thread.
//!
//! Such cores share nothing but what the machine changes between calls of
//! [`LoopCore::run_until`], such as the frequency of their domain. So each runs on its own up to
//! the next such moment, and the next event is the earliest of three times: an arrival, the end
//! of what runs, an interrupt.

use super::client::{CoreTraffic, Delivered, WireEvent};
use super::log::InterruptRecord;
use super::step::{CoreActivity, LoopRequest, Step, StepKind};
use crate::machine::app::AppState;
use crate::machine::event_loops::EventLoops;
use crate::machine::parts::Card;
use crate::machine::queue::CoreState;
use crate::machine::supply::Hardware;
use crate::model::Unit;
use crate::moderation::Moderation;
use crate::order::NEVER_NS;
use crate::replication::{Replication, Stream, StreamPurpose};
use crate::vector::{Round, Vector, VectorTotals};
use lull_measure::{Hertz, Nanos};
use std::collections::VecDeque;

/// An acknowledgement on the wire: headers with a time stamp.
const ACKNOWLEDGEMENT_BYTES: u32 = 66;

/// The state outside a core with which it steps.
pub(super) struct Surroundings<'a> {
    pub(super) model: &'a EventLoops,
    pub(super) card: &'a Card,
    pub(super) hardware: &'a Hardware,
    pub(super) core: &'a mut CoreState,
    pub(super) app: &'a mut AppState,
}

/// One core.
#[derive(Debug, Clone)]
pub(super) struct LoopCore {
    now_ns: u64,
    cycles_per_ns: f64,
    doing: CoreActivity,
    until_ns: u64,
    vector: Vector<LoopRequest>,
    paused: Option<Step>,
    asleep: bool,
    sockets: VecDeque<LoopRequest>,
    batch: u32,
    client: CoreTraffic,
    work: Unit,
    work_stream: Stream,
    /// Cycles of all steps that are over, and how often the thread was woken.
    cycles: f64,
    pub(super) wakes: u64,
    /// Requests without an answer. Their number, integrated over time, is `open` times now plus
    /// `answers_less_arrivals_ns`: the sum of the instants of answers less that of arrivals.
    pub(super) open: u64,
    answers_less_arrivals_ns: i128,
    since_logged: Logged,
    log: Vec<InterruptRecord>,
    /// Most interrupts that are logged.
    log_most: usize,
}

/// Counters at the last logged interrupt.
#[derive(Debug, Clone, Default)]
struct Logged {
    cycles: f64,
    idle: Vec<Nanos>,
}

impl LoopCore {
    /// A core that is idle at time 0, with its share of the traffic.
    pub(super) fn new(
        model: &EventLoops,
        card: &Card,
        client: CoreTraffic,
        streams: Replication,
        index: usize,
    ) -> Self {
        Self {
            now_ns: 0,
            cycles_per_ns: 0.0,
            doing: CoreActivity::Idle,
            until_ns: NEVER_NS,
            vector: Vector::new(card.moderation),
            paused: None,
            asleep: true,
            sockets: VecDeque::new(),
            batch: 0,
            client,
            work: Unit::new(model.shape),
            work_stream: streams.stream(StreamPurpose::Work, index),
            cycles: 0.0,
            wakes: 0,
            open: 0,
            answers_less_arrivals_ns: 0,
            since_logged: Logged::default(),
            log: Vec::new(),
            log_most: 0,
        }
    }

    /// Runs to this time. Returns the number of events.
    pub(super) fn run_until(&mut self, end_ns: u64, around: &mut Surroundings<'_>) -> u64 {
        let mut events = 0;
        loop {
            // Replies within a round of polling are simulated at its end: what the client sends
            // after them may have been due before.
            let coming_ns = self.client.next_ns().max(self.now_ns);
            let next_ns = coming_ns.min(self.until_ns).min(self.vector.due_ns());
            if next_ns > end_ns {
                break;
            }
            debug_assert!(next_ns >= self.now_ns, "time never goes back");
            self.now_ns = next_ns;
            events += 1;
            // The order of simultaneous events: work ends, then packets reach the card,
            // then the card interrupts.
            if self.until_ns == next_ns {
                self.finish(around);
            } else if coming_ns == next_ns {
                self.arrive(around);
            } else {
                self.interrupt(around);
            }
        }
        self.now_ns = end_ns;
        events
    }

    /// Sets another frequency from now on.
    pub(super) fn set_frequency(&mut self, hertz: Hertz) {
        self.cycles_per_ns = hertz.0 as f64 / 1e9;
        if let CoreActivity::Working(step) = self.doing {
            let left = self.left_of(step);
            self.cycles += step.cycles - left.cycles;
            self.work_on(left);
        }
    }

    /// Sets another way to moderate, from the next interrupt on.
    pub(super) fn set_moderation(&mut self, kind: Moderation) {
        self.vector.set_moderation(kind);
    }

    /// When the oldest unanswered request arrived.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        // A part is the first there or none is.
        let parts = usize::from(self.sockets.front().is_some_and(LoopRequest::is_part));
        let oldest = self.sockets.get(parts).or_else(|| self.vector.ring().front());
        oldest.map(|request| request.arrived_ns)
    }

    /// Unanswered requests times nanoseconds, since the start.
    pub(super) fn outstanding_ns(&self) -> u128 {
        let now_ns = i128::from(self.open) * i128::from(self.now_ns);
        (now_ns + self.answers_less_arrivals_ns).cast_unsigned()
    }

    /// Interrupts and packets since the start.
    pub(super) fn card_totals(&self) -> VectorTotals {
        self.vector.totals()
    }

    /// Cycles up to now, with those of the step under way.
    pub(super) fn cycles(&self) -> f64 {
        match self.doing {
            CoreActivity::Idle | CoreActivity::Leaving => self.cycles,
            CoreActivity::Working(step) => self.cycles + (step.cycles - self.left_of(step).cycles),
        }
    }

    /// Keeps a log of this many interrupts.
    pub(super) fn keep_log(&mut self, most: usize) {
        (self.log, self.log_most) = (Vec::new(), most);
    }

    /// The log; empty if none is kept.
    pub(super) fn log(&self) -> &[InterruptRecord] {
        &self.log
    }

    /// The machine has restarted the counts of its idle states.
    pub(super) fn forget(&mut self) {
        self.since_logged.idle.clear();
    }

    /// Returns the rest of a running step.
    fn left_of(&self, step: Step) -> Step {
        let whole_ns = (self.until_ns - step.from_ns).max(1) as f64;
        let share = (self.until_ns - self.now_ns) as f64 / whole_ns;
        let (cycles, memory_ns) = (step.cycles * share, step.memory_ns * share);
        Step { cycles, memory_ns, from_ns: self.now_ns, ..step }
    }

    /// Starts a step, or continues one.
    #[inline]
    fn work_on(&mut self, step: Step) {
        let span_ns = step.cycles / self.cycles_per_ns + step.memory_ns;
        // A step that is longer than the clock counts never ends.
        self.until_ns = self.now_ns.saturating_add((span_ns as u64).max(1));
        self.doing = CoreActivity::Working(Step { from_ns: self.now_ns, ..step });
    }

    #[inline]
    fn start(&mut self, what: StepKind, cycles: f64, memory_ns: f64) {
        self.work_on(Step { what, cycles, memory_ns, from_ns: self.now_ns });
    }

    /// A request is known that arrived at this time.
    #[inline]
    fn note_request(&mut self, arrived_ns: u64, around: &mut Surroundings<'_>) {
        self.open += 1;
        self.answers_less_arrivals_ns -= i128::from(arrived_ns);
        around.app.note_due(arrived_ns);
    }

    fn arrive(&mut self, around: &mut Surroundings<'_>) {
        let (work, bytes) = match self.client.take_event(self.now_ns) {
            WireEvent::Frame => (0.0, around.card.request_bytes),
            WireEvent::Acknowledgement => (0.0, ACKNOWLEDGEMENT_BYTES),
            WireEvent::Request => {
                self.note_request(self.now_ns, around);
                (self.work.sample(&mut self.work_stream), around.card.request_bytes)
            }
        };
        self.vector.receive(LoopRequest { arrived_ns: self.now_ns, work }, bytes);
        self.vector.arm(self.now_ns);
    }

    fn interrupt(&mut self, around: &mut Surroundings<'_>) {
        self.vector.interrupt(self.now_ns);
        match self.doing {
            CoreActivity::Idle => {
                self.doing = CoreActivity::Leaving;
                self.until_ns = around.core.supply.rouse(around.hardware, self.now_ns);
                return;
            }
            CoreActivity::Working(step) => {
                let left = self.left_of(step);
                self.cycles += step.cycles - left.cycles;
                self.paused = Some(left);
            }
            CoreActivity::Leaving => {}
        }
        self.enter(around);
    }

    /// An interrupt is handled, and polling begins.
    fn enter(&mut self, around: &Surroundings<'_>) {
        self.round(around.model.stack.interrupt_cycles, around);
        if self.log.len() < self.log_most {
            self.note(around);
        }
    }

    /// A round of polling, after this many cycles of other work.
    fn round(&mut self, before_cycles: f64, around: &Surroundings<'_>) {
        let Round { received, cleaned } = self.vector.begin_round(around.card.budget);
        let stack = &around.model.stack;
        let merge = self.client.merge_in(stack);
        let (packets, merged) = self.client.receive(received, merge);
        let cleaned = merge.map_or(cleaned, |merge| cleaned.div_ceil(merge.frames));
        let mut cycles = before_cycles
            + f64::from(packets) * stack.rx_cycles
            + f64::from(merged) * merge.map_or(0.0, |merge| merge.cycles)
            + f64::from(cleaned) * stack.tx_clean_cycles;
        let mut memory_ns = 0.0;
        if stack.run_to_completion {
            let requests = self.vector.ring().iter().take(received as usize);
            let work: f64 = requests.map(|request| request.work).sum();
            cycles += work * around.model.cycles;
            memory_ns = f64::from(received) * stack.memory.0 as f64;
        }
        self.start(StepKind::Round, cycles, memory_ns);
    }

    /// The present step has ended, or the core has left its idle state.
    fn finish(&mut self, around: &mut Surroundings<'_>) {
        let step = match self.doing {
            CoreActivity::Leaving => {
                let core = &mut *around.core;
                core.supply.account(around.hardware, self.now_ns);
                core.supply.wake_up(self.now_ns);
                core.busy.set(self.now_ns, 1);
                return self.enter(around);
            }
            CoreActivity::Idle => return,
            CoreActivity::Working(step) => step,
        };
        self.cycles += step.cycles;
        match step.what {
            StepKind::Round => self.end_round(step, around),
            StepKind::Wake | StepKind::Ask => self.serve_or(step.what, around),
            StepKind::Serve => self.end_request(around),
            StepKind::Sleep => self.end_sleep(around),
        }
    }

    fn end_round(&mut self, step: Step, around: &mut Surroundings<'_>) {
        let is_full = self.vector.round() >= around.card.budget;
        let owed = self.client.take_owed();
        self.vector.send(owed, ACKNOWLEDGEMENT_BYTES);
        if around.model.stack.run_to_completion {
            self.reply_to_round(step, around);
        } else {
            while let Some(frame) = self.vector.take_received() {
                if let Some(request) = self.deliver(frame, self.now_ns, around) {
                    self.sockets.push_back(request);
                }
            }
            self.read_part(around);
        }
        let cleans = around.card.tx_interrupts;
        if around.model.stack.ends_polling_below_budget && !is_full {
            self.vector.end_polling(self.now_ns, cleans);
            self.interrupt_or_resume(around);
        } else if self.vector.end_round(self.now_ns, cleans) {
            self.round(0.0, around);
        } else {
            self.resume(around);
        }
    }

    /// Polling has ended: an interrupt that is due comes before anything else runs.
    fn interrupt_or_resume(&mut self, around: &mut Surroundings<'_>) {
        if self.vector.due_ns() > self.now_ns {
            self.resume(around);
            return;
        }
        self.vector.interrupt(self.now_ns);
        self.enter(around);
    }

    /// The thread reads a message while it arrives, where the stack merges its frames.
    fn read_part(&mut self, around: &Surroundings<'_>) {
        let merges = around.model.stack.merge.is_some();
        if merges && self.sockets.is_empty() && self.client.has_unread() {
            self.sockets.push_back(LoopRequest::PART);
        }
    }

    /// A frame reaches its socket: a request at once, or a message with its last frame.
    #[inline]
    fn deliver(
        &mut self,
        frame: LoopRequest,
        at_ns: u64,
        around: &mut Surroundings<'_>,
    ) -> Option<LoopRequest> {
        match self.client.deliver(at_ns) {
            Delivered::Request => Some(frame),
            Delivered::Part(frames) => {
                self.vector.send(frames, around.card.reply_bytes);
                None
            }
            Delivered::Message => {
                let arrived_ns = self.client.began_ns();
                self.note_request(arrived_ns, around);
                Some(LoopRequest { arrived_ns, work: 1.0 })
            }
        }
    }

    /// Polling is over: resumes the interrupted step, or runs the thread, or goes idle.
    fn resume(&mut self, around: &mut Surroundings<'_>) {
        if let Some(step) = self.paused.take() {
            self.work_on(step);
        } else if self.sockets.is_empty() {
            self.rest(around);
        } else if std::mem::replace(&mut self.asleep, false) {
            self.wakes += 1;
            self.start(StepKind::Wake, around.model.stack.wake_cycles, 0.0);
        } else {
            self.start(StepKind::Ask, around.model.stack.poll_cycles, 0.0);
        }
    }

    /// Run to completion: requests are served in the round in which their packets are
    /// received, and replies leave evenly over it.
    fn reply_to_round(&mut self, step: Step, around: &mut Surroundings<'_>) {
        let whole_ns = self.now_ns - step.from_ns;
        let received = u64::from(self.vector.round());
        for at in 1..=received {
            let Some(request) = self.vector.take_received() else { break };
            let left_ns = step.from_ns + whole_ns * at / received;
            if let Some(request) = self.deliver(request, left_ns, around) {
                self.reply(request, left_ns, around);
            }
        }
    }

    fn serve_or(&mut self, done: StepKind, around: &Surroundings<'_>) {
        let stack = &around.model.stack;
        if done == StepKind::Wake {
            self.start(StepKind::Ask, stack.poll_cycles, 0.0);
            return;
        }
        self.batch = (self.sockets.len() as u32).min(stack.events);
        match self.batch {
            0 => self.start(StepKind::Sleep, stack.sleep_cycles, 0.0),
            _ => self.serve(around),
        }
    }

    fn serve(&mut self, around: &Surroundings<'_>) {
        let next = self.sockets.front().copied().unwrap_or(LoopRequest::PART);
        let cycles = next.work * around.model.cycles + self.client.copy_cycles(next.is_part());
        self.start(StepKind::Serve, cycles, around.model.stack.memory.0 as f64);
    }

    fn end_request(&mut self, around: &mut Surroundings<'_>) {
        if let Some(request) = self.sockets.pop_front() {
            match request.is_part() {
                true => self.read_part(around),
                false => self.reply(request, self.now_ns, around),
            }
        }
        debug_assert!(self.batch > 0, "a request that ends is of the present batch");
        self.batch -= 1;
        if self.batch > 0 {
            self.serve(around);
        } else {
            self.start(StepKind::Ask, around.model.stack.poll_cycles, 0.0);
        }
    }

    #[inline]
    fn reply(&mut self, request: LoopRequest, at_ns: u64, around: &mut Surroundings<'_>) {
        debug_assert!(self.open > 0, "only requests that are open are answered");
        self.open -= 1;
        self.answers_less_arrivals_ns += i128::from(at_ns);
        let latency_ns = at_ns - request.arrived_ns + self.client.network_ns();
        around.app.note_answer(request.arrived_ns, Nanos(latency_ns));
        let frames = self.client.reply(at_ns);
        self.vector.send(frames, around.card.reply_bytes);
        if around.card.tx_interrupts {
            self.vector.arm(self.now_ns);
        }
    }

    fn end_sleep(&mut self, around: &mut Surroundings<'_>) {
        if !self.sockets.is_empty() {
            self.start(StepKind::Ask, around.model.stack.poll_cycles, 0.0);
            return;
        }
        self.asleep = true;
        self.rest(around);
    }

    fn rest(&mut self, around: &mut Surroundings<'_>) {
        around.core.supply.rest(around.hardware, self.now_ns);
        around.core.busy.set(self.now_ns, 0);
        self.doing = CoreActivity::Idle;
        self.until_ns = NEVER_NS;
    }

    /// Logs an interrupt.
    fn note(&mut self, around: &Surroundings<'_>) {
        let idle = around.core.supply.counts.idle.residency.clone();
        let mut before = std::mem::replace(&mut self.since_logged.idle, idle.clone());
        before.resize(idle.len(), Nanos::ZERO);
        let cycles = self.cycles();
        let (rx, tx) = self.vector.counts();
        self.log.push(InterruptRecord {
            time: Nanos(self.now_ns),
            rx_packets: rx.packets,
            rx_bytes: rx.bytes,
            tx_packets: tx.packets,
            tx_bytes: tx.bytes,
            cycles: cycles - std::mem::replace(&mut self.since_logged.cycles, cycles),
            idle: idle.iter().zip(&before).map(|(now, then)| *now - *then).collect(),
            delay: Nanos(self.vector.delay_ns()),
        });
    }
}
