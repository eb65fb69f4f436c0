//! One replication of a dispatched machine.

use super::model::DispatchModel;
use super::outcome::DispatchTotals;
use super::source::Source;
use crate::machine::{Controllers, DispatchCounts, MachineSimulation};
use crate::model::ModelError;
use crate::replication::{Replication, RunLength};
use lull_control::dispatcher::Dispatcher;
use lull_measure::Nanos;

/// The one app of the machine.
const APP: usize = 0;

/// A machine under one dispatcher: one replication.
#[derive(Debug)]
pub struct DispatchSimulation {
    machine: MachineSimulation,
}

impl DispatchSimulation {
    /// An empty machine before its first arrival.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn new(
        model: &DispatchModel,
        dispatcher: Box<dyn Dispatcher>,
        seed: u64,
        replication: u64,
    ) -> Result<Self, ModelError> {
        let streams = Replication { seed, number: replication };
        let described = model.machine()?;
        let controllers = Controllers { dispatcher: Some(dispatcher), ..Controllers::default() };
        let mut machine = MachineSimulation::behind(&described, controllers, streams)?;
        machine.feed(APP, Box::new(Source::new(model, streams)));
        machine.keep_log(APP);
        Ok(Self { machine })
    }

    /// Runs until this many more requests are answered or abandoned.
    pub fn run(&mut self, requests: u64) {
        let until = self.machine.dispatched().saturating_add(requests);
        self.machine.run_while(Nanos::MAX, |machine| machine.dispatched() < until);
    }

    /// Runs all events before `until` and moves the clock there.
    pub fn run_until(&mut self, until: Nanos) {
        self.machine.run_until(until);
    }

    /// Returns the number of requests that have arrived and are not answered or abandoned.
    pub fn in_system(&self) -> usize {
        self.machine.outstanding(APP) as usize
    }

    /// Restarts all counts, at the end of a warm-up.
    pub fn forget(&mut self) {
        self.machine.forget();
    }

    /// Returns the totals.
    pub fn outcome(mut self) -> DispatchTotals {
        let totals = self.machine.gated_totals();
        let DispatchCounts { moves, abandoned, decisions, measurements } =
            self.machine.take_dispatch_counts();
        DispatchTotals {
            span: totals.span,
            energy: totals.energy.total(),
            latencies_ns: self.machine.log(APP).iter().map(|latency| latency.0).collect(),
            moves,
            abandoned,
            events: totals.events,
            decisions,
            busy_s: totals.busy_as.iter().map(|busy| busy.as_secs_f64()).collect(),
            measurements,
        }
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
    ) -> Result<DispatchTotals, ModelError> {
        let mut machine = Self::new(model, dispatcher, seed, number)?;
        machine.run(requests.warmup);
        machine.forget();
        machine.run(requests.counted);
        Ok(machine.outcome())
    }
}
