//! The model of an oversubscribed server and its load: plain data.

use crate::idle::{self, IdleError, IdleRule, IdleState};
use crate::model::{Distribution, Shape};
use lull_control::Objective;
use lull_measure::{Hertz, Nanos, Watts};
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
    /// What all workers share for storage.
    pub device: Device,
    /// How workers slow each other down.
    #[serde(default)]
    pub contention: Contention,
    /// What scheduling costs.
    #[serde(default)]
    pub costs: Costs,
    /// Demands of a query.
    pub query: Query,
    /// How long a turn at the gate outlasts its last answer without another query.
    #[serde(default = "lease")]
    pub lease: Nanos,
    /// The scheduler of threads.
    #[serde(default)]
    pub scheduler: ThreadScheduler,
    /// The connections.
    pub class: Vec<ConnectionClass>,
    /// Apps beside the server that only compute, on the same cores.
    #[serde(default)]
    pub co_runner: Vec<CoRunner>,
}

/// Long enough for a client's round trip, short against a lock's time-out.
const fn lease() -> Nanos {
    Nanos::from_millis(50)
}

/// A scheduler of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ThreadScheduler {
    /// A queue a core, in order of waking, and no time slices: enough where
    /// work between two blockings is far shorter than a slice.
    #[default]
    Queues,
    /// A queue for each core; the thread that has run least goes first: Linux's CFS with each
    /// thread in a cgroup of its own and equal weights.
    Fair {
        /// Longest time that a thread runs while another waits.
        slice: Nanos,
        /// How far one that has slept is behind the others at most when it wakes.
        credit: Nanos,
        /// How far it must be behind the running one to take its place at once.
        preempt: Nanos,
    },
    /// One queue for all, in order of waking: ghOSt's `sol`, whose agent spins
    /// on the last core.
    Central {
        /// Longest time that a thread runs while another waits.
        slice: Nanos,
        /// Time from the agent's decision to the thread's start.
        dispatch: Nanos,
    },
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

/// A frequency governor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Governor {
    /// Always the highest.
    Performance,
    /// Always the lowest.
    Powersave,
    /// Linux's ondemand: the highest above `up`, else in proportion to the load.
    Ondemand {
        /// How often it looks.
        period: Nanos,
        /// Load above which it chooses the highest.
        up: f64,
        /// Whether time in which a core is idle but one of its threads waits
        /// for I/O is load (`io_is_busy`, the default on Intel).
        io_is_busy: bool,
    },
}

/// Power at the machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Of a running core, whatever its frequency.
    pub active_base: Watts,
    /// Of a running core at its highest frequency, beyond that.
    pub active_dynamic: Watts,
    /// Voltage at the lowest frequency over that at the highest.
    pub voltage_ratio: f64,
    /// Of all that is not a core: uncore, memory, storage.
    pub fixed: Watts,
}

/// A storage device behind a limit on its rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// I/Os in service at a time.
    pub channels: u32,
    /// I/Os per second that it starts in the long run.
    pub rate_per_s: f64,
    /// I/Os that it starts at once after a rest.
    pub burst: f64,
    /// Order in which waiting I/Os start.
    pub order: Order,
}

/// Order of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// In order of arrival.
    Fifo,
    /// Any, with equal chances: what queues inside a saturated SSD look like.
    Random,
}

/// Universal scalability law on instructions: `n` queries in service each take
/// `1 + sigma (n - 1) + kappa n (n - 1)` times the instructions of one alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// Contention.
    pub sigma: f64,
    /// Coherence.
    pub kappa: f64,
    /// Queries beyond which it does not grow (tickets of the storage engine).
    pub most: u32,
}

impl Default for Contention {
    fn default() -> Self {
        Self { sigma: 0.0, kappa: 0.0, most: u32::MAX }
    }
}

impl Contention {
    /// Instructions a query, relative to one alone (IPQ).
    pub fn instructions(&self, in_service: u32) -> f64 {
        let count = f64::from(in_service.min(self.most).max(1));
        1.0 + self.sigma * (count - 1.0) + self.kappa * count * (count - 1.0)
    }
}

/// Time of a core that is no work of queries.
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

