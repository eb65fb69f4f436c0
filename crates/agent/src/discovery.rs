//! Apps that a discovery finds while the agent runs: the seam for the pods of a node.
//!
//! A [`Discovery`] is handed to [`Agent::discovery`](crate::Agent::discovery). The session calls
//! [`Discovery::poll`] between epochs and gives each workload a free app of its template
//! (`[[match]]` with `pods`). It passes on what happens to a workload by
//! [`Discovery::report`].

use lull_control::Objective;
use lull_measure::{Gauge, Nanos};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A source of workloads. No call waits.
pub trait Discovery: Send {
    /// Returns what has changed since the last call.
    fn poll(&mut self) -> Vec<Finding>;

    /// Passes on what happened to a workload.
    fn report(&mut self, report: Report);

    /// How long ago its source last answered, or why that is not known.
    fn silence(&self) -> Gauge<Nanos>;

    /// A descriptor that is readable while [`Discovery::poll`] has something to return; the
    /// present epoch then ends early.
    fn wakes(&self) -> Option<OwnedFd>;
}

/// A change that a discovery has found.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// A workload is there, or differs from what was found before under its number.
    Present(Workload),
    /// A workload is gone or no longer to be managed.
    Gone(u64),
    /// A message for the journal.
    Notice(String),
}

/// What becomes an app.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its number, which no other workload of the discovery has.
    pub id: u64,
    /// Its name, for messages.
    pub name: String,
    /// The number of the `[[match]]` that it is an app of.
    pub template: usize,
    /// Its cgroup, which exists.
    pub cgroup: PathBuf,
    /// Objectives that differ from those of its template.
    pub objectives: Option<Vec<Objective>>,
}

/// What happened to a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its number.
    pub workload: u64,
    /// What happened.
    pub kind: ReportKind,
    /// The details, for the user.
    pub text: String,
}

/// Kinds of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportKind {
    /// It is an app now.
    Managed,
    /// It is not managed, and why.
    Unmanaged,
    /// The policy is not followed.
    SafeState,
    /// A knob could not be set for it.
    KnobRefused,
    /// Another program has changed a knob of it.
    ForeignWriter,
}
