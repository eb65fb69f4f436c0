//! The sums of a record by minute and day: what `lull export --dataset` writes for each host.
//!
//! Everything here adds up: the counts, sums and histograms of two parts of a run are those of
//! the whole, so that a dataset can grow by the epochs that it does not have yet, and a query
//! can add minutes, days and hosts. Ratios and percentiles are left to the query.
//!
//! Energy is measured for the machine. The share of an app in the energy of an epoch is its
//! CPU time over the time that all cores were busy; the rest belongs to no app of the record.
//!
//! Sums of an app that was one pod after another ([`AppInstance`]) are kept apart by pod, and its
//! requests are late by the objective that was in force in their epoch.

mod epochs;
mod objectives;
mod pods;

pub use objectives::TailObjective;
pub use pods::{AppInstance, PodNames};

use super::Database;
use super::database::fact;
use super::part::name_of;
use super::run::apps_of;
use anyhow::{Context, bail};
use epochs::Epochs;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use lull_control::AppSpec;
use lull_measure::Latency;
use lull_measure::catalogue::{CPU, PROGRESS, Scope};
use objectives::ObjectiveHistory;
use pods::PodHistory;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Identifies the run of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLabel {
    /// When it began, in UTC, and a digest of what distinguishes it from others of then:
    /// `20261120-231805-1f0c9a2b`. A copy of a record has the same.
    pub run: String,
    /// The host that it ran on; older records do not say.
    pub host: Option<String>,
    /// The policy that the config names.
    pub policy: String,
    /// When it began, by the host's clock.
    pub started: Timestamp,
}

/// Sums of a minute over all apps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MinuteSums {
    /// Epochs that ended in the minute.
    pub epochs: u64,
    /// Epochs in which the safe state was in force.
    pub safe_epochs: u64,
    /// Epochs in which a latency-critical app with an objective answered a request.
    pub judged_epochs: u64,
    /// Judged epochs in which the tail of some app was above its bound.
    pub missed_epochs: u64,
    /// Length of these epochs.
    pub seconds: f64,
    /// Energy of the machine in those epochs in which it was known.
    pub joules: f64,
    /// Length of the epochs in which the energy was known.
    pub measured_seconds: f64,
    /// Time that cores were busy, added up over all cores.
    pub busy_core_seconds: f64,
}

/// Sums of a minute of one app.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AppMinuteSums {
    /// Requests answered.
    pub requests: u64,
    /// Requests that took longer than the bound of the app's first tail objective in their epoch.
    pub late_requests: u64,
    /// Sum of the progress per second of those epochs in which it was known.
    pub progress_per_s_sum: f64,
    /// The number of these epochs.
    pub progress_epochs: u64,
    /// CPU time.
    pub cpu_seconds: f64,
    /// The app's share in the energy of the epochs in which both are known.
    pub joules: f64,
    /// Length of these epochs.
    pub measured_seconds: f64,
}

/// Counts of requests by latency in nanoseconds, as [`Latency::buckets`] has them.
pub type Counts = BTreeMap<u64, u64>;

/// The requests of a day that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LatencyKey {
    /// The policy of their epochs.
    pub policy: String,
    /// Their app, and the pod that it was.
    pub of: AppInstance,
    /// The first tail objective that the app had in their epochs, if it had one.
    pub objective: Option<TailObjective>,
}

/// The epochs of a run that ended on one day.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DaySums {
    /// The first and the last epoch, by their numbers.
    pub epochs: (i64, i64),
    /// The ends of these epochs, in seconds since 1970.
    pub ends_unix_s: (i64, i64),
    /// Indexed by minute (seconds since 1970) and policy.
    pub minutes: BTreeMap<(i64, String), MinuteSums>,
    /// Indexed by minute, policy and app; an app that was two pods in a minute has the sums of
    /// each.
    pub app_minutes: BTreeMap<(i64, String, AppInstance), AppMinuteSums>,
    /// Indexed by policy, app (by pod if it was one) and objective, over the whole day.
    pub latencies: BTreeMap<LatencyKey, Counts>,
}

/// An app of a run, and its progress alone on the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct SummedApp {
    /// The app as policies knew it.
    pub spec: AppSpec,
    /// Progress per second alone: as recorded, else the best of all epochs.
    pub solo_per_s: Option<f64>,
}

/// Sums of the epochs of a run from one number on.
#[derive(Debug, Clone, PartialEq)]
pub struct Sums {
    /// The apps, in the order of the record.
    pub apps: Vec<SummedApp>,
    /// Indexed by day in UTC; none without a new epoch.
    pub days: BTreeMap<Date, DaySums>,
}

impl RunLabel {
    /// Reads the label of a record.
    ///
    /// # Errors
    /// If the record lacks a fact that every record has.
    pub fn read(record: &Database) -> anyhow::Result<Self> {
        let fact = |key: &str| {
            fact(&record.database, key).with_context(|| format!("the record does not say `{key}`"))
        };
        let (started, policy) = (fact("started_unix_ns")?, fact("policy")?);
        let unix_ns: i128 = started.parse().context("the start of the run is not a number")?;
        let begun = Timestamp::from_nanosecond(unix_ns).context("the start of the run")?;
        let mut digest = Sha256::new();
        for text in [&started, &policy, &fact("seed")?, &fact("machine")?, &fact("config")?] {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        }
        let digest = digest.finalize();
        let digest: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let run = format!("{}-{digest}", begun.strftime("%Y%m%d-%H%M%S"));
        Ok(Self { run, host: fact("host").ok(), policy, started: begun })
    }
}

