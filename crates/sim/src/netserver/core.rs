//! One core: its vector of the network card, polling, and the app's thread.
//!
//! Cores share nothing but the frequency of their package, which changes only
//! between calls of [`Core::run_until`]. So each runs on its own up to the
//! next such moment, and the next event is the earliest of three times: an
//! arrival, the end of what runs, an interrupt.

use super::client::{CoreTraffic, Delivered, WireEvent};
use super::log::{InterruptLog, InterruptRecord};
use super::model::NetServerModel;
use super::parts::{CoreConfig, CoreSums, Request};
use crate::idle::IdleGovernor;
use crate::model::Unit;
use crate::moderation::Moderation;
use crate::order::NEVER_NS;
use crate::replication::{Replication, Stream, StreamPurpose};
use crate::vector::{Round, Vector};
use lull_measure::{Hertz, Latency, Nanos};
use std::collections::VecDeque;

/// A piece of work on the core.
#[derive(Debug, Clone, Copy)]
struct Step {
    what: StepKind,
    /// Cycles left when it (re)started.
    cycles: f64,
    /// Memory time left then.
    memory_ns: f64,
    /// When that was.
    from_ns: u64,
}

/// What a step does. Polling is never interrupted; the rest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepKind {
    /// A round of polling takes packets from the card.
    Round,
    /// The thread is woken.
    Wake,
    /// It fetches the ready requests (`epoll_wait`).
    Ask,
    /// It serves the first of these requests.
    Serve,
    /// It goes to sleep.
    Sleep,
}

/// What the core does now.
#[derive(Debug, Clone, Copy)]
enum CoreActivity {
    Idle {
        state: usize,
        since_ns: u64,
    },
    /// Leaving an idle state, to interrupt at the end.
    Leaving {
        state: usize,
        since_ns: u64,
    },
    Working(Step),
}

/// One core.
#[derive(Debug, Clone)]
pub(super) struct Core {
    now_ns: u64,
    hertz: Hertz,
    cycles_per_ns: f64,
    doing: CoreActivity,
    until_ns: u64,
    vector: Vector<Request>,
    paused: Option<Step>,
    asleep: bool,
    sockets: VecDeque<Request>,
    batch: u32,
    client: CoreTraffic,
    work: Unit,
    work_stream: Stream,
    governor: IdleGovernor,
    since_logged: Logged,
    /// All but those of the card, which its vector counts.
    sums: CoreSums,
    /// Since the window was last taken.
    pub(super) window: Latency,
    pub(super) log: Option<InterruptLog>,
}

/// Counters at the last logged interrupt.
#[derive(Debug, Clone, Default)]
struct Logged {
    cycles: f64,
    idle: Vec<Nanos>,
}

impl Core {
    /// A core that is idle at time 0, with its share of the traffic.
    pub(super) fn new(
        model: &NetServerModel,
        client: CoreTraffic,
        streams: Replication,
        index: usize,
    ) -> Self {
        let states = model.idle.len();
        let mut core = Self {
            now_ns: 0,
            hertz: Hertz(0),
            cycles_per_ns: 0.0,
            doing: CoreActivity::Idle { state: 0, since_ns: 0 },
            until_ns: NEVER_NS,
            vector: Vector::new(model.nic.moderation),
            paused: None,
            asleep: true,
            sockets: VecDeque::new(),
            batch: 0,
            client,
            work: Unit::new(model.app.shape),
            work_stream: streams.stream(StreamPurpose::Work, index),
            governor: IdleGovernor::new(model.idle_rule),
            since_logged: Logged { cycles: 0.0, idle: vec![Nanos::ZERO; states] },
            sums: CoreSums::new(states),
            window: Latency::default(),
            log: None,
        };
        let frequency = model.first_frequency();
        core.hertz = frequency;
        core.cycles_per_ns = frequency.0 as f64 / 1e9;
        core
    }

