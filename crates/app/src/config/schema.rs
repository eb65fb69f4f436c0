//! The config's sections and keys. Unknown keys are refused by serde.

use super::gate::GateSection;
use crate::prometheus::Server;
use lull_control::{AdaptiveEpoch, AppSpec, Class, EpochRule, Limits, WrittenObjective};
use lull_host::gauges::energy::PowerModel;
use lull_measure::Nanos;
use lull_measure::entropy::RelativeImportance;
use lull_workload::arrivals::{Process, Rate};
use lull_workload::target::Address;
use serde::Deserialize;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) agent: AgentSection,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) power: PowerSection,
    pub(super) policy: toml::Table,
    #[serde(default)]
    pub(super) app: Vec<AppSection>,
    #[serde(default)]
    pub(super) load: Vec<LoadSection>,
}

/// `[agent]`: the agent itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AgentSection {
    /// Length of an epoch.
    pub(crate) epoch: Nanos,
    /// Lets the rhythm of the load's bursts choose the epoch instead.
    pub(crate) adaptive_epoch: Option<AdaptiveEpoch>,
    /// Unix socket for pushed latency and progress; default in the state directory.
    pub(crate) socket: Option<PathBuf>,
    /// Directory for records.
    pub(crate) record: PathBuf,
    /// Keep only about the last so long in the record.
    pub(crate) keep: Option<Nanos>,
    /// Directory for the restore ledger and the socket.
    pub(crate) state: Option<PathBuf>,
    /// Where to serve page, JSON and metrics; nowhere if absent.
    pub(crate) http: Option<SocketAddr>,
    /// Names by which the page may be asked for, beside addresses and `localhost`.
    pub(crate) http_names: Vec<String>,
    /// Whether orders are taken over HTTP, of whoever has the token.
    pub(crate) control: bool,
    /// A policy that decides beside the acting one and touches nothing.
    pub(crate) shadow: Option<String>,
    /// Seed of the policy's random numbers.
    pub(crate) seed: u64,
    /// How long a latency source may be silent before the SLO-safe state.
    pub(crate) silence: Nanos,
    /// RI, the weight of latency-critical apps in E_S.
    pub(crate) importance: RelativeImportance,
    /// Whether to set a knob again that somebody else changed.
    pub(crate) override_foreign: bool,
}

impl Default for AgentSection {
    /// 500 ms epochs, records in `runs/`, 2 s of silence, RI 0.8.
    fn default() -> Self {
        Self {
            epoch: Nanos::from_millis(500),
            adaptive_epoch: None,
            socket: None,
            record: PathBuf::from("runs"),
            keep: None,
            state: None,
            http: None,
            http_names: Vec::new(),
            control: false,
            shadow: None,
            seed: 1,
            silence: Nanos::from_secs(2),
            importance: RelativeImportance::default(),
            override_foreign: false,
        }
    }
}

impl AgentSection {
    /// How the loop chooses the length of its epochs.
    pub(crate) fn epoch_rule(&self) -> EpochRule {
        match &self.adaptive_epoch {
            Some(rule) => EpochRule::Adaptive(rule.clone()),
            None => EpochRule::Fixed(self.epoch),
        }
    }
}

/// `[power]`: constants of the power model used where nothing measures.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PowerSection {
    /// Power of the machine without its cores, in watts.
    pub(crate) base_watts: f64,
    /// Power of a busy core, in watts.
    pub(crate) busy_core_watts: f64,
    /// Power of an idle core, in watts.
    pub(crate) idle_core_watts: f64,
}

impl Default for PowerSection {
    /// The host's own model.
    fn default() -> Self {
        let model = PowerModel::default();
        Self {
            base_watts: model.base.0,
            busy_core_watts: model.busy.0,
            idle_core_watts: model.idle.0,
        }
    }
}

