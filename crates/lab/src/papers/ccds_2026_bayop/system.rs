//! The paper's servers as models, its objectives, and the length of a run.

use crate::prelude::*;
use crate::server::{Cell, Grid, Run};
use crate::sourced;
use lull_control::{AppSpec, Plant};
use lull_measure::{Hertz, Nanos, Percentile};
use lull_policies::search::Space;
use lull_sim::netserver::{AppModel, NetServerModel, PackagePower, PingPong, Stack, Traffic};
use lull_sim::stats::Failure;
use serde::Deserialize;
use std::fmt;

/// The models with a source for every number.
const TEXT: &str = include_str!("scenario.toml");

/// ITR delays of the authors' script, with the 0 of Fig. 5, in microseconds.
pub(super) const DELAYS_US: [f64; 19] = [
    0.0, 2.0, 4.0, 10.0, 20.0, 30.0, 40.0, 50.0, 80.0, 100.0, 140.0, 200.0, 240.0, 280.0, 300.0,
    340.0, 360.0, 380.0, 400.0,
];

/// The three loads of the study, in requests per second.
pub(super) const LOADS: [f64; 3] = [200e3, 400e3, 600e3];

/// Headers of a frame: Ethernet, IP, and TCP with a time stamp.
const HEADER_BYTES: u32 = 66;

/// An objective of the paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Objective {
    pub(super) percentile: f64,
    pub(super) bound_us: f64,
}

/// The three objectives of the paper: 99 % of requests below 500 us, 90 % below 500 us, and 99 %
/// below 200 us.
pub(super) const OBJECTIVES: [Objective; 3] = [
    Objective { percentile: 99.0, bound_us: 500.0 },
    Objective { percentile: 90.0, bound_us: 500.0 },
    Objective { percentile: 99.0, bound_us: 200.0 },
];

/// All models of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Scenario {
    server: NetServerModel,
    ebbrt: Stack,
    ebbrt_app: AppModel,
    silo: AppModel,
    tailbench: Vec<AppModel>,
    machines: Vec<Machine>,
    netpipe: PingPong,
}

/// A machine of Table 2, where it differs from the study's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Machine {
    pub(super) name: String,
    cores: u16,
    packages: u16,
    frequencies: Vec<Hertz>,
    power: PackagePower,
}

/// Returns the models, and the sources of their numbers.
pub(super) fn scenario() -> (Scenario, Vec<String>) {
    let (scenario, parameters) = sourced::read(TEXT);
    (scenario, sourced::choices(&parameters))
}

impl Scenario {
    /// memcached on Linux.
    pub(super) fn linux(&self) -> NetServerModel {
        self.server.clone()
    }

    /// memcached on the specialised OS.
    pub(super) fn ebbrt(&self) -> NetServerModel {
        let deepest = self.server.idle.len() - 1;
        let mut model = NetServerModel {
            stack: self.ebbrt.clone(),
            app: self.ebbrt_app.clone(),
            idle_rule: lull_sim::idle::IdleRule::Always(deepest),
            ..self.server.clone()
        };
        model.nic.tx_interrupts = false;
        model.name = "E5-2690, 82599, EbbRT, memcached".to_owned();
        model
    }

    /// Silo on Linux.
    pub(super) fn silo(&self) -> NetServerModel {
        self.with_silo(self.linux())
    }

    /// Silo on the specialised OS, which saves nothing within a transaction.
    pub(super) fn silo_on_ebbrt(&self) -> NetServerModel {
        self.with_silo(self.ebbrt())
    }

    fn with_silo(&self, on: NetServerModel) -> NetServerModel {
        let name = on.name.replace(&on.app.name, &self.silo.name);
        NetServerModel { app: self.silo.clone(), name, ..on }
    }

    /// The apps of TailBench.
    pub(super) fn tailbench(&self) -> &[AppModel] {
        &self.tailbench
    }

    /// The other machines.
    pub(super) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// An app on another machine, under Linux.
    pub(super) fn on(&self, machine: &Machine, app: &AppModel) -> NetServerModel {
        let Machine { name, cores, packages, frequencies, power } = machine.clone();
        let name = format!("{name}, {}", app.name);
        NetServerModel {
            name,
            cores,
            packages,
            frequencies,
            power,
            app: app.clone(),
            ..self.linux()
        }
    }

    /// NetPIPE with messages of this size on a server.
    pub(super) fn netpipe(&self, on: &NetServerModel, bytes: u64) -> NetServerModel {
        let pair = PingPong { bytes, ..self.netpipe.clone() };
        // The driver's rule counts the bytes of frames.
        let frame_bytes = bytes.min(u64::from(pair.segment)) as u32 + HEADER_BYTES;
        let app = AppModel { rx_bytes: frame_bytes, tx_bytes: frame_bytes, ..on.app.clone() };
        // Memcached's costs were fitted with polling until no packets are left.
        let ends_polling_below_budget = !on.stack.run_to_completion;
        let stack = Stack { ends_polling_below_budget, ..on.stack.clone() };
        NetServerModel { app, stack, traffic: Traffic::PingPong(pair), ..on.clone() }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{} < {} us", self.percentile, self.bound_us)
    }
}

impl Objective {
    pub(super) fn met_by(self, cell: &Cell) -> bool {
        cell.keeps_up() && cell.tail_at(self.percentile) <= self.bound_us
    }
}

/// The app of a server, as policies see it.
pub(super) fn app(model: &NetServerModel, objective: Objective) -> AppSpec {
    let percentile = Percentile::new(objective.percentile).unwrap_or(Percentile::P99);
    let bound = Nanos::from_secs_f64(objective.bound_us / 1e6);
    AppSpec::latency_critical(&model.app.name, percentile, bound)
}

/// All settings of the study on a server.
///
/// # Errors
/// If the model cannot be simulated.
pub(super) fn study(model: &NetServerModel) -> Result<Grid, LabError> {
    Ok(Grid { space: space(model)?, delays_us: Some(DELAYS_US.to_vec()), frequencies_ghz: None })
}

/// Every setting that a server has.
pub(super) fn space(model: &NetServerModel) -> Result<Space, LabError> {
    let plant = model.plant(&app(model, OBJECTIVES[0]), 0, 0)?;
    let knobs = [lull_control::Capability::Coalescing, lull_control::Capability::Frequency];
    Space::from_machine(plant.machine(), plant.apps(), &knobs)
        .map_err(|error| Failure::Setup(error.to_string()).into())
}

/// How long a setting is simulated.
pub(super) fn run(setup: &Setup<'_>) -> Run {
    Run {
        warmup: Nanos::from_millis(50),
        length: setup.either(Nanos::from_millis(250), Nanos::from_millis(30)),
        seed: setup.seed,
        percentile: Percentile::P99,
        replication: 0,
    }
}
