//! Optional parts of a machine as plain data: frequencies and their governor, duty cycles, power,
//! other rules of the run queues, and the gated server with its storage device.

use super::load::LoadStep;
use crate::governor::Governor;
use crate::model::Distribution;
use crate::moderation::Moderation;
use lull_control::dispatcher::{CoreSpeed, Supply};
use lull_measure::{Hertz, Nanos, Watts};
use lull_oncall::ClassShare;
use lull_workload::arrivals::Process;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Frequencies of the cores below the machine's highest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scaling {
    /// The lowest.
    pub lowest: Hertz,
    /// Between two of them; left out where `steps` lists them.
    #[serde(default)]
    pub step: Hertz,
    /// All of them, from the lowest to the machine's highest, where they are not one `step`
    /// apart. A governor takes the nearest, where it else takes the next higher one, and a
    /// sampling one begins at the highest, where it else begins at the lowest.
    #[serde(default)]
    pub steps: Vec<Hertz>,
    /// The governor that chooses the frequency of a domain that no policy sets.
    pub governor: Governor,
    /// Cores that share one frequency.
    #[serde(default = "one_core")]
    pub domain: u16,
    /// How long a core computes nothing after its frequency has changed; at most 10 ms.
    #[serde(default)]
    pub latency: Nanos,
}

const fn one_core() -> u16 {
    1
}

/// Cores that compute for a share of every period only, as under a thread that takes them for
/// the rest (`lull emulate`; EETL, MICRO-50 2017, section 5.2). A thread that is on the core then
/// keeps it, at the power of a running core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DutyCycle {
    /// The cores, by number.
    pub cores: Vec<u16>,
    /// The share of each period in which they compute, above 0 and below 1.
    pub share: f64,
    /// The period: 10 us or more, such as 250 us.
    pub period: Nanos,
}

impl DutyCycle {
    /// How long a core computes nothing in each period.
    pub(super) fn pause_ns(&self) -> u64 {
        ((1.0 - self.share) * self.period.0 as f64).round() as u64
    }
}

/// Cores of different speed and power.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CoreTypes {
    /// The types, slowest first. Their watts are those of a busy core at the highest frequency.
    pub types: Vec<CoreSpeed>,
    /// The cores of each type, in this order, or cores each of which can be of any; they begin
    /// as the slowest.
    pub supply: Supply,
}

/// An app whose requests a dispatcher assigns to core types one by one. It has at least as many
/// threads as the machine has cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DispatchPart {
    /// The app.
    pub app: String,
    /// Time without progress when a request changes its core, or its core its type.
    #[serde(default)]
    pub move_cost: Nanos,
    /// Age at which a request is abandoned.
    #[serde(default)]
    pub abandon: Option<Nanos>,
}

/// Power at the machine, with `v` the voltage relative to that at the highest frequency, linear
/// in the frequency `f`, and `s` the frequency relative to the highest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Power of a running core at any frequency.
    pub active_base: Watts,
    /// Further power of a running core at its highest frequency: times `s v²`.
    pub active_dynamic: Watts,
    /// Further power of a running core at its highest frequency, beyond both: times `v²`.
    #[serde(default)]
    pub leakage: Watts,
    /// Voltage at the lowest frequency over that at the highest.
    pub voltage_ratio: f64,
    /// Power of all that is not a core: uncore, memory, storage.
    pub fixed: Watts,
    /// Power of each frequency domain at the highest frequency, whether its cores run or not.
    #[serde(default)]
    pub uncore: Watts,
    /// The share of `uncore` that follows the frequency: times `s v²`.
    #[serde(default)]
    pub uncore_scales: f64,
}

/// A scheduler of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RunQueues {
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

/// A network card with a vector a core, through which requests and queries of clients
/// elsewhere arrive. Core times are those at the highest frequency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Card {
    /// How its driver moderates interrupts while no policy sets a delay.
    pub moderation: Moderation,
    /// Largest interrupt delay.
    pub delay_max: Nanos,
    /// Granularity of the delay.
    pub delay_step: Nanos,
    /// Buckets of the table by which connections are spread over cores.
    pub buckets: u32,
    /// Connections over which the clients of each app send, where they send at a rate. Clients
    /// that wait for answers have one each.
    #[serde(default = "connections")]
    pub connections: u32,
    /// Packets that one round of polling takes at most.
    pub budget: u32,
    /// Whether a packet that has been sent raises an interrupt.
    pub tx_interrupts: bool,
    /// Core time of an interrupt and the start of polling.
    pub interrupt: Nanos,
    /// Core time of receiving a packet.
    pub receive: Nanos,
    /// Core time of cleaning up a sent packet.
    pub clean: Nanos,
    /// Bytes of a request on the wire.
    pub request_bytes: u32,
    /// Bytes of a reply on the wire.
    pub reply_bytes: u32,
}

/// Connections where a card states none.
pub(super) const DEFAULT_CONNECTIONS: u32 = 256;

const fn connections() -> u32 {
    DEFAULT_CONNECTIONS
}

