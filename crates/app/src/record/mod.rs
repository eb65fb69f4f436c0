//! The record of a run: one SQLite file that survives a kill.
//!
//! Write-ahead logging, one transaction an epoch: after `kill -9` the file
//! holds every epoch but perhaps the last. The columns of the epoch tables
//! are the metric catalogue; a missing value is NULL and its reason stands
//! in `missing`. Read it with any SQLite tool:
//!
//! ```sql
//! SELECT app, avg(tail_latency_seconds) FROM app_epochs GROUP BY app;
//! ```

mod schema;

use crate::VERSION;
use lull_control::journal::Entry;
use lull_control::{AppSpec, Epoch, Knob, Machine, Setting, samples};
use lull_measure::catalogue::{Sample, Scope};
use rusqlite::{Connection, params, params_from_iter};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a record cannot be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "the record {} cannot be written: {cause}; free some space or set agent.record elsewhere",
    file.display()
)]
pub(crate) struct RecordError {
    file: PathBuf,
    cause: String,
}

/// What stands at the head of a record.
pub(crate) struct Head<'a> {
    /// The config's text.
    pub(crate) config: &'a str,
    /// The machine.
    pub(crate) machine: &'a Machine,
    /// The policy's name.
    pub(crate) policy: &'a str,
    /// The seed.
    pub(crate) seed: u64,
    /// Nanoseconds since 1970 at the start.
    pub(crate) started_unix_ns: u64,
}

/// A record being written.
pub(crate) struct Recorder {
    file: PathBuf,
    database: Connection,
    missing: BTreeMap<(String, String), String>,
    is_empty: bool,
}

impl Recorder {
    /// Creates the record; the directory is made if it is not there.
    pub(crate) fn create(file: &Path, head: &Head<'_>) -> Result<Self, RecordError> {
        let wrong = |cause: String| RecordError { file: file.to_owned(), cause };
        if let Some(directory) = file.parent() {
            std::fs::create_dir_all(directory).map_err(|error| wrong(error.to_string()))?;
        }
        let database = schema::create(file, head).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { file: file.to_owned(), database, missing: BTreeMap::new(), is_empty: true })
    }

    /// Where it is.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Adds one epoch in one transaction.
    pub(crate) fn write(
        &mut self,
        apps: &[AppSpec],
        state: &BTreeMap<Knob, Setting>,
        epoch: &Epoch,
        phase: &str,
    ) -> Result<(), RecordError> {
        let all = samples(apps, state, &epoch.seen, &epoch.standing);
        self.write_epoch(apps, epoch, phase, &all).map_err(|error| self.wrong(&error))?;
        self.is_empty = false;
        Ok(())
    }

    /// The apps, once all that is measured beforehand is known.
    pub(crate) fn describe_apps(&mut self, apps: &[AppSpec]) -> Result<(), RecordError> {
        schema::insert_apps(&self.database, apps).map_err(|error| self.wrong(&error))
    }

    /// States something about the run that is known only later.
    pub(crate) fn note(&self, key: &str, value: &str) -> Result<(), RecordError> {
        let sql = "INSERT OR REPLACE INTO run (key, value) VALUES (?1, ?2)";
        let noted = self.database.execute(sql, params![key, value]);
        noted.map(|_| ()).map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &rusqlite::Error) -> RecordError {
        RecordError { file: self.file.clone(), cause: error.to_string() }
    }

    fn write_epoch(
        &mut self,
        apps: &[AppSpec],
        epoch: &Epoch,
        phase: &str,
        all: &[Sample],
    ) -> rusqlite::Result<()> {
        let transaction = self.database.unchecked_transaction()?;
        let number = epoch.number as i64;
        transaction
            .prepare_cached("INSERT INTO epochs VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![number, epoch.seen.time.0 as i64, phase, epoch.safe])?;
        for scope in [Scope::Machine, Scope::App, Scope::Core] {
            write_samples(&transaction, number, scope, all)?;
        }
        for (spec, seen) in apps.iter().zip(&epoch.seen.apps) {
            let Ok(latency) = &seen.latency else { continue };
            transaction
                .prepare_cached("INSERT INTO latencies VALUES (?1, ?2, ?3)")?
                .execute(params![number, spec.name, latency.window.to_base64()])?;
        }
        for Entry { time, event } in &epoch.entries {
            let text = serde_json::to_string(event).unwrap_or_else(|error| error.to_string());
            transaction
                .prepare_cached("INSERT INTO journal VALUES (?1, ?2, ?3)")?
                .execute(params![number, time.0 as i64, text])?;
        }
        note_missing(&transaction, number, all, &mut self.missing)?;
        transaction.commit()
    }
}

