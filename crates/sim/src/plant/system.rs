//! Many plants on one clock, each under its own controller.

use super::{PlantSpec, PlantSpecError, ServerPart, SimPlant};
use crate::engine::{Engine, Stop};
use crate::model::Model;
use crate::replication::{Replication, StreamPurpose};
use lull_control::{
    AppSpec, Applied, Controller, EpochRule, LimitsError, Machine, Observation, Pace, Policy, Rng,
    Rules, Setting,
};
use lull_measure::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A simulation whose servers are plants under controllers.
///
/// Control instants at the same time are taken in the order in which the
/// plants were put under control, and before any event of that time.
pub struct System {
    engine: Engine,
    streams: Replication,
    managed: Vec<ManagedPlant>,
    /// When each plant is due next, and its number.
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
}

/// A server under a controller.
struct ManagedPlant {
    side: ServerPart,
    steering: Steering,
}

/// A controller and when it decides.
pub(crate) struct Steering {
    controller: Controller,
    rng: Rng,
    pace: Pace,
}

/// One decision of one controller.
pub struct ControllerTurn<'t> {
    /// Number of the plant, in the order in which they were put under control.
    pub plant: usize,
    /// The observation.
    pub seen: &'t Observation,
    /// The simulation after the turn.
    pub engine: &'t Engine,
}

impl System {
    /// A replication of a model without controllers.
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub fn new(model: &Model, seed: u64, replication: u64) -> Result<Self, crate::ModelError> {
        let engine = Engine::new(model, seed, replication)?;
        Ok(Self::on(engine, Replication { seed, number: replication }))
    }

    /// The same on an engine that has not run.
    pub(crate) fn on(engine: Engine, streams: Replication) -> Self {
        Self { engine, streams, managed: Vec::new(), due: BinaryHeap::new() }
    }

    /// Prepares a server as a plant; its machine and apps are needed to build a policy.
    ///
    /// # Errors
    /// If the model lacks the server or an app.
    pub fn plant(
        &mut self,
        model: &Model,
        spec: &PlantSpec,
    ) -> Result<UnmanagedPlant, PlantSpecError> {
        Ok(UnmanagedPlant(ServerPart::new(&mut self.engine, model, spec)?))
    }

    /// Puts a plant under a policy, from now on, with a fixed epoch (a span) or
    /// an adaptive one. Returns the plant's number.
    ///
    /// # Errors
    /// If the limits of the rules do not fit the machine.
    pub fn manage(
        &mut self,
        plant: UnmanagedPlant,
        policy: Box<dyn Policy>,
        rules: Rules,
        epoch: impl Into<EpochRule>,
    ) -> Result<usize, LimitsError> {
        let plant = SimPlant { engine: &mut self.engine, side: plant.0 };
        let controller = Controller::new(policy, rules, &plant)?;
        let side = plant.side;
        let number = self.managed.len();
        let rng = self.streams.stream(StreamPurpose::Policy, number);
        let steering = Steering::new(controller, rng, epoch);
        self.due.push(Reverse((steering.next_turn(self.engine.now()), number)));
        self.managed.push(ManagedPlant { side, steering });
        Ok(number)
    }

    /// Runs events and controllers up to `until`.
    ///
    /// # Errors
    /// If a bound of the model's limits is reached.
    pub fn run_until(&mut self, until: Nanos) -> Result<(), Stop> {
        self.run_with(until, |_| {})
    }

    /// The same, and shows every turn to `look`.
    ///
    /// # Errors
    /// If a bound of the model's limits is reached.
    pub fn run_with(
        &mut self,
        until: Nanos,
        mut look: impl FnMut(&ControllerTurn<'_>),
    ) -> Result<(), Stop> {
        while let Some(time) = self.next_turn()
            && time < until
        {
            self.engine.run_until(time)?;
            self.take_turn(&mut look);
        }
        self.engine.run_until(until)
    }

    /// When the next controller is due.
    pub(crate) fn next_turn(&self) -> Option<Nanos> {
        self.due.peek().map(|Reverse((time, _))| *time)
    }

    /// Lets the controller that is due decide, now.
    pub(crate) fn take_turn(&mut self, look: &mut impl FnMut(&ControllerTurn<'_>)) {
        let Some(Reverse((time, number))) = self.due.pop() else { return };
        let ManagedPlant { side, steering } = &mut self.managed[number];
        let engine = &mut self.engine;
        let seen = side.observe(engine);
        steering.decide(&seen, |changes| side.apply(engine, changes));
        look(&ControllerTurn { plant: number, seen: &seen, engine });
        self.due.push(Reverse((steering.next_turn(time), number)));
    }

    /// The simulation.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The simulation, to forget a warm-up or to steer by hand.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

/// A server made ready for a controller.
pub struct UnmanagedPlant(ServerPart);

impl UnmanagedPlant {
    /// Its machine.
    pub fn machine(&self) -> &Machine {
        &self.0.machine
    }

    /// Its apps.
    pub fn apps(&self) -> &[AppSpec] {
        &self.0.apps
    }
}

impl Steering {
    pub(crate) fn new(controller: Controller, rng: Rng, epoch: impl Into<EpochRule>) -> Self {
        Self { controller, rng, pace: Pace::new(epoch.into()) }
    }

    /// Lets the controller decide on an observation; `apply` applies its changes, if any.
    pub(crate) fn decide(&mut self, seen: &Observation, apply: impl FnOnce(&[Setting]) -> Applied) {
        self.pace.note(seen);
        let turn = self.controller.turn(seen, &mut self.rng);
        let applied = match turn.changes.as_slice() {
            [] => Applied::default(),
            changes => apply(changes),
        };
        self.controller.conclude(turn, applied);
    }

    /// Returns when it is due next. An epoch of 0 counts as 1 ns, because otherwise time
    /// would not advance.
    pub(crate) fn next_turn(&self, now: Nanos) -> Nanos {
        now.saturating_add(self.pace.epoch().max(Nanos(1)))
    }
}
