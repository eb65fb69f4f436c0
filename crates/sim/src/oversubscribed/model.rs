//! The model of an oversubscribed server and its load: plain data.

use crate::idle::{IdleRule, IdleState};
use crate::machine::{
    Activity, Contention, Device, GateClass, GateModel, GatedTotals, Governor, LinuxScheduler,
    MachineApp, MachineModel, MachinePlant, MachinePlantError, MachineSimulation, Polling, Power,
    Query, RunQueues, Scaling, lease,
};
use crate::model::{Checked, ModelError, at_least_one, at_most, range};
use crate::replication::{Replication, RunLength};
use lull_control::admission::Admission;
use lull_control::{AppSpec, Class, Objective};
use lull_measure::{Hertz, Nanos};
use lull_workload::arrivals::Process;
use serde::{Deserialize, Serialize};

/// A server, its machine and its connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OversubscribedModel {
    /// Cores that its workers run on.
    pub cores: u32,
    /// Frequencies of the cores and their governor.
    pub frequency: Frequency,
    /// Power of cores and the rest.
    pub power: Power,
    /// Idle states of a core, from shallow to deep.
    pub idle: Vec<IdleState>,
    /// How they are chosen.
    #[serde(default)]
    pub idle_rule: IdleRule,
    /// The storage device that all workers share.
    pub device: Device,
    /// How workers slow each other down.
    #[serde(default)]
    pub contention: Contention,
    /// The costs of scheduling.
    #[serde(default)]
    pub costs: Costs,
    /// Demands of a query.
    pub query: Query,
    /// How long a turn at the gate outlasts its last answer without another query.
    #[serde(default = "lease")]
    pub lease: Nanos,
    /// How workers check for a turn by themselves; absent: the gate wakes them.
    #[serde(default)]
    pub polling: Option<Polling>,
    /// The scheduler of threads.
    #[serde(default)]
    pub scheduler: RunQueues,
    /// The connections.
    pub class: Vec<ConnectionClass>,
    /// Classes of connections that share the turns at the gate by weight and order; each is
    /// named in `app`. Without any, turns go round.
    #[serde(default)]
    pub client_class: Vec<GateClass>,
    /// Apps beside the server that only compute, on the same cores.
    #[serde(default)]
    pub co_runner: Vec<CoRunner>,
}

/// An app that computes without end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoRunner {
    /// Its name.
    pub name: String,
    /// Its threads, each always ready to run.
    pub threads: u32,
}

/// Frequencies of the cores, each on its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frequency {
    /// The lowest.
    pub lowest: Hertz,
    /// The highest, at which work is measured.
    pub highest: Hertz,
    /// Between two of them.
    pub step: Hertz,
    /// The governor that chooses the frequency.
    pub governor: Governor,
}

/// Time of a core that is not work of queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A thread begins to run.
    pub switch: Nanos,
    /// The gate wakes a worker for a turn.
    pub wake: Nanos,
    /// All intercepted calls of a query, behind a gate.
    pub intercept: Nanos,
}

/// Connections that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionClass {
    /// Its name.
    pub name: String,
    /// How many.
    pub connections: u32,
    /// Objective of each.
    #[serde(default)]
    pub objective: Option<Objective>,
}

/// Most cores of one machine.
const MOST_CORES: u64 = 64;
/// Keys of the machine's model and those of this one.
const KEYS: [(&str, &str); 6] = [
    ("frequency", "frequency.highest"),
    ("scaling", "frequency"),
    ("gate.client-class", "client_class"),
    ("gate.", ""),
    ("run-queues", "scheduler"),
    ("scheduler.switch-cost", "costs.switch"),
];

impl OversubscribedModel {
    /// Connections of all classes.
    pub fn connections(&self) -> u32 {
        self.class.iter().map(|class| class.connections).sum()
    }

    /// Returns the objective of each connection, in order.
    pub fn objectives(&self) -> Vec<Option<Objective>> {
        let each = self.class.iter();
        each.flat_map(|class| vec![class.objective; class.connections as usize]).collect()
    }

    /// The machine that it describes: its apps are the classes, then the co-runners.
    pub fn machine(&self) -> MachineModel {
        let Frequency { lowest, highest, step, governor } = self.frequency;
        let Costs { switch, wake, intercept } = self.costs;
        let app = |name: &str, threads, activity| MachineApp::new(name, threads, activity);
        let classes = self.class.iter();
        let classes = classes.map(|it| app(&it.name, it.connections, Activity::Connections));
        let runners = self.co_runner.iter();
        let runners = runners.map(|it| app(&it.name, it.threads, Activity::Endless));
        MachineModel {
            scaling: Some(Scaling {
                lowest,
                step,
                steps: Vec::new(),
                governor,
                domain: 1,
                latency: Nanos::ZERO,
            }),
            idle: self.idle.clone(),
            idle_rule: self.idle_rule,
            power: Some(self.power),
            scheduler: LinuxScheduler { switch_cost: switch, ..LinuxScheduler::default() },
            run_queues: Some(self.scheduler),
            gate: vec![GateModel {
                app: None,
                load: Vec::new(),
                arrivals: Process::default(),
                query: self.query,
                device: self.device,
                contention: self.contention,
                wake,
                intercept,
                lease: self.lease,
                polling: self.polling,
                client_class: self.client_class.clone(),
            }],
            app: classes.chain(runners).collect(),
            ..MachineModel::plain("oversubscribed server", self.cores as u16, highest)
        }
    }

