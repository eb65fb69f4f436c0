//! The recent history of every series, which a page draws when it is opened.
//!
//! Values are stored in single precision, which is more precise than the page's pixels and
//! halves the memory.

use super::epoch_snapshot::{EpochSnapshot, Line};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Epochs kept: a quarter of an hour at epochs of a second.
const EPOCHS: usize = 900;
/// Most values kept, 4 MB: with hundreds of apps there are thousands of columns.
const VALUES_MAX: usize = 1 << 20;
/// Epochs kept even then.
const EPOCHS_MIN: usize = 60;
/// Lines of the journal kept.
const LINES: usize = 300;

/// The last epochs.
#[derive(Debug, Default)]
pub(super) struct History {
    times_s: VecDeque<f64>,
    /// Indexed by series and label; NaN where there was no value.
    columns: BTreeMap<&'static str, BTreeMap<String, VecDeque<f32>>>,
    journal: VecDeque<Line>,
}

/// A request for a part of the history.
pub(super) struct HistoryRequest<'a> {
    /// The requested series; all if empty.
    pub(super) series: Vec<&'a str>,
    /// The number of epochs, counted from the last.
    pub(super) epochs: usize,
}

/// A history as it is sent: by series and label a value an epoch.
#[derive(Debug, Serialize)]
pub(super) struct HistoryReply<'a> {
    run: &'a str,
    times_s: Vec<f64>,
    /// `None` is written as null.
    values: BTreeMap<&'a str, BTreeMap<&'a str, Vec<Option<f32>>>>,
    journal: Vec<&'a Line>,
}

impl History {
    /// Adds an epoch and forgets the oldest beyond the bound, and series without any value left.
    pub(super) fn add(&mut self, snapshot: &EpochSnapshot) {
        let before = self.times_s.len();
        self.times_s.push_back(snapshot.head.time_s);
        for (series, label, value) in snapshot.numbers() {
            let of_series = self.columns.entry(series).or_default();
            // A label is copied only when its column is new: there are thousands an epoch.
            let column = match of_series.get_mut(label) {
                Some(column) => column,
                None => of_series.entry(label.to_owned()).or_default(),
            };
            column.resize(before, f32::NAN);
            column.push_back(value as f32);
        }
        for column in self.columns.values_mut().flat_map(BTreeMap::values_mut) {
            column.resize(before + 1, f32::NAN);
        }
        let count: usize = self.columns.values().map(BTreeMap::len).sum();
        let most = (VALUES_MAX / count.max(1)).clamp(EPOCHS_MIN, EPOCHS);
        let old = self.times_s.len().saturating_sub(most);
        self.times_s.drain(..old);
        self.columns.retain(|_, of_series| {
            of_series.retain(|_, column| {
                column.drain(..old);
                // Columns grow to twice their length, and were longer while there were fewer.
                column.shrink_to(most + 1);
                // A departed app has its last value earlier: the newest are read first.
                column.iter().rev().any(|value| !value.is_nan())
            });
            !of_series.is_empty()
        });
        self.journal.extend(snapshot.head.journal.iter().cloned());
        let old = self.journal.len().saturating_sub(LINES);
        self.journal.drain(..old);
    }

