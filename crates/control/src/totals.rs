//! Counters of a run, summed up from its epochs.

use crate::journal::Event;
use crate::samples::{client_account_label, client_class_label};
use crate::{AppAssessment, AppObservation, AppSpec, ApplyOutcome, Epoch};
use lull_measure::catalogue::histogram::LATENCY_BOUNDS_NS;
use lull_measure::catalogue::{self as rows, CPU, Metric, Scope};
use lull_measure::{Latency, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Native buckets by power of two: 2^3, so that each is 9 % wide.
pub const NATIVE_SCHEMA: i32 = 3;

/// Counters since the run began.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Indexed by the counter's position in [`rows::ALL`], then by the app's name, which is empty
    /// for the machine.
    counts: BTreeMap<u16, BTreeMap<String, f64>>,
    /// Indexed by the app's name.
    latencies: BTreeMap<String, LatencyTotals>,
}

/// The latencies of one app.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyTotals {
    /// Counts by position in [`LATENCY_BOUNDS_NS`], with one for longer latencies; not cumulative.
    pub classic: Vec<u64>,
    /// Counts by index of native buckets of [`NATIVE_SCHEMA`]: index i ends at 2^(i/8) seconds.
    pub native: BTreeMap<i32, u64>,
    /// All of them.
    pub count: u64,
    /// Their sum, in seconds.
    pub sum_s: f64,
}

impl Totals {
    /// Adds an epoch.
    pub fn add(&mut self, apps: &[AppSpec], epoch: &Epoch) {
        let span = epoch.seen.epoch;
        let each = apps.iter().zip(&epoch.seen.apps).zip(&epoch.assessment.apps);
        for ((spec, seen), stand) in each.filter(|((spec, _), _)| !spec.is_removed()) {
            let mut sink = Sink { label: &spec.name, counts: &mut self.counts };
            if spec.is_latency_critical() {
                latency_critical(&mut sink, spec, seen, stand, span);
                if let Ok(latency) = &seen.latency {
                    self.latencies.entry(spec.name.clone()).or_default().add(&latency.window);
                }
            } else if let Ok(progress) = &seen.progress {
                sink.put(rows::WORK, progress.per_s * span.as_secs_f64());
            }
            if let Ok(cores) = seen.readings.get(CPU) {
                sink.put(rows::CPU_TIME, cores * span.as_secs_f64());
            }
            for class in &seen.client_classes {
                let label = client_class_label(spec, class);
                let mut sink = Sink { label: &label, counts: &mut self.counts };
                sink.put(rows::CLIENT_TURNS_TOTAL, class.turns as f64);
                sink.put(rows::CLIENT_WAITS, class.waits as f64);
            }
            for account in &seen.client_accounts {
                let label = client_account_label(spec, account);
                let mut sink = Sink { label: &label, counts: &mut self.counts };
                sink.put(rows::ACCOUNT_WAITS, account.waits as f64);
            }
        }
        machine(&mut Sink { label: "", counts: &mut self.counts }, epoch);
    }

    /// Removes the counts of an app, which becomes another program: its counters start at 0.
    pub fn forget(&mut self, app: &str) {
        // The counters of its classes of clients are removed too.
        for of_counter in self.counts.values_mut() {
            of_counter.retain(|label, _| label.split('/').next() != Some(app));
        }
        self.latencies.remove(app);
    }

    /// Returns the counts of a counter: label and value.
    pub fn counts(&self, total: &Metric) -> impl Iterator<Item = (&str, f64)> + '_ {
        let of_it = self.counts.get(&total.place).into_iter().flatten();
        of_it.map(|(label, count)| (label.as_str(), *count))
    }

    /// Returns the latencies of each app that has any.
    pub fn latencies(&self) -> impl Iterator<Item = (&str, &LatencyTotals)> + '_ {
        self.latencies.iter().map(|(app, latencies)| (app.as_str(), latencies))
    }
}

struct Sink<'a> {
    label: &'a str,
    counts: &'a mut BTreeMap<u16, BTreeMap<String, f64>>,
}