/// `[[app]]`: one app.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AppSection {
    /// Unique name.
    pub(crate) name: String,
    /// `latency-critical` or `best-effort`.
    pub(crate) class: Class,
    #[serde(default)]
    objectives: Vec<WrittenObjective>,
    /// Highest load it can serve, in requests per second.
    pub(crate) max_load: Option<f64>,
    /// How many of its threads can work at once.
    pub(crate) threads: Option<u32>,
    /// Tail latency alone: a number or `measure`.
    pub(crate) ideal: Option<Reference<Nanos>>,
    /// Progress per second alone: a number or `measure`.
    pub(crate) solo: Option<Reference<f64>>,
    /// Program and arguments to start.
    pub(crate) start: Option<Vec<String>>,
    /// A running process.
    pub(crate) pid: Option<u32>,
    /// A cgroup, relative to the cgroup mount or absolute.
    pub(crate) cgroup: Option<PathBuf>,
    /// A systemd unit.
    pub(crate) unit: Option<String>,
    /// Address that answers when the app is ready.
    pub(crate) ready: Option<String>,
    /// Where its latency comes from.
    #[serde(default)]
    pub(crate) latency: LatencySource,
    /// Makes its workers wait for their turn (`latency = "preload"`).
    pub(crate) gate: Option<GateSection>,
    /// What Prometheus is asked for: a tail, in seconds.
    pub(crate) query: Option<String>,
    /// Where its progress comes from (best-effort apps).
    #[serde(default)]
    pub(crate) progress: ProgressSource,
}

/// A reference value: known, or to be measured before control begins.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Reference<T> {
    /// `"measure"`.
    Measure(MeasureWord),
    /// The value.
    Known(T),
}

/// The word `measure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MeasureWord {
    /// The only one.
    Measure,
}

/// Where an app's latency comes from: `push` or `prometheus:URL`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum LatencySource {
    /// Clients push it to the agent's socket (`lull load` does).
    #[default]
    Push,
    /// The library that the app is started with sees its queries.
    Preload,
    /// A Prometheus at this address is asked for the tail.
    Prometheus(Server),
}

impl TryFrom<String> for LatencySource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "push" => Ok(Self::Push),
            None if text == "preload" => Ok(Self::Preload),
            Some(("prometheus", address)) => Server::parse(address).map(Self::Prometheus),
            _ => Err(format!(
                "`{text}` is no source of latency: write \"push\", \"preload\" or \
                 \"prometheus:http://127.0.0.1:9090\""
            )),
        }
    }
}

/// Where an app's progress comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProgressSource {
    /// Instructions where they can be counted, else CPU time.
    #[default]
    Auto,
    /// The app pushes it.
    Push,
    /// Instructions retired.
    Instructions,
    /// CPU time.
    CpuTime,
}

/// `[[load]]`: a load client that runs as long as the agent does.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadSection {
    /// The app it loads.
    pub(crate) app: String,
    /// As on `lull load`.
    pub(crate) target: Address,
    /// As `--rate` of `lull load`.
    pub(crate) rate: Rate,
    /// As `--arrivals` of `lull load`.
    #[serde(default)]
    pub(crate) arrivals: Process,
    /// Number of connections.
    #[serde(default = "connections")]
    pub(crate) connections: NonZeroU32,
    /// Further arguments of `lull load`.
    #[serde(default)]
    pub(crate) extra: Vec<String>,
}

const fn connections() -> NonZeroU32 {
    NonZeroU32::new(16).expect("16 is not zero")
}

/// How an app comes under the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    /// Started by the agent.
    Start(Vec<String>),
    /// A running process and its descendants.
    Pid(u32),
    /// All processes of a cgroup.
    Cgroup(PathBuf),
    /// All processes of a systemd unit.
    Unit(String),
}

impl AppSection {
    /// The one place where the app is found.
    pub(crate) fn place(&self) -> Result<Where, String> {
        let mut places: Vec<Where> = Vec::new();
        places.extend(self.start.clone().map(Where::Start));
        places.extend(self.pid.map(Where::Pid));
        places.extend(self.cgroup.clone().map(Where::Cgroup));
        places.extend(self.unit.clone().map(Where::Unit));
        let count = places.len();
        match (places.pop(), count) {
            (Some(place), 1) => Ok(place),
            (None, _) => Err("say where the app is: start, pid, cgroup or unit".to_owned()),
            _ => Err("has more than one of start, pid, cgroup and unit: keep one".to_owned()),
        }
    }

    /// The app as policies know it; references to be measured are `None`.
    pub(crate) fn spec(&self) -> AppSpec {
        AppSpec {
            name: self.name.clone(),
            class: self.class,
            objectives: self.objectives.iter().map(|written| written.0).collect(),
            threads: self.threads,
            ideal: self.ideal.and_then(Reference::known),
            max_load_per_s: self.max_load,
            solo_per_s: self.solo.and_then(Reference::known),
        }
    }
}

impl<T> Reference<T> {
    /// The value, if it is known.
    pub(crate) fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Measure(MeasureWord::Measure) => None,
        }
    }
}
