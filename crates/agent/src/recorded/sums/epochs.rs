//! The epochs of a record that are summed: when each ended, under which policy, its energy and
//! how busy the cores were.

use super::{Database, RunLabel, day_and_minute, name_of};
use crate::record::schema::table_of;
use anyhow::Context;
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use lull_measure::catalogue::{CORE_UTILISATION, CPU, ENERGY, EPOCH, Metric, Scope};
use std::collections::BTreeSet;

/// One epoch.
#[derive(Debug, Clone)]
pub(super) struct SummedEpoch {
    pub(super) number: i64,
    /// The day and minute in which it ended, in UTC.
    pub(super) date: Date,
    pub(super) minute_unix_s: i64,
    pub(super) end_unix_s: i64,
    pub(super) policy: String,
    pub(super) is_safe: bool,
    /// Whether a latency-critical app with an objective answered a request.
    pub(super) is_judged: bool,
    /// Whether the tail of such an app was above its bound.
    pub(super) is_missed: bool,
    pub(super) seconds: f64,
    /// Energy of the machine, if it was known.
    pub(super) joules: Option<f64>,
    /// Cores that were not idle, added up.
    pub(super) busy_cores: f64,
    /// Cores that the apps of the record used.
    app_cores: f64,
}

impl SummedEpoch {
    /// Returns the part of the machine's energy that belongs to an app that used this many cores.
    /// Both clocks have errors, so the apps' sum can exceed the busy time of the cores.
    pub(super) fn share(&self, cores: f64) -> f64 {
        let all = self.busy_cores.max(self.app_cores);
        if all > 0.0 { cores / all } else { 0.0 }
    }
}

/// The epochs from one number on, ascending.
#[derive(Debug)]
pub(super) struct Epochs {
    /// Epochs before this number are left out.
    pub(super) from: i64,
    epochs: Vec<SummedEpoch>,
}

impl Epochs {
    /// Reads when they ended and under which policy.
    pub(super) fn read(record: &Database, label: &RunLabel, from: i64) -> anyhow::Result<Self> {
        let sql = "SELECT number, time_ns, phase, safe FROM epochs WHERE number >= ?1 \
                   ORDER BY number";
        let mut query = record.database.prepare(sql)?;
        let mut rows = query.query([from])?;
        let mut epochs = Vec::new();
        while let Some(row) = rows.next()? {
            let (number, time_ns): (i64, i64) = (row.get(0)?, row.get(1)?);
            let end = end_of(label.started, time_ns)
                .with_context(|| format!("epoch {number} ends at a time outside the calendar"))?;
            let (date, minute_unix_s) = day_and_minute(end);
            epochs.push(SummedEpoch {
                number,
                date,
                minute_unix_s,
                end_unix_s: end.as_second(),
                policy: name_of(&row.get::<_, String>(2)?, &label.policy),
                is_safe: row.get(3)?,
                is_judged: false,
                is_missed: false,
                seconds: 0.0,
                joules: None,
                busy_cores: 0.0,
                app_cores: 0.0,
            });
        }
        Ok(Self { from, epochs })
    }

    /// Reads lengths, energy and utilisation.
    pub(super) fn read_machine(&mut self, record: &Database) -> anyhow::Result<()> {
        let columns = [EPOCH, ENERGY];
        self.change_each(record, Scope::Machine, columns, |epoch, [seconds, joules]| {
            epoch.seconds = seconds.unwrap_or(0.0);
            epoch.joules = joules;
        })?;
        self.change_each(record, Scope::Core, [CORE_UTILISATION], |epoch, [busy]| {
            epoch.busy_cores += busy.unwrap_or(0.0);
        })?;
        self.change_each(record, Scope::App, [CPU], |epoch, [cores]| {
            epoch.app_cores += cores.unwrap_or(0.0);
        })
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &SummedEpoch> {
        self.epochs.iter()
    }

    /// The epoch of this number.
    pub(super) fn find(&mut self, number: i64) -> Option<&mut SummedEpoch> {
        self.index(number).map(|index| &mut self.epochs[index])
    }

    fn index(&self, number: i64) -> Option<usize> {
        self.epochs.binary_search_by_key(&number, |epoch| epoch.number).ok()
    }

    /// Calls `take` with the epoch, label and metrics of each row of a scope.
    pub(super) fn each_row<const N: usize>(
        &self,
        record: &Database,
        scope: Scope,
        metrics: [&Metric; N],
        mut take: impl FnMut(&SummedEpoch, &str, [Option<f64>; N]),
    ) -> anyhow::Result<()> {
        self.each_cell(record, scope, metrics, |index, label, values| {
            take(&self.epochs[index], label, values);
        })
    }

    fn change_each<const N: usize>(
        &mut self,
        record: &Database,
        scope: Scope,
        metrics: [&Metric; N],
        mut change: impl FnMut(&mut SummedEpoch, [Option<f64>; N]),
    ) -> anyhow::Result<()> {
        let mut read = Vec::new();
        self.each_cell(record, scope, metrics, |index, _, values| read.push((index, values)))?;
        for (index, values) in read {
            change(&mut self.epochs[index], values);
        }
        Ok(())
    }

    /// Whether the table of a scope has all these metrics; those of older records may not.
    pub(super) fn has_columns(
        record: &Database,
        scope: Scope,
        metrics: &[&Metric],
    ) -> anyhow::Result<bool> {
        let (table, _) = table_of(scope);
        let known = record.columns(table)?;
        let is_known = |key: String| known.iter().any(|(name, _)| *name == key);
        Ok(metrics.iter().all(|metric| is_known(metric.json_key())))
    }

    /// A metric that an older record does not have is not known.
    fn each_cell<const N: usize>(
        &self,
        record: &Database,
        scope: Scope,
        metrics: [&Metric; N],
        mut take: impl FnMut(usize, &str, [Option<f64>; N]),
    ) -> anyhow::Result<()> {
        let (table, label) = table_of(scope);
        let known: BTreeSet<String> =
            record.columns(table)?.into_iter().map(|(name, _)| name).collect();
        let column = |metric: &&Metric| {
            let key = metric.json_key();
            if known.contains(&key) { key } else { "NULL".to_owned() }
        };
        let columns: Vec<String> = metrics.iter().map(column).collect();
        let columns = columns.join(", ");
        let sql = format!("SELECT epoch, {label}, {columns} FROM {table} WHERE epoch >= ?1");
        let mut query = record.database.prepare(&sql)?;
        let mut rows = query.query([self.from])?;
        while let Some(row) = rows.next()? {
            // An epoch that is in no table of epochs has no time.
            let Some(index) = self.index(row.get(0)?) else { continue };
            let mut values = [None; N];
            for (column, value) in values.iter_mut().enumerate() {
                *value = row.get(2 + column)?;
            }
            take(index, &row.get::<_, String>(1)?, values);
        }
        Ok(())
    }
}

/// When an epoch ended that ended this long after the start.
fn end_of(started: Timestamp, time_ns: i64) -> Option<Timestamp> {
    started.checked_add(SignedDuration::from_nanos(time_ns)).ok()
}
