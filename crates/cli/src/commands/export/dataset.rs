//! `lull export --dataset`: the sums of many hosts' records in one dataset, for DuckDB and other
//! readers of Parquet.
//!
//! ```text
//! _lull.json                                            what the dataset is, and its version
//! TABLE/host=HOST/day=YYYY-MM-DD/RUN-FIRST-LAST.parquet
//! ```
//!
//! A file has the sums of the epochs FIRST to LAST of a run that ended on a day (UTC, by the
//! clock of the host). It is never changed: an export adds the epochs that the dataset does
//! not have yet. The file of the table `runs` is written last and says that those of the other
//! tables are whole; others that an interrupted export has left are removed by the next export
//! of the run, and left out by the views of `examples/fleet/views.sql`.

mod names;
mod retention;
mod store;
mod tables;

use crate::cli::ExportArgs;
use crate::commands::UsageError;
use anyhow::{Context, bail};
use jiff::Timestamp;
use jiff::civil::Date;
use lull_agent::error::describe;
use lull_agent::recorded::{RunLabel, Sums, open};
use lull_lab::parquet_table::check_built;
use lull_measure::escape::visible_line;
use names::{DayFile, TABLES};
use retention::Removed;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use store::Store;
use tables::DayTables;

/// The file that marks a dataset.
const MARKER: &str = "_lull.json";
/// Raised when a query would misread what a later version adds.
///
/// 2: `app_minutes` and `latencies` have the columns `namespace`, `pod`, `container` and
/// `workload`.
///
/// 3: `latencies` has the columns `has_objective`, `percentile` and `bound_ns`.
///
/// Files of former versions do not; the views of `examples/fleet/views.sql` read all of them.
const VERSION: u32 = 3;
/// The table whose files say that those of the others are whole.
const RUNS: &str = "runs";
/// A run that begins later than this by the clock of this machine had a wrong clock.
const AHEAD_MAX_H: i64 = 24;
/// Seconds since 1970 before which no Lull has written a record: an earlier time means that the
/// clock was not set.
const EARLIEST_UNIX_S: i64 = 1_577_836_800;

/// The contents of [`MARKER`].
#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    lull_dataset: u32,
}

/// The results of an export.
#[derive(Debug, Serialize)]
struct Done {
    dataset: String,
    records: Vec<Added>,
    /// Records that could not be exported, with the reasons.
    failed: Vec<(String, String)>,
    removed: Option<Removed>,
}

/// The parts of a record that were added.
#[derive(Debug, Serialize)]
struct Added {
    record: String,
    host: String,
    run: String,
    /// Epochs that the dataset did not have.
    epochs: u64,
    days: Vec<String>,
}

/// Adds the records to the dataset and removes old days from it.
pub(super) fn run(args: &ExportArgs, place: &str) -> anyhow::Result<()> {
    check_built()?;
    if args.runs.is_empty() && args.keep.is_none() {
        let what = "lull export --dataset takes records, or --keep to remove old days";
        return Err(UsageError(what.to_owned()).into());
    }
    if let Some(host) = &args.host {
        names::check_host(host).map_err(UsageError)?;
    }
    let store = store::open(place)?;
    check_marker(&*store, place, !args.runs.is_empty())?;
    let now = Timestamp::now();
    let oldest = args.keep.map(|keep| retention::oldest_day(keep, now)).transpose()?;
    let dataset = Dataset { store: &*store, host: args.host.as_deref(), now, oldest };
    let (mut records, mut failed) = (Vec::new(), Vec::new());
    for file in &args.runs {
        match dataset.add(file) {
            Ok(added) => records.push(added),
            // One damaged record of a thousand must not keep the others out.
            Err(error) => failed.push((file.display().to_string(), describe(&error))),
        }
    }
    let hosts: BTreeSet<String> = records.iter().map(|added| added.host.clone()).collect();
    let hosts = (!args.runs.is_empty()).then_some(hosts);
    let removed = oldest.map(|oldest| retention::remove_old(&*store, hosts.as_ref(), oldest));
    let removed = removed.transpose()?;
    let done = Done { dataset: place.to_owned(), records, failed, removed };
    if args.json {
        super::super::print_json(&done)?;
    } else {
        print(&done);
    }
    for (file, why) in &done.failed {
        eprintln!("{}: {}", visible_line(file), visible_line(why));
    }
    match done.failed.len() {
        0 => Ok(()),
        failed => bail!("{failed} of {} records were not exported", args.runs.len()),
    }
}

fn print(done: &Done) {
    for added in &done.records {
        let what = match added.epochs {
            0 => "nothing new".to_owned(),
            epochs => format!("{epochs} epochs of {}", added.days.join(", ")),
        };
        println!("{}: {what} ({} {})", added.record, added.host, added.run);
    }
    if let Some(removed) = &done.removed {
        println!("{removed}");
    }
}

/// Creates the marker of an empty place if records are added, and refuses a place that holds
/// anything else. A dataset of a former version is one of this version from now on: what is added
/// may be misread by the Lull that made it, which then refuses it.
fn check_marker(store: &dyn Store, place: &str, adds: bool) -> anyhow::Result<()> {
    let Some(bytes) = store.read(MARKER)? else {
        if !adds {
            let what = format!("{place} is no dataset: it has no {MARKER}; look at the path");
            return Err(UsageError(what).into());
        }
        if !store.is_empty()? {
            let what = format!("{place} holds other files and no {MARKER}: name an empty place");
            return Err(UsageError(what).into());
        }
        return write_marker(store);
    };
    let marker: Marker = serde_json::from_slice(&bytes)
        .with_context(|| format!("{place}/{MARKER} was not written by Lull: name another place"))?;
    match marker.lull_dataset {
        VERSION => Ok(()),
        1..VERSION => write_marker(store),
        version => bail!(
            "{place} is a dataset of version {version}; this lull writes version {VERSION}: \
             export with the lull that wrote it, or name another place"
        ),
    }
}

