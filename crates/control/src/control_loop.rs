//! The loop: observe, decide, apply, journal. Joins one plant and one policy
//! and knows neither.

use crate::journal::{Entry, OperatorAct};
use crate::{
    AppId, AppSpec, Applied, Assessment, Controller, Discovery, EpochRule, Observation, Pace, Plan,
    Plant, PlantError, Policy, RebuildPolicy, Rng, Rules,
};
use lull_measure::Nanos;

/// One plant under one controller.
pub struct ControlLoop<P> {
    plant: P,
    controller: Controller,
    rng: Rng,
    pace: Pace,
    number: u64,
}

/// All that one epoch was: the unit of every record.
#[derive(Debug)]
pub struct Epoch {
    /// Counts from 0.
    pub number: u64,
    /// The observation.
    pub seen: Observation,
    /// The readings of the apps against their objectives.
    pub assessment: Assessment,
    /// The plan: the policy's, or that of the SLO-safe state.
    pub plan: Plan,
    /// The journal's entries: actions and their reasons.
    pub entries: Vec<Entry>,
    /// Whether the SLO-safe state is in force.
    pub safe: bool,
}

impl<P: Plant> ControlLoop<P> {
    /// A loop with a fixed epoch (a span) or an adaptive one; a run is its seed.
    pub fn new(plant: P, controller: Controller, epoch: impl Into<EpochRule>, rng: Rng) -> Self {
        Self { plant, controller, rng, pace: Pace::new(epoch.into()), number: 0 }
    }

    /// Runs one epoch.
    ///
    /// # Errors
    /// If the plant was stopped or lost; knobs are then still set, and [`ControlLoop::finish`]
    /// restores them.
    pub fn turn(&mut self) -> Result<Epoch, PlantError> {
        let seen = self.plant.observe(self.pace.epoch())?;
        self.pace.note(&seen);
        self.controller.note_arrivals(&seen, &self.plant);
        let mut turn = self.controller.turn(&seen, &mut self.rng);
        let plan = std::mem::take(&mut turn.plan);
        let applied = match turn.changes.as_slice() {
            [] => Applied::default(),
            changes => self.plant.apply(changes),
        };
        let (assessment, entries) = self.controller.conclude(turn, applied);
        let number = self.number;
        self.number += 1;
        Ok(Epoch { number, seen, assessment, plan, entries, safe: self.controller.is_safe() })
    }

    /// Returns the length of the next epoch.
    pub fn epoch(&self) -> Nanos {
        self.pace.epoch()
    }

    /// Returns the plant, for reading.
    pub fn plant(&self) -> &P {
        &self.plant
    }

    /// Returns the plant, to change its facts about apps.
    pub fn plant_mut(&mut self) -> &mut P {
        &mut self.plant
    }

    /// Continues under other rules, whose limits were checked, and with other objectives of the
    /// same apps; returns whether the policy adapts to these.
    pub fn reconfigure(&mut self, rules: Rules, apps: &[AppSpec]) -> bool {
        self.controller.reconfigure(rules, apps)
    }

    /// Takes over the references of the plant's apps, which were corrected.
    pub fn update_references(&mut self) {
        self.controller.set_references(self.plant.apps());
    }

    /// Forgets all that is known of apps that the plant has added, removed, or made other programs
    /// since the last epoch. [`ControlLoop::reconfigure`] and [`ControlLoop::replace_policy`] come
    /// first.
    pub fn exchange_apps(&mut self, apps: &[AppId]) {
        let settings = self.plant.settings();
        apps.iter().for_each(|app| self.controller.exchange_app(*app, &settings));
    }

    /// Continues with another policy; every knob keeps its value until the next plan.
    pub fn replace_policy(&mut self, policy: Box<dyn Policy>) {
        self.controller.replace_policy(policy);
    }

    /// Restores every knob and continues with another policy.
    pub fn switch(&mut self, policy: Box<dyn Policy>) -> Applied {
        let restored = self.plant.restore();
        self.controller.set_policy(policy, &self.plant.settings());
        restored
    }

    /// Continues with epochs of another length; does nothing if the rule is the same.
    pub fn set_epoch(&mut self, epoch: EpochRule) {
        self.pace.set_rule(epoch);
    }

    /// Sets how the policy is rebuilt when the roster of apps changes.
    pub fn set_rebuild(&mut self, rebuild: RebuildPolicy) {
        self.controller.set_rebuild(rebuild);
    }

    /// Returns what the policy has found since the last call.
    pub fn discoveries(&mut self) -> Vec<Discovery> {
        self.controller.discoveries()
    }

    /// Sets whether the gate of a server is surveyed in the next epoch: the policy then decides
    /// nothing without need, so that no knob changes.
    pub fn set_surveyed(&mut self, is_surveyed: bool) {
        self.controller.set_surveyed(is_surveyed);
    }

    /// Decides and sets nothing until [`ControlLoop::resume`]; settings stay.
    pub fn pause(&mut self) {
        self.controller.set_paused(true);
        self.controller.note(OperatorAct::Paused);
    }

    /// Follows the policy again.
    pub fn resume(&mut self) {
        self.controller.set_paused(false);
        self.controller.note(OperatorAct::Resumed);
    }

    /// Puts every knob back and pauses; the caller records the outcome.
    pub fn restore(&mut self) -> Applied {
        let restored = self.plant.restore();
        self.controller.set_state(&self.plant.settings());
        self.controller.set_paused(true);
        restored
    }

    /// Adds what an operator did to the journal of the next epoch.
    pub fn note(&mut self, act: OperatorAct) {
        self.controller.note(act);
    }

    /// Returns the controller, for reading.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Puts every knob back and gives the plant back.
    pub fn finish(mut self) -> (P, Applied) {
        let restored = self.plant.restore();
        (self.plant, restored)
    }
}
