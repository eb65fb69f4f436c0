//! A simulated machine as a plant: one interface to all its parts.

mod description;
mod knobs;
mod observe;

use super::gated::GatedServer;
use super::gated_totals::GatedTotals;
use super::{Controllers, MachineModel, MachineSimulation};
use crate::model::ModelError;
use crate::replication::Replication;
use description::describe;
use lull_control::admission::{Admission, GateLimits};
use lull_control::{
    AppId, AppSpec, Applied, ApplyOutcome, Coalescing, Machine, NicId, Objective, Observation,
    Outcome, Plant, PlantError, RosterEvent, Scheduling, Setting, WayMask,
};
use lull_measure::{Hertz, Latency, Missing, Nanos};
use observe::MachineSnapshot;

/// A simulated machine under a policy, and an admission controller at each gate.
///
/// The controller at a gate works on meanwhile, and neither knows of the other; where it
/// only keeps its numbers (`manual`), they are knobs of the policy as those of a live gate are.
pub struct MachinePlant {
    simulation: MachineSimulation,
    machine: Machine,
    apps: Vec<AppSpec>,
    /// Number in the model of each app.
    numbers: Vec<usize>,
    classes: Vec<Scheduling>,
    /// How often each app had departed when `classes` was last brought up to it.
    lives: Vec<u32>,
    /// The fixed or highest frequency.
    frequency: Hertz,
    snapshot: MachineSnapshot,
    /// How long each app was present in the last epoch.
    presence: Vec<Nanos>,
    /// The numbers of each gate now and at the start; `None` if they cannot be set.
    gates: Vec<Option<GateLimits>>,
    original_gates: Vec<Option<GateLimits>>,
}

/// Why a machine cannot be watched.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MachinePlantError {
    /// The model cannot be simulated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There is no such app.
    #[error("the machine has no app `{app}`; it has: {known}")]
    NoApp {
        /// The name.
        app: String,
        /// The names that exist.
        known: String,
    },
    /// Requests of an app without any.
    #[error("`{app}` is latency-critical, but its threads serve no requests")]
    NoRequests {
        /// The name.
        app: String,
    },
}

const NORMAL: Scheduling = Scheduling::Normal { nice: 0 };

impl std::fmt::Debug for MachinePlant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachinePlant").field("simulation", &self.simulation).finish()
    }
}

impl MachinePlant {
    /// A fresh replication of a machine without a gate, watched and steered for these apps.
    /// An app of the model that is left out runs unseen.
    ///
    /// # Errors
    /// If the model cannot be simulated or an app is not in it.
    pub fn new(
        model: &MachineModel,
        apps: &[AppSpec],
        seed: u64,
        replication: u64,
    ) -> Result<Self, MachinePlantError> {
        Self::behind(model, apps, None, Replication { seed, number: replication })
    }

    /// The same, with an admission controller at the gate and a dispatcher if the model has
    /// parts for them.
    ///
    /// # Errors
    /// If the model cannot be simulated, an app is not in it, or a part or a controller is
    /// missing.
    pub fn behind(
        model: &MachineModel,
        apps: &[AppSpec],
        controllers: impl Into<Controllers>,
        streams: Replication,
    ) -> Result<Self, MachinePlantError> {
        let simulation = MachineSimulation::behind(model, controllers, streams)?;
        Self::watching(model, simulation, apps)
    }

    /// Watches a simulation of this model that has not run.
    ///
    /// # Errors
    /// If an app is not in the model.
    fn watching(
        model: &MachineModel,
        mut simulation: MachineSimulation,
        apps: &[AppSpec],
    ) -> Result<Self, MachinePlantError> {
        let number = |spec: &AppSpec| {
            let app = spec.name.clone();
            let known = || model.app.iter().map(|app| app.name.clone()).collect::<Vec<_>>();
            let Some(number) = model.app_named(&app) else {
                return Err(MachinePlantError::NoApp { app, known: known().join(", ") });
            };
            if spec.is_latency_critical() && !model.app[number].serves() {
                return Err(MachinePlantError::NoRequests { app });
            }
            Ok(number)
        };
        let numbers = apps.iter().map(number).collect::<Result<Vec<_>, _>>()?;
        for number in &numbers {
            simulation.apps[*number].is_watched = true;
        }
        let gates: Vec<_> = simulation.gated.iter_mut().map(GatedServer::numbers).collect();
        Ok(Self {
            machine: describe(model, apps, &numbers, &gates),
            apps: apps.to_vec(),
            classes: vec![NORMAL; apps.len()],
            lives: vec![0; apps.len()],
            frequency: model.frequency,
            presence: vec![Nanos::ZERO; apps.len()],
            numbers,
            snapshot: MachineSnapshot::take(&mut simulation),
            simulation,
            original_gates: gates.clone(),
            gates,
        })
    }

    /// Returns the simulation, for reading.
    pub fn simulation(&self) -> &MachineSimulation {
        &self.simulation
    }

    /// The simulation, to keep a log.
    pub fn simulation_mut(&mut self) -> &mut MachineSimulation {
        &mut self.simulation
    }

    /// Discards the counts, as after a warm-up.
    pub fn forget(&mut self) {
        self.simulation.forget();
        for app in &mut self.simulation.apps {
            app.window = Latency::default();
        }
        self.snapshot = MachineSnapshot::take(&mut self.simulation);
    }

    /// Returns the totals of cores, energy and the gated servers.
    pub fn gated_totals(&mut self) -> GatedTotals {
        self.simulation.gated_totals()
    }

