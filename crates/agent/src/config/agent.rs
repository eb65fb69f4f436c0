//! `[agent]`: the agent's own keys.

use super::access::{AccessSection, ReceiverSection};
use super::kubernetes::Discover;
use crate::otlp::Collector;
use lull_control::AdaptiveEpoch;
use lull_measure::Nanos;
use lull_measure::entropy::RelativeImportance;
use lull_measure::ideal_batch::C6_BREAK_EVEN;
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `[agent]`: the agent itself.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentSection {
    /// Length of an epoch, the control interval; at least 10 ms. If absent that of the policy
    /// ([policies.md](policies.md)), which is 500 ms for most and never below 10 ms here.
    #[schemars(example = &"500ms")]
    pub epoch: Option<Nanos>,
    /// Lets the rhythm of the load's bursts choose the epoch instead; each key optional.
    pub adaptive_epoch: Option<AdaptiveEpoch>,
    /// Unix socket for pushed latency and progress; `push.sock` in the state
    /// directory if absent.
    #[schemars(example = &"/run/lull/push.sock")]
    pub socket: Option<PathBuf>,
    /// Unix socket at which processes register themselves, of users whom a `[[match]]` names by
    /// `register`; `register.sock` in the state directory if absent, which other users than the
    /// agent's cannot reach.
    #[schemars(example = &"/run/lull-register/socket")]
    pub register: Option<PathBuf>,
    /// Discovery of apps while the agent runs: `kubernetes`, the pods of this node, in a program
    /// that was built with it ([kubernetes.md](kubernetes.md)).
    #[schemars(with = "Option<String>", example = &"kubernetes")]
    pub discover: Option<Discover>,
    /// Directory of records and of the logs of started apps.
    pub record: PathBuf,
    /// Time that the record keeps, at least 10 s; its file then stays at that size. `"876000h"`, a
    /// century, keeps all.
    pub keep: Nanos,
    /// Directory of the restore ledger and the socket; one agent each. If absent
    /// `/run/lull` for root, else `$XDG_RUNTIME_DIR/lull`, `$XDG_STATE_HOME/lull`,
    /// `~/.local/state/lull`, or without a home `/tmp/lull-UID`.
    #[schemars(example = &"/run/lull")]
    pub state: Option<PathBuf>,
    /// Address of the page, its JSON and `/metrics` ([page.md](page.md)); nowhere if absent.
    #[schemars(with = "Option<String>", example = &"127.0.0.1:7077")]
    pub http: Option<SocketAddr>,
    /// Host names under which the page and the OTLP receiver may be requested, beside addresses
    /// and `localhost`.
    #[schemars(example = ["lull.example"])]
    pub http_names: Vec<String>,
    /// Address at which services export histograms by OTLP (`POST /v1/metrics`), for apps with
    /// `latency = "otlp"` ([opentelemetry.md](opentelemetry.md)); nowhere if absent.
    #[schemars(with = "Option<String>", example = &"127.0.0.1:4318")]
    pub otlp: Option<SocketAddr>,
    /// How the receiver is protected; each key optional.
    pub otlp_access: ReceiverSection,
    /// OpenTelemetry collector to which the agent's own metrics are exported (OTLP over HTTP,
    /// protobuf), `http` or `https`; none if absent.
    #[schemars(with = "Option<String>", example = &"http://127.0.0.1:4318")]
    pub export: Option<Collector>,
    /// How the collector is reached over `https`; each key optional.
    pub export_access: AccessSection,
    /// How often they are exported, at least 1 s.
    pub export_period: Nanos,
    /// Whether orders are accepted over HTTP from clients that present the token.
    pub control: bool,
    /// A policy that decides beside the acting one and changes no knob: its decisions
    /// are written to the record and shown on the page.
    #[schemars(example = &"tide")]
    pub shadow: Option<String>,
    /// File of the settings that searches have found (`lull tune`). `bayop` uses those for its app
    /// on this machine, searches again only where they no longer meet the bound, and stores its own
    /// there.
    #[schemars(example = &"lull-tune.sqlite")]
    pub spots: Option<PathBuf>,
    /// Settings by load that `lull sweep --profile` has measured: `co-pi` takes that of the
    /// current load from there, and `static` that of the highest ([tuning.md](tuning.md)).
    #[schemars(example = &"profile.toml")]
    pub profile: Option<PathBuf>,
    /// Seed of the policy's random numbers, to repeat a run; every run has another one if it is
    /// absent, which `lull run` prints and the record has.
    #[schemars(example = 7, extend("x-unit" = "none"))]
    pub seed: Option<u64>,
    /// How long a latency source may be silent before the SLO-safe state.
    pub silence: Nanos,
    /// RI, the weight of latency-critical apps in E_S, in 0 to 1.
    #[schemars(extend("x-unit" = "share"))]
    pub importance: RelativeImportance,
    /// Whether to set a knob again that another program changed.
    pub override_foreign: bool,
    /// Whether to count sleeps of cores and waits of threads by programs in the
    /// kernel (eBPF); where it refuses them, their metrics say why.
    pub events: bool,
    /// Shortest sleep in the deepest idle state that saves energy, for C6 opportunity; `lull
    /// calibrate idle` measures it.
    pub break_even: Nanos,
}

impl Default for AgentSection {
    /// The policy's epoch, records in `runs/`, 2 s of silence, RI 0.8.
    fn default() -> Self {
        Self {
            epoch: None,
            adaptive_epoch: None,
            socket: None,
            register: None,
            discover: None,
            record: PathBuf::from("runs"),
            keep: Nanos::from_secs(24 * 3_600),
            state: None,
            http: None,
            http_names: Vec::new(),
            otlp: None,
            otlp_access: ReceiverSection::default(),
            export: None,
            export_access: AccessSection::default(),
            export_period: Nanos::from_secs(10),
            control: false,
            shadow: None,
            spots: None,
            profile: None,
            seed: None,
            silence: Nanos::from_secs(2),
            importance: RelativeImportance::default(),
            override_foreign: false,
            events: true,
            break_even: C6_BREAK_EVEN,
        }
    }
}

impl AgentSection {
    /// Returns the key of a path that is empty, if there is one.
    pub(super) fn empty_path(&self) -> Option<&'static str> {
        let paths = [
            ("record", Some(&self.record)),
            ("state", self.state.as_ref()),
            ("socket", self.socket.as_ref()),
            ("register", self.register.as_ref()),
            ("spots", self.spots.as_ref()),
            ("profile", self.profile.as_ref()),
        ];
        let is_empty = |path: &PathBuf| path.as_os_str().is_empty();
        paths.into_iter().find(|(_, path)| path.is_some_and(is_empty)).map(|(key, _)| key)
    }

    /// The seed of the policy's random numbers; a config that was read from a text has one.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_default()
    }
}
