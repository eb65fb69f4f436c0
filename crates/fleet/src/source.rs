//! The sources of latency that a pod can choose.

use lull_agent::config::LatencySource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A source of latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyName {
    /// The kernel sees the requests at the TCP ports at which the pod listens.
    Ebpf,
    /// Clients push it to the agent's socket under the name `NAMESPACE/POD`.
    Push,
    /// The pod exports histograms by OTLP to the agent of its node.
    Otlp,
    /// A Prometheus server is queried for it.
    Prometheus,
}

impl LatencyName {
    /// All sources.
    pub const ALL: [Self; 4] = [Self::Ebpf, Self::Push, Self::Otlp, Self::Prometheus];

    /// Its name in annotations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Push => "push",
            Self::Otlp => "otlp",
            Self::Prometheus => "prometheus",
        }
    }
}

impl From<&LatencySource> for LatencyName {
    fn from(source: &LatencySource) -> Self {
        match source {
            LatencySource::Ebpf => Self::Ebpf,
            LatencySource::Otlp => Self::Otlp,
            LatencySource::Prometheus(_) => Self::Prometheus,
            // Templates for pods have no library that is preloaded.
            LatencySource::Push | LatencySource::Preload => Self::Push,
        }
    }
}
