//! What the kubelet of the node would do: cgroups, processes, and the status of pods.

use super::server::{Process, Server};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The node's name.
pub(crate) const NAME: &str = "node-of-the-test";

/// The node, with its pods by name.
pub(crate) struct Node {
    pods: BTreeMap<String, LivePod>,
    top: PathBuf,
}

struct LivePod {
    uid: String,
    process: Option<Process>,
    cgroup: PathBuf,
}

impl Node {
    pub(crate) fn new() -> Self {
        let alone = Path::new("/sys/fs/cgroup");
        let is_alone = alone.join("cgroup.procs").exists();
        let top = if is_alone { alone.to_owned() } else { alone.join("unified") };
        // A kubelet makes them before there are pods.
        for place in ["kubepods.slice", "kubepods"] {
            std::fs::create_dir_all(top.join(place)).unwrap();
        }
        Self { pods: BTreeMap::new(), top }
    }

    /// Creates a pod of the node with a running container.
    pub(crate) fn create(&mut self, server: &Server, name: &str, annotations: &Value) {
        self.run_pod(server, name, annotations);
        let uid = self.uid(name);
        let status = json!({ "status": {
            "phase": "Running",
            "containerStatuses": [{
                "name": "main", "image": "image", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": format!("containerd://{}", container(uid)),
                "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
            }],
        } });
        let patch = Patch::Strategic(status);
        let how = PatchParams::default();
        server.runtime.block_on(pods(server).patch_status(name, &how, &patch)).unwrap();
    }

    /// Creates and runs a pod of which the API server hears no more, as long as its kubelet has not
    /// reported its status.
    pub(crate) fn run_pod(&mut self, server: &Server, name: &str, annotations: &Value) {
        let pods = pods(server);
        let kind = name.split('-').next().unwrap_or_default();
        let labels = json!({ kind: "yes" });
        let pod = json!({
            "metadata": { "name": name, "annotations": annotations, "labels": labels },
            "spec": {
                "nodeName": NAME, "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "image" }],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let made = server.runtime.block_on(pods.create(&PostParams::default(), &pod)).unwrap();
        let uid = made.metadata.uid.unwrap();
        let live = self.run(&uid);
        self.pods.insert(name.to_owned(), live);
    }

    /// The number of the container of a pod.
    pub(crate) fn container(&self, name: &str) -> String {
        container(self.uid(name))
    }

    /// The containers that run: the UIDs of their pods, and their numbers.
    pub(crate) fn containers(&self) -> Vec<(String, String)> {
        let uids = self.pods.values().map(|pod| pod.uid.clone());
        uids.map(|uid| (uid.clone(), container(&uid))).collect()
    }

    /// The names of the pods that are there.
    pub(crate) fn names(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    /// The UID of a pod.
    pub(crate) fn uid(&self, name: &str) -> &str {
        &self.pods[name].uid
    }

    /// A process in a cgroup as one of the drivers of the kubelet names it, by turns.
    fn run(&self, uid: &str) -> LivePod {
        let id = container(uid);
        let pod = match self.pods.len() % 2 {
            0 => {
                let slice = format!("kubepods-besteffort-pod{}.slice", uid.replace('-', "_"));
                let pod = self.top.join("kubepods.slice/kubepods-besteffort.slice").join(slice);
                std::fs::create_dir_all(pod.join(format!("cri-containerd-{id}.scope"))).unwrap();
                pod
            }
            _ => {
                let pod = self.top.join(format!("kubepods/besteffort/pod{uid}"));
                std::fs::create_dir_all(pod.join(&id)).unwrap();
                pod
            }
        };
        let below = std::fs::read_dir(&pod).unwrap().flatten();
        let cgroup = below.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
        let process = Command::new("sleep").arg("infinity").stdin(Stdio::null()).spawn().unwrap();
        std::fs::write(cgroup.join("cgroup.procs"), process.id().to_string()).unwrap();
        LivePod { uid: uid.to_owned(), process: Some(Process(process)), cgroup }
    }

    /// Changes annotations of a pod.
    pub(crate) fn annotate(&self, server: &Server, name: &str, annotations: &Value) {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let (pods, how) = (pods(server), PatchParams::default());
        server.runtime.block_on(pods.patch(name, &how, &patch)).unwrap();
    }

    /// Ends the process of a pod.
    pub(crate) fn end(&mut self, name: &str) {
        self.pods.get_mut(name).unwrap().process = None;
    }

    /// Deletes a pod, and ends it.
    pub(crate) fn delete(&mut self, server: &Server, name: &str) {
        drop(self.pods.remove(name));
        let now = DeleteParams::default().grace_period(0);
        server.runtime.block_on(pods(server).delete(name, &now)).unwrap();
    }
}

impl Drop for LivePod {
    fn drop(&mut self) {
        self.process = None;
        // A cgroup may be removed once its last process is reaped.
        for place in [Some(self.cgroup.as_path()), self.cgroup.parent()].into_iter().flatten() {
            let _ = std::fs::remove_dir(place);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.pods.clear();
        for place in ["kubepods.slice/kubepods-besteffort.slice", "kubepods/besteffort"] {
            let place = self.top.join(place);
            for place in [Some(place.as_path()), place.parent()].into_iter().flatten() {
                let _ = std::fs::remove_dir(place);
            }
        }
    }
}

fn pods(server: &Server) -> Api<Pod> {
    Api::namespaced(server.client().unwrap(), "default")
}

/// The number of the container of a pod.
fn container(uid: &str) -> String {
    uid.replace('-', "").repeat(2)
}
