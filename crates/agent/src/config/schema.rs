//! The config's sections and keys. Unknown keys are refused by serde.

use super::agent::AgentSection;
use super::client::ClientSection;
use super::client_class::{ClientClassSection, bypass, client_classes};
use super::gate::{AdmissionSection, Concurrency, GateSection};
use super::kubernetes::KubernetesSection;
use super::latency::{LatencySource, OtlpSection, ProgressSource, PrometheusSection};
use super::machine::MachineSection;
use super::origin::{AppOrigin, MatchSection, PodsAs, RegisterAs, TemplateSlot};
use super::power::PowerSection;
use super::template::TemplateSection;
use crate::admission::{AdmissionSetup, Promise, tightest_bound};
use crate::areas::Area;
use crate::otlp::{OtlpSource, Senders};
use crate::prometheus::Queries;
use lull_control::{AppSpec, Class, CoreSet, HostObjective, LatencyOf, Limits};
use lull_host::oncall::{ClientClass, ClientMatch, Rules};
use lull_lab::scenario::RunSection;
use lull_measure::Nanos;
use lull_oncall::Settings;
use lull_workload::arrivals::{Process, Rate};
use lull_workload::target::Address;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The whole file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// The agent itself (optional).
    #[serde(default)]
    pub(super) agent: AgentSection,
    /// How the pods of this node are found, with `agent.discover = "kubernetes"` (optional).
    #[serde(default)]
    pub(super) kubernetes: KubernetesSection,
    /// The policy's name, and beside it the keys of that policy: [policies.md](policies.md) or
    /// `lull policies` has them.
    #[schemars(with = "PolicySection")]
    pub(super) policy: toml::Table,
    /// Bounds on every plan (optional).
    #[serde(default)]
    pub(super) limits: Limits,
    /// The model used where nothing measures energy (optional). Every figure
    /// from it is labelled as modelled, with its formula.
    #[serde(default)]
    pub(super) power: PowerSection,
    /// One app each; at least one, or one `[[match]]`.
    #[serde(default)]
    pub(super) app: Vec<AppSection>,
    /// A template: one app for each process, unit or cgroup that matches (optional).
    #[serde(rename = "match", default)]
    pub(super) templates: Vec<TemplateSection>,
    /// A load client that runs as long as the agent does (optional).
    #[serde(default)]
    pub(super) load: Vec<LoadSection>,
    /// The machine on which `lull sim` plays the config (optional, [scenario.md](scenario.md)); an
    /// agent does not read it.
    pub(super) machine: Option<MachineSection>,
    /// An app's load when `lull sim` plays the config (optional, [scenario.md](scenario.md)); an
    /// agent does not read it.
    #[serde(default)]
    pub(super) client: Vec<ClientSection>,
    /// How long and how often `lull sim` plays the config (optional); an agent does not read it.
    pub(super) run: Option<RunSection>,
}

/// `[policy]`, as far as it is the same for all policies.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "read key by key, since the others are the policy's")]
struct PolicySection {
    /// The policy's name.
    #[schemars(example = &"arq")]
    name: String,
}

