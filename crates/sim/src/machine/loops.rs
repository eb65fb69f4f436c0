//! A machine that runs one app of event loops: cores that do not couple, each of which steps on
//! its own.
//!
//! Every core has a vector of the card. A packet that reaches it interrupts as soon as the delay
//! since the last interrupt is over; the vector stays masked while the core polls, and polling
//! preempts the app. Transmitted packets raise interrupts too. Polling then wakes the app's
//! thread, which fetches the ready requests (`epoll_wait`), serves them and goes back to sleep.
//! Every step costs cycles: a longer delay saves cycles by batching, and a lower frequency makes
//! each step longer. A second stack serves requests where packets are received, without threads,
//! as a specialised OS does. Instead of open-loop requests one client may exchange messages of
//! many frames, which the stack may merge into packets (GRO, TSO).
//!
//! Frequencies, governors, idle states, power and what a policy may set are those of every
//! machine. Cores meet only where something concerns all of them, such as a sample of the
//! governor: between two such moments each runs through all its events before the next core
//! does (`core.rs`).

mod client;
mod core;
mod log;
mod step;

pub use log::InterruptRecord;

use super::MachineSimulation;
use super::event_loops::EventLoops;
use super::model::MachineModel;
use super::parts::Card;
use crate::order::{Key, NEVER_NS};
use crate::replication::Replication;
use crate::vector::VectorTotals;
use client::CoreTraffic;
use core::{LoopCore, Surroundings};
use lull_measure::{Hertz, Joules, Latency, Nanos};

/// The cores of an app of event loops.
pub(super) struct EventLoopCores {
    model: EventLoops,
    card: Card,
    cores: Vec<LoopCore>,
    /// Cycles of each core, and interrupts of all, when counting began.
    cycles: Vec<f64>,
    interrupts: u64,
}

/// Totals of an app of event loops since counting began.
#[derive(Debug, Clone)]
pub struct EventLoopTotals {
    /// How long that was.
    pub span: Nanos,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests answered.
    pub answered: u64,
    /// Their latencies.
    pub latency: Latency,
    /// Energy of the whole machine.
    pub energy: Joules,
    /// Cycles of all cores.
    pub cycles: f64,
    /// Time of all cores neither idle nor leaving an idle state.
    pub busy: Nanos,
    /// Interrupts of all vectors.
    pub interrupts: u64,
    /// Time of all cores in each idle state.
    pub residency: Vec<Nanos>,
}

impl EventLoopTotals {
    /// Mean power over the span, in watts.
    pub fn watts(&self) -> f64 {
        self.energy.over(self.span).map_or(0.0, |watts| watts.0)
    }
}

impl EventLoopCores {
    /// The cores of a checked model; `None` if it has no app of event loops.
    pub(super) fn new(model: &MachineModel, streams: Replication) -> Option<Self> {
        let (app, card) = (model.event_loops()?, model.card.as_ref()?);
        let cores = usize::from(model.cores);
        let clients = CoreTraffic::all_cores(app, cores, card.buckets, streams).into_iter();
        let core = |(index, client)| LoopCore::new(app, card, client, streams, index);
        Some(Self {
            model: app.clone(),
            card: card.clone(),
            cores: clients.enumerate().map(core).collect(),
            cycles: vec![0.0; cores],
            interrupts: 0,
        })
    }

    /// Sets another frequency of a core from now on.
    pub(super) fn set_frequency(&mut self, core: usize, hertz: Hertz) {
        self.cores[core].set_frequency(hertz);
    }

    /// Interrupts and packets of all vectors.
    pub(super) fn card_totals(&self) -> VectorTotals {
        let mut sum = VectorTotals::default();
        self.cores.iter().for_each(|core| sum.add(&core.card_totals()));
        sum
    }

