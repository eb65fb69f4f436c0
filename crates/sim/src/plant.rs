//! Simulated plants: what a policy sees of the simulator.
//!
//! A plant is one simulated server. Policies reach it through exactly the seam
//! that a host has: [`SimPlant`] is a whole simulation in which one server is
//! steered, and [`System`] drives many plants on one clock, each under its own
//! controller with its own epoch.

mod machine;
mod seen;
mod system;

pub use system::{Managed, PlantSide, System, Turned};

use crate::engine::{Engine, Stop};
use crate::model::{Model, ModelError};
use lull_control::{AppSpec, Applied, Machine, Observation, Outcome, Plant, PlantError, Setting};
use lull_measure::Nanos;
use machine::machine_of;
use seen::Window;

/// What a plant is: a server of a model and the apps that it answers for there.
#[derive(Debug, Clone, PartialEq)]
pub struct PlantSpec {
    /// Name of the tier.
    pub tier: String,
    /// Number of the server within its tier.
    pub server: usize,
    /// Apps as policies are to see them; their names are those of the model.
    /// Latency is that of the calls to this server. An app left out is not
    /// watched, which is quicker.
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

/// One plant without the engine: what belongs to its server.
#[derive(Debug, Clone)]
struct Side {
    server: usize,
    machine: Machine,
    apps: Vec<AppSpec>,
    /// Index in the model of each app.
    app_ids: Vec<usize>,
    original: Vec<Setting>,
    window: Window,
}

/// A simulation seen as one plant: one of its servers.
#[derive(Debug, Clone)]
pub struct SimPlant {
    engine: Engine,
    side: Side,
}

impl SimPlant {
    /// A fresh replication of a model, seen as one of its servers.
    ///
    /// # Errors
    /// If the model cannot be simulated or lacks the server or an app.
    pub fn new(model: &Model, spec: &PlantSpec, seed: u64) -> Result<Self, PlantSpecError> {
        let mut engine = Engine::new(model, seed, 0)?;
        let side = Side::new(&mut engine, model, spec)?;
        Ok(Self { engine, side })
    }

    /// The simulation, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Side {
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
            window: Window::default(),
        };
        side.original = side.settings(engine);
        side.window = Window::start(engine, server);
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

impl Plant for SimPlant {
    fn machine(&self) -> &Machine {
        &self.side.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.side.apps
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        let until = self.engine.now().saturating_add(epoch);
        self.engine.run_until(until).map_err(|stop| lost(&stop))?;
        Ok(self.side.see(&mut self.engine))
    }

    fn settings(&self) -> Vec<Setting> {
        self.side.settings(&self.engine)
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        self.side.apply(&mut self.engine, wanted)
    }

    fn restore(&mut self) -> Applied {
        self.side.apply(&mut self.engine, &self.side.original)
    }
}
