//! The SQLite store of the trials and results of searches.
//!
//! Each trial is written as soon as it ends, and the write-ahead log preserves it if the process
//! is killed. `lull tune` writes trials and results, `lull run` the results of its policy. The
//! next search of the same app on the same machine at about the same load starts from the
//! stored results, and `lull run` passes them to `bayop`.

mod former;
mod subject;
mod trials;

pub(crate) use former::present_class;
pub(crate) use subject::rates_near;
pub use subject::{Key, Subject, bin, machine_class};

use crate::error::UsageError;
use anyhow::Context;
use former::{WITHOUT_EVIDENCE, add_columns};
use lull_control::{Discovery, TrialEvidence};
use lull_policies::search::{Choice, Search, SearchPoint, Space};
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};

/// The version of the tables, raised when an older reader would misread a new store.
const VERSION: i64 = 5;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS trial (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, search TEXT NOT NULL,
        number INTEGER NOT NULL, place TEXT NOT NULL, result TEXT NOT NULL, measured_s INTEGER,
        PRIMARY KEY (machine, app, bin, search, number)
    );
    CREATE TABLE IF NOT EXISTS spot (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, objective TEXT NOT NULL,
        knobs TEXT NOT NULL, rate_per_s REAL NOT NULL, knob_values TEXT NOT NULL,
        meets INTEGER NOT NULL, tail_us REAL NOT NULL, watts REAL NOT NULL, evidence TEXT,
        PRIMARY KEY (machine, app, bin, objective, knobs)
    );
    CREATE TABLE IF NOT EXISTS search (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, search TEXT NOT NULL,
        seed INTEGER NOT NULL, rate_per_s REAL,
        PRIMARY KEY (machine, app, bin, search)
    );
    CREATE TABLE IF NOT EXISTS refuted (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, objective TEXT NOT NULL,
        knobs TEXT NOT NULL, rate_per_s REAL NOT NULL, knob_values TEXT NOT NULL,
        PRIMARY KEY (machine, app, bin, objective, knobs, knob_values)
    );";

/// Results, or refuted settings, of an app's objective at about a load.
const NEAR: &str = "machine = ?1 AND app = ?2 AND objective = ?3 AND knobs = ?4
    AND rate_per_s BETWEEN ?5 AND ?6";

const KEEP_REFUTED: &str = "INSERT OR REPLACE INTO refuted VALUES (?, ?, ?, ?, ?, ?, ?)";
const KEEP_RESULT: &str = "INSERT OR REPLACE INTO spot VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A new measurement of a stored setting updates its figures. It applies to the nearest result at
/// about its load, because measured loads vary.
const RENEW: &str = "
    UPDATE spot SET tail_us = ?8, watts = ?9, evidence = coalesce(?10, evidence)
    WHERE machine = ?1 AND app = ?2 AND objective = ?3 AND knobs = ?4 AND knob_values = ?11
      AND meets AND rate_per_s = (
        SELECT rate_per_s FROM spot WHERE machine = ?1 AND app = ?2 AND objective = ?3
          AND knobs = ?4 AND rate_per_s BETWEEN ?5 AND ?6 ORDER BY abs(rate_per_s - ?7) LIMIT 1)";

/// Without a stored result near this load, the measurement is added as a new one. A result that
/// another search has stored meanwhile is kept.
const ADD: &str = "
    INSERT INTO spot SELECT ?1, ?2, ?12, ?3, ?4, ?7, ?11, TRUE, ?8, ?9, ?10
      WHERE ?10 IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM spot WHERE machine = ?1 AND app = ?2 AND objective = ?3 AND knobs = ?4
          AND rate_per_s BETWEEN ?5 AND ?6)";

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

/// The result of a search at a load.
struct SearchResult {
    bin: i64,
    rate_per_s: f64,
    values: Vec<f64>,
    meets: bool,
    tail_us: f64,
    watts: f64,
    evidence: Option<TrialEvidence>,
    /// Values of the settings that were refuted.
    refuted: Vec<Vec<f64>>,
}

/// A setting that was found to meet the objective.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownSetting {
    /// Requests per second at which it was found.
    pub rate_per_s: f64,
    /// Values in the order of the knobs, each in its own unit.
    pub values: Vec<f64>,
    /// The evidence of its trials.
    pub evidence: TrialEvidence,
}

