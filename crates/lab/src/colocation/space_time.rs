//! The use of the time of shared cores: the marks of Ah-Q's space-time model.
//!
//! Figs. 4 and 9 of Liu et al. 2024 (sections IV-A and VI-A) divide a resource into slices and
//! time into time-slices, and mark each pair with what happens to it. Here a core is a slice, and
//! time is not divided: each mark is the mean number of cores, or of apps' threads, that have it.
//!
//! - *tick*: an app uses a core that it had before;
//! - *triangle*: an app uses a core that another app had before, with the cost of the transfer;
//! - *cross*: an app requires a core, by a thread that could run, and gets none;
//! - *waste*: a core is idle while a thread that may not use it waits (factor C).
//!
//! An app requires as many cores as it has threads that could run: its ticks, triangles and
//! crosses together. Cores are ticks, triangles, waste, and what no app requires.

use super::Scene;
use lull_sim::machine::{MachineAppTotals, MachineTotals};

/// Means over the counted time.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SpaceTime {
    /// Indexed by app of the scene.
    pub(crate) apps: Vec<AppSpaceTime>,
    /// Cores that were idle while as many threads waited that might not run there.
    pub(crate) waste: f64,
    /// All cores.
    pub(crate) cores: f64,
}

/// The marks of one app.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct AppSpaceTime {
    /// Cores used that the app had before.
    pub(crate) ticks: f64,
    /// Cores used that another app had before.
    pub(crate) triangles: f64,
    /// Threads that could run and had no core.
    pub(crate) crosses: f64,
    /// Takings of a core that another app had before, per second.
    pub(crate) transfers_per_s: f64,
}

impl SpaceTime {
    /// The marks between two states of a scene's counters.
    pub(crate) fn between(scene: &Scene, begun: &MachineTotals, ended: &MachineTotals) -> Self {
        let (from_s, to_s) = (begun.span.as_secs_f64(), ended.span.as_secs_f64());
        let seconds = to_s - from_s;
        // A mean over no time is not a number.
        let sum_before = |then: f64| if from_s > 0.0 { then * from_s } else { 0.0 };
        let mean = |then: f64, now: f64| (now * to_s - sum_before(then)) / seconds;
        let marks = |number: usize| {
            let (then, now) = (&begun.apps[number], &ended.apps[number]);
            let of = |value: fn(&MachineAppTotals) -> f64| mean(value(then), value(now));
            let triangles = of(|app| app.transferred_cores);
            AppSpaceTime {
                ticks: of(|app| app.busy_cores) - triangles,
                triangles,
                crosses: of(|app| app.queued),
                transfers_per_s: (now.transfers - then.transfers) as f64 / seconds,
            }
        };
        let numbers = scene.apps.iter().filter_map(|app| scene.model.app_named(&app.name));
        Self {
            apps: numbers.map(marks).collect(),
            waste: mean(begun.wasted_cores, ended.wasted_cores),
            cores: ended.utilisation.len() as f64,
        }
    }

    /// A mark of all apps together.
    pub(crate) fn sum_over_apps(&self, mark: impl Fn(&AppSpaceTime) -> f64) -> f64 {
        self.apps.iter().map(mark).sum()
    }

    /// The share of the cores that is used.
    pub(crate) fn utilisation(&self) -> f64 {
        self.sum_over_apps(|app| app.ticks + app.triangles) / self.cores
    }
}

impl AppSpaceTime {
    /// The share of what the app requires that it does not get; 0 if it requires nothing.
    pub(crate) fn denied(&self) -> f64 {
        let required = self.ticks + self.triangles + self.crosses;
        if required > 0.0 { self.crosses / required } else { 0.0 }
    }
}