/// `[[app]]`: one app.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppSection {
    /// A unique word.
    #[schemars(example = &"cache")]
    pub name: String,
    /// Whether the app has objectives on its requests.
    #[schemars(example = &"best-effort")]
    pub class: Class,
    /// A percentile and its bound, a floor of requests per second, or the share of
    /// users that waiting may drive away (`{ disengagement = 0.001 }`, which only
    /// `qos-wc` uses), each in a table of its own; a latency-critical app has at least
    /// one percentile. `{ run_queue_p99 = "1ms" }` bounds the time that its threads wait
    /// for a core, and `{ memory_pressure = "2%" }` the share of the time in which tasks of
    /// its cgroup wait for memory, for an app whose requests are not reported
    /// ([config.md](config.md#apps-that-report-no-latency)).
    #[serde(default)]
    #[schemars(example = [BTreeMap::from([("p95", "4.2ms")])])]
    pub(super) objectives: Vec<HostObjective>,
    /// Highest load it can serve.
    #[schemars(example = 120_000, extend("x-unit" = "requests/s"))]
    pub max_load: Option<f64>,
    /// The number of its threads that can work at the same time; all of them if absent.
    #[schemars(example = 4, extend("x-unit" = "threads"))]
    pub threads: Option<u32>,
    /// Tail latency alone; `measure` measures it with best-effort apps paused.
    #[schemars(example = &"2.8ms")]
    pub ideal: Option<Reference<Nanos>>,
    /// Progress alone; `measure` measures it. Measuring pauses only apps that
    /// Lull started: with an attached best-effort app give the numbers.
    #[schemars(example = &"measure", extend("x-unit" = "its own work/s"))]
    pub solo: Option<Reference<f64>>,
    /// Where it is, one of five: program and arguments to start. `lull` as a
    /// program means the running executable.
    #[schemars(example = ["memcached", "-t", "4"])]
    pub start: Option<Vec<String>>,
    /// Or a running process with its descendants. One that has ended does not come back.
    #[schemars(example = 1234, extend("x-unit" = "none"))]
    pub pid: Option<u32>,
    /// Or a cgroup, relative to the cgroup mount or absolute, or a glob for several
    /// (`*` and `?` do not match `/`, `[ab]`, `{a,b}`). It may have no process yet.
    #[schemars(example = &"system.slice/web.service")]
    pub cgroup: Option<PathBuf>,
    /// Or a systemd unit, or a glob for several: `web-*.service`. It may be stopped.
    #[schemars(example = &"postgresql.service")]
    pub unit: Option<String>,
    /// Or all processes with this program, these arguments and this user, which may come and
    /// go ([config.md](config.md#how-an-app-is-found)).
    #[serde(rename = "match")]
    pub matching: Option<MatchSection>,
    /// Address that answers when a started app is ready: `HOST:PORT` or `unix:/path`.
    #[schemars(example = &"127.0.0.1:11211")]
    pub ready: Option<String>,
    /// Where its latency comes from. `push`: clients push it to the agent's
    /// socket, as `lull load` does. `preload`: the library that the app is
    /// started with sees its queries, on the server ([on-call.md](on-call.md));
    /// needs `start` or `page`, and a dynamically linked program.
    /// `ebpf`: the kernel sees its queries, at the TCP ports that it listens at
    /// ([on-call.md](on-call.md#servers-that-cannot-be-preloaded)); Linux 6.3.
    /// `prometheus:http://HOST:PORT`: the tail is queried from this Prometheus server
    /// ([config.md](config.md#latency-from-prometheus)). `otlp`: the service exports histograms
    /// to `otlp` of `[agent]` ([opentelemetry.md](opentelemetry.md)).
    #[serde(default)]
    #[schemars(with = "String", example = &"push", extend("default" = "push"))]
    pub latency: LatencySource,
    /// Directory of the page that it shares with agents, with `latency = "preload"`, for a server
    /// that another program starts with the variables that `lull attach DIR --environment` prints;
    /// one started by `start` finds it, too.
    #[schemars(example = &"/run/lull-db")]
    pub page: Option<PathBuf>,
    /// How many of its transactions run at once, with `latency = "preload"`: a number
    /// (1 to 256), or the admission controller that decides on it while the app runs, by
    /// name or as a table of `name` and its keys ([policies.md](policies.md)). `auto`
    /// limits only where that helps, by the app's objectives. A number stays as it is
    /// unless a policy searches it (`knobs` of `bayop`).
    #[schemars(with = "Option<String>", example = &"auto")]
    pub concurrency: Option<Concurrency>,
    /// How the workers beyond `concurrency` wait; the keys are those of `lull exec`.
    pub gate: Option<GateSection>,
    /// `[[app.client_class]]`: classes of its clients, and their shares of the slots of its gate.
    #[serde(default)]
    pub client_class: Vec<ClientClassSection>,
    /// `[[app.promise]]`: objectives of single clients, for an admission controller that keeps them
    /// (`pslo`, `utslo`).
    #[serde(default)]
    pub promise: Vec<Promise>,
    /// `[[app.area]]`: the cores of the threads that serve a class of its clients, with
    /// `latency = "preload"` ([on-call.md](on-call.md#areas-of-cores-for-classes)). The policy
    /// then leaves the cores of this app alone.
    #[serde(default)]
    pub area: Vec<Area>,
    /// Keys of `qos-wc` ([policies.md](policies.md#qos-wc)), where it divides the cores between
    /// areas with objectives.
    #[schemars(
        with = "Option<BTreeMap<String, serde_json::Value>>",
        example = BTreeMap::from([("areas", 2)])
    )]
    pub area_keys: Option<toml::Table>,
    /// The PromQL query sent to the Prometheus server: the tail of the first tail
    /// objective, in seconds.
    #[schemars(
        example = &"histogram_quantile(0.95, sum by (le) (rate(http_seconds_bucket[5s])))"
    )]
    pub query: Option<String>,
    /// Beside `query`: load, the age of the data, and how the server is reached; each key optional.
    pub prometheus: Option<PrometheusSection>,
    /// The histogram from which its latency is read, with `latency = "otlp"`; each key optional.
    pub otlp: Option<OtlpSection>,
    /// The source of its progress (best-effort apps).
    #[serde(default)]
    #[schemars(extend("default" = "auto"))]
    pub progress: ProgressSource,
    /// The slot of its template, if it belongs to one.
    #[serde(skip)]
    pub slot: Option<TemplateSlot>,
    /// The name under which its processes register themselves, if they do.
    #[serde(skip)]
    pub register: Option<RegisterAs>,
    /// Selects the pods that are such apps.
    #[serde(skip)]
    pub pods: Option<PodsAs>,
}

