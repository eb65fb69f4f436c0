//! The record of a run: one SQLite file that survives a kill.
//!
//! It uses write-ahead logging and one transaction for each epoch: after `kill -9` the file
//! holds every epoch except perhaps the last. The columns of the epoch tables are the metric
//! catalogue. A missing value is NULL. Four tables store only changes, each row valid from
//! its epoch on: `missing` (why a value is missing), `sources` (the source of a value that has
//! several possible ones), `plans` (the setting of each knob that the policy wants) and `pods`
//! (the pod that an app is; its names are empty while it is none). Read
//! the file with any SQLite tool, or export it with `lull export`:
//!
//! ```sql
//! SELECT app, avg(tail_latency_seconds) FROM app_epochs GROUP BY app;
//! ```

mod packed;
mod ring;
pub mod schema;

pub use packed::unpack;

use crate::VERSION;
use crate::discovery::PodIdentity;
use lull_control::journal::Entry;
use lull_control::{AppId, AppSpec, Epoch, Knob, Machine, Plan, Setting, numbered};
use lull_host::own_directory::OwnDirectory;
use lull_measure::catalogue::{ALL, Metric, POWER, PROGRESS, Sample, Scope};
use lull_measure::{Nanos, SharedText};
use ring::Ring;
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Why a record cannot be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "the record {} cannot be written: {cause}; free some space or set agent.record elsewhere",
    file.display()
)]
pub struct RecordError {
    file: PathBuf,
    cause: String,
}

/// The facts at the head of a record.
pub struct Head<'a> {
    /// The config's text.
    pub config: &'a str,
    /// The machine.
    pub machine: &'a Machine,
    /// The policy's name.
    pub policy: &'a str,
    /// The seed.
    pub seed: u64,
    /// Nanoseconds since 1970 at the start.
    pub started_unix_ns: u64,
    /// How much of the recent past to keep; `None` keeps everything.
    pub keep: Option<Nanos>,
}

/// A record being written.
pub struct Recorder {
    file: PathBuf,
    database: Connection,
    missing: Noted,
    sources: Noted,
    plans: BTreeMap<Knob, Setting>,
    pods: BTreeMap<String, PodIdentity>,
    ring: Option<Ring>,
    started_unix_ns: u64,
    is_empty: bool,
}

/// The last text written by label, with the place of its metric, so that only changes are stored.
type Noted = BTreeMap<String, Vec<(u16, SharedText)>>;

/// A text about a metric and a label.
type Note<'a> = (&'static Metric, &'a str, SharedText);

/// One epoch to be recorded.
pub struct EpochRecord<'a> {
    /// The apps.
    pub apps: &'a [AppSpec],
    /// The epoch.
    pub epoch: &'a Epoch,
    /// Its metrics.
    pub samples: &'a [Sample],
    /// `on`, `dry-run`, or the block of a comparison.
    pub phase: &'a str,
    /// The decisions of the shadow policy.
    pub shadow: &'a [Entry],
    /// The pods that are apps, by the app's name.
    pub pods: &'a BTreeMap<String, PodIdentity>,
}

