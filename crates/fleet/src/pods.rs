//! A pod as the watcher uses it, read from the API server's objects.
//!
//! Of the hundreds of fields of a pod the few that are used are parsed ([`WatchedPod`]), because
//! parsing them all was a third of what the watcher cost.

use crate::annotations::PREFIX;
use crate::message::{ContainerId, Runtime, Service};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A pod as it is parsed.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WatchedPod {
    /// Its fields that are named here: managed fields, for example, are not parsed.
    #[serde(default, deserialize_with = "read_metadata")]
    pub(crate) metadata: ObjectMeta,
    spec: Option<WatchedSpec>,
    status: Option<WatchedStatus>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchedSpec {
    containers: Option<Vec<WatchedContainer>>,
    init_containers: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Clone, Deserialize)]
struct WatchedContainer {
    #[serde(default)]
    name: String,
    resources: Option<WatchedResources>,
}

#[derive(Debug, Clone, Deserialize)]
struct WatchedResources {
    requests: Option<BTreeMap<String, Quantity>>,
    limits: Option<BTreeMap<String, Quantity>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchedStatus {
    phase: Option<String>,
    qos_class: Option<String>,
    container_statuses: Option<Vec<WatchedContainerStatus>>,
}

#[derive(Debug, Clone, Deserialize)]
struct WatchedContainerStatus {
    #[serde(default)]
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    state: Option<WatchedState>,
}

#[derive(Debug, Clone, Deserialize)]
struct WatchedState {
    running: Option<IgnoredAny>,
}

fn read_metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct WatchedMetadata {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        /// The version at which a watch resumes.
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    let watched = WatchedMetadata::deserialize(from)?;
    Ok(ObjectMeta {
        name: watched.name,
        namespace: watched.namespace,
        uid: watched.uid,
        resource_version: watched.resource_version,
        labels: watched.labels,
        annotations: watched.annotations,
        owner_references: watched.owner_references,
        ..ObjectMeta::default()
    })
}

/// The resource of the API is that of a whole pod.
impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group(_: &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version(_: &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural(_: &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The facts of a pod that are kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodFacts {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The UID by which its cgroup is named.
    pub(crate) uid: String,
    /// The UID of its object, which differs for static pods.
    pub(crate) object_uid: String,
    /// The name of its owner, or its own.
    pub(crate) workload: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The annotations whose key begins with `lull.dev/`.
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) service: Service,
    /// Containers that run, by name; `None` for one whose number cannot be read.
    pub(crate) running: BTreeMap<String, Option<ContainerId>>,
    /// All containers that it shall have.
    pub(crate) containers: Vec<String>,
    /// Whether the static CPU manager gives a container of it cores of its own.
    pub(crate) has_whole_cpus: bool,
    /// Whether its containers may run although its status has none yet: it is pending, and no
    /// container prepares it.
    pub(crate) may_run: bool,
}

/// By which the kubelet names the cgroup of a pod: its UID, or the hash of its file if no API
/// server has made it.
///
/// A pod's owner can write any annotation. The hash therefore counts only in the form that the
/// kubelet writes, which no UID has, and only for a pod that a node owns.
fn uid_of(metadata: &ObjectMeta) -> Option<String> {
    let is_mirror = metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Node");
    let annotations = metadata.annotations.as_ref().filter(|_| is_mirror);
    let hash = annotations.and_then(|all| all.get("kubernetes.io/config.hash"));
    hash.filter(|hash| is_hash(hash)).or(metadata.uid.as_ref()).cloned()
}

/// Returns the name of a pod's owner: of the Deployment of its ReplicaSet, whose name ends with the
/// hash of the template, else of its controller. The name of a mirror of a static pod ends with
/// that of its node.
fn workload_of(metadata: &ObjectMeta) -> Option<String> {
    let name = metadata.name.as_deref()?;
    let mut owners = metadata.owner_references.iter().flatten();
    let Some(owner) = owners.find(|owner| owner.controller == Some(true)) else {
        return Some(name.to_owned());
    };
    let without = |name: &str, end: &str| {
        let begin = name.strip_suffix(end).and_then(|begin| begin.strip_suffix('-'));
        begin.unwrap_or(name).to_owned()
    };
    let labels = metadata.labels.as_ref();
    let hash = labels.and_then(|labels| labels.get("pod-template-hash"));
    Some(match (owner.kind.as_str(), hash) {
        ("ReplicaSet", Some(hash)) => without(&owner.name, hash),
        ("Node", _) => without(name, &owner.name),
        _ => owner.name.clone(),
    })
}

fn is_hash(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl PodFacts {
    /// Reads a pod; `None` if it has no name or UID yet.
    pub(crate) fn read(pod: WatchedPod) -> Option<Self> {
        let WatchedPod { metadata, spec, status } = pod;
        let uid = uid_of(&metadata)?;
        let (spec, status) = (spec?, status.unwrap_or_default());
        let service = service(status.qos_class.as_deref());
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let may_run = status.phase.as_deref() == Some("Pending")
            && spec.init_containers.is_none_or(|all| all.is_empty());
        let statuses = status.container_statuses.unwrap_or_default();
        let containers = spec.containers.unwrap_or_default();
        let running = statuses.into_iter().filter(|one| !is_over && runs(one));
        let running = running.map(|one| (one.name, one.container_id.as_deref().and_then(parse_id)));
        let workload = workload_of(&metadata)?;
        let mut annotations = metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| key.starts_with(PREFIX));
        Some(Self {
            namespace: metadata.namespace?,
            name: metadata.name?,
            uid,
            object_uid: metadata.uid?,
            workload,
            labels: metadata.labels.unwrap_or_default(),
            annotations,
            service,
            running: running.collect(),
            has_whole_cpus: service == Service::Guaranteed && containers.iter().any(has_whole_cpus),
            containers: containers.into_iter().map(|one| one.name).collect(),
            may_run,
        })
    }

    /// Whether it is another pod: neither its name nor its object is the same. The kubelet makes
    /// a new object for a static pod whose mirror was deleted.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) != (&other.namespace, &other.name)
            && self.object_uid != other.object_uid
    }

    /// Returns the object that an Event refers to.
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

fn runs(status: &WatchedContainerStatus) -> bool {
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
    ContainerId::parse(runtime, hex)
}

/// Whether a container requests a whole number of CPUs.
fn has_whole_cpus(container: &WatchedContainer) -> bool {
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

    #[test]
    fn only_a_pending_pod_that_no_container_prepares_may_run_unreported() {
        let may_run = |phase: &str, init: Value| {
            let mut pod = pod("1a", &json!({}));
            pod["status"]["phase"] = json!(phase);
            pod["spec"]["initContainers"] = init;
            facts(pod).may_run
        };
        assert!(may_run("Pending", Value::Null) && may_run("Pending", json!([])));
        assert!(!may_run("Pending", json!([{ "name": "init", "image": "web" }])));
        assert!(!may_run("Running", Value::Null) && !may_run("Failed", Value::Null));
    }

    fn owner(kind: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": kind, "name": "owner", "uid": "0f" })
    }

    /// A pod as the kubelet mirrors a static pod with this hash of its file.
    pub(crate) fn mirror(uid: &str, hash: &str) -> Value {
        let mut pod = pod(uid, &json!({ "kubernetes.io/config.hash": hash }));
        pod["metadata"]["ownerReferences"] = json!([owner("Node")]);
        pod
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
    fn what_is_parsed_has_the_names_that_the_api_has() {
        let mut sent = pod("1a", &json!({ "lull.dev/manage": "true" }));
        let mut owner = owner("ReplicaSet");
        owner["controller"] = json!(true);
        sent["metadata"]["ownerReferences"] = json!([owner]);
        sent["metadata"]["resourceVersion"] = json!("7");
        sent["metadata"]["managedFields"] = json!([{ "manager": "kubelet", "fieldsV1": {} }]);
        sent["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "2" } });
        sent["status"]["qosClass"] = json!("Guaranteed");
        let whole: Pod = serde_json::from_value(sent.clone()).unwrap();
        let whole = serde_json::to_value(whole).unwrap();
        let read = facts(whole.clone());
        assert_eq!(read, facts(sent));
        assert!(read.has_whole_cpus && read.workload == "owner" && !read.running.is_empty());
        let parsed: WatchedPod = serde_json::from_value(whole).unwrap();
        assert_eq!(parsed.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(parsed.meta().managed_fields, None);
        assert_eq!(WatchedPod::url_path(&(), None), Pod::url_path(&(), None));
    }

    #[test]
    fn a_static_pod_goes_by_the_hash_of_its_file() {
        let hash = "beef".repeat(8);
        let read = facts(mirror("1a", &hash));
        assert_eq!(read.uid, hash);
        assert_eq!(read.reference().uid.as_deref(), Some("1a"));
    }

    #[test]
    fn pods_of_one_deployment_have_one_workload() {
        let of = |kind: &str, name: &str, labels: &Value| {
            let mut pod = pod("1a", &json!({}));
            let mut owner = owner(kind);
            (owner["name"], owner["controller"]) = (json!(name), json!(true));
            pod["metadata"]["ownerReferences"] = json!([owner]);
            pod["metadata"]["labels"] = labels.clone();
            facts(pod).workload
        };
        let hash = json!({ "pod-template-hash": "7d4b9" });
        assert_eq!(of("ReplicaSet", "web-7d4b9", &hash), "web");
        assert_eq!(of("ReplicaSet", "by-hand", &json!({})), "by-hand");
        assert_eq!(of("StatefulSet", "db", &json!({})), "db");
        assert_eq!(of("Node", "1a", &json!({})), "web", "its name without that of its node");
        assert_eq!(facts(pod("1a", &json!({}))).workload, "web-1a", "no controller has made it");
    }

    #[test]
    fn a_hash_that_no_kubelet_has_written_does_not_count() {
        let hash = "beef".repeat(8);
        for owners in [Value::Null, json!([]), json!([owner("ReplicaSet")])] {
            let mut pod = mirror("1a", &hash);
            pod["metadata"]["ownerReferences"] = owners;
            assert_eq!(facts(pod).uid, "1a", "no node owns it");
        }
        for wrong in ["beef", "2b", "../beef", &"beef".repeat(9), &"no-hash-".repeat(4)] {
            assert_eq!(facts(mirror("1a", wrong)).uid, "1a", "{wrong}");
        }
    }

    #[test]
    fn only_annotations_for_lull_are_kept() {
        let all = json!({ "lull.dev/manage": "true", "prometheus.io/scrape": "true" });
        let kept: Vec<String> = facts(pod("1a", &all)).annotations.into_keys().collect();
        assert_eq!(kept, ["lull.dev/manage"]);
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