/// A reference value: known, or to be measured before control begins.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected \"measure\", or the value: a time of `ideal`, a number of `solo`"
)]
#[schemars(inline)]
pub enum Reference<T> {
    /// `"measure"`.
    Measure(MeasureWord),
    /// The value.
    Known(T),
}

/// The word `measure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum MeasureWord {
    /// The only one.
    Measure,
}

/// `[[load]]`: a load client that runs as long as the agent does.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadSection {
    /// The app it loads.
    #[schemars(example = &"cache")]
    pub app: String,
    /// Where the requests go, as on `lull load`: `memcached://HOST:PORT`,
    /// `redis://HOST:PORT` without a password, `http://HOST:PORT/PATH` or `options://HOST:PORT`.
    #[schemars(with = "String", example = &"memcached://127.0.0.1:11211")]
    pub target: Address,
    /// Requests per second, as `--rate` of `lull load`: `2000/s`,
    /// `burst:12000,4000,2s` or `trace:FILE.csv`.
    #[schemars(with = "String", example = &"2000/s")]
    pub rate: Rate,
    /// How the gaps vary: `poisson`, `constant` or `gpareto:SHAPE`.
    #[serde(default)]
    #[schemars(with = "String", extend("default" = "poisson"))]
    pub arrivals: Process,
    /// Connections held open.
    #[serde(default = "connections")]
    #[schemars(extend("x-unit" = "connections"))]
    pub connections: NonZeroU32,
    /// Cores on which its threads run; all if absent. Apps may run there, too: `limits.cores` keeps
    /// policies from assigning them. `lull calibrate` sends from all cores.
    #[schemars(with = "Option<String>", example = &"3")]
    pub cores: Option<CoreSet>,
    /// Further arguments of `lull load`.
    #[serde(default)]
    #[schemars(example = ["--depth", "4"])]
    pub extra: Vec<String>,
}

const fn connections() -> NonZeroU32 {
    NonZeroU32::new(16).expect("16 is not zero")
}

impl AppSection {
    /// The one place where the app is found.
    pub fn origin(&self) -> Result<AppOrigin, String> {
        let mut origins: Vec<AppOrigin> = Vec::new();
        origins.extend(self.start.clone().map(AppOrigin::Start));
        origins.extend(self.pid.map(AppOrigin::Pid));
        origins.extend(self.cgroup.clone().map(AppOrigin::Cgroup));
        origins.extend(self.unit.clone().map(AppOrigin::Unit));
        origins.extend(self.matching.as_ref().map(|section| AppOrigin::Match(section.pattern())));
        origins.extend(self.register.clone().map(AppOrigin::Register));
        origins.extend(self.pods.clone().map(AppOrigin::Pods));
        let count = origins.len();
        match (origins.pop(), count) {
            (Some(place), 1) => Ok(place),
            (None, _) => Err("say where the app is: start, pid, cgroup, unit or match".to_owned()),
            _ => {
                Err("has more than one of start, pid, cgroup, unit and match: keep one".to_owned())
            }
        }
    }

    /// Returns the admission controller of the app's gate and its keys, if it has one.
    ///
    /// # Errors
    /// The invalid key of the gate and the reason.
    pub fn admission_setup(&self) -> Result<Option<AdmissionSetup>, (&'static str, String)> {
        let gate = self.gate.clone().unwrap_or_default();
        let setup = |admission: &AdmissionSection| {
            admission.setup(&gate, self.spec().objectives, &self.promise)
        };
        self.controller().map(setup).transpose()
    }

    /// The admission controller that decides on its concurrency, if one does.
    pub fn controller(&self) -> Option<&AdmissionSection> {
        match &self.concurrency {
            Some(Concurrency::Controlled(controller)) => Some(controller),
            Some(Concurrency::Limit(_)) | None => None,
        }
    }