    /// The apps as policies know them: classes, then co-runners.
    pub fn specs(&self) -> Vec<AppSpec> {
        let class = |class: &ConnectionClass| AppSpec {
            class: match class.objective {
                Some(objective) if objective.bounds_latency() => Class::LatencyCritical,
                _ => Class::BestEffort,
            },
            objectives: class.objective.map(|one| of_all(one, class)).into_iter().collect(),
            threads: Some(class.connections),
            ..AppSpec::best_effort(&class.name)
        };
        let co_runner = self.co_runner.iter().map(|app| AppSpec {
            threads: Some(app.threads),
            solo_per_s: Some(f64::from(app.threads.min(self.cores))),
            ..AppSpec::best_effort(&app.name)
        });
        self.class.iter().map(class).chain(co_runner).collect()
    }

    /// A fresh replication whose connections all send their first query within one round
    /// trip.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn start(
        &self,
        admission: Box<dyn Admission>,
        streams: Replication,
    ) -> Result<MachineSimulation, ModelError> {
        self.check()?;
        MachineSimulation::behind(&self.machine(), Some(admission), streams)
    }

    /// A fresh replication under a policy and an admission controller.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn plant(
        &self,
        admission: Box<dyn Admission>,
        seed: u64,
        replication: u64,
    ) -> Result<MachinePlant, MachinePlantError> {
        self.check()?;
        let streams = Replication { seed, number: replication };
        MachinePlant::behind(&self.machine(), &self.specs(), Some(admission), streams)
    }

    /// Runs a server for a warm-up, then for a length that is counted.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn measure(
        &self,
        admission: Box<dyn Admission>,
        streams: Replication,
        RunLength { warmup, counted }: RunLength<Nanos>,
    ) -> Result<GatedTotals, ModelError> {
        let mut server = self.start(admission, streams)?;
        server.run_until(warmup);
        server.forget();
        server.run_until(warmup + counted);
        Ok(server.gated_totals())
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first fault, by its key.
    pub fn check(&self) -> Checked {
        at_least_one(u64::from(self.cores), "cores", "cores")?;
        at_most(u64::from(self.cores), MOST_CORES, "cores", "cores")?;
        at_least_one(self.class.len() as u64, "classes", "class")?;
        self.machine().check().map_err(|error| self.renamed(error))?;
        self.class.iter().enumerate().try_for_each(|(at, class)| check_objective(at, class))
    }

    /// Replaces the key of the machine by that of this model.
    fn renamed(&self, error: ModelError) -> ModelError {
        let number = |rest: &str| rest.split(']').next().and_then(|it| it.parse::<usize>().ok());
        let Some(app) = error.key.strip_prefix("app[").and_then(number) else {
            return error.renamed(&KEYS);
        };
        let rest = error.key.split("].").nth(1).unwrap_or_default();
        let key = match app.checked_sub(self.class.len()) {
            None => format!("class[{app}].{}", rest.replace("threads", "connections")),
            Some(runner) => format!("co_runner[{runner}].{rest}"),
        };
        ModelError { key, ..error }
    }
}

/// Converts the objective of one connection to that of its class: floors add up.
fn of_all(objective: Objective, class: &ConnectionClass) -> Objective {
    match objective {
        Objective::Throughput { floor_per_s } => {
            Objective::Throughput { floor_per_s: floor_per_s * f64::from(class.connections) }
        }
        Objective::Tail { .. } | Objective::Disengagement { .. } => objective,
    }
}

fn check_objective(at: usize, class: &ConnectionClass) -> Checked {
    let key = |rest: &str| format!("class[{at}].objective.{rest}");
    match class.objective {
        Some(Objective::Throughput { floor_per_s }) => {
            let holds = floor_per_s > 0.0 && floor_per_s.is_finite();
            range(floor_per_s, holds, "above 0", &key("throughput.floor_per_s"))
        }
        Some(Objective::Disengagement { ratio }) => {
            range(ratio, ratio > 0.0 && ratio <= 1.0, "in (0, 1]", &key("disengagement.ratio"))
        }
        Some(Objective::Tail { bound, .. }) => {
            range(bound.0 as f64, bound.0 > 0, "above 0", &key("tail.bound"))
        }
        None => Ok(()),
    }
}