impl Sums {
    /// Adds up the epochs of a record whose numbers are `from` or higher. An agent may add
    /// epochs meanwhile, which are left out.
    ///
    /// # Errors
    /// If the record is damaged or names no apps.
    pub fn read(record: &Database, label: &RunLabel, from: i64) -> anyhow::Result<Self> {
        // All queries see the record as it is now.
        let snapshot = record.database.unchecked_transaction()?;
        let specs = apps_of(&record.database)?;
        if specs.is_empty() {
            bail!("the record has no apps: the run ended before its first epoch");
        }
        let best = best_progress(record)?;
        let app = |spec: AppSpec| {
            let solo_per_s = spec.solo_per_s.or_else(|| best.get(&spec.name).copied());
            SummedApp { spec, solo_per_s }
        };
        let apps = specs.into_iter().map(app).collect();
        let mut epochs = Epochs::read(record, label, from)?;
        epochs.read_machine(record)?;
        let pods = PodHistory::read(record)?;
        let mut sums = Self { apps, days: BTreeMap::new() };
        sums.add_apps(record, &epochs, &pods)?;
        sums.add_latencies(record, &mut epochs, &pods)?;
        sums.add_minutes(&epochs);
        drop(snapshot);
        Ok(sums)
    }

    fn add_apps(
        &mut self,
        record: &Database,
        epochs: &Epochs,
        pods: &PodHistory,
    ) -> anyhow::Result<()> {
        let columns = [CPU, PROGRESS];
        epochs.each_row(record, Scope::App, columns, |epoch, app, [cpu, progress]| {
            let day = self.days.entry(epoch.date).or_default();
            let instance = pods.instance(app, epoch.number);
            let key = (epoch.minute_unix_s, epoch.policy.clone(), instance);
            let sums = day.app_minutes.entry(key).or_default();
            if let Some(progress) = progress {
                sums.progress_per_s_sum += progress;
                sums.progress_epochs += 1;
            }
            let Some(cpu_cores) = cpu else { return };
            sums.cpu_seconds += cpu_cores * epoch.seconds;
            if let Some(joules) = epoch.joules {
                sums.joules += joules * epoch.share(cpu_cores);
                sums.measured_seconds += epoch.seconds;
            }
        })
    }

    fn add_latencies(
        &mut self,
        record: &Database,
        epochs: &mut Epochs,
        pods: &PodHistory,
    ) -> anyhow::Result<()> {
        let names: BTreeSet<&str> = self.apps.iter().map(|app| app.spec.name.as_str()).collect();
        let objectives = ObjectiveHistory::read(record, epochs, &self.apps)?;
        let from = epochs.from;
        record.each_histogram(from, |number, name, latency| {
            let Some(epoch) = epochs.find(number).filter(|_| names.contains(name)) else {
                return Ok(());
            };
            let day = self.days.entry(epoch.date).or_default();
            let (policy, instance) = (epoch.policy.clone(), pods.instance(name, number));
            let objective = objectives.tail(name, number);
            let counted = LatencyKey {
                policy: policy.clone(),
                of: instance.clone(),
                objective: objective.map(TailObjective::from),
            };
            let counts = day.latencies.entry(counted).or_default();
            for (at, count) in latency.buckets() {
                *counts.entry(at.0).or_default() += count;
            }
            let key = (epoch.minute_unix_s, policy, instance);
            let sums = day.app_minutes.entry(key).or_default();
            sums.requests += latency.count();
            let Some((percentile, bound)) = objective else { return Ok(()) };
            sums.late_requests += count_late(&latency, bound.0);
            if let Some(tail) = latency.quantile(percentile) {
                epoch.is_judged = true;
                epoch.is_missed |= tail > bound;
            }
            Ok(())
        })
    }

    fn add_minutes(&mut self, epochs: &Epochs) {
        for epoch in epochs.all() {
            let day = self.days.entry(epoch.date).or_default();
            if day.minutes.is_empty() {
                day.epochs.0 = epoch.number;
                day.ends_unix_s.0 = epoch.end_unix_s;
            }
            day.epochs.1 = epoch.number;
            day.ends_unix_s.1 = epoch.end_unix_s;
            let key = (epoch.minute_unix_s, epoch.policy.clone());
            let sums = day.minutes.entry(key).or_default();
            sums.epochs += 1;
            sums.safe_epochs += u64::from(epoch.is_safe);
            sums.judged_epochs += u64::from(epoch.is_judged);
            sums.missed_epochs += u64::from(epoch.is_missed);
            sums.seconds += epoch.seconds;
            sums.busy_core_seconds += epoch.busy_cores * epoch.seconds;
            if let Some(joules) = epoch.joules {
                sums.joules += joules;
                sums.measured_seconds += epoch.seconds;
            }
        }
    }
}

/// Requests of those buckets that are above a bound. A quantile is a bucket's highest value, so
/// that this counts what a tail above the bound consists of.
fn count_late(latency: &Latency, bound_ns: u64) -> u64 {
    // Most epochs have none, and the counters of a histogram are many.
    if latency.max().is_none_or(|longest| longest.0 <= bound_ns) {
        return 0;
    }
    latency.buckets().filter(|(at, _)| at.0 > bound_ns).map(|(_, count)| count).sum()
}

/// The best progress of each app in any epoch.
fn best_progress(record: &Database) -> anyhow::Result<BTreeMap<String, f64>> {
    let key = PROGRESS.json_key();
    let sql = format!("SELECT app, max({key}) FROM app_epochs GROUP BY app HAVING max({key}) > 0");
    let mut query = record.database.prepare(&sql)?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The day and the minute of a time, in UTC.
fn day_and_minute(time: Timestamp) -> (Date, i64) {
    let day = time.to_zoned(TimeZone::UTC).date();
    (day, time.as_second().div_euclid(60) * 60)
}

#[cfg(test)]
mod tests;
