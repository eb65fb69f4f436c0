//! Runs a policy on the model of a recorded machine.

use super::model::{Fit, Known, simulated_specs};
use super::recording::{RecordedEpoch, Recording, Unfit};
use super::tally::{AppEpoch, Tally};
use super::windows::{Cut, Part};
use super::{Effort, Replay};
use crate::policy_source::PolicySource;
use lull_control::{
    AppSpec, Capabilities, Capability, ControlLoop, Controller, Epoch, Limits, Machine, Plant,
    Policy, PolicyError, Rng, Rules,
};
use lull_measure::Nanos;
use lull_measure::catalogue::{CPU, RUN_QUEUE_WAIT};
use lull_sim::machine::MachinePlant;
use rand::SeedableRng;

/// A policy and its keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Steered {
    /// The source of the policy.
    pub policy: PolicySource,
    /// Its config; one of the caller has none.
    pub config: toml::Table,
}

/// Why a recording cannot be replayed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// The recording lacks something.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The policy cannot run on the recorded machine.
    #[error("{0}")]
    Policy(PolicyError),
    /// The policy could run there, but not on the model.
    #[error("the model of a replay cannot show policy `{policy}`: {why}")]
    Beyond {
        /// The policy.
        policy: String,
        /// The capability that the model lacks.
        why: PolicyError,
    },
    /// The node cannot be simulated.
    #[error("the recorded run cannot be simulated: {0}")]
    Model(String),
    /// The caller requested a stop.
    #[error("stopped before the end: nothing was predicted")]
    Stopped,
}

impl<'a> Replay<'a> {
    /// Checks that a recording can be replayed and its policy simulated.
    ///
    /// `stop` is called now and then; once it returns `true`, every running replay ends with
    /// [`ReplayError::Stopped`].
    ///
    /// # Errors
    /// If it lacks something, or its policy cannot run on the model.
    pub fn new(
        recording: &'a Recording,
        recorded: Steered,
        effort: Effort,
        stop: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Self, ReplayError> {
        recording.check()?;
        let known = Known::from_recording(recording);
        let fit = Fit::first(recording);
        let (model, _) = fit.node(recording, &known, &recording.counted().take(1));
        let specs = simulated_specs(recording);
        let plant = plant(&model, &specs, effort.seed, 0)?;
        let machine = common_machine(&recording.machine, plant.machine());
        let replay = Self { recording, recorded, effort, known, specs, machine, stop };
        replay.check_policy(&replay.recorded)?;
        Ok(replay)
    }

    /// Whether a policy could have run on the recorded machine, and can on its model.
    ///
    /// # Errors
    /// An unknown name, a capability that is missing, or keys or apps at fault.
    pub fn check_policy(&self, steered: &Steered) -> Result<(), ReplayError> {
        let Steered { policy, config } = steered;
        let apps = &self.recording.apps;
        policy.build(config, &self.recording.machine, apps).map_err(ReplayError::Policy)?;
        match self.build(steered) {
            Ok(_) => Ok(()),
            Err(why) => Err(ReplayError::Beyond { policy: policy.name().to_owned(), why }),
        }
    }

    fn build(&self, steered: &Steered) -> Result<Box<dyn Policy>, PolicyError> {
        steered.policy.build(&steered.config, &self.machine, &self.specs)
    }

    /// Runs a policy through one replication of a cut.
    pub(super) fn play(
        &self,
        fit: &Fit,
        steered: &Steered,
        cut: Cut,
        replication: u64,
    ) -> Result<Tally, ReplayError> {
        let mut tally = Tally::default();
        for part in cut.parts(self.recording, replication) {
            let epochs = epochs_of(self.recording, &part);
            let (model, end) = fit.node(self.recording, &self.known, &epochs);
            let lead: u64 =
                part.lead.iter().map(|at| self.recorded_epoch(&part, *at).length.0).sum();
            // Other blocks meet other requests.
            let seed = self.effort.seed.wrapping_add((part.block as u64) << 32);
            let plant = plant(&model, &self.specs, seed, replication)?;
            let mut control = self.start(plant, steered, seed, replication)?;
            let mut now = Nanos::ZERO;
            while now < end {
                if (self.stop)() {
                    return Err(ReplayError::Stopped);
                }
                let epoch =
                    control.turn().map_err(|error| ReplayError::Model(error.to_string()))?;
                if now.0 >= lead {
                    add(&mut tally, &self.specs, &epoch);
                }
                now = epoch.seen.time;
            }
        }
        Ok(tally)
    }

    fn recorded_epoch(&self, part: &Part, at: usize) -> &RecordedEpoch {
        &self.recording.blocks[part.block][at]
    }

    fn start(
        &self,
        plant: MachinePlant,
        steered: &Steered,
        seed: u64,
        replication: u64,
    ) -> Result<ControlLoop<MachinePlant>, ReplayError> {
        let policy = self.build(steered).map_err(ReplayError::Policy)?;
        let rules = Rules {
            limits: Limits { cores: None, ..self.recording.rules.limits.clone() },
            ..self.recording.rules.clone()
        };
        let controller = Controller::new(policy, rules, &plant)
            .map_err(|error| ReplayError::Model(format!("limits.{}: {error}", error.key)))?;
        let rng = Rng::seed_from_u64(seed.wrapping_mul(1 << 32).wrapping_add(replication));
        Ok(ControlLoop::new(plant, controller, self.recording.epoch.clone(), rng))
    }

    /// Returns the recorded values of the part that a replication of a cut simulates.
    pub(super) fn recorded_of(&self, cut: Cut, replications: std::ops::Range<u64>) -> Tally {
        let parts = replications.flat_map(|number| cut.parts(self.recording, number));
        let parts: Vec<Part> = parts.collect();
        let counted = parts.iter().flat_map(|part| {
            part.counted.iter().map(move |at| &self.recording.blocks[part.block][*at])
        });
        Tally::recorded(self.recording, counted)
    }
}

/// The epochs of a part, uncounted ones first.
fn epochs_of<'r>(
    recording: &'r Recording,
    part: &Part,
) -> impl Iterator<Item = &'r RecordedEpoch> + Clone {
    let block = &recording.blocks[part.block];
    part.lead.iter().chain(&part.counted).map(move |at| &block[*at])
}