impl Recorder {
    /// Creates a record of a name that no other has, and its directory if it does not exist:
    /// `runs/20261120-231805-arq.db`, in UTC.
    ///
    /// # Errors
    /// If the directory cannot be used, or the file cannot be written.
    pub fn create_in(directory: &Path, head: &Head<'_>) -> Result<Self, RecordError> {
        let stamp = utc_stamp(head.started_unix_ns / 1_000_000_000);
        let named = |end: &str| directory.join(format!("{stamp}-{}{end}.db", head.policy));
        let (mut file, mut next) = (named(""), 2);
        loop {
            match make_file(&file) {
                // Another agent may have made it in this moment.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    file = named(&format!("-{next}"));
                    next += 1;
                }
                made => return Self::begin(&file, made, head),
            }
        }
    }

    /// Creates the record of this name.
    #[cfg(test)]
    fn create(file: &Path, head: &Head<'_>) -> Result<Self, RecordError> {
        Self::begin(file, make_file(file), head)
    }

    /// Writes the head into a file that was made.
    fn begin(file: &Path, made: io::Result<File>, head: &Head<'_>) -> Result<Self, RecordError> {
        let wrong = |cause: String| RecordError { file: file.to_owned(), cause };
        let made = made.map_err(|error| wrong(error.to_string()))?;
        let database = schema::create(file, head).map_err(|error| wrong(error.to_string()))?;
        // Another user who may write above the directory could have exchanged it.
        match OwnDirectory::is_at(&made, file) {
            Ok(true) => {}
            _ => return Err(wrong("it was exchanged while it was made".to_owned())),
        }
        Ok(Self {
            file: file.to_owned(),
            database,
            missing: Noted::new(),
            sources: Noted::new(),
            plans: BTreeMap::new(),
            pods: BTreeMap::new(),
            ring: head.keep.map(Ring::new),
            started_unix_ns: head.started_unix_ns,
            is_empty: true,
        })
    }

    /// Returns the path of the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Nanoseconds since 1970 at the start.
    pub fn started_unix_ns(&self) -> u64 {
        self.started_unix_ns
    }

    /// Writes one epoch in one transaction.
    pub fn write(&mut self, record: &EpochRecord<'_>) -> Result<(), RecordError> {
        self.write_epoch(record).map_err(|error| self.wrong(&error))?;
        self.is_empty = false;
        Ok(())
    }

    /// Writes the apps, once their references are measured.
    pub fn describe_apps(&mut self, apps: &[AppSpec]) -> Result<(), RecordError> {
        schema::insert_apps(&self.database, numbered(apps)).map_err(|error| self.wrong(&error))
    }

    /// Writes apps that were added to the run, or are other programs from now on.
    pub fn describe_added(&mut self, added: &[(AppId, AppSpec)]) -> Result<(), RecordError> {
        let each = added.iter().map(|(app, spec)| (*app, spec));
        schema::insert_apps(&self.database, each).map_err(|error| self.wrong(&error))
    }

    /// Writes a fact about the run that was not known at its start.
    pub fn note(&self, key: &str, value: &str) -> Result<(), RecordError> {
        let sql = "INSERT OR REPLACE INTO run (key, value) VALUES (?1, ?2)";
        let noted = self.database.execute(sql, params![key, value]);
        noted.map(|_| ()).map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &rusqlite::Error) -> RecordError {
        RecordError { file: self.file.clone(), cause: error.to_string() }
    }

    fn write_epoch(&mut self, record: &EpochRecord<'_>) -> rusqlite::Result<()> {
        let EpochRecord { apps, epoch, samples: all, phase, shadow, pods } = *record;
        let transaction = self.database.unchecked_transaction()?;
        let number = epoch.number as i64;
        transaction
            .prepare_cached("INSERT INTO epochs VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![number, epoch.seen.time.0 as i64, phase, epoch.safe])?;
        let is_of_row = |one: &Sample, next: &Sample| {
            one.metric.scope == next.metric.scope && one.label == next.label
        };
        let parts: Vec<&[Sample]> = all.chunk_by(is_of_row).collect();
        for scope in Scope::ALL {
            write_samples(&transaction, number, scope, &parts)?;
        }
        write_requests(&transaction, number, apps, epoch)?;
        for (table, entries) in [("journal", epoch.entries.as_slice()), ("shadow", shadow)] {
            for Entry { time, event } in entries {
                transaction
                    .prepare_cached(&format!("INSERT INTO {table} VALUES (?1, ?2, ?3)"))?
                    .execute(params![number, time.0 as i64, json(event)])?;
            }
        }
        write_plan(&transaction, number, &epoch.plan, &mut self.plans)?;
        let reasons = all.iter().map(|sample| {
            let reason = sample.value.as_ref().err().map(|missing| missing.reason.clone());
            (sample.metric, sample.label.as_str(), reason.unwrap_or_else(|| "".into()))
        });
        note(&transaction, "missing", number, reasons, &mut self.missing)?;
        note(&transaction, "sources", number, sources(apps, epoch), &mut self.sources)?;
        write_pods(&transaction, number, pods, &mut self.pods)?;
        if let Some(ring) = &mut self.ring {
            ring.turn(&transaction, epoch.seen.time)?;
        }
        transaction.commit()
    }
}

