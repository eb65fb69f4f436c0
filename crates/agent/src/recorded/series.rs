//! Metrics of a record over time.

use super::database::Database;
use super::run::Run;
use crate::record::schema::table_of;
use lull_measure::catalogue::Metric;
use std::collections::BTreeMap;

/// Values of the requested metrics by epoch.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Seconds since the run began, by number of the epoch.
    pub times_s: BTreeMap<i64, f64>,
    /// Indexed by metric and label, then by number of the epoch.
    pub(super) values: BTreeMap<(String, String), BTreeMap<i64, f64>>,
}

impl Series {
    /// Reads these metrics; one that an older record does not have is empty.
    pub fn read(record: &Database, run: &Run, metrics: &[&'static Metric]) -> anyhow::Result<Self> {
        let times = run.epochs.iter().map(|epoch| (epoch.number, epoch.time.as_secs_f64()));
        let mut series = Self { times_s: times.collect(), values: BTreeMap::new() };
        for metric in metrics {
            series.add(record, metric)?;
        }
        Ok(series)
    }

    fn add(&mut self, record: &Database, metric: &Metric) -> rusqlite::Result<()> {
        let (table, label) = table_of(metric.scope);
        let key = metric.json_key();
        let sql = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
        let known: i64 = record.database.query_row(sql, [table, &key], |row| row.get(0))?;
        if known == 0 {
            return Ok(());
        }
        let sql = format!("SELECT epoch, {label}, {key} FROM {table} WHERE {key} IS NOT NULL");
        let mut query = record.database.prepare(&sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, label, value): (i64, String, f64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            self.values.entry((key.clone(), label)).or_default().insert(epoch, value);
        }
        Ok(())
    }

    /// Returns the value of one metric of one label (empty for the machine) in one epoch.
    pub fn value(&self, metric: &Metric, label: &str, epoch: i64) -> Option<f64> {
        self.values.get(&(metric.json_key(), label.to_owned()))?.get(&epoch).copied()
    }

    /// The labels that have a value of this metric in one epoch.
    pub(super) fn labels(&self, metric: &Metric, epoch: i64) -> impl Iterator<Item = &str> {
        let wanted = metric.json_key();
        self.values.iter().filter_map(move |((key, label), by_epoch)| {
            (*key == wanted && by_epoch.contains_key(&epoch)).then_some(label.as_str())
        })
    }

    /// The sum of one metric over the labels that `counts` accepts, in one epoch; `None` if none
    /// of them has a value.
    pub fn sum(&self, metric: &Metric, epoch: i64, counts: impl Fn(&str) -> bool) -> Option<f64> {
        let wanted = metric.json_key();
        let of_metric =
            self.values.iter().filter(|((key, label), _)| *key == wanted && counts(label));
        let values = of_metric.filter_map(|(_, by_epoch)| by_epoch.get(&epoch).copied());
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// Its mean over these epochs; `None` if it has no value in them.
    pub fn mean(&self, metric: &Metric, label: &str, epochs: &[i64]) -> Option<f64> {
        let known: Vec<f64> =
            epochs.iter().filter_map(|epoch| self.value(metric, label, *epoch)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }
}
