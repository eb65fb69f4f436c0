//! One replication of apps that share a machine, steered from outside an epoch at a time.
//!
//! A policy decides inside the loop; an environment is for callers that decide outside of it,
//! such as a reinforcement-learning library, which calls [`Environment::step`] with the settings
//! for the next epoch and gets what the epoch measured.

use crate::scenario::AnyScenario;
use crate::trial::rules;
use lull_control::{
    AppSpec, Applied, Assessment, Controller, Machine, Observation, Plan, Plant, PlantError,
    Policy, Rng, Setting,
};
use lull_measure::Nanos;
use lull_sim::machine::MachinePlant;
use lull_sim::stats::Failure;
use rand::SeedableRng;

/// A simulated machine between two epochs.
pub struct Environment {
    plant: MachinePlant,
    /// Assesses observations; its policy decides nothing.
    controller: Controller,
    rng: Rng,
    epoch: Nanos,
}

/// The results of one epoch.
#[derive(Debug)]
pub struct Step {
    /// The results of the settings, in order.
    pub applied: Applied,
    /// The observation.
    pub seen: Observation,
    /// The readings of the apps against their objectives.
    pub assessment: Assessment,
}

/// Leaves every decision to the caller.
struct Keep;

impl Policy for Keep {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        Plan::keep()
    }
}

impl Environment {
    /// Starts a replication of a scenario with `[node]`.
    ///
    /// # Errors
    /// If the scenario is of another kind or cannot be simulated.
    pub fn new(scenario: &AnyScenario, replication: u64, epoch: Nanos) -> Result<Self, Failure> {
        let AnyScenario::Node(scenario) = scenario else {
            let message =
                "an environment needs one machine that apps share: a scenario with [node]";
            return Err(Failure::Setup(message.to_owned()));
        };
        let (scene, seed) = (scenario.scene(), scenario.seed());
        let plant = MachinePlant::new(&scene.model, &scene.apps, seed, replication)
            .map_err(|error| Failure::Setup(error.to_string()))?;
        let controller = Controller::new(Box::new(Keep), rules(), &plant)?;
        let rng = Rng::seed_from_u64(seed.wrapping_mul(1 << 32).wrapping_add(replication));
        Ok(Self { plant, controller, rng, epoch: epoch.max(Nanos(1)) })
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        self.plant.machine()
    }

    /// The apps, as policies know them.
    pub fn apps(&self) -> &[AppSpec] {
        self.plant.apps()
    }

    /// Applies settings, lets one epoch pass, and returns its measurements.
    ///
    /// # Errors
    /// If the simulation reaches a bound.
    pub fn step(&mut self, wanted: &[Setting]) -> Result<Step, PlantError> {
        let applied = self.plant.apply(wanted);
        let seen = self.plant.observe(self.epoch)?;
        let turn = self.controller.turn(&seen, &mut self.rng);
        let (assessment, _) = self.controller.conclude(turn, Applied::default());
        Ok(Step { applied, seen, assessment })
    }
}