/// A server with a worker thread for each connection and a gate before the workers.
///
/// Connections are synchronous: each sends a query, waits for its answer, and sends the
/// next one after a round trip. Clients at a rate share them: a query that is due takes a free
/// connection, or waits for one. A query computes, waits for the storage device, and computes
/// again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GateModel {
    /// The app whose threads are the workers; absent where all `connections` apps of the machine
    /// are behind this gate.
    #[serde(default)]
    pub app: Option<String>,
    /// Arrival rate over time of clients that do not wait for answers; empty if the connections'
    /// clients do.
    #[serde(default)]
    pub load: Vec<LoadStep>,
    /// How the gaps of that rate vary.
    #[serde(default)]
    pub arrivals: Process,
    /// Demands of a query.
    pub query: Query,
    /// The storage device that all workers share.
    pub device: Device,
    /// How workers slow each other down.
    #[serde(default)]
    pub contention: Contention,
    /// Core time with which the gate wakes a worker for a turn.
    #[serde(default)]
    pub wake: Nanos,
    /// Core time of all intercepted calls of a query, behind a gate.
    #[serde(default)]
    pub intercept: Nanos,
    /// How long a turn outlasts its last answer without another query.
    #[serde(default = "lease")]
    pub lease: Nanos,
    /// How workers check for a turn by themselves; absent: the gate wakes them.
    #[serde(default)]
    pub polling: Option<Polling>,
    /// Clients that are classes of their own, which share the turns. Without any, turns go
    /// round the connections; else all other clients are one more class.
    #[serde(default)]
    pub client_class: Vec<GateClass>,
}

/// Clients of an app that are a class at the gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateClass {
    /// Its name; its activity is `connections`.
    pub app: String,
    /// Connections of the app in the class: the first ones that belong to no earlier class; all of
    /// them if absent.
    #[serde(default)]
    pub connections: Option<u32>,
    /// How it shares the turns.
    #[serde(default)]
    pub share: TurnShare,
}

/// The share of a class of clients in the turns at a gate, as in `client_class` of a live server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TurnShare {
    /// Turns in proportion to the other waiting classes of its order.
    pub weight: u32,
    /// Classes of a lower order go first.
    pub order: u32,
    /// Share of all turns that it has at least while it waits.
    #[serde(alias = "least-share")]
    pub least_share: f64,
}

impl Default for TurnShare {
    fn default() -> Self {
        Self { weight: 1, order: 0, least_share: 0.01 }
    }
}

impl TurnShare {
    /// Returns the share in the gate's form; `None` if a number is out of its range.
    pub fn in_gate(&self) -> Option<ClassShare> {
        ClassShare::new(self.weight, self.order, self.least_share)
    }
}

/// Self-serving workers: each worker whose query waits at the gate wakes up repeatedly
/// to see whether its turn has come, and starts its query if it has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Polling {
    /// How long a worker sleeps between two looks: at least 10 us, and longer than a look.
    pub every: Nanos,
    /// Core time of a look, without the switch to the thread.
    pub work: Nanos,
}

impl GateModel {
    /// Whether the threads of the app of this name, whose activity is `connections`, are workers of
    /// this gate.
    pub(super) fn serves(&self, app: &str) -> bool {
        self.app.as_ref().is_none_or(|name| name == app)
    }
}

/// Reads the gates of a machine: a table, or an array of tables.
///
/// # Errors
/// If a gate cannot be read.
pub fn gates<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<GateModel>, D::Error> {
    struct Gates;
    impl<'de> Visitor<'de> for Gates {
        type Value = Vec<GateModel>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a gate, or an array of gates")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            let gate = GateModel::deserialize(MapAccessDeserializer::new(map))?;
            Ok(vec![gate])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }
    }
    from.deserialize_any(Gates)
}

/// Long enough for a client's round trip, short against a lock's time-out.
pub(crate) const fn lease() -> Nanos {
    Nanos::from_millis(50)
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
    /// Time from an answer to the connection's next query, network included; of clients at a rate,
    /// until the connection is free.
    pub round_trip: Distribution,
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
    /// In the order of arrival.
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
    /// Cores on which the law was measured, if its additional cost is spinning: a waiting thread
    /// spins only while it has a core, so that on fewer cores fewer instructions are wasted.
    #[serde(default)]
    pub spins_on: Option<u32>,
}

impl Default for Contention {
    fn default() -> Self {
        Self { sigma: 0.0, kappa: 0.0, most: u32::MAX, spins_on: None }
    }
}

impl Contention {
    /// Instructions a query, relative to one alone (IPQ).
    pub fn instructions(&self, in_service: u32) -> f64 {
        let count = f64::from(in_service.min(self.most).max(1));
        1.0 + self.sigma * (count - 1.0) + self.kappa * count * (count - 1.0)
    }

    /// The same on this many cores.
    pub fn instructions_on(&self, cores: u32, in_service: u32) -> f64 {
        let measured_on = self.spins_on.unwrap_or(cores).max(1);
        let share = (f64::from(cores) / f64::from(measured_on)).min(1.0);
        1.0 + share * (self.instructions(in_service) - 1.0)
    }
}
