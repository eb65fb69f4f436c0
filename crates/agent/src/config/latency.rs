//! Where the latency and the progress of an app come from.

use super::access::{AccessSection, KeyError};
use crate::otlp::USUAL_METRIC;
use crate::prometheus::Server;
use lull_measure::Nanos;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

/// The source of an app's latency.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum LatencySource {
    /// Clients push it to the agent's socket (`lull load` does).
    #[default]
    Push,
    /// The library that the app is started with sees its queries.
    Preload,
    /// Programs in the kernel see its queries.
    Ebpf,
    /// Its service exports histograms by OTLP.
    Otlp,
    /// The tail is queried from the Prometheus server at this address.
    Prometheus(Server),
}

impl TryFrom<String> for LatencySource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "push" => Ok(Self::Push),
            None if text == "preload" => Ok(Self::Preload),
            None if text == "ebpf" => Ok(Self::Ebpf),
            None if text == "otlp" => Ok(Self::Otlp),
            Some(("prometheus", address)) => Server::parse(address).map(Self::Prometheus),
            _ => Err(format!(
                "`{text}` is not a source of latency: write \"push\", \"preload\", \"ebpf\", \
                 \"otlp\" or \"prometheus:http://127.0.0.1:9090\""
            )),
        }
    }
}

/// The source of an app's progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum ProgressSource {
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

/// `[app.prometheus]`: the queries beside the tail, and the way to reach the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrometheusSection {
    /// A PromQL query whose result is the load.
    #[schemars(
        example = &"sum(rate(http_seconds_count[5s]))",
        extend("x-unit" = "requests/s")
    )]
    pub load: Option<String>,
    /// A PromQL query whose result is the age of the newest sample in seconds. It distinguishes
    /// data that has stopped from an app without requests.
    #[schemars(example = &"time() - max(timestamp(http_seconds_count))")]
    pub age: Option<String>,
    /// How old the newest sample may be before latency is missing.
    pub age_max: Nanos,
    /// PEM file of the authorities that a server over `https` may be certified by; those of the
    /// system if absent.
    #[schemars(example = &"/etc/lull/ca.pem")]
    pub ca: Option<PathBuf>,
    /// PEM file of the certificate that the agent shows, with `key`.
    #[schemars(example = &"/etc/lull/client.pem")]
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key.
    #[schemars(example = &"/etc/lull/client.key")]
    pub key: Option<PathBuf>,
    /// File with a bearer token, read for each query; over `https` only.
    #[schemars(example = &"/var/run/secrets/kubernetes.io/serviceaccount/token")]
    pub token: Option<PathBuf>,
}

impl Default for PrometheusSection {
    /// No query for load or age, 30 s, the system's authorities, no proof of identity.
    fn default() -> Self {
        Self {
            load: None,
            age: None,
            age_max: Nanos::from_secs(30),
            ca: None,
            certificate: None,
            key: None,
            token: None,
        }
    }
}

impl PrometheusSection {
    /// Returns the first key that does not fit the others, and why.
    pub(super) fn check(&self, server: &Server) -> Result<(), KeyError> {
        let is_blank =
            |query: &Option<String>| query.as_ref().is_some_and(|it| it.trim().is_empty());
        if is_blank(&self.load) {
            return Err(("load", "is an empty query"));
        }
        if is_blank(&self.age) {
            return Err(("age", "is an empty query"));
        }
        let plain = "needs an encrypted connection: write latency = \"prometheus:https://...\"";
        self.files().check(server.is_encrypted(), plain)
    }

    /// The files by which it recognises the server, and the server it.
    pub(super) fn files(&self) -> AccessSection {
        let Self { ca, certificate, key, token, .. } = self.clone();
        AccessSection { ca, certificate, key, token }
    }
}

/// `[app.otlp]`: the histogram that an app's latency is read from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpSection {
    /// The value of the resource's `service.name`; the app's name if absent.
    #[schemars(example = &"checkout")]
    pub service: Option<String>,
    /// The value of the attribute `http.route`; all routes together if absent.
    #[schemars(example = &"/api/cart/{id}")]
    pub route: Option<String>,
    /// The histogram's name.
    pub metric: String,
}

impl Default for OtlpSection {
    fn default() -> Self {
        Self { service: None, route: None, metric: USUAL_METRIC.to_owned() }
    }
}