/// A setting that a search has refuted.
#[derive(Debug, Clone, PartialEq)]
pub struct RefutedSetting {
    /// Requests per second at which it was refuted.
    pub rate_per_s: f64,
    /// Values in the order of the knobs, each in its own unit.
    pub values: Vec<f64>,
}

impl Store {
    /// Opens a store, or creates it.
    ///
    /// # Errors
    /// [`UsageError`] if the file is not a store, or damaged.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Self::check_directory(path)?;
        Self::try_open(path).map_err(|error| damaged(path, &error))
    }

    /// Checks that a store may be made there.
    ///
    /// # Errors
    /// [`UsageError`] if there is no such directory.
    pub fn check_directory(path: &Path) -> Result<(), UsageError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Some(folder) = folder.filter(|folder| !folder.is_dir()) else { return Ok(()) };
        let what = format!(
            "cannot make the store {}: there is no directory {}: make it, or name another",
            path.display(),
            folder.display()
        );
        Err(UsageError(what))
    }

    fn try_open(path: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
        let is_read = tables == 0 || (WITHOUT_EVIDENCE..=VERSION).contains(&version);
        anyhow::ensure!(is_read, "it has other tables");
        let sound: String = connection.query_row("PRAGMA quick_check", [], |row| row.get(0))?;
        anyhow::ensure!(sound == "ok", "{sound}");
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.execute_batch(TABLES)?;
        add_columns(&connection)?;
        connection.pragma_update(None, "user_version", VERSION)?;
        Ok(Self { connection, path: path.to_owned() })
    }

    fn unwritable(&self) -> String {
        let path = self.path.display();
        format!("cannot write {path}; the same command continues with the trials that it has")
    }

    /// Returns the settings that meet a subject's objective, by load. Settings that were stored
    /// without evidence are left out.
    ///
    /// # Errors
    /// [`UsageError`] if a row cannot be parsed.
    pub fn known_settings(&self, subject: &Subject) -> anyhow::Result<Vec<KnownSetting>> {
        self.read_known_settings(subject).map_err(|error| damaged(&self.path, &error))
    }

    fn read_known_settings(&self, subject: &Subject) -> anyhow::Result<Vec<KnownSetting>> {
        let sql = "SELECT rate_per_s, knob_values, evidence FROM spot WHERE machine = ? AND
                   app = ? AND objective = ? AND knobs = ? AND meets AND evidence IS NOT NULL
                   ORDER BY rate_per_s";
        let mut statement = self.connection.prepare(sql)?;
        let Subject { machine, app, objective, knobs } = subject;
        let rows = statement.query_map(params![machine, app, objective, knobs], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })?;
        rows.map(|row| {
            let (rate_per_s, values, evidence) = row?;
            let (values, evidence) = (subject.values(&values)?, serde_json::from_str(&evidence)?);
            Ok(KnownSetting { rate_per_s, values, evidence })
        })
        .collect()
    }

    /// Returns the subjects that have stored settings of no other knobs than those of a subject:
    /// knobs that were refused have left the searches of the others.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn subjects_within(&self, subject: &Subject) -> anyhow::Result<Vec<Subject>> {
        let of = "machine = ?1 AND app = ?2 AND objective = ?3";
        let sql = format!(
            "SELECT knobs FROM spot WHERE {of} UNION SELECT knobs FROM refuted WHERE {of}
             ORDER BY knobs"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let Subject { machine, app, objective, .. } = subject;
        let rows = statement.query_map(params![machine, app, objective], |row| {
            Ok(Subject { knobs: row.get(0)?, ..subject.clone() })
        })?;
        let all: Vec<Subject> = rows.collect::<Result<_, _>>()?;
        let is_within = |one: &Subject| one.knobs().all(|it| subject.knobs().any(|own| own == it));
        Ok(all.into_iter().filter(is_within).collect())
    }

    /// Returns how many settings of a subject were stored without evidence.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn count_without_evidence(&self, subject: &Subject) -> anyhow::Result<u64> {
        let sql = "SELECT count(*) FROM spot WHERE machine = ? AND app = ? AND objective = ? AND
                   knobs = ? AND meets AND evidence IS NULL";
        let Subject { machine, app, objective, knobs } = subject;
        let of = params![machine, app, objective, knobs];
        Ok(self.connection.query_row(sql, of, |row| row.get::<_, i64>(0))?.cast_unsigned())
    }

    /// Describes the settings for the app and its objective that other machine classes have found
    /// and this one does not use; `None` without any.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn describe_unused(&self, subject: &Subject) -> anyhow::Result<Option<String>> {
        let sql = "SELECT count(*) FROM spot WHERE machine <> ? AND app = ? AND objective = ? AND
                   meets AND evidence IS NOT NULL";
        let Subject { machine, app, objective, .. } = subject;
        let of = params![machine, app, objective];
        let count: i64 = self.connection.query_row(sql, of, |row| row.get(0))?;
        let path = self.path.display();
        Ok((count > 0).then(|| {
            format!(
                "{count} settings for `{app}` in {path} were found on another class of machine \
                 than `{machine}` and are not used: its processor, knobs or meters differ, or the \
                 rights to use them. Search again here"
            )
        }))
    }

    /// Returns the settings of a subject that the last search of their load has refuted.
    ///
    /// # Errors
    /// [`UsageError`] if a row cannot be parsed.
    pub fn refuted_settings(&self, subject: &Subject) -> anyhow::Result<Vec<RefutedSetting>> {
        self.read_refuted_settings(subject).map_err(|error| damaged(&self.path, &error))
    }

    fn read_refuted_settings(&self, subject: &Subject) -> anyhow::Result<Vec<RefutedSetting>> {
        let sql = "SELECT rate_per_s, knob_values FROM refuted WHERE machine = ? AND app = ? AND
                   objective = ? AND knobs = ? ORDER BY rate_per_s, knob_values";
        let mut statement = self.connection.prepare(sql)?;
        let Subject { machine, app, objective, knobs } = subject;
        let rows = statement.query_map(params![machine, app, objective, knobs], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?))
        })?;
        rows.map(|row| {
            let (rate_per_s, values) = row?;
            Ok(RefutedSetting { rate_per_s, values: subject.values(&values)? })
        })
        .collect()
    }

    /// Returns the load of the result that is stored for about the load of a search: the nearest
    /// one within 15 %, in its own bin or a neighbouring one.
    fn result_rate(&self, key: &Key) -> anyhow::Result<Option<f64>> {
        let sql = "SELECT rate_per_s FROM spot WHERE machine = ? AND app = ? AND objective = ?
                   AND knobs = ?";
        let Subject { machine, app, objective, knobs } = &key.subject;
        let mut statement = self.connection.prepare(sql)?;
        let rates =
            statement.query_map(params![machine, app, objective, knobs], |row| row.get(0))?;
        let rates: Vec<f64> = rates.collect::<Result<_, _>>()?;
        let near = rates.into_iter().filter(|rate| rates_near(key.rate_per_s).contains(rate));
        let distance = |rate: &f64| (rate - key.rate_per_s).abs();
        Ok(near.min_by(|a, b| distance(a).total_cmp(&distance(b))))
    }

    /// Returns the settings of a search's space that the last search at about its load has
    /// refuted.
    ///
    /// # Errors
    /// As [`Store::refuted_settings`].
    pub fn refuted_here(&self, key: &Key, space: &Space) -> anyhow::Result<Vec<SearchPoint>> {
        let (rate, all) = (self.result_rate(key)?, self.refuted_settings(&key.subject)?);
        let here = all.into_iter().filter(|one| Some(one.rate_per_s) == rate);
        Ok(here.filter_map(|one| space.stored(&one.values)).collect())
    }

    /// Returns the setting that is stored for about the load of a search.
    ///
    /// # Errors
    /// As [`Store::known_settings`].
    pub fn known_setting(&self, key: &Key) -> anyhow::Result<Option<KnownSetting>> {
        let (rate, all) = (self.result_rate(key)?, self.known_settings(&key.subject)?);
        Ok(all.into_iter().find(|known| Some(known.rate_per_s) == rate))
    }

    /// Stores the result of a search in place of those near its load, with its refuted settings,
    /// and deletes the search's trials, so that the next search measures again.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_choice(&self, key: &Key, search: &Search, choice: &Choice) -> anyhow::Result<()> {
        let space = search.space();
        let result = SearchResult {
            bin: key.bin,
            rate_per_s: key.rate_per_s,
            values: space.values(&choice.point),
            meets: choice.meets,
            tail_us: choice.tail_us,
            watts: choice.watts,
            evidence: Some(choice.evidence),
            refuted: search.refuted().iter().map(|point| space.values(point)).collect(),
        };
        let transaction = self.connection.unchecked_transaction()?;
        self.put_result(&key.subject, &result).with_context(|| self.unwritable())?;
        self.forget(key)?;
        transaction.commit()?;
        Ok(())
    }

    /// Stores the result of a search of a run's policy for a subject, in place of those of about
    /// its load.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_found(&self, subject: &Subject, found: &Discovery) -> anyhow::Result<()> {
        // A knob that was refused has left the search.
        let subject = &subject.over(&found.knobs);
        let result = SearchResult {
            bin: bin(found.rate_per_s),
            rate_per_s: found.rate_per_s,
            values: found.values.clone(),
            meets: found.meets,
            tail_us: found.tail_us,
            watts: found.watts,
            evidence: found.evidence,
            refuted: found.refuted.clone(),
        };
        let transaction = self.connection.unchecked_transaction()?;
        self.put_result(subject, &result)?;
        transaction.commit()?;
        Ok(())
    }

    /// Replaces the results of about a load, within a transaction of the caller.
    fn put_result(&self, subject: &Subject, result: &SearchResult) -> anyhow::Result<()> {
        let SearchResult { bin, rate_per_s: rate, meets, tail_us, watts, .. } = result;
        let Subject { machine, app, objective, knobs } = subject;
        let values = serde_json::to_string(&result.values)?;
        let evidence = result.evidence.as_ref().map(serde_json::to_string).transpose()?;
        let near = rates_near(*rate);
        for table in ["spot", "refuted"] {
            let of = params![machine, app, objective, knobs, near.start(), near.end()];
            self.connection.execute(&format!("DELETE FROM {table} WHERE {NEAR}"), of)?;
        }
        let row = params![
            machine, app, bin, objective, knobs, rate, values, meets, tail_us, watts, evidence
        ];
        self.connection.execute(KEEP_RESULT, row)?;
        for values in &result.refuted {
            let values = serde_json::to_string(values)?;
            let row = params![machine, app, bin, objective, knobs, rate, values];
            self.connection.execute(KEEP_REFUTED, row)?;
        }
        Ok(())
    }

    /// Stores a new measurement of a setting that still meets its objective.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_seen(&self, subject: &Subject, seen: &Discovery) -> anyhow::Result<()> {
        let values = serde_json::to_string(&seen.values)?;
        let Subject { machine, app, objective, knobs } = &subject.over(&seen.knobs);
        let (rate, bin) = (seen.rate_per_s, bin(seen.rate_per_s));
        let (near, tail_us, watts) = (rates_near(rate), seen.tail_us, seen.watts);
        let (low, high) = (near.start(), near.end());
        // A window of a policy that does not weigh its evidence replaces none.
        let evidence = seen.evidence.filter(TrialEvidence::is_within);
        let evidence = evidence.as_ref().map(serde_json::to_string).transpose()?;
        let transaction = self.connection.unchecked_transaction()?;
        let figures = params![
            machine, app, objective, knobs, low, high, rate, tail_us, watts, evidence, values
        ];
        transaction.execute(RENEW, figures)?;
        let row = params![
            machine, app, objective, knobs, low, high, rate, tail_us, watts, evidence, values, bin
        ];
        transaction.execute(ADD, row)?;
        transaction.commit()?;
        Ok(())
    }
}

fn damaged(path: &Path, error: &anyhow::Error) -> anyhow::Error {
    let advice = "is not a store of `lull tune`, or is damaged";
    let move_away = "move it away, or name another";
    UsageError(format!("{} {advice} ({error}): {move_away}", path.display())).into()
}

#[cfg(test)]
mod tests;