fn plant(
    model: &lull_sim::machine::MachineModel,
    specs: &[AppSpec],
    seed: u64,
    replication: u64,
) -> Result<MachinePlant, ReplayError> {
    MachinePlant::new(model, specs, seed, replication)
        .map_err(|error| ReplayError::Model(error.to_string()))
}

/// The machine of the model with only the capabilities of the recorded one, so that a policy
/// cannot use a capability that the recorded machine lacked.
fn common_machine(recorded: &Machine, model: &Machine) -> Machine {
    let all = Capability::ALL.into_iter();
    let capabilities = all.fold(Capabilities::default(), |all, capability| {
        let means =
            recorded.capabilities.get(capability).and_then(|_| model.capabilities.get(capability));
        match means {
            Ok(means) => all.with_capability(capability, means),
            Err(why) => all.without(capability, why),
        }
    });
    Machine { capabilities, ..model.clone() }
}

fn add(tally: &mut Tally, specs: &[AppSpec], epoch: &Epoch) {
    let seen = epoch.seen.apps.iter().map(|app| {
        let latency = app.latency.as_ref().ok();
        AppEpoch {
            latency: latency.map(|latency| &latency.window),
            offered_per_s: latency.map_or(0.0, |latency| latency.offered_per_s),
            answered_per_s: latency.map_or(0.0, |latency| latency.completed_per_s),
            cpu: app.readings.value(CPU).unwrap_or(0.0),
            waiting: app.readings.value(RUN_QUEUE_WAIT).unwrap_or(0.0),
            progress_per_s: app.progress.as_ref().map_or(0.0, |progress| progress.per_s),
            outstanding: latency.map_or(0, |latency| latency.outstanding),
        }
    });
    tally.add(specs, epoch.seen.epoch, &seen.collect::<Vec<_>>());
}