    /// When the oldest unanswered request arrived.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.cores.iter().filter_map(LoopCore::oldest_ns).min()
    }

    /// Unanswered requests times nanoseconds, since the start.
    pub(super) fn outstanding_ns(&self) -> u128 {
        self.cores.iter().map(LoopCore::outstanding_ns).sum()
    }

    /// How often threads were woken.
    pub(super) fn wakes(&self) -> u64 {
        self.cores.iter().map(|core| core.wakes).sum()
    }

    /// Cycles of all cores since the start.
    pub(super) fn cycles(&self) -> f64 {
        self.cores.iter().map(LoopCore::cycles).sum()
    }

    /// Counts from now on.
    pub(super) fn forget(&mut self) {
        self.cycles = self.cores.iter().map(LoopCore::cycles).collect();
        self.interrupts = self.card_totals().interrupts;
        self.cores.iter_mut().for_each(LoopCore::forget);
    }
}

impl MachineSimulation {
    /// Runs all events up to `until`: each core on its own up to the next event that concerns all
    /// of them, which is a timer, then that one.
    pub(super) fn run_loops(&mut self, until: Nanos) {
        loop {
            let due_ns = self.timers.peek().map_or(NEVER_NS, Key::time_ns).min(until.0);
            self.step_cores(due_ns);
            self.run_while(Nanos(due_ns), |_| true);
            if due_ns == until.0 {
                return;
            }
        }
    }

    fn step_cores(&mut self, end_ns: u64) {
        let Some(loops) = &mut self.loops else { return };
        let [app] = &mut self.apps[..] else { return };
        let mut open = 0;
        for (stepped, core) in loops.cores.iter_mut().zip(&mut self.cores) {
            let (model, card, hardware) = (&loops.model, &loops.card, &self.hardware);
            let mut around = Surroundings { model, card, hardware, core, app: &mut *app };
            self.events += stepped.run_until(end_ns, &mut around);
            open += stepped.open;
        }
        self.now_ns = end_ns;
        app.outstanding.set(end_ns, open as u32);
    }

    /// Sets the delay of the card's interrupts, or returns it to the driver. Returns whether it
    /// was in force already.
    pub fn set_delay(&mut self, wanted: Option<Nanos>) -> bool {
        let Some(card) = &mut self.card else { return false };
        let is_in_force = card.set_delay(wanted);
        if let (false, Some(loops)) = (is_in_force, &mut self.loops) {
            let kind = card.moderation();
            loops.cores.iter_mut().for_each(|core| core.set_moderation(kind));
        }
        is_in_force
    }

    /// Interrupts and packets of the card, since the start.
    pub(super) fn card_totals(&self) -> VectorTotals {
        match (&self.loops, &self.card) {
            (Some(loops), _) => loops.card_totals(),
            (None, Some(card)) => card.totals(),
            (None, None) => VectorTotals::default(),
        }
    }

    /// Keeps a log of the first `most` interrupts of every core of event loops.
    pub fn keep_interrupts(&mut self, most: usize) {
        let loops = self.loops.iter_mut().flat_map(|loops| &mut loops.cores);
        loops.for_each(|core| core.keep_log(most));
    }

    /// The logged interrupts of a core; empty if none are kept.
    pub fn interrupts(&self, core: usize) -> &[InterruptRecord] {
        self.loops.as_ref().map_or(&[], |loops| loops.cores[core].log())
    }

    /// Totals of the app of event loops; of cycles and interrupts there are none without one.
    pub fn event_loop_totals(&mut self) -> EventLoopTotals {
        self.account_all();
        let app = self.totals().apps.swap_remove(0);
        let loops = self.loops.as_deref();
        let cycles = |loops: &EventLoopCores| {
            let each = loops.cores.iter().zip(&loops.cycles);
            each.map(|(core, before)| core.cycles() - before).sum::<f64>()
        };
        let counts = || self.cores.iter().map(|core| &core.supply.counts);
        let states = 0..self.hardware.idle.len();
        EventLoopTotals {
            span: Nanos(self.now_ns - self.counted_from_ns()),
            arrived: app.arrived,
            answered: app.answered,
            latency: app.latency,
            energy: self.energy(),
            cycles: loops.map_or(0.0, cycles),
            busy: counts().map(|counts| counts.busy).sum(),
            interrupts: loops.map_or(0, |loops| loops.card_totals().interrupts - loops.interrupts),
            residency: states
                .map(|state| counts().map(|counts| counts.idle.residency[state]).sum::<Nanos>())
                .collect(),
        }
    }
}