/// Demands of a query: core, device, core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// Work before the I/O, at the highest frequency.
    pub before: Distribution,
    /// Time on the device, in service.
    pub io: Distribution,
    /// Work after it.
    pub after: Distribution,
    /// From an answer to the connection's next query, network included.
    pub round_trip: Distribution,
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

/// A model that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OversubscribedModelError {
    /// The idle states.
    #[error("idle{0}")]
    Idle(#[from] IdleError),
    /// A number out of its range.
    #[error("{key} is {value}, must be {wanted}")]
    Range {
        /// Which.
        key: &'static str,
        /// What it is.
        value: f64,
        /// What it may be.
        wanted: &'static str,
    },
    /// Two classes of one name.
    #[error("class.name `{0}` is used twice: each class needs a name of its own")]
    Twice(String),
    /// Apps that never block, and nothing that stops them.
    #[error("co_runner needs a scheduler with time slices: write scheduler = {{ fair = ... }}")]
    NoSlices,
}

/// Most connections, so that they fit the events' owners.
const MOST_CONNECTIONS: u32 = 1 << 20;
/// Most cores.
const MOST_CORES: u32 = 4096;

impl OversubscribedModel {
    /// Connections of all classes.
    pub fn connections(&self) -> u32 {
        self.class.iter().map(|class| class.connections).sum()
    }

    /// The class of each connection, in order.
    pub fn classes(&self) -> Vec<usize> {
        let each = self.class.iter().enumerate();
        each.flat_map(|(index, class)| vec![index; class.connections as usize]).collect()
    }

    /// The party of each thread, in order: a connection's is its class, and
    /// co-runners come after the classes.
    pub(super) fn parties(&self) -> Vec<usize> {
        let runners = self.co_runner.iter().enumerate();
        let runners =
            runners.flat_map(|(index, app)| vec![self.class.len() + index; app.threads as usize]);
        self.classes().into_iter().chain(runners).collect()
    }

    /// Returns the objective of each connection, in order.
    pub fn objectives(&self) -> Vec<Option<Objective>> {
        self.classes().into_iter().map(|class| self.class[class].objective).collect()
    }

    /// Checks everything.
    ///
    /// # Errors
    /// The first fault, by its key.
    pub fn check(&self) -> Result<(), OversubscribedModelError> {
        within("cores", f64::from(self.cores), (1.0, f64::from(MOST_CORES)), "from 1 to 4096")?;
        idle::check(&self.idle)?;
        self.check_frequency()?;
        self.check_power()?;
        self.check_device()?;
        self.check_query()?;
        self.check_classes()?;
        self.check_scheduler()
    }

    fn check_scheduler(&self) -> Result<(), OversubscribedModelError> {
        let slice =
            |key, slice: Nanos| within(key, slice.0 as f64, (1e3, f64::MAX), "at least 1 us");
        match self.scheduler {
            ThreadScheduler::Queues if !self.co_runner.is_empty() => {
                return Err(OversubscribedModelError::NoSlices);
            }
            ThreadScheduler::Queues => {}
            ThreadScheduler::Fair { slice: length, .. } => slice("scheduler.fair.slice", length)?,
            ThreadScheduler::Central { slice: length, .. } => {
                slice("scheduler.central.slice", length)?;
                let cores = f64::from(self.cores);
                let wanted = "2 or more: the agent has one to itself";
                within("cores", cores, (2.0, f64::from(MOST_CORES)), wanted)?;
            }
        }
        let threads: u64 = self.co_runner.iter().map(|app| u64::from(app.threads)).sum();
        let wanted = "at most 65536 in all";
        within("co_runner.threads", threads as f64, (0.0, 65536.0), wanted)?;
        for (index, app) in self.co_runner.iter().enumerate() {
            let before = self.co_runner[..index].iter().map(|other| &other.name);
            if before
                .chain(self.class.iter().map(|class| &class.name))
                .any(|name| *name == app.name)
            {
                return Err(OversubscribedModelError::Twice(app.name.clone()));
            }
        }
        Ok(())
    }

