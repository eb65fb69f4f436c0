//! The admission controllers at the gates of a simulated machine.

use lull_control::admission::Admission;
use lull_control::{AppSpec, Objective, PolicyError};
use lull_measure::{Nanos, Percentile};
use lull_policies::ADMISSION_CONTROLLERS;
use lull_policies::admission::{Site, Workers};
use lull_sim::machine::{GateModel, MachineModel};
use std::ops::Range;

/// The admission controller where none is named.
const OPEN: &str = "open";

/// An admission controller with its config.
#[derive(Debug, Clone, PartialEq)]
pub struct GateKeeper {
    /// The admission controller's name.
    pub name: String,
    /// Its own keys.
    pub config: toml::Table,
    /// The live server that it is configured for, if it is from the config of an agent.
    pub server: Option<LiveServer>,
}

/// The admission controllers of a machine: one for each gate, or one kind for all of them; `open`
/// where there is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GateKeepers(pub Vec<GateKeeper>);

/// Connections whose figures are those of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionGroup {
    /// Its name in figures.
    pub name: String,
    /// The connections, numbered gate by gate.
    pub connections: Range<usize>,
    /// The percentile and the bound that each of them is promised.
    pub tail: Option<(Percentile, Nanos)>,
}

/// The knowledge of a server that the admission controller at its gate has.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveServer {
    /// Objectives of the server as a whole.
    pub objectives: Vec<Objective>,
    /// The connections with an objective of their own; the others are best effort.
    pub promises: Vec<Promised>,
    /// Whether workers beyond the limit wait or rest.
    pub workers: Workers,
}

/// Connections to which the same is promised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promised {
    /// The first of them at the gate.
    pub first: u32,
    /// How many.
    pub connections: u32,
    /// The objective of each of them.
    pub objective: Objective,
}

impl Default for GateKeeper {
    fn default() -> Self {
        Self { name: OPEN.to_owned(), config: toml::Table::new(), server: None }
    }
}

impl GateKeepers {
    /// Reads `admission = { name = "auto", ... }`, which acts at every gate.
    ///
    /// # Errors
    /// If it is not a table with a name.
    pub(crate) fn read(written: toml::Value) -> Result<Self, String> {
        let (name, config) = read_named(written, "admission", "auto")?;
        Ok(Self(vec![GateKeeper { name, config, server: None }]))
    }

    /// Builds them for the gates of a machine; none for a machine without a gate.
    ///
    /// # Errors
    /// If there is none of a name, its keys are wrong, or the machine has no gate for it.
    pub(crate) fn build(
        &self,
        model: &MachineModel,
        apps: &[AppSpec],
        seed: u64,
    ) -> Result<Vec<Box<dyn Admission>>, PolicyError> {
        let open = GateKeeper::default();
        if model.gate.is_empty() && self.0.iter().any(|keeper| *keeper != open) {
            return Err(PolicyError::Config {
                key: "admission".to_owned(),
                message: "the machine has no gate: write [node.gate]".to_owned(),
            });
        }
        let gates = model.gate.iter().zip(0u64..).enumerate();
        let built = gates.map(|(at, (gate, number))| {
            let keeper = self.0.get(at).or(self.0.first()).unwrap_or(&open);
            let built = keeper.build(model, gate, apps, seed.wrapping_add(number));
            let key =
                if self.0.len() > 1 { format!("admission[{at}]") } else { "admission".into() };
            built.map_err(|error| error.within(&key))
        });
        built.collect()
    }
}

impl GateKeeper {
    /// Builds it for a gate of a machine.
    ///
    /// # Errors
    /// If there is none of this name, or its keys are wrong.
    fn build(
        &self,
        model: &MachineModel,
        gate: &GateModel,
        apps: &[AppSpec],
        seed: u64,
    ) -> Result<Box<dyn Admission>, PolicyError> {
        let objectives = match &self.server {
            Some(server) => server.promised(model, gate),
            None => objectives(model, gate, apps),
        };
        // One core is left to the system (REEF, section 3.3: C below the number of cores).
        let cores = u32::from(model.cores.max(2)) - 1;
        let site = match &self.server {
            None => Site::new(&objectives, cores),
            // The controller is built as an agent builds it, counting all cores.
            Some(server) => Site {
                server_objectives: &server.objectives,
                workers: server.workers,
                is_live: true,
                ..Site::new(&objectives, model.cores.into())
            },
        };
        let site = Site { seed, ..site };
        ADMISSION_CONTROLLERS.build(&self.name, &self.config, &site)
    }
}

impl LiveServer {
    /// Returns the objective of each connection; `None` for best effort.
    fn promised(&self, model: &MachineModel, gate: &GateModel) -> Vec<Option<Objective>> {
        let connections: u32 = model.behind(gate).map(|(_, app)| app.threads).sum();
        let of = |connection: u32| {
            let is_for =
                |one: &&Promised| (one.first..one.first + one.connections).contains(&connection);
            self.promises.iter().find(is_for).map(|one| one.objective)
        };
        (0..connections).map(of).collect()
    }
}

/// Reads a table with a name: the name, and the other keys.
///
/// # Errors
/// If it is none: what to write for this key.
pub(super) fn read_named(
    written: toml::Value,
    key: &str,
    example: &str,
) -> Result<(String, toml::Table), String> {
    let missing =
        || format!("is not a table with a name: write {key} = {{ name = \"{example}\" }}");
    let toml::Value::Table(mut config) = written else { return Err(missing()) };
    match config.remove("name") {
        Some(toml::Value::String(name)) => Ok((name, config)),
        _ => Err(missing()),
    }
}

/// The objective of each connection, in order: a floor of throughput is shared out evenly.
fn objectives(model: &MachineModel, gate: &GateModel, apps: &[AppSpec]) -> Vec<Option<Objective>> {
    let of_app = |app: &lull_sim::machine::MachineApp| {
        let spec = apps.iter().find(|spec| spec.name == app.name);
        let first = spec.and_then(|spec| spec.objectives.first().copied());
        let each = first.map(|objective| match objective {
            Objective::Throughput { floor_per_s } => {
                Objective::Throughput { floor_per_s: floor_per_s / f64::from(app.threads) }
            }
            other => other,
        });
        vec![each; app.threads as usize]
    };
    model.behind(gate).flat_map(|(_, app)| of_app(app)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admission_controller_needs_a_name_and_a_gate() {
        let read =
            |text: &str| GateKeepers::read(text.parse::<toml::Table>().unwrap()["it"].clone());
        assert!(read("it = 3").is_err() && read("it = { cap = 3 }").is_err());
        let keeper = read("it = { name = \"gate-fifo\", cap = 3 }").unwrap();
        assert_eq!((keeper.0[0].name.as_str(), keeper.0[0].config.len()), ("gate-fifo", 1));
        let model = MachineModel::plain("bare", 2, lull_measure::Hertz(1));
        let error = keeper.build(&model, &[], 1).err().unwrap().to_string();
        assert!(error.contains("[node.gate]"), "{error}");
        assert!(GateKeepers::default().build(&model, &[], 1).unwrap().is_empty());
    }
}
