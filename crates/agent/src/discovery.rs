//! Apps that a discovery finds while the agent runs: the seam for the pods of a node.
//!
//! A [`Discovery`] is handed to [`Agent::discovery`](crate::Agent::discovery). The session calls
//! [`Discovery::poll`] between epochs, and within them when there is something new, and gives each
//! workload a free app of its template (`[[match]]` with `pods`). It passes on what happens to
//! workloads by [`Discovery::report`].

use lull_control::{CoreSet, Objective};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A source of workloads. No call waits.
pub trait Discovery: Send {
    /// Returns what has changed since the last call.
    fn poll(&mut self) -> Vec<Finding>;

    /// Passes on what happened to workloads, in this order.
    fn report(&mut self, reports: Vec<Report>);

    /// How long ago its source last answered; since the discovery began, if it never has.
    fn silence(&self) -> Nanos;

    /// A descriptor that is readable while [`Discovery::poll`] has something to return. New
    /// workloads then become apps within the present epoch; all else waits for its end.
    fn wakes(&self) -> Option<OwnedFd>;
}

/// A change that a discovery has found.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// A workload is present, or differs from the former one under its number.
    Present(Workload),
    /// A workload is gone or no longer to be managed.
    Gone(u64),
    /// A message for the journal.
    Notice(String),
}

/// A workload that becomes an app.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its number, which no other workload of the discovery has.
    pub id: u64,
    /// Its name, for messages.
    pub name: String,
    /// The number of its `[[match]]`.
    pub template: usize,
    /// Its cgroup, which exists.
    pub cgroup: PathBuf,
    /// The cores that its cgroup may use, if they are fewer than the node's.
    pub cores: Option<CoreSet>,
    /// Objectives that differ from those of its template.
    pub objectives: Option<Vec<Objective>>,
    /// Its pod, if it is one.
    pub pod: Option<Box<PodIdentity>>,
}

/// A pod as its metrics name it, and as senders of its latency do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID as the kubelet reports it.
    pub uid: String,
    /// The container that is the app; empty if the whole pod is.
    pub container: String,
    /// The owner of the pod (a Deployment, for example), by which its pods on all nodes are added
    /// up; empty if unknown.
    pub workload: String,
    /// The `service.name` of its exports by OTLP, which recognises those that name no pod.
    pub service: Option<String>,
}

impl PodIdentity {
    /// Returns the name under which clients push its latency: `NAMESPACE/NAME`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns the labels of its metrics, without those that are empty.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let Self { namespace, name, container, workload, .. } = self;
        let all = [
            ("namespace", namespace),
            ("pod", name),
            ("container", container),
            ("workload", workload),
        ];
        let known = all.into_iter().filter(|(_, value)| !value.is_empty());
        known.map(|(label, value)| (label, value.as_str()))
    }
}

/// A report to the discovery of an event of one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its number.
    pub workload: u64,
    /// The event.
    pub kind: ReportKind,
    /// The details, for the user.
    pub text: String,
}

/// Kinds of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportKind {
    /// The workload is an app now.
    Managed,
    /// The workload is not managed, for the reported reason.
    Unmanaged,
    /// The policy is not followed.
    SafeState,
    /// A knob could not be set for it.
    KnobRefused,
    /// Another program has changed a knob of the app.
    ForeignWriter,
}