    fn check_frequency(&self) -> Result<(), OversubscribedModelError> {
        let Frequency { lowest, highest, step, governor } = self.frequency;
        let top = highest.0 as f64;
        within("frequency.highest", top, (1.0, f64::MAX), "above 0 Hz")?;
        within("frequency.lowest", lowest.0 as f64, (1.0, top), "above 0 and at most `highest`")?;
        within("frequency.step", step.0 as f64, (1.0, f64::MAX), "above 0 Hz")?;
        if let Governor::Ondemand { period, up, .. } = governor {
            let key = "frequency.governor.ondemand.period";
            within(key, period.0 as f64, (1e3, f64::MAX), "at least 1 us")?;
            within("frequency.governor.ondemand.up", up, (f64::MIN_POSITIVE, 1.0), "in (0, 1]")?;
        }
        Ok(())
    }

    fn check_power(&self) -> Result<(), OversubscribedModelError> {
        let power = &self.power;
        let any = (0.0, f64::MAX);
        within("power.active_base", power.active_base.0, any, "0 W or more")?;
        within("power.active_dynamic", power.active_dynamic.0, any, "0 W or more")?;
        within("power.fixed", power.fixed.0, any, "0 W or more")?;
        within("power.voltage_ratio", power.voltage_ratio, (0.01, 1.0), "from 0.01 to 1")
    }

    fn check_device(&self) -> Result<(), OversubscribedModelError> {
        let device = &self.device;
        let channels = f64::from(device.channels);
        within("device.channels", channels, (1.0, f64::MAX), "1 or more")?;
        within("device.rate_per_s", device.rate_per_s, (1e-3, 1e9), "from 0.001 to 1e9")?;
        within("device.burst", device.burst, (1.0, f64::MAX), "1 or more")?;
        let Contention { sigma, kappa, most } = self.contention;
        within("contention.sigma", sigma, (0.0, 1e3), "from 0 to 1000")?;
        within("contention.kappa", kappa, (0.0, 1e3), "from 0 to 1000")?;
        within("contention.most", f64::from(most), (1.0, f64::MAX), "1 or more")
    }

    fn check_query(&self) -> Result<(), OversubscribedModelError> {
        let Query { before, io, after, round_trip } = self.query;
        spread("query.before", before)?;
        spread("query.io", io)?;
        spread("query.after", after)?;
        spread("query.round_trip", round_trip)?;
        // A query that takes no time at all would be answered for ever at one instant.
        let mean = (before.mean + io.mean + after.mean + round_trip.mean).0 as f64;
        within("query", mean, (1e3, f64::MAX), "at least 1 us from answer to answer")
    }

    fn check_classes(&self) -> Result<(), OversubscribedModelError> {
        let sum: u64 = self.class.iter().map(|class| u64::from(class.connections)).sum();
        let most = f64::from(MOST_CONNECTIONS);
        within("class.connections", sum as f64, (1.0, most), "from 1 to 1048576 in all")?;
        for (index, class) in self.class.iter().enumerate() {
            if self.class[..index].iter().any(|other| other.name == class.name) {
                return Err(OversubscribedModelError::Twice(class.name.clone()));
            }
            match class.objective {
                Some(Objective::Throughput { floor_per_s }) => {
                    let key = "class.objective.throughput.floor_per_s";
                    within(key, floor_per_s, (f64::MIN_POSITIVE, f64::MAX), "above 0")?;
                }
                Some(Objective::Disengagement { ratio }) => {
                    let key = "class.objective.disengagement.ratio";
                    within(key, ratio, (f64::MIN_POSITIVE, 1.0), "in (0, 1]")?;
                }
                Some(Objective::Tail { bound, .. }) => {
                    let key = "class.objective.tail.bound";
                    within(key, bound.0 as f64, (1.0, f64::MAX), "above 0")?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Refuses what is not between two numbers, NaN included.
fn within(
    key: &'static str,
    value: f64,
    (low, high): (f64, f64),
    wanted: &'static str,
) -> Result<(), OversubscribedModelError> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(OversubscribedModelError::Range { key, value, wanted })
}

/// Refuses shapes that do not exist.
fn spread(key: &'static str, distribution: Distribution) -> Result<(), OversubscribedModelError> {
    let cv2 = distribution.shape.cv2();
    let holds = match distribution.shape {
        Shape::Constant => true,
        Shape::HyperExponential { .. } => (1.0..1e6).contains(&cv2),
        _ => cv2 > 0.0 && cv2 < 1e6,
    };
    if holds {
        return Ok(());
    }
    let wanted = "of cv2 above 0, at least 1 if hyper-exponential";
    Err(OversubscribedModelError::Range { key, value: cv2, wanted })
}
