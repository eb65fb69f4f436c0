//! The use of the cores of a recorded run: Ah-Q's space-time model, as far as a record shows it.
//!
//! Figs. 4 and 9 of Liu et al. 2024 mark each slice of a resource in each time-slice. A record
//! has three of the four marks by epoch: the cores that apps used (ticks and triangles, which it
//! does not tell apart), the threads of apps that could run and had no core (crosses), and a
//! bound on waste: no more cores can be idle for want of permission than are idle at all, and
//! than threads wait. The simulator counts all four (`lull lab run ahq-space-time`).

use super::run::Run;
use super::series::Series;
use lull_measure::Nanos;
use lull_measure::catalogue::{CONTEXT_SWITCHES, CORE_UTILISATION, CPU, Metric, RUN_QUEUE_WAIT};
use serde::Serialize;

/// Means over the epochs of a part; `None` where no epoch has the metric.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct SpaceTime {
    /// Cores that apps used: ticks and triangles.
    pub used_cores: Option<f64>,
    /// Threads of apps that could run and had no core: crosses.
    pub crosses: Option<f64>,
    /// Cores that can have been idle while threads waited that might not run there. In the epoch in
    /// which an app is read for the first time its waits count from that reading, and the bound is
    /// too small by those before.
    pub waste_cores_at_most: Option<f64>,
    /// Context switches of all apps.
    pub switches_per_second: Option<f64>,
}

impl SpaceTime {
    /// The metrics that it needs.
    pub const METRICS: [&'static Metric; 4] =
        [CPU, RUN_QUEUE_WAIT, CONTEXT_SWITCHES, CORE_UTILISATION];

    /// The space-time of some epochs of a run, from the series of [`SpaceTime::METRICS`].
    pub(super) fn of_epochs(series: &Series, run: &Run, epochs: &[i64]) -> Self {
        let mean = |value: &dyn Fn(i64) -> Option<f64>| {
            let known: Vec<f64> = epochs.iter().filter_map(|epoch| value(*epoch)).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let has_wait = |app: &str, epoch| series.value(RUN_QUEUE_WAIT, app, epoch).is_some();
        let of_apps = |metric: &'static Metric| mean(&|epoch| series.sum(metric, epoch, |_| true));
        let waste = |epoch: i64| {
            let busy = series.sum(CORE_UTILISATION, epoch, |core| run.cores.has(core))?;
            let waiting = series.sum(RUN_QUEUE_WAIT, epoch, |_| true)?;
            let idle = run.cores.0.len() as f64 - busy;
            // Threads of an app without a reading may wait, too: only the idle cores are a bound.
            let is_whole = series.labels(CPU, epoch).all(|app| has_wait(app, epoch));
            let bound = if is_whole { idle.min(waiting) } else { idle };
            Some(bound.max(0.0))
        };
        Self {
            used_cores: of_apps(CPU),
            crosses: of_apps(RUN_QUEUE_WAIT),
            waste_cores_at_most: mean(&waste),
            switches_per_second: of_apps(CONTEXT_SWITCHES),
        }
    }

    /// The share of the cores used that switches take at this cost each; `None` without use.
    pub fn switching_share(&self, cost: Nanos) -> Option<f64> {
        let used = self.used_cores.filter(|used| *used > 0.0)?;
        Some(self.switches_per_second? * cost.as_secs_f64() / used)
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::AllowedCores;
    use super::*;
    use lull_control::CoreSet;
    use std::path::PathBuf;

    /// A run that may use two cores.
    fn run() -> Run {
        Run {
            file: PathBuf::from("x.db"),
            policy: "even".to_owned(),
            cores: AllowedCores(CoreSet::first(2)),
            apps: Vec::new(),
            epochs: Vec::new(),
        }
    }

    /// Two apps on two of three cores: in the first epoch one core is idle while a thread waits,
    /// in the second none is.
    fn series() -> Series {
        let mut series = Series::default();
        let mut set = |metric: &Metric, label: &str, values: [f64; 2]| {
            let key = (metric.json_key(), label.to_owned());
            series.values.insert(key, (0..).zip(values).collect());
        };
        set(CPU, "a", [1.0, 1.5]);
        set(CPU, "b", [0.0, 0.5]);
        set(RUN_QUEUE_WAIT, "a", [3.0, 0.5]);
        set(RUN_QUEUE_WAIT, "b", [0.0, 0.5]);
        set(CORE_UTILISATION, "0", [1.0, 1.0]);
        set(CORE_UTILISATION, "1", [0.0, 1.0]);
        set(CORE_UTILISATION, "2", [0.0, 0.0]);
        set(CONTEXT_SWITCHES, "a", [1000.0, 2000.0]);
        series
    }

    #[test]
    fn idle_cores_are_waste_only_as_far_as_threads_wait_and_the_run_may_use_them() {
        let found = SpaceTime::of_epochs(&series(), &run(), &[0, 1]);
        assert_eq!((found.used_cores, found.crosses), (Some(1.5), Some(2.0)));
        assert_eq!(found.waste_cores_at_most, Some(0.5), "the third core is not of the run");
        // 1,500 switches of 10 us are .015 cores, of 1.5 used.
        let share = found.switching_share(Nanos::from_micros(10)).unwrap();
        assert!((share - 0.01).abs() < 1e-12, "{share}");
    }

    #[test]
    fn the_waste_is_bounded_by_the_idle_cores_where_the_waits_of_an_app_are_unknown() {
        let mut series = series();
        let waits_of_a = (RUN_QUEUE_WAIT.json_key(), "a".to_owned());
        series.values.get_mut(&waits_of_a).unwrap().remove(&0);
        let found = SpaceTime::of_epochs(&series, &run(), &[0]);
        // The threads of `b` do not wait, those of `a` may.
        assert_eq!((found.crosses, found.waste_cores_at_most), (Some(0.0), Some(1.0)));
    }

    #[test]
    fn a_record_without_the_metrics_has_no_space_time() {
        let found = SpaceTime::of_epochs(&Series::default(), &run(), &[0]);
        assert_eq!(found, SpaceTime::default());
        assert_eq!(found.switching_share(Nanos::from_micros(10)), None);
    }
}