    /// Returns the clients that bypass its gate with these classes; none if it has no gate.
    ///
    /// # Errors
    /// The fault of the list.
    pub(super) fn bypass(&self, classes: &[ClientClass]) -> Result<Vec<ClientMatch>, String> {
        let gate = self.gate.clone().unwrap_or_default();
        match self.concurrency {
            Some(_) => bypass(&gate.bypass, gate.default_bypass, classes),
            None => Ok(Vec::new()),
        }
    }

    /// Returns which of its connections are gated, exempt and bypass the gate, the classes of its
    /// clients, and which waits are long.
    ///
    /// # Errors
    /// The invalid class of clients.
    pub fn gate_rules(&self) -> Result<Rules, String> {
        let client_classes = client_classes(&self.client_class)
            .map_err(|(index, message)| format!("client_class[{index}]: {message}"))?;
        let rules = self.gate.as_ref().map_or_else(Rules::default, GateSection::rules);
        let bypass = self.bypass(&client_classes).map_err(|why| format!("gate.bypass: {why}"))?;
        let long_wait = tightest_bound(&self.spec().objectives);
        Ok(Rules { client_classes, bypass, long_wait, ..rules })
    }

    /// The settings of its gate if its concurrency is a number.
    ///
    /// # Errors
    /// The invalid key of the gate and the reason.
    pub fn gate_settings(&self) -> Result<Option<Settings>, (&'static str, String)> {
        let Some(Concurrency::Limit(limit)) = self.concurrency else { return Ok(None) };
        let gate = self.gate.clone().unwrap_or_default();
        let waits = gate.waits(gate.settings(limit)?, &self.spec().objectives)?;
        Ok(Some(waits))
    }

    /// Returns the queries to a Prometheus server, if its latency comes from one.
    pub(crate) fn prometheus_queries(&self) -> Option<Queries> {
        let LatencySource::Prometheus(server) = &self.latency else { return None };
        let (at, _) = self.spec().tail()?;
        let section = self.prometheus.clone().unwrap_or_default();
        let access = section.files().access();
        let PrometheusSection { load, age, age_max, .. } = section;
        Some(Queries {
            server: server.clone(),
            access,
            tail: self.query.clone().unwrap_or_default(),
            at,
            load,
            age: age.map(|query| (query, age_max)),
        })
    }

    /// Returns the histogram that its latency is read from, as the app with this number, if it
    /// comes by OTLP.
    pub(crate) fn otlp_source(&self, app: u16) -> Option<OtlpSource> {
        let OtlpSection { service, route, metric } = self.otlp.clone().unwrap_or_default();
        let from = match &self.pods {
            Some(_) => Senders::Pod { pod: None, service },
            None => Senders::Service(service.unwrap_or_else(|| self.name.clone())),
        };
        let source = OtlpSource { app, from, route, metric };
        (self.latency == LatencySource::Otlp).then_some(source)
    }

    /// Returns its entry in the file, as errors name it; `index` is its number among all apps.
    pub fn entry(&self, index: usize) -> String {
        match self.slot {
            Some(slot) => format!("match[{}]", slot.template),
            None => format!("app[{index}]"),
        }
    }

    /// Returns the kind of latency that its objectives bound; `None` without a latency objective.
    pub fn latency_of(&self) -> Option<LatencyOf> {
        let bounds = |one: &&HostObjective| one.objective.bounds_latency();
        self.objectives.iter().find(bounds).map(|one| one.of)
    }

    /// An objective that bounds another latency than its first one does.
    pub(super) fn other_latency(&self) -> Option<LatencyOf> {
        let bounds = |one: &&HostObjective| one.objective.bounds_latency();
        let mut all = self.objectives.iter().filter(bounds).map(|one| one.of);
        let first = all.next()?;
        all.find(|of| *of != first)
    }

    /// The app as policies know it; references to be measured are `None`.
    pub fn spec(&self) -> AppSpec {
        AppSpec {
            name: self.name.clone(),
            class: self.class,
            objectives: self.objectives.iter().map(|written| written.objective).collect(),
            threads: self.threads,
            ideal: self.ideal.and_then(Reference::known),
            max_load_per_s: self.max_load,
            solo_per_s: self.solo.and_then(Reference::known),
        }
    }
}

impl<T> Reference<T> {
    /// The value, if it is known.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Measure(MeasureWord::Measure) => None,
        }
    }
}