impl Sink<'_> {
    /// Adds to a counter, which exists from its first value on, even if that is 0.
    fn put(&mut self, total: &'static Metric, value: f64) {
        debug_assert_eq!(total.scope == Scope::Machine, self.label.is_empty());
        // A counter must not fall, and NaN counts as 0.
        let value = if value.is_finite() { value.max(0.0) } else { 0.0 };
        let of_counter = self.counts.entry(total.place).or_default();
        match of_counter.get_mut(self.label) {
            Some(count) => *count += value,
            None => {
                of_counter.insert(self.label.to_owned(), value);
            }
        }
    }
}

fn latency_critical(
    sink: &mut Sink<'_>,
    spec: &AppSpec,
    seen: &AppObservation,
    stand: &AppAssessment,
    span: Nanos,
) {
    let span_s = span.as_secs_f64();
    let Ok(latency) = &seen.latency else {
        sink.put(rows::SILENT_TIME, if seen.alive { span_s } else { 0.0 });
        return;
    };
    sink.put(rows::SILENT_TIME, 0.0);
    let answered = match latency.reported {
        Some(reported) => reported.per_s.map(|per_s| per_s * span_s),
        None => Some(latency.window.count() as f64),
    };
    if let Some(answered) = answered {
        sink.put(rows::REQUESTS, answered);
    }
    let Some((_, bound)) = spec.tail() else { return };
    if latency.reported.is_none() {
        sink.put(rows::LATE_REQUESTS, latency.window.count_above(bound) as f64);
        sink.put(rows::FAILED_REQUESTS, latency.errors_per_s * span_s);
    }
    let tail = stand.tail.filter(|tail| !tail.stale);
    let is_missed = tail.is_some_and(|tail| tail.latency > bound);
    sink.put(rows::JUDGED_TIME, if tail.is_some() { span_s } else { 0.0 });
    sink.put(rows::MISSED_TIME, if is_missed { span_s } else { 0.0 });
}

fn machine(sink: &mut Sink<'_>, epoch: &Epoch) {
    let span_s = epoch.seen.epoch.as_secs_f64();
    if let Ok(energy) = &epoch.seen.energy {
        sink.put(rows::CONSUMED_ENERGY, energy.energy.0);
    }
    sink.put(rows::EPOCHS, 1.0);
    sink.put(rows::OBSERVED_TIME, span_s);
    sink.put(rows::SAFE_TIME, if epoch.safe { span_s } else { 0.0 });
    let counted = [
        rows::SAFE_STATES,
        rows::SETTINGS,
        rows::REFUSED_SETTINGS,
        rows::HELD_SETTINGS,
        rows::FOREIGN_CHANGES,
    ];
    // All exist from the first epoch on, so that the first event is an increase.
    counted.into_iter().for_each(|total| sink.put(total, 0.0));
    for entry in &epoch.entries {
        if let Some(total) = counter_of(&entry.event) {
            sink.put(total, 1.0);
        }
    }
}

fn counter_of(event: &Event) -> Option<&'static Metric> {
    match event {
        Event::Decision(decision) => {
            Some(match matches!(decision.outcome.got, ApplyOutcome::Refused { .. }) {
                true => rows::REFUSED_SETTINGS,
                false => rows::SETTINGS,
            })
        }
        Event::Held { .. } => Some(rows::HELD_SETTINGS),
        Event::Foreign { .. } => Some(rows::FOREIGN_CHANGES),
        Event::SafeBegins { .. } => Some(rows::SAFE_STATES),
        _ => None,
    }
}

impl LatencyTotals {
    fn add(&mut self, window: &Latency) {
        self.classic.resize(LATENCY_BOUNDS_NS.len() + 1, 0);
        for (latency, count) in window.buckets() {
            let place = LATENCY_BOUNDS_NS.partition_point(|bound| *bound < latency.0);
            let seconds = latency.as_secs_f64();
            let index = (seconds.log2() * f64::from(1 << NATIVE_SCHEMA)).ceil() as i32;
            if let Some(here) = self.classic.get_mut(place) {
                *here = here.saturating_add(count);
            }
            let native = self.native.entry(index).or_default();
            *native = native.saturating_add(count);
            self.count = self.count.saturating_add(count);
            self.sum_s += seconds * count as f64;
        }
    }
}

#[cfg(test)]
mod tests;