/// Makes an empty file that only its owner can read, in a directory into which no other user may
/// write; the directory is made if it is missing.
fn make_file(file: &Path) -> io::Result<File> {
    let file = std::path::absolute(file)?;
    let (Some(directory), Some(name)) =
        (file.parent(), file.file_name().and_then(|it| it.to_str()))
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    OwnDirectory::make(directory).map_err(io::Error::other)?.create_file(name)
}

impl Drop for Recorder {
    /// A run that failed before its first epoch leaves no empty record behind.
    fn drop(&mut self) {
        if self.is_empty {
            for suffix in ["", "-wal", "-shm"] {
                let mut path = self.file.clone().into_os_string();
                path.push(suffix);
                // If the file cannot be removed, an empty record remains, which is harmless.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Writes one row for each label: the epoch, the label, then every metric of the scope. Each part
/// has samples of one row.
fn write_samples(
    database: &Connection,
    number: i64,
    scope: Scope,
    parts: &[&[Sample]],
) -> rusqlite::Result<()> {
    let metrics = schema::metrics_of(scope);
    let mut columns = vec![None; ALL.len()];
    for (column, metric) in metrics.iter().enumerate() {
        columns[usize::from(metric.place)] = Some(column);
    }
    let mut rows: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for part in parts.iter().filter(|part| part[0].metric.scope == scope) {
        let row = rows.entry(part[0].label.as_str()).or_insert_with(|| vec![None; metrics.len()]);
        for sample in *part {
            // SQL has no infinity, and NaN is not a value.
            let value = sample.value.as_ref().ok().copied().filter(|value| value.is_finite());
            if let Some(column) = columns[usize::from(sample.metric.place)] {
                row[column] = value;
            }
        }
    }
    let mut insert = database.prepare_cached(&schema::insert_of(scope))?;
    let first = 2 + scope.label_names().len();
    for (label, values) in rows {
        // Most values of an idle app are missing: what is not bound is NULL.
        insert.clear_bindings();
        insert.raw_bind_parameter(1, number)?;
        for (at, (_, text)) in scope.labels(label).enumerate() {
            insert.raw_bind_parameter(2 + at, text)?;
        }
        for (at, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                insert.raw_bind_parameter(first + at, value)?;
            }
        }
        insert.raw_execute()?;
    }
    Ok(())
}

/// Writes the latency histogram of each app and a sample of its requests.
fn write_requests(
    database: &Connection,
    number: i64,
    apps: &[AppSpec],
    epoch: &Epoch,
) -> rusqlite::Result<()> {
    for (spec, seen) in apps.iter().zip(&epoch.seen.apps) {
        let Ok(latency) = &seen.latency else { continue };
        database.prepare_cached("INSERT INTO latencies VALUES (?1, ?2, ?3)")?.execute(params![
            number,
            spec.name,
            latency.window.to_deflated()
        ])?;
        let sample = &latency.sample;
        if !sample.is_empty() {
            let one_in = sample.one_in as i64;
            database
                .prepare_cached("INSERT INTO requests VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![number, spec.name, one_in, packed::pack(&sample.requests)])?;
        }
    }
    Ok(())
}

/// Writes the setting of each knob that the plan wants, if it differs from the one written last.
fn write_plan(
    database: &Connection,
    number: i64,
    plan: &Plan,
    known: &mut BTreeMap<Knob, Setting>,
) -> rusqlite::Result<()> {
    let expected = plan.expected.as_ref().map(json);
    for step in plan.steps() {
        let (knob, setting) = (step.setting.knob(), &step.setting);
        if known.get(&knob) == Some(setting) {
            continue;
        }
        database
            .prepare_cached("INSERT INTO plans VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![number, json(&knob), json(setting), json(&step.reason), expected])?;
        known.insert(knob, setting.clone());
    }
    Ok(())
}

/// Returns the sources of values that have several possible sources.
fn sources<'a>(apps: &'a [AppSpec], epoch: &Epoch) -> Vec<Note<'a>> {
    let energy = epoch.seen.energy.as_ref().ok();
    let power = energy.map(|seen| (POWER, "", SharedText::from(seen.source.to_string())));
    let progress = numbered(apps).filter_map(|(id, spec)| {
        let progress = epoch.seen.app(id)?.progress.as_ref().ok()?;
        Some((PROGRESS, spec.name.as_str(), SharedText::from(progress.source.to_string())))
    });
    power.into_iter().chain(progress).collect()
}

/// Writes the text of a metric and label if it differs from the one written last.
fn note<'a>(
    database: &Connection,
    table: &str,
    number: i64,
    all: impl IntoIterator<Item = Note<'a>>,
    known: &mut Noted,
) -> rusqlite::Result<()> {
    // Notes of one label stand side by side, so that each label is searched once. Its metrics come
    // in the same order in every epoch: hundreds of apps have thousands of samples.
    let mut all = all.into_iter().peekable();
    while let Some((_, label, _)) = all.peek() {
        let label = *label;
        let of_label = match known.get_mut(label) {
            Some(of_label) => of_label,
            None => known.entry(label.to_owned()).or_default(),
        };
        let mut next = 0;
        while let Some((metric, _, text)) = all.next_if(|(_, other, _)| *other == label) {
            let is_metric = |at: &usize| of_label[*at].0 == metric.place;
            let place = (next..of_label.len()).chain(0..next).find(is_metric);
            next = place.map_or(next, |place| place + 1);
            let is_same = match place {
                Some(place) => of_label[place].1 == text,
                None => text.is_empty(),
            };
            if is_same {
                continue;
            }
            database
                .prepare_cached(&format!("INSERT INTO {table} VALUES (?1, ?2, ?3, ?4)"))?
                .execute(params![number, metric.json_key(), label, text.as_str()])?;
            match place {
                Some(place) => of_label[place].1 = text,
                None => of_label.push((metric.place, text)),
            }
        }
    }
    Ok(())
}

/// Writes the pod of each app that was another one, or none, before.
fn write_pods(
    database: &Connection,
    number: i64,
    pods: &BTreeMap<String, PodIdentity>,
    known: &mut BTreeMap<String, PodIdentity>,
) -> rusqlite::Result<()> {
    if pods == known {
        return Ok(());
    }
    let none = PodIdentity::default();
    let apps = known.keys().chain(pods.keys()).collect::<BTreeSet<_>>();
    for app in apps {
        let pod = pods.get(app).unwrap_or(&none);
        if known.get(app) != pods.get(app) {
            let PodIdentity { namespace, name, container, workload, uid, .. } = pod;
            database
                .prepare_cached("INSERT INTO pods VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
                .execute(params![number, app, namespace, name, container, workload, uid])?;
        }
    }
    known.clone_from(pods);
    Ok(())
}

/// Serialises a value of Lull's own types as JSON, which does not fail.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}

/// `YYYYMMDD-HHMMSS` in UTC.
fn utc_stamp(unix_s: u64) -> String {
    let seconds = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%Y%m%d-%H%M%S").to_string()
}

/// The host and the versions, which every record has.
fn host_and_versions() -> [(&'static str, String); 4] {
    let system = rustix::system::uname();
    let kernel = format!(
        "{} {} {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy()
    );
    [
        ("host", system.nodename().to_string_lossy().into_owned()),
        ("lull_version", VERSION.to_owned()),
        ("schema", schema::VERSION.to_string()),
        ("kernel", kernel),
    ]
}

#[cfg(test)]
mod tests;
