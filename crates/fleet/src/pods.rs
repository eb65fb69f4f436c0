//! A pod as the watcher uses it: read from what the API server sends.

use crate::message::{ContainerId, Runtime, Service};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodFacts {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// By which its cgroup is named.
    pub(crate) uid: String,
    /// The UID of its object, which differs for static pods.
    object_uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) service: Service,
    /// Containers that run, by name; `None` for one whose number cannot be read.
    pub(crate) running: BTreeMap<String, Option<ContainerId>>,
    /// All containers that it shall have.
    pub(crate) containers: Vec<String>,
    /// Whether the static CPU manager gives a container of it cores of its own.
    pub(crate) has_whole_cpus: bool,
}

/// By which the kubelet names the cgroup of a pod: its UID, or the hash of its file if no API
/// server has made it.
pub(crate) fn uid_of(pod: &Pod) -> Option<String> {
    let annotations = pod.metadata.annotations.as_ref();
    let hash = annotations.and_then(|all| all.get("kubernetes.io/config.hash"));
    hash.or(pod.metadata.uid.as_ref()).cloned()
}

impl PodFacts {
    /// Reads a pod; `None` if it has no name or UID yet.
    pub(crate) fn read(pod: Pod) -> Option<Self> {
        let uid = uid_of(&pod)?;
        let Pod { metadata, spec, status } = pod;
        let (spec, status) = (spec?, status.unwrap_or_default());
        let service = service(status.qos_class.as_deref());
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let statuses = status.container_statuses.unwrap_or_default();
        let running = statuses.into_iter().filter(|one| !is_over && runs(one));
        let running = running.map(|one| (one.name, one.container_id.as_deref().and_then(parse_id)));
        let whole = |one: &Container| has_whole_cpus(one);
        Some(Self {
            namespace: metadata.namespace?,
            name: metadata.name?,
            uid,
            object_uid: metadata.uid?,
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            service,
            running: running.collect(),
            has_whole_cpus: service == Service::Guaranteed && spec.containers.iter().any(whole),
            containers: spec.containers.into_iter().map(|one| one.name).collect(),
        })
    }

    /// What an Event refers to.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: Some(self.object_uid.clone()),
            ..ObjectReference::default()
        }
    }
}

fn service(class: Option<&str>) -> Service {
    match class {
        Some("Guaranteed") => Service::Guaranteed,
        Some("BestEffort") => Service::BestEffort,
        _ => Service::Burstable,
    }
}

fn runs(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// Reads `containerd://` and 64 hexadecimal digits.
fn parse_id(text: &str) -> Option<ContainerId> {
    let (scheme, hex) = text.split_once("://")?;
    let runtime = match scheme {
        "containerd" => Runtime::Containerd,
        "cri-o" => Runtime::CriO,
        "docker" => Runtime::Docker,
        _ => return None,
    };
    let mut number = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in number.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(ContainerId { runtime, number })
}

/// Whether a container requests a whole number of CPUs.
fn has_whole_cpus(container: &Container) -> bool {
    let resources = container.resources.as_ref();
    let of = |all: Option<&BTreeMap<String, Quantity>>| all.and_then(|all| all.get("cpu")).cloned();
    // A limit without a request is the request, too.
    let cpus = resources.and_then(|all| of(all.requests.as_ref()).or(of(all.limits.as_ref())));
    cpus.and_then(|Quantity(text)| millis(&text)).is_some_and(|cpus| cpus > 0 && cpus % 1000 == 0)
}

/// A quantity of CPUs in thousandths: `2`, `1500m`, `0.5`.
fn millis(text: &str) -> Option<u64> {
    match text.strip_suffix('m') {
        Some(millis) => millis.parse().ok(),
        None => {
            let cpus: f64 = text.parse().ok()?;
            let millis = (cpus * 1000.0).round();
            (0.0..=1e9).contains(&millis).then_some(millis as u64)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A pod with one running container `main`.
    pub(crate) fn pod(uid: &str, annotations: &Value) -> Value {
        json!({
            "metadata": {
                "name": format!("web-{uid}"), "namespace": "shop", "uid": uid,
                "labels": { "tier": "web" }, "annotations": annotations,
            },
            "spec": { "containers": [{ "name": "main", "image": "web" }] },
            "status": {
                "phase": "Running", "qosClass": "Burstable",
                "containerStatuses": [{
                    "name": "main", "image": "web", "imageID": "", "ready": true, "restartCount": 0,
                    "containerID": format!("containerd://{}", "0f".repeat(32)),
                    "state": { "running": {} },
                }],
            },
        })
    }

    pub(crate) fn facts(pod: Value) -> PodFacts {
        PodFacts::read(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_pod_has_the_containers_that_run() {
        let mut pod = pod("1a", &json!({}));
        let read = facts(pod.clone());
        let id = ContainerId { runtime: Runtime::Containerd, number: [0x0f; 32] };
        assert_eq!(read.running, BTreeMap::from([("main".to_owned(), Some(id))]));
        assert_eq!((read.uid.as_str(), read.service), ("1a", Service::Burstable));
        assert_eq!(read.reference().name.as_deref(), Some("web-1a"));
        pod["status"]["phase"] = json!("Failed");
        assert!(facts(pod.clone()).running.is_empty());
        pod["status"] = Value::Null;
        assert!(facts(pod).running.is_empty());
    }

    #[test]
    fn a_static_pod_goes_by_the_hash_of_its_file() {
        let read = facts(pod("1a", &json!({ "kubernetes.io/config.hash": "beef" })));
        assert_eq!(read.uid, "beef");
        assert_eq!(read.reference().uid.as_deref(), Some("1a"));
    }

    #[test]
    fn only_whole_cpus_of_a_guaranteed_pod_may_be_its_own() {
        let with = |cpu: &str, class: &str| {
            let mut pod = pod("1a", &json!({}));
            pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": cpu } });
            pod["status"]["qosClass"] = json!(class);
            facts(pod).has_whole_cpus
        };
        for cpu in ["2", "2000m", "2.0", "2e0"] {
            assert!(with(cpu, "Guaranteed"), "{cpu}");
        }
        for cpu in ["1500m", "0.5", "0", "some", "-1"] {
            assert!(!with(cpu, "Guaranteed"), "{cpu}");
        }
        assert!(!with("2", "Burstable"));
    }

    #[test]
    fn numbers_of_containers_are_read_exactly() {
        let digits = "0f".repeat(32);
        assert!(parse_id(&format!("cri-o://{digits}")).is_some());
        let cases = ["", "containerd://", "other://", "containerd://../..", "containerd://ä"];
        for text in cases {
            assert_eq!(parse_id(text), None, "{text}");
        }
        assert_eq!(parse_id(&format!("containerd://{digits}0f")), None);
        assert_eq!(parse_id(&format!("containerd://{}", "ä".repeat(32))), None);
    }
}
