//! Times of each app's threads from runnable to running, from the programs of
//! [`crate::bpf::WaitWatch`]: the latency of an app that reports none.
//!
//! A wait is the time for which a thread could not continue because other threads had its core.
//! The time for which the quota of its cgroup (`cpu.max`) was used up is shown apart, and so is
//! what had the core during the waits. One watch serves all apps.

use super::{are_few, first_reading};
use crate::Roots;
use crate::bpf::{PROCESSES_MAX, WaitWatch, WaitsSeen};
use lull_control::{LatencyObservation, Readings};
use lull_measure::catalogue::{
    Metric, RUN_QUEUE_BEHIND_APPS, RUN_QUEUE_BEHIND_OTHERS, RUN_QUEUE_BEHIND_OWN, RUN_QUEUE_P99,
    RUN_QUEUE_THROTTLED,
};
use lull_measure::{Gauge, Latency, Missing, Nanos, Percentile};
use std::collections::BTreeMap;

/// The waits of all apps over epochs.
#[derive(Debug)]
pub struct RunQueue {
    watch: Gauge<WaitWatch>,
    /// Indexed by app.
    last: Vec<Option<(Nanos, WaitsSeen)>>,
    /// Indexed by app; of its last epoch.
    parts: Vec<Gauge<Parts>>,
}

