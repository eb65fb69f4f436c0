//! Apps and their objectives.

use lull_measure::{Nanos, Percentile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An app's index in the plant's list; valid for one run, and not used again in it when the app is
/// removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AppId(pub u16);

impl AppId {
    /// The index for lists by app.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether requests wait for the app, or only work gets done by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Class {
    /// LC: has requests and at least one objective on them.
    LatencyCritical,
    /// BE: uses the remaining resources; measured by progress.
    BestEffort,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::LatencyCritical => "latency-critical",
            Self::BestEffort => "best-effort",
        })
    }
}

/// One objective of an app; an SLO is all of an app's objectives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// This percentile of latency shall not exceed the bound.
    Tail {
        /// The percentile.
        percentile: Percentile,
        /// Its bound.
        bound: Nanos,
    },
    /// At least this many requests (or units of progress) per second.
    Throughput {
        /// The floor, per second.
        floor_per_s: f64,
    },
    /// At most this share of users leaves because of waiting (a user disengagement
    /// ratio, UDR; UTSLO, used in REEF, Li et al. 2025, section 5.1).
    Disengagement {
        /// The share, in (0, 1).
        ratio: f64,
    },
}

impl Objective {
    /// Whether it is about latency.
    pub const fn bounds_latency(&self) -> bool {
        matches!(self, Self::Tail { .. } | Self::Disengagement { .. })
    }
}

/// An app as policies know it; fixed for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppSpec {
    /// Unique name.
    pub name: String,
    /// LC or BE.
    pub class: Class,
    /// Its SLO; a latency-critical app has at least one tail objective first.
    pub objectives: Vec<Objective>,
    /// The number of threads that can work at the same time; `None` means all of them.
    pub threads: Option<u32>,
    /// TL0: tail latency alone with all resources, at the first objective's percentile.
    pub ideal: Option<Nanos>,
    /// Highest load it can serve, in requests per second.
    pub max_load_per_s: Option<f64>,
    /// Progress per second alone with all resources (best-effort apps).
    pub solo_per_s: Option<f64>,
}

impl AppSpec {
    /// A latency-critical app with one tail objective and nothing else known.
    pub fn latency_critical(name: &str, percentile: Percentile, bound: Nanos) -> Self {
        Self {
            name: name.to_owned(),
            class: Class::LatencyCritical,
            objectives: vec![Objective::Tail { percentile, bound }],
            threads: None,
            ideal: None,
            max_load_per_s: None,
            solo_per_s: None,
        }
    }

    /// A best-effort app with nothing else known.
    pub fn best_effort(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            class: Class::BestEffort,
            objectives: Vec::new(),
            threads: None,
            ideal: None,
            max_load_per_s: None,
            solo_per_s: None,
        }
    }

    /// Returns the placeholder of an app that was removed from the run: it keeps its id, which is
    /// not reused, and has no name.
    pub fn removed() -> Self {
        Self::best_effort("")
    }

    /// Whether the app was removed from the run.
    pub fn is_removed(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether it is latency-critical.
    pub fn is_latency_critical(&self) -> bool {
        self.class == Class::LatencyCritical
    }

    /// Percentile and bound of the first tail objective.
    pub fn tail(&self) -> Option<(Percentile, Nanos)> {
        self.objectives.iter().find_map(|objective| match objective {
            Objective::Tail { percentile, bound } => Some((*percentile, *bound)),
            Objective::Throughput { .. } | Objective::Disengagement { .. } => None,
        })
    }
}

/// The apps with their ids, in order.
pub fn numbered(apps: &[AppSpec]) -> impl Iterator<Item = (AppId, &AppSpec)> {
    (0u16..).map(AppId).zip(apps)
}

/// The apps that were not removed from the run, with their ids, in order.
pub fn in_force(apps: &[AppSpec]) -> impl Iterator<Item = (AppId, &AppSpec)> {
    numbered(apps).filter(|(_, spec)| !spec.is_removed())
}
