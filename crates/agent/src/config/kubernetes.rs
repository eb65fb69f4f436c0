//! `agent.discover` and `[kubernetes]`: the pods of a node as apps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The discovery that finds apps while the agent runs, in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Discover {
    /// The API server of a Kubernetes cluster.
    Kubernetes,
}

/// Whether the kubelet gives containers cores of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum CpuManager {
    /// Unknown: a Guaranteed container with a whole number of CPUs counts as having cores of its
    /// own.
    #[default]
    Unknown,
    /// The kubelet gives no container cores of its own (`--cpu-manager-policy=none`, its default).
    None,
    /// The kubelet gives such containers cores of their own.
    Static,
}

/// `[kubernetes]`: how the pods of this node are found, with `agent.discover = "kubernetes"`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesSection {
    /// The node's name in the cluster; if absent the variable `NODE_NAME`, then the host's name.
    #[schemars(example = &"worker-3")]
    pub node: Option<String>,
    /// A kubeconfig file; if absent the pod's service account, then the variable `KUBECONFIG`.
    #[schemars(example = &"/etc/lull/kubeconfig")]
    pub kubeconfig: Option<PathBuf>,
    /// The cgroup below which the kubelet makes `kubepods`, as its `--cgroup-root`.
    #[schemars(example = &"/kubelet")]
    pub cgroup_root: Option<PathBuf>,
    /// The kubelet's CPU manager: `none`, `static` or `unknown`. With `none` Guaranteed
    /// containers with a whole number of CPUs are managed, too. A container whose cpuset is
    /// smaller than the node's is left alone in any case, unless it is the pool that pods share.
    #[schemars(extend("default" = "unknown"))]
    pub cpu_manager: CpuManager,
    /// The socket of the container runtime's NRI (containerd and CRI-O have it at
    /// `/var/run/nri/nri.sock`). The runtime then reports containers as they start and end, and
    /// the cores that the kubelet's CPU manager gives them; if absent the status of pods counts.
    #[schemars(example = &"/var/run/nri/nri.sock")]
    pub nri: Option<PathBuf>,
}