/// Sums of an epoch over threads, in cores: seconds of them in each second.
type Parts = [(&'static Metric, f64); 4];

impl RunQueue {
    /// No programs, for a reason.
    pub(crate) fn none(why: Missing) -> Self {
        Self { watch: Err(why), last: Vec::new(), parts: Vec::new() }
    }

    /// Begins to watch this number of apps, or records why that cannot be done.
    pub(crate) fn new(roots: &Roots, apps: usize) -> Self {
        let parts = (0..apps).map(|_| Err(first_reading())).collect();
        Self { watch: begin(roots, apps), last: vec![None; apps], parts }
    }

    /// By which means waits are seen, or why they cannot be: found out by doing it for a moment.
    ///
    /// # Errors
    /// If the kernel refuses, or the roots are not those of the kernel that runs.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        begin(roots, 1).map(|_| "eBPF at sched_switch".to_owned())
    }

    /// Sets the processes of every app; returns what went wrong.
    pub(crate) fn follow(
        &mut self,
        processes: impl Iterator<Item = (usize, i32)>,
    ) -> Option<String> {
        let watch = self.watch.as_mut().ok()?;
        let wanted: BTreeMap<u32, u32> =
            processes.map(|(app, pid)| (pid.unsigned_abs(), app as u32)).collect();
        watch.follow(&wanted).err().map(|error| error.to_string())
    }

    /// Returns an app's waits since the last call, `now` by `CLOCK_MONOTONIC`.
    pub(crate) fn latency(&mut self, app: usize, now: Nanos) -> Gauge<LatencyObservation> {
        let watch = self.watch.as_ref().map_err(Clone::clone)?;
        let seen = watch.read(app);
        let slot = self.last.get_mut(app).ok_or_else(first_reading)?;
        let (latency, parts) = match slot {
            Some((before, old)) => {
                let span = now.saturating_sub(*before);
                (since(old, &seen, span), parts_since(old, &seen, span))
            }
            None => (Err(first_reading()), Err(first_reading())),
        };
        *slot = Some((now, seen));
        self.parts[app] = parts;
        latency
    }

    /// Adds what [`Self::latency`] has just found of an app to its readings.
    pub(crate) fn fill(
        &self,
        app: usize,
        latency: &Gauge<LatencyObservation>,
        into: &mut Readings,
    ) {
        into.set(RUN_QUEUE_P99, p99(latency));
        let none = || latency.as_ref().err().cloned().unwrap_or_else(first_reading);
        let parts = match self.parts.get(app) {
            Some(parts) if self.watch.is_ok() => parts.clone(),
            _ => Err(none()),
        };
        match parts {
            Ok(parts) => parts.into_iter().for_each(|(metric, value)| into.set(metric, Ok(value))),
            Err(why) => PARTS.iter().for_each(|metric| into.set(metric, Err(why.clone()))),
        }
    }
}

fn begin(roots: &Roots, apps: usize) -> Gauge<WaitWatch> {
    if *roots != Roots::default() {
        return Err(Missing::because("waits are those of the running kernel alone"));
    }
    Ok(WaitWatch::begin(apps)?)
}

/// The metrics of [`Parts`].
const PARTS: [&Metric; 4] =
    [RUN_QUEUE_THROTTLED, RUN_QUEUE_BEHIND_OWN, RUN_QUEUE_BEHIND_APPS, RUN_QUEUE_BEHIND_OTHERS];

/// The 99th percentile of waits, in seconds.
fn p99(waits: &Gauge<LatencyObservation>) -> Gauge<f64> {
    let tail = waits.as_ref().map_err(Clone::clone)?.tail(Percentile::P99);
    let none = || Missing::because("none of its threads waited in the epoch");
    tail.map(Nanos::as_secs_f64).ok_or_else(none)
}

/// Returns the waits between two readings as the latency of requests that never queue up.
fn since(old: &WaitsSeen, new: &WaitsSeen, span: Nanos) -> Gauge<LatencyObservation> {
    let waits = new.waits.since(&old.waits);
    let unfollowed = new.unfollowed.saturating_sub(old.unfollowed);
    // At least the first wait of a new process that is not followed is missing.
    if !are_few(unfollowed, waits.count()) {
        return Err(Missing::because(format!(
            "{unfollowed} new processes of the apps are not followed: the table of \
             {PROCESSES_MAX} processes is full"
        )));
    }
    let mut window = Latency::default();
    waits.means().for_each(|(wait, count)| window.record_many(wait, count));
    Ok(LatencyObservation::on_server(window, span, (0, None), 0))
}

fn parts_since(old: &WaitsSeen, new: &WaitsSeen, span: Nanos) -> Gauge<Parts> {
    if span == Nanos::ZERO {
        return Err(Missing::because("the epoch is empty"));
    }
    let sums =
        |seen: &WaitsSeen| [seen.throttled, seen.behind_own, seen.behind_apps, seen.behind_others];
    let (old, new) = (sums(old), sums(new));
    let cores = |at: usize| new[at].saturating_sub(old[at]).as_secs_f64() / span.as_secs_f64();
    Ok(std::array::from_fn(|at| (PARTS[at], cores(at))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn seen(waits_us: &[u64], unfollowed: u64) -> WaitsSeen {
        let mut all = WaitsSeen { unfollowed, ..WaitsSeen::default() };
        waits_us.iter().for_each(|us| all.waits.add(Nanos::from_micros(*us)));
        all
    }

    #[test]
    fn waits_of_an_epoch_are_a_window_of_latencies() {
        let (old, new) = (seen(&[90_000], 0), seen(&[90_000, 10, 10, 700], 0));
        let found = since(&old, &new, Nanos::from_secs(2)).unwrap();
        assert_eq!((found.window.count(), found.offered_per_s), (3, 1.5));
        let tail = found.tail(Percentile::P99).unwrap();
        assert!(tail.0.abs_diff(700_000) < 10_000, "{tail}");
        let idle = since(&new, &new, Nanos::from_secs(1)).unwrap();
        assert_eq!((idle.tail(Percentile::P99), idle.outstanding), (None, 0));
    }

    #[test]
    fn what_had_the_core_is_in_cores_of_the_epoch() {
        let new = WaitsSeen {
            throttled: Nanos::from_millis(900),
            behind_own: Nanos::from_millis(10),
            behind_apps: Nanos::from_millis(500),
            behind_others: Nanos::from_millis(20),
            ..WaitsSeen::default()
        };
        let old = WaitsSeen { throttled: Nanos::from_millis(100), ..WaitsSeen::default() };
        let parts = parts_since(&old, &new, Nanos::from_secs(2)).unwrap();
        let values = parts.map(|(_, value)| (value * 1000.0).round());
        assert_eq!(values, [400.0, 5.0, 250.0, 10.0]);
        assert!(parts_since(&old, &new, Nanos::ZERO).is_err());
    }

    #[test]
    fn every_reading_has_a_value_or_a_reason() {
        let mut waits = RunQueue::new(&Tree::new().roots(), 1);
        let latency = waits.latency(0, Nanos(1));
        let mut readings = Readings::unknown(&first_reading());
        waits.fill(0, &latency, &mut readings);
        for metric in PARTS.into_iter().chain([RUN_QUEUE_P99]) {
            assert!(readings.get(metric).is_err(), "{}", metric.name);
        }
    }

    #[test]
    fn waits_are_missing_where_too_many_processes_are_not_followed() {
        let many = vec![100; 1000];
        assert!(since(&seen(&[], 0), &seen(&many, 10), Nanos(1)).is_ok());
        let why = since(&seen(&[], 0), &seen(&many, 11), Nanos(1)).unwrap_err().to_string();
        assert!(why.starts_with("11 new processes of the apps are not followed"), "{why}");
        assert!(why.contains("16384"), "{why}");
    }

    #[test]
    fn a_tree_of_files_has_no_waits() {
        let mut waits = RunQueue::new(&Tree::new().roots(), 1);
        assert_eq!(waits.follow([(0, 5)].into_iter()), None);
        let why = waits.latency(0, Nanos(1)).unwrap_err().to_string();
        assert!(why.contains("running kernel"), "{why}");
    }
}