    /// Sends the requested part.
    pub(super) fn send<'a>(
        &'a self,
        run: &'a str,
        wanted: &HistoryRequest<'_>,
    ) -> HistoryReply<'a> {
        let skip = self.times_s.len().saturating_sub(wanted.epochs);
        let mut values: BTreeMap<&str, BTreeMap<&str, Vec<Option<f32>>>> = BTreeMap::new();
        let there = |value: &f32| Some(*value).filter(|value| !value.is_nan());
        for (series, labels) in &self.columns {
            if !wanted.series.is_empty() && !wanted.series.contains(series) {
                continue;
            }
            let columns = labels.iter().map(|(label, column)| {
                (label.as_str(), column.iter().skip(skip).map(there).collect())
            });
            values.insert(series, columns.collect());
        }
        HistoryReply {
            run,
            times_s: self.times_s.iter().skip(skip).copied().collect(),
            values,
            journal: self.journal.iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::epoch_snapshot::{CORES, LineKind};
    use super::*;
    use lull_measure::Missing;
    use lull_measure::catalogue::{CORE_FREQUENCY, POWER, Sample};

    fn snapshot(epoch: u64, power: Option<f64>) -> EpochSnapshot {
        let value = power.ok_or_else(|| Missing::because("no meter"));
        let line =
            Line { time_s: epoch as f64, kind: LineKind::Safe, text: format!("line {epoch}") };
        let mut snapshot = EpochSnapshot::empty();
        (snapshot.head.epoch, snapshot.head.time_s) = (epoch, epoch as f64);
        snapshot.head.journal = vec![line];
        snapshot.samples = vec![
            Sample { metric: POWER, label: "".into(), value },
            Sample { metric: CORE_FREQUENCY, label: "0".into(), value: Ok(1e9) },
        ];
        snapshot.cores = vec![("a".to_owned(), 2.0)];
        snapshot
    }

    fn all(history: &History, series: Vec<&str>, epochs: usize) -> serde_json::Value {
        serde_json::to_value(history.send("run", &HistoryRequest { series, epochs })).unwrap()
    }

    #[test]
    fn an_epoch_is_the_same_in_another_process() {
        for power in [None, Some(20.5)] {
            let before = snapshot(7, power);
            let after: EpochSnapshot =
                postcard::from_bytes(&postcard::to_allocvec(&before).unwrap()).unwrap();
            assert_eq!(after.to_json(), before.to_json());
            assert_eq!(after.missing(), before.missing());
        }
    }

    #[test]
    fn columns_stay_in_step_with_the_epochs_whatever_is_missing() {
        let mut history = History::default();
        for (epoch, power) in [(0, None), (1, Some(20.5)), (2, None), (3, Some(30.0))] {
            history.add(&snapshot(epoch, power));
        }
        let sent = all(&history, Vec::new(), 100);
        let values = &sent["values"];
        assert_eq!(values["power_watts"][""], serde_json::json!([null, 20.5, null, 30.0]));
        assert_eq!(values["region_cores"]["a"], serde_json::json!([2.0, 2.0, 2.0, 2.0]));
        let sent = all(&history, vec!["power_watts"], 2);
        assert_eq!(sent["values"], serde_json::json!({"power_watts": {"": [null, 30.0]}}));
        assert_eq!(sent["times_s"], serde_json::json!([2.0, 3.0]));
    }

    #[test]
    fn many_columns_have_fewer_epochs() {
        let mut history = History::default();
        let columns = VALUES_MAX / 100;
        let mut snapshot = snapshot(0, None);
        snapshot.samples.clear();
        snapshot.cores = (1..=columns).map(|column| (format!("{column}"), 2.0)).collect();
        for epoch in 0..103 {
            snapshot.head.time_s = f64::from(epoch);
            history.add(&snapshot);
        }
        assert_eq!((history.times_s.len(), history.times_s[0]), (100, 3.0));
        assert!(history.columns[CORES].values().all(|column| column.len() == 100));
        snapshot.cores.extend((1..=columns).map(|column| (format!("other {column}"), 2.0)));
        history.add(&snapshot);
        assert_eq!(history.times_s.len(), EPOCHS_MIN);
        assert_eq!(history.columns[CORES].len(), 2 * columns);
        let most = history.columns[CORES].values().map(VecDeque::capacity).max().unwrap();
        assert!(most < 2 * EPOCHS_MIN, "room for {most} values is kept for {EPOCHS_MIN}");
    }

    #[test]
    fn a_series_is_dropped_with_its_last_value() {
        let mut history = History::default();
        history.add(&snapshot(0, Some(20.5)));
        for epoch in 1..=EPOCHS as u64 {
            assert_eq!(history.columns.len(), 3, "epoch {epoch}");
            let mut later = snapshot(epoch, None);
            later.cores.clear();
            history.add(&later);
        }
        let left: Vec<&str> = history.columns.keys().copied().collect();
        assert_eq!(left, ["core_frequency_hertz"]);
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut history = History::default();
        for epoch in 0..3 * EPOCHS as u64 {
            history.add(&snapshot(epoch, Some(epoch as f64)));
        }
        let sent = all(&history, Vec::new(), usize::MAX);
        let power = sent["values"]["power_watts"][""].as_array().unwrap().clone();
        assert_eq!((power.len(), sent["times_s"].as_array().unwrap().len()), (EPOCHS, EPOCHS));
        assert_eq!(power[0], 2.0 * EPOCHS as f64);
        assert_eq!(sent["journal"].as_array().unwrap().len(), LINES);
        assert_eq!(sent["journal"][LINES - 1]["text"], format!("line {}", 3 * EPOCHS - 1));
    }
}