impl Drop for Recorder {
    /// A run that failed before its first epoch leaves no empty record behind.
    fn drop(&mut self) {
        if self.is_empty {
            for suffix in ["", "-wal", "-shm"] {
                let mut path = self.file.clone().into_os_string();
                path.push(suffix);
                // What cannot be removed is an empty file, which harms nobody.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// One row a label: the epoch, the label, then every metric of the scope.
fn write_samples(
    database: &Connection,
    number: i64,
    scope: Scope,
    all: &[Sample],
) -> rusqlite::Result<()> {
    let metrics = schema::metrics_of(scope);
    let mut rows: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for sample in all.iter().filter(|sample| sample.metric.scope == scope) {
        let row = rows.entry(&sample.label).or_insert_with(|| vec![None; metrics.len()]);
        let column = metrics.iter().position(|metric| metric.name == sample.metric.name);
        // Infinity has no place in SQL and NaN is no value.
        let value = sample.value.as_ref().ok().copied().filter(|value| value.is_finite());
        if let Some(column) = column {
            row[column] = value;
        }
    }
    let mut insert = database.prepare_cached(&schema::insert_of(scope))?;
    for (label, values) in rows {
        let number = rusqlite::types::Value::from(number);
        let label = scope.label().map(|_| rusqlite::types::Value::from(label.to_owned()));
        let values = values.into_iter().map(rusqlite::types::Value::from);
        insert.execute(params_from_iter([number].into_iter().chain(label).chain(values)))?;
    }
    Ok(())
}

/// Writes the reason of a missing value when it first appears or changes.
fn note_missing(
    database: &Connection,
    number: i64,
    all: &[Sample],
    known: &mut BTreeMap<(String, String), String>,
) -> rusqlite::Result<()> {
    for sample in all {
        let key = (sample.metric.json_key(), sample.label.clone());
        let reason = sample.value.as_ref().err().map(ToString::to_string).unwrap_or_default();
        if known.get(&key).map_or("", String::as_str) == reason {
            continue;
        }
        database
            .prepare_cached("INSERT INTO missing VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![number, key.0, key.1, reason])?;
        known.insert(key, reason);
    }
    Ok(())
}

/// A name for a new record: `runs/20261120-231805-arq.db` (UTC).
pub(crate) fn fresh_path(directory: &Path, policy: &str, unix_s: u64) -> PathBuf {
    let stamp = utc_stamp(unix_s);
    let named = |suffix: &str| directory.join(format!("{stamp}-{policy}{suffix}.db"));
    let candidates = std::iter::once(named("")).chain((2..).map(|n| named(&format!("-{n}"))));
    candidates.into_iter().find(|path| !path.exists()).unwrap_or_else(|| named(""))
}

/// `YYYYMMDD-HHMMSS` in UTC.
fn utc_stamp(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%Y%m%d-%H%M%S").to_string()
}

/// Versions that stand in every record.
fn versions() -> [(&'static str, String); 2] {
    [("lull_version", VERSION.to_owned()), ("schema", schema::VERSION.to_string())]
}

#[cfg(test)]
mod tests;
