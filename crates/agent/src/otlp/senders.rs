//! Whose exports an app's latency is read from.
//!
//! A pod is recognised by the attributes of its resource (`k8s.pod.uid`, else
//! `k8s.namespace.name` with `k8s.pod.name`), which OpenTelemetry's operator and collectors set.
//! An export that names no pod is of the pod that has its `service.name`, if only one has.
//!
//! Source: semantic conventions of resources,
//! <https://opentelemetry.io/docs/specs/semconv/resource/k8s/>.

use super::export::ResourceMetrics;
use crate::discovery::PodIdentity;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The senders whose exports are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Senders {
    /// Senders with this `service.name`.
    Service(String),
    /// The pod that is the app, if one is; only this service of it, if one is named.
    Pod { pod: Option<PodIdentity>, service: Option<String> },
}

/// The reason why an export belongs to an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Identified by the service of the config, or by the names of its pod.
    Certain,
    /// Identified only by the service that a pod states as its own.
    ByService,
}

impl fmt::Display for Senders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => write!(f, "service `{service}`"),
            Self::Pod { pod: Some(pod), .. } => write!(f, "pod {}", pod.path()),
            Self::Pod { pod: None, .. } => f.write_str("its pod"),
        }
    }
}

impl Senders {
    /// Whether exports of a resource are read, and why.
    pub(super) fn claim(&self, resource: &ResourceMetrics<'_>) -> Option<Claim> {
        let named = resource.text("service.name");
        match self {
            Self::Service(service) => {
                (service == named.unwrap_or_default()).then_some(Claim::Certain)
            }
            Self::Pod { pod: None, .. } => None,
            Self::Pod { pod: Some(pod), service } => {
                let is_of_service =
                    service.as_ref().is_none_or(|service| Some(service.as_str()) == named);
                claim_of(pod, resource, named).filter(|_| is_of_service)
            }
        }
    }
}

fn claim_of(
    pod: &PodIdentity,
    resource: &ResourceMetrics<'_>,
    service: Option<&str>,
) -> Option<Claim> {
    let container = resource.text("k8s.container.name");
    let is_other = container.is_some_and(|name| !pod.container.is_empty() && name != pod.container);
    if is_other {
        return None;
    }
    let name = resource.text("k8s.pod.name");
    let namespace = resource.text("k8s.namespace.name");
    match (resource.text("k8s.pod.uid"), name) {
        (Some(uid), _) => (uid == pod.uid).then_some(Claim::Certain),
        (None, Some(name)) => {
            let is_same = name == pod.name && namespace == Some(pod.namespace.as_str());
            is_same.then_some(Claim::Certain)
        }
        (None, None) => {
            let is_same = pod.service.as_deref().is_some_and(|own| Some(own) == service);
            is_same.then_some(Claim::ByService)
        }
    }
}
