//! `[[match]]`: apps by template, one for each process, unit or cgroup that matches.

use super::latency::{LatencySource, OtlpSection, PrometheusSection};
use lull_control::{Class, HostObjective};
use lull_measure::Nanos;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;

/// `[[match]]`: class and objectives of every process, unit or cgroup that matches, each of
/// which is an app of its own while it has a process.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateSection {
    /// A unique word; its apps are `NAME-1`, `NAME-2` and so on.
    #[schemars(example = &"worker")]
    pub name: String,
    /// Whether its apps have objectives on their requests.
    #[schemars(example = &"best-effort")]
    pub class: Class,
    /// Bounds of run-queue latency (`run_queue_pN`) or of memory pressure (`memory_pressure`),
    /// as of `[[app]]`, for each app alone. Its apps report no requests, so that no other
    /// objective is possible but of `pods` with `latency = "ebpf"`.
    #[serde(default)]
    #[schemars(example = [BTreeMap::from([("run_queue_p99", "1ms")])])]
    pub(super) objectives: Vec<HostObjective>,
    /// A glob for the path of the program; without `/` for the last part of it. `exe`, `args` and
    /// `user` may be given together, `unit`, `cgroup`, `register` and `pods` only alone.
    #[schemars(example = &"ffmpeg")]
    pub exe: Option<String>,
    /// Or a glob for the command line, its arguments joined by blanks.
    #[schemars(example = &"*--port 112*")]
    pub args: Option<String>,
    /// Or a glob for the effective user, by the name in `/etc/passwd` or by number.
    #[schemars(example = &"batch-*")]
    pub user: Option<String>,
    /// Or a glob for systemd units, each an app.
    #[schemars(example = &"web-*.service")]
    pub unit: Option<String>,
    /// Or a glob for cgroups, each an app with the cgroups below it.
    #[schemars(example = &"kubepods/burstable/*")]
    pub cgroup: Option<PathBuf>,
    /// Or a glob for users, by name or number: their processes register themselves
    /// ([config.md](config.md#processes-that-register-themselves)), each an app with its
    /// descendants, over the socket `agent.register`.
    #[schemars(example = &"{alice,batch-*}")]
    pub register: Option<String>,
    /// Or a label selector of Kubernetes (`tier=web,env!=test`; `""` for all): the pods of this
    /// node that it selects, each an app, with `agent.discover = "kubernetes"`
    /// ([kubernetes.md](kubernetes.md)).
    #[schemars(example = &"tier=web")]
    pub pods: Option<String>,
    /// Where the latency of its apps comes from, of `pods` only: `ebpf`, the kernel sees their
    /// queries at the TCP ports at which they listen; `push`, under the name `NAMESPACE/POD`;
    /// `otlp`, exports that name the pod; `prometheus:http://HOST:PORT`, a query that names it.
    #[schemars(with = "Option<String>", example = &"ebpf")]
    pub latency: Option<LatencySource>,
    /// As of `[[app]]`, with `$namespace`, `$pod`, `$container` and `$uid` for the names of the
    /// pod; in a regular expression `$container` is `.*` where the whole pod is the app.
    #[schemars(
        example = &"max(http_p99_seconds{namespace=\"$namespace\",pod=\"$pod\"})"
    )]
    pub query: Option<String>,
    /// As of `[[app]]`, with the names of the pod in `load` and `age`.
    pub prometheus: Option<PrometheusSection>,
    /// As of `[[app]]`. Without `service` any export that names the pod counts.
    pub otlp: Option<OtlpSection>,
    /// How many of them are apps at a time, 1 to 256. What matches beyond it is not managed
    /// until one of the others has ended.
    #[serde(default = "most")]
    #[schemars(extend("x-unit" = "apps"))]
    pub most: NonZeroU16,
    /// As of `[[app]]`, of each app alone.
    #[schemars(example = 4, extend("x-unit" = "threads"))]
    pub threads: Option<u32>,
    /// As of `[[app]]`; it cannot be measured.
    #[schemars(example = &"0.2ms")]
    pub ideal: Option<Nanos>,
    /// As of `[[app]]`; it cannot be measured.
    #[schemars(example = 3.5, extend("x-unit" = "its own work/s"))]
    pub solo: Option<f64>,
}

const fn most() -> NonZeroU16 {
    NonZeroU16::new(8).expect("8 is not zero")
}