fn write_marker(store: &dyn Store) -> anyhow::Result<()> {
    store.write(MARKER, serde_json::to_vec(&Marker { lull_dataset: VERSION })?)
}

/// A dataset that records are added to.
struct Dataset<'a> {
    store: &'a dyn Store,
    /// The host of the records, if they are not those of the hosts that they name.
    host: Option<&'a str>,
    now: Timestamp,
    /// Days before this one are not added, since `--keep` would remove them again.
    oldest: Option<Date>,
}

impl Dataset<'_> {
    /// Adds the epochs of a record that the dataset does not have.
    fn add(&self, file: &Path) -> anyhow::Result<Added> {
        // Two exports of a record would both add its new epochs. The lock ends with the file,
        // which is closed after the database: closing it earlier would end SQLite's locks.
        let lock = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("{} is being exported already", file.display()))?;
        let record = open(file)?;
        let label = RunLabel::read(&record)?;
        self.check_clock(&label)?;
        let host = self.host.map(str::to_owned).or_else(|| label.host.clone());
        let host = host.context("the record does not name its host: use --host")?;
        names::check_host(&host).map_err(UsageError)?;
        let committed = self.tidy(&host, &label.run)?;
        let from = committed.iter().map(|file| file.last + 1).max().unwrap_or(i64::MIN);
        let sums = Sums::read(&record, &label, from)?;
        let (mut epochs, mut days) = (0, Vec::new());
        for (date, day) in &sums.days {
            // Rows of an epoch that has no row itself belong to no day.
            let is_expired = self.oldest.is_some_and(|oldest| *date < oldest);
            if day.minutes.is_empty() || is_expired {
                continue;
            }
            let (first, last) = day.epochs;
            let name = DayFile { host: &host, date: *date, run: &label.run, first, last };
            let tables = DayTables { record: &record, label: &label, apps: &sums.apps, day };
            for table in TABLES {
                self.store.write(&name.in_table(table), tables.to_parquet(table)?)?;
            }
            epochs += day.minutes.values().map(|sums| sums.epochs).sum::<u64>();
            days.push(date.to_string());
        }
        drop(record);
        drop(lock);
        Ok(Added { record: file.display().to_string(), host, run: label.run, epochs, days })
    }

    /// A day that is wrong would be removed too early or never.
    fn check_clock(&self, label: &RunLabel) -> anyhow::Result<()> {
        let ahead_s = label.started.as_second() - self.now.as_second();
        if label.started.as_second() >= EARLIEST_UNIX_S && ahead_s <= AHEAD_MAX_H * 3600 {
            return Ok(());
        }
        bail!(
            "the run began at {} by the clock of its host, and it is {} here: one of them is \
             wrong, and the days of the dataset would be; export the record by itself instead",
            label.started.strftime("%Y-%m-%d %H:%M UTC"),
            self.now.strftime("%Y-%m-%d %H:%M UTC")
        )
    }

    /// Returns the files of a run that are whole, as those of the table `runs`, and removes
    /// files of other tables that are not.
    fn tidy(&self, host: &str, run: &str) -> anyhow::Result<Vec<CommittedFile>> {
        let mut committed = BTreeSet::new();
        // `runs` comes last in the table of names and first here.
        for table in TABLES.into_iter().rev() {
            for path in self.store.list(&names::host_folder(table, host))? {
                let Some(file) = names::parse(&path).filter(|file| file.run == run) else {
                    continue;
                };
                let key = (file.date, file.first, file.last);
                if table == RUNS {
                    committed.insert(key);
                } else if !committed.contains(&key) {
                    self.store.remove(&path)?;
                }
            }
        }
        Ok(committed.into_iter().map(|(_, _, last)| CommittedFile { last }).collect())
    }
}

/// A part of a run that the dataset has.
struct CommittedFile {
    last: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_make_a_dataset() {
        let place = tempfile::tempdir().unwrap();
        let missing = place.path().join("missing");
        let name = missing.to_str().unwrap();
        let store = store::open(name).unwrap();
        let error = check_marker(&*store, name, false).unwrap_err().to_string();
        assert!(error.contains("is no dataset") && !missing.exists(), "{error}");
        check_marker(&*store, name, true).unwrap();
        assert!(missing.join(MARKER).exists());
    }

    #[test]
    fn datasets_of_former_versions_are_raised_and_of_later_ones_refused() {
        let place = tempfile::tempdir().unwrap();
        let name = place.path().to_str().unwrap();
        let store = store::open(name).unwrap();
        let marker = place.path().join(MARKER);
        for (before, is_read) in [(0, false), (1, true), (VERSION, true), (VERSION + 1, false)] {
            let text = format!("{{\"lull_dataset\":{before}}}");
            std::fs::write(&marker, &text).unwrap();
            assert_eq!(check_marker(&*store, name, true).is_ok(), is_read, "{before}");
            let after = std::fs::read_to_string(&marker).unwrap();
            let raised = format!("{{\"lull_dataset\":{VERSION}}}");
            assert_eq!(after, if is_read { raised } else { text }, "{before}");
        }
    }
}