    /// Runs to this time.
    pub(super) fn run_until(&mut self, end_ns: u64, config: &CoreConfig) {
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
            // The order of simultaneous events: work ends, then packets reach the card,
            // then the card interrupts.
            if self.until_ns == next_ns {
                self.finish(config);
            } else if coming_ns == next_ns {
                self.arrive(config);
            } else {
                self.interrupt(config);
            }
        }
        self.now_ns = end_ns;
    }

    /// Another frequency from now on.
    pub(super) fn set_frequency(&mut self, hertz: Hertz) {
        if hertz == self.hertz {
            return;
        }
        self.hertz = hertz;
        self.cycles_per_ns = hertz.0 as f64 / 1e9;
        if let CoreActivity::Working(step) = self.doing {
            let left = self.left_of(step);
            self.book(step, step.cycles - left.cycles);
            self.work_on(left);
        }
    }

    /// Another way to moderate, from the next interrupt on.
    pub(super) fn set_moderation(&mut self, kind: Moderation) {
        self.vector.set_moderation(kind);
    }

    /// Returns the number of unanswered requests, and the arrival of the oldest.
    pub(super) fn outstanding(&self) -> (u64, Option<u64>) {
        let ring = self.vector.ring();
        let count = ring.len() + self.sockets.len();
        let oldest = self.sockets.front().or_else(|| ring.front());
        (count as u64, oldest.map(|request| request.arrived_ns))
    }

    /// Sums up to now, with what is under way.
    pub(super) fn sums(&self, config: &CoreConfig) -> CoreSums {
        let mut sums = CoreSums { card: self.vector.totals(), ..self.sums.clone() };
        match self.doing {
            CoreActivity::Idle { state, since_ns } | CoreActivity::Leaving { state, since_ns } => {
                let span = Nanos(self.now_ns - since_ns);
                sums.idle.spend(&config.idle, state, span, self.hertz);
            }
            CoreActivity::Working(step) => {
                let done = step.cycles - self.left_of(step).cycles;
                sums.cycles += done;
                sums.busy_ns += self.now_ns - step.from_ns;
            }
        }
        sums
    }

    /// Returns the time that the core was neither idle nor leaving an idle state.
    pub(super) fn busy_ns(&self) -> u64 {
        let running_ns = match self.doing {
            CoreActivity::Working(step) => self.now_ns - step.from_ns,
            _ => 0,
        };
        self.sums.busy_ns + running_ns
    }

    /// What is left of a step that runs.
    fn left_of(&self, step: Step) -> Step {
        let whole_ns = (self.until_ns - step.from_ns).max(1) as f64;
        let share = (self.until_ns - self.now_ns) as f64 / whole_ns;
        let (cycles, memory_ns) = (step.cycles * share, step.memory_ns * share);
        Step { cycles, memory_ns, from_ns: self.now_ns, ..step }
    }

    /// Starts a step, or goes on with one.
    #[inline]
    fn work_on(&mut self, step: Step) {
        let span_ns = step.cycles / self.cycles_per_ns + step.memory_ns;
        self.until_ns = self.now_ns + (span_ns as u64).max(1);
        self.doing = CoreActivity::Working(Step { from_ns: self.now_ns, ..step });
    }

    #[inline]
    fn start(&mut self, what: StepKind, cycles: f64, memory_ns: f64) {
        self.work_on(Step { what, cycles, memory_ns, from_ns: self.now_ns });
    }

    /// Books a step as done, whole or in part.
    #[inline]
    fn book(&mut self, step: Step, cycles: f64) {
        self.sums.cycles += cycles;
        self.sums.busy_ns += self.now_ns - step.from_ns;
    }

    fn arrive(&mut self, config: &CoreConfig) {
        let work = match self.client.come(self.now_ns) {
            WireEvent::Nothing => return,
            WireEvent::Frame => 0.0,
            WireEvent::Request => {
                self.sums.arrived += 1;
                self.work.sample(&mut self.work_stream)
            }
        };
        self.vector.receive(Request { arrived_ns: self.now_ns, work }, config.app.rx_bytes);
        self.vector.arm(self.now_ns);
    }

    fn interrupt(&mut self, config: &CoreConfig) {
        self.vector.interrupt(self.now_ns);
        match self.doing {
            CoreActivity::Idle { state, since_ns } => {
                self.doing = CoreActivity::Leaving { state, since_ns };
                self.until_ns = self.now_ns + config.idle[state].wake_up().0;
                return;
            }
            CoreActivity::Working(step) => {
                let left = self.left_of(step);
                self.book(step, step.cycles - left.cycles);
                self.paused = Some(left);
            }
            CoreActivity::Leaving { .. } => {}
        }
        self.round(config.stack.interrupt_cycles, config);
        self.note(config);
    }

    /// A round of polling, after this many cycles of other work.
    fn round(&mut self, before_cycles: f64, config: &CoreConfig) {
        let Round { received, cleaned } = self.vector.begin_round(config.nic.budget);
        let stack = &config.stack;
        let mut cycles = before_cycles
            + f64::from(received) * stack.rx_cycles
            + f64::from(cleaned) * stack.tx_clean_cycles;
        let mut memory_ns = 0.0;
        if stack.run_to_completion {
            let requests = self.vector.ring().iter().take(received as usize);
            let work: f64 = requests.map(|request| request.work).sum();
            cycles += work * config.app.cycles;
            memory_ns = f64::from(received) * stack.memory.0 as f64;
        }
        self.start(StepKind::Round, cycles, memory_ns);
    }

    /// The present step has ended, or the core has left its idle state.
    fn finish(&mut self, config: &CoreConfig) {
        let step = match self.doing {
            CoreActivity::Leaving { state, since_ns } => {
                let stay = Nanos(self.now_ns - since_ns);
                self.sums.idle.spend(&config.idle, state, stay, self.hertz);
                self.sums.wakeups += 1;
                self.governor.woke(stay);
                self.round(config.stack.interrupt_cycles, config);
                self.note(config);
                return;
            }
            CoreActivity::Idle { .. } => return,
            CoreActivity::Working(step) => step,
        };
        self.book(step, step.cycles);
        match step.what {
            StepKind::Round => self.end_round(step, config),
            StepKind::Wake | StepKind::Ask => self.serve_or(step.what, config),
            StepKind::Serve => self.end_request(config),
            StepKind::Sleep => self.end_sleep(config),
        }
    }

    fn end_round(&mut self, step: Step, config: &CoreConfig) {
        if config.stack.run_to_completion {
            self.reply_to_round(step, config);
        } else {
            while let Some(frame) = self.vector.take_received() {
                if let Some(request) = self.deliver(frame, self.now_ns, config) {
                    self.sockets.push_back(request);
                }
            }
        }
        if self.vector.end_round(self.now_ns, config.nic.tx_interrupts) {
            self.round(0.0, config);
        } else {
            self.resume(config);
        }
    }

    /// A frame reaches its socket: a request at once, or a message with its last frame.
    #[inline]
    fn deliver(&mut self, frame: Request, at_ns: u64, config: &CoreConfig) -> Option<Request> {
        match self.client.deliver(at_ns) {
            Delivered::Request => Some(frame),
            Delivered::Part(frames) => {
                self.send(frames, config);
                None
            }
            Delivered::Message => {
                self.sums.arrived += 1;
                Some(Request { arrived_ns: self.client.began_ns(), work: 1.0 })
            }
        }
    }

    /// Frames leave.
    #[inline]
    fn send(&mut self, frames: u32, config: &CoreConfig) {
        self.vector.send(frames, config.app.tx_bytes);
    }

    /// Polling is over: resumes the interrupted step, or runs the thread, or goes idle.
    fn resume(&mut self, config: &CoreConfig) {
        if let Some(step) = self.paused.take() {
            self.work_on(step);
        } else if self.sockets.is_empty() {
            self.rest(config);
        } else if std::mem::replace(&mut self.asleep, false) {
            self.start(StepKind::Wake, config.stack.wake_cycles, 0.0);
        } else {
            self.start(StepKind::Ask, config.stack.poll_cycles, 0.0);
        }
    }

    /// Run to completion: requests are served in the round in which their packets are
    /// received, and replies leave evenly over it.
    fn reply_to_round(&mut self, step: Step, config: &CoreConfig) {
        let whole_ns = self.now_ns - step.from_ns;
        let received = u64::from(self.vector.round());
        for at in 1..=received {
            let Some(request) = self.vector.take_received() else { break };
            let left_ns = step.from_ns + whole_ns * at / received;
            if let Some(request) = self.deliver(request, left_ns, config) {
                self.reply(request, left_ns, config);
            }
        }
    }

    fn serve_or(&mut self, done: StepKind, config: &CoreConfig) {
        let stack = &config.stack;
        if done == StepKind::Wake {
            self.start(StepKind::Ask, stack.poll_cycles, 0.0);
            return;
        }
        self.batch = (self.sockets.len() as u32).min(stack.events);
        match self.batch {
            0 => self.start(StepKind::Sleep, stack.sleep_cycles, 0.0),
            _ => self.serve(config),
        }
    }

    fn serve(&mut self, config: &CoreConfig) {
        let work = self.sockets.front().map_or(0.0, |request| request.work);
        let extra = self.client.message_cycles();
        let cycles = work * config.app.cycles + extra;
        self.start(StepKind::Serve, cycles, config.stack.memory.0 as f64);
    }

    fn end_request(&mut self, config: &CoreConfig) {
        if let Some(request) = self.sockets.pop_front() {
            self.reply(request, self.now_ns, config);
        }
        debug_assert!(self.batch > 0, "a request that ends is of the present batch");
        self.batch -= 1;
        if self.batch > 0 {
            self.serve(config);
        } else {
            self.start(StepKind::Ask, config.stack.poll_cycles, 0.0);
        }
    }

    #[inline]
    fn reply(&mut self, request: Request, at_ns: u64, config: &CoreConfig) {
        self.sums.answered += 1;
        let latency_ns = at_ns - request.arrived_ns + self.client.network_ns();
        self.window.record(Nanos(latency_ns));
        let frames = self.client.reply(at_ns);
        self.send(frames, config);
        if config.nic.tx_interrupts {
            self.vector.arm(self.now_ns);
        }
    }

    fn end_sleep(&mut self, config: &CoreConfig) {
        if !self.sockets.is_empty() {
            self.start(StepKind::Ask, config.stack.poll_cycles, 0.0);
            return;
        }
        self.asleep = true;
        self.rest(config);
    }

    fn rest(&mut self, config: &CoreConfig) {
        let state = self.governor.choose(&config.idle, None, 0);
        self.doing = CoreActivity::Idle { state, since_ns: self.now_ns };
        self.until_ns = NEVER_NS;
    }

    /// Logs an interrupt, if a log is kept.
    fn note(&mut self, config: &CoreConfig) {
        if self.log.is_none() {
            return;
        }
        let sums = self.sums(config);
        let idle: Vec<Nanos> = sums.idle.residency.clone();
        let before = std::mem::replace(&mut self.since_logged.idle, idle.clone());
        let cycles = std::mem::replace(&mut self.since_logged.cycles, sums.cycles);
        let (rx, tx) = self.vector.counts();
        let entry = InterruptRecord {
            time: Nanos(self.now_ns),
            rx_packets: rx.packets,
            rx_bytes: rx.bytes,
            tx_packets: tx.packets,
            tx_bytes: tx.bytes,
            cycles: sums.cycles - cycles,
            idle: idle.iter().zip(&before).map(|(now, then)| *now - *then).collect(),
            delay: Nanos(self.vector.delay_ns()),
        };
        if let Some(log) = &mut self.log {
            log.push(entry);
        }
    }
}