    /// Changes the apps' objectives: `apps` are the same apps with others, `objectives` those
    /// of the first gate's connections in order. `rebuild` creates an admission controller for
    /// them if the present one cannot continue.
    ///
    /// # Errors
    /// The error of `rebuild`.
    pub fn retarget<E>(
        &mut self,
        apps: Vec<AppSpec>,
        objectives: &[Option<Objective>],
        rebuild: impl FnOnce() -> Result<Box<dyn Admission>, E>,
    ) -> Result<(), E> {
        debug_assert_eq!(apps.len(), self.apps.len(), "the apps are the same");
        self.apps = apps;
        let Some(gated) = self.simulation.gated.first_mut() else { return Ok(()) };
        gated.retarget(objectives, rebuild)?;
        // A rebuilt admission controller has numbers of its own.
        self.gates[0] = gated.numbers();
        Ok(())
    }

    /// Lets an app arrive, leave or be restarted now.
    pub fn change(&mut self, app: AppId, event: RosterEvent) {
        self.simulation.change(self.numbers[app.index()], event);
        self.note_lives();
    }

    /// How long an app was on the machine in the last epoch.
    pub fn was_present(&self, app: AppId) -> Nanos {
        self.presence[app.index()]
    }

    /// Runs for an epoch and returns its counts; a simulated machine can always be observed.
    pub(crate) fn seen_after(&mut self, epoch: Nanos) -> Observation {
        self.simulation.run_until(self.simulation.now().saturating_add(epoch));
        self.note_lives();
        self.observation()
    }

    /// Forgets the classes of processes that are gone.
    fn note_lives(&mut self) {
        for (app, number) in self.numbers.iter().enumerate() {
            let life = self.simulation.apps[*number].life;
            if std::mem::replace(&mut self.lives[app], life) != life {
                self.classes[app] = NORMAL;
            }
        }
    }

    fn present(&self) -> impl Iterator<Item = AppId> + '_ {
        (0u16..).map(AppId).take(self.apps.len()).filter(|app| self.is_present(*app))
    }

    /// Applies one setting.
    fn set(&mut self, wanted: &Setting) -> ApplyOutcome {
        if let Err(why) = self.machine.capabilities.get(wanted.knob().capability()) {
            return ApplyOutcome::Refused { why: why.to_string() };
        }
        match *wanted {
            Setting::Frequency(domain, hertz) => self.set_frequency(domain, hertz),
            Setting::Coalescing(nic, how) => self.set_coalescing(nic, how),
            Setting::IdleLatency(at_most) => self.set_idle_latency(at_most),
            Setting::GateCap(app, _) | Setting::GateBatch(app, _) | Setting::GateDelay(app, _) => {
                self.set_gate(app, wanted)
            }
            _ => self.set_app(wanted),
        }
    }
}

fn absent() -> Missing {
    Missing::because("the app is not on the machine now")
}

impl Plant for MachinePlant {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.apps
    }

    fn is_present(&self, app: AppId) -> bool {
        let number = self.numbers.get(app.index());
        number.is_some_and(|number| self.simulation.is_present(*number))
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        Ok(self.seen_after(epoch))
    }

    /// A domain that its governor steers has no frequency setting, as on a host.
    fn settings(&self) -> Vec<Setting> {
        let apps = self.present().flat_map(|app| self.settings_of(app));
        let held = self.machine.domains.iter().filter_map(|domain| {
            let core = domain.cores.iter().next()?;
            let hertz = self.simulation.held(usize::from(core.0))?;
            Some(Setting::Frequency(domain.id, hertz))
        });
        let gate = self.gate_settings(&self.gates);
        let of_machine = self.coalescing().into_iter().chain(self.idle_setting());
        apps.chain(held).chain(of_machine).chain(gate).collect()
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        let before = self.settings();
        let outcomes = wanted.iter().map(|setting| {
            let outcome = Outcome { wanted: setting.clone(), got: self.set(setting) };
            if let Some(Setting::Scheduling(app, class)) = outcome.in_force() {
                self.classes[app.index()] = *class;
            }
            outcome
        });
        let applied = Applied { outcomes: outcomes.collect() };
        // A setting that is clamped to the present one changes nothing.
        if self.settings() != before {
            self.simulation.note_machine_change();
        }
        applied
    }

    fn restore(&mut self) -> Applied {
        for core in 0..self.machine.cores.len() {
            self.simulation.hold(core, None);
        }
        let machine = &self.machine;
        let has_cores = machine.capabilities.has(lull_control::Capability::Cores);
        let has_classes = machine.capabilities.has(lull_control::Capability::Scheduling);
        let all = self.simulation.usable_cores();
        let original = self.present().flat_map(|app| {
            let class = has_classes.then_some(Setting::Scheduling(app, NORMAL));
            let ways = machine
                .cache
                .as_ref()
                .map(|cache| Setting::CacheWays(app, WayMask::run(0, cache.ways)));
            let bandwidth = machine.bandwidth.as_ref().map(|_| Setting::MemoryBandwidth(app, 100));
            let cores = has_cores.then(|| Setting::Cores(app, all.clone()));
            [cores, class, ways, bandwidth].into_iter().flatten()
        });
        let driver = Setting::Coalescing(NicId(0), Coalescing::Adaptive);
        let driver = (!machine.nics.is_empty()).then_some(driver);
        let deepest = machine.idle_latencies.last().copied().map(Setting::IdleLatency);
        let gate = self.gate_settings(&self.original_gates);
        let original: Vec<_> = original.chain(driver).chain(deepest).chain(gate).collect();
        self.apply(&original)
    }
}
