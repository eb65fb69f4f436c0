//! Simulated plants: servers of an engine under policies.
//!
//! A plant is one simulated server. Policies use it through the `Plant` trait, as
//! they use a host. [`SimPlant`] is a whole simulation in which one server is
//! controlled, and [`System`] drives many plants on one clock, each under its own
//! controller with its own epoch.

mod machine;
mod seen;
mod system;
pub(crate) mod toolkit;

pub(crate) use system::Steering;
pub use system::{ControllerTurn, System, UnmanagedPlant};

use crate::engine::{Engine, Stop};
use crate::model::{Model, ModelError};
use lull_control::{AppSpec, Applied, Machine, Observation, Outcome, Plant, PlantError, Setting};
use lull_measure::Nanos;
use machine::machine_of;
use seen::EpochBaseline;
use std::borrow::BorrowMut;

/// Specification of a plant: a server of a model, and the apps that it observes there.
#[derive(Debug, Clone, PartialEq)]
pub struct PlantSpec {
    /// Name of the tier.
    pub tier: String,
    /// Number of the server within its tier.
    pub server: usize,
    /// Apps that the plant observes; their names are those of the model. Latency is that
    /// of the calls to this server. An app that is left out is not recorded, which is
    /// faster.
    pub apps: Vec<AppSpec>,
}

/// Why a plant cannot be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlantSpecError {
    /// The model cannot be simulated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There is no such server.
    #[error("tier `{tier}` has no server {server}")]
    NoServer {
        /// The tier.
        tier: String,
        /// The number.
        server: usize,
    },
    /// The simulation runs already.
    #[error("plants that watch apps must be made before the system runs")]
    Late,
    /// There is no such app.
    #[error("the model has no app `{app}`")]
    NoApp {
        /// The name.
        app: String,
    },
}

/// The state of one plant without the engine.
#[derive(Debug, Clone)]
struct ServerPart {
    server: usize,
    machine: Machine,
    apps: Vec<AppSpec>,
    /// Index in the model of each app.
    app_ids: Vec<usize>,
    original: Vec<Setting>,
    window: EpochBaseline,
}

/// A simulation, owned or borrowed, seen as one plant: one of its servers.
#[derive(Debug, Clone)]
pub struct SimPlant<E = Engine> {
    engine: E,
    side: ServerPart,
}

impl SimPlant {
    /// A fresh replication of a model, seen as one of its servers.
    ///
    /// # Errors
    /// If the model cannot be simulated or lacks the server or an app.
    pub fn new(model: &Model, spec: &PlantSpec, seed: u64) -> Result<Self, PlantSpecError> {
        let mut engine = Engine::new(model, seed, 0)?;
        let side = ServerPart::new(&mut engine, model, spec)?;
        Ok(Self { engine, side })
    }

    /// Returns the simulation, for reading.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl ServerPart {
    fn new(engine: &mut Engine, model: &Model, spec: &PlantSpec) -> Result<Self, PlantSpecError> {
        let no_server =
            || PlantSpecError::NoServer { tier: spec.tier.clone(), server: spec.server };
        let mut servers = engine.servers_of(&spec.tier).ok_or_else(no_server)?;
        let server = servers.nth(spec.server).ok_or_else(no_server)?;
        let find = |app: &AppSpec| {
            let at = model.app.iter().position(|known| known.name == app.name);
            at.ok_or_else(|| PlantSpecError::NoApp { app: app.name.clone() })
        };
        let app_ids = spec.apps.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        if !app_ids.is_empty() && engine.events() > 0 {
            return Err(PlantSpecError::Late);
        }
        app_ids.iter().for_each(|app| engine.watch(server, *app));
        let tier = model.tier.iter().find(|tier| tier.name == spec.tier).ok_or_else(no_server)?;
        let mut side = Self {
            server,
            machine: machine_of(&model.machine_of(tier), spec),
            apps: spec.apps.clone(),
            app_ids,
            original: Vec::new(),
            window: EpochBaseline::default(),
        };
        side.original = side.settings(engine);
        side.window = EpochBaseline::start(engine, server);
        Ok(side)
    }

    fn settings(&self, engine: &Engine) -> Vec<Setting> {
        let steered = self.machine.domains.iter().filter(|domain| !domain.steps.is_empty());
        steered
            .map(|domain| {
                let at = engine.pstate(self.server, domain.id.0 as usize);
                // Steps ascend, P-states descend.
                Setting::Frequency(domain.id, domain.steps[domain.steps.len() - 1 - at])
            })
            .collect()
    }

    fn apply(&self, engine: &mut Engine, wanted: &[Setting]) -> Applied {
        let answer = |setting: &Setting| Outcome {
            wanted: setting.clone(),
            got: machine::set(engine, self.server, &self.machine, setting),
        };
        Applied { outcomes: wanted.iter().map(answer).collect() }
    }
}

/// A reached bound is the end of the plant.
fn lost(stop: &Stop) -> PlantError {
    PlantError::Lost(stop.to_string())
}

impl<E: BorrowMut<Engine>> Plant for SimPlant<E> {
    fn machine(&self) -> &Machine {
        &self.side.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.side.apps
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        let engine = self.engine.borrow_mut();
        let until = engine.now().saturating_add(epoch);
        engine.run_until(until).map_err(|stop| lost(&stop))?;
        Ok(self.side.observe(engine))
    }

    fn settings(&self) -> Vec<Setting> {
        self.side.settings(self.engine.borrow())
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        self.side.apply(self.engine.borrow_mut(), wanted)
    }

    fn restore(&mut self) -> Applied {
        self.side.apply(self.engine.borrow_mut(), &self.side.original)
    }
}
