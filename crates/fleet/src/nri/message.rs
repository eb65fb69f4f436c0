//! The messages of NRI that a plug-in reads and writes, and those of ttrpc around them.
//!
//! Only the fields that are used: protobuf passes over the others. Source: `pkg/api/api.proto` of
//! github.com/containerd/nri (v0.12) and `request.proto` of github.com/containerd/ttrpc.

use prost::Message;

/// The service that a plug-in calls.
pub(super) const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The service that a runtime calls.
pub(super) const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";

/// Events to which a plug-in subscribes: bit `number - 1` of [`Configured::events`].
pub(super) mod event {
    pub(crate) const POST_START_CONTAINER: i32 = 7;
    pub(crate) const POST_UPDATE_CONTAINER: i32 = 9;
    pub(crate) const STOP_CONTAINER: i32 = 10;
    pub(crate) const REMOVE_CONTAINER: i32 = 11;
    pub(crate) const ALL: [i32; 4] =
        [POST_START_CONTAINER, POST_UPDATE_CONTAINER, STOP_CONTAINER, REMOVE_CONTAINER];
}

/// `ContainerState` of a container that runs.
pub(super) const CONTAINER_RUNNING: i32 = 3;
/// The code of an unknown call in gRPC.
pub(super) const UNIMPLEMENTED: i32 = 12;
/// The code of a call whose arguments cannot be read.
pub(super) const INVALID_ARGUMENT: i32 = 3;

/// A call by ttrpc.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) payload: Vec<u8>,
}

/// The answer to a call by ttrpc.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterPlugin {
    #[prost(string, tag = "1")]
    pub(super) plugin_name: String,
    /// Two digits: plug-ins are called in this order.
    #[prost(string, tag = "2")]
    pub(super) plugin_idx: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Configure {
    #[prost(string, tag = "2")]
    pub(super) runtime_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Configured {
    #[prost(int32, tag = "2")]
    pub(super) events: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Synchronize {
    #[prost(message, repeated, tag = "1")]
    pub(super) pods: Vec<PodSandbox>,
    #[prost(message, repeated, tag = "2")]
    pub(super) containers: Vec<Container>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Synchronized {
    #[prost(bool, tag = "2")]
    pub(super) more: bool,
}

/// The request of each method that is about one container.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerEvent {
    #[prost(message, optional, tag = "1")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(super) container: Option<Container>,
}

/// The same of runtimes before NRI v0.12, for events that a plug-in cannot answer.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StateChange {
    #[prost(int32, tag = "1")]
    pub(super) event: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "3")]
    pub(super) container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "3")]
    pub(super) uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) pod_sandbox_id: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(int32, tag = "4")]
    pub(super) state: i32,
    #[prost(message, optional, tag = "11")]
    pub(super) linux: Option<LinuxContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxContainer {
    #[prost(message, optional, tag = "3")]
    pub(super) resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxResources {
    #[prost(message, optional, tag = "2")]
    pub(super) cpu: Option<LinuxCpu>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxCpu {
    /// A list of cores, such as `0-3,7`; empty if the container may use all.
    #[prost(string, tag = "6")]
    pub(super) cpus: String,
}

impl Container {
    /// The cores that it may use, as the runtime has set them; empty for all.
    pub(super) fn cpus(&self) -> &str {
        let resources = self.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        resources.and_then(|resources| resources.cpu.as_ref()).map_or("", |cpu| cpu.cpus.as_str())
    }
}
