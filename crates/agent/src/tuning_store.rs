//! The SQLite store of the trials and results of searches.
//!
//! Each trial is written as soon as it ends, and the write-ahead log preserves it if the process
//! is killed. `lull tune` writes trials and results, `lull run` the results of its policy. The
//! next search of the same app on the same machine at about the same load starts from the
//! stored results, and `lull run` passes them to `bayop`.

use crate::error::UsageError;
use lull_control::{Capability, Discovery, Machine};
use lull_measure::{Nanos, Percentile};
use lull_policies::search::{Choice, Place, Protocol, Reading, Search, Space, Trial};
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};

/// The width of a load bin: rates within 15 % share their results.
const BIN: f64 = 1.15;
/// The version of the tables, raised when an older reader would misread a new store.
const VERSION: i64 = 2;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS trial (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, search TEXT NOT NULL,
        number INTEGER NOT NULL, place TEXT NOT NULL, result TEXT NOT NULL,
        PRIMARY KEY (machine, app, bin, search, number)
    );
    CREATE TABLE IF NOT EXISTS spot (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, objective TEXT NOT NULL,
        knobs TEXT NOT NULL, rate_per_s REAL NOT NULL, knob_values TEXT NOT NULL,
        meets INTEGER NOT NULL, tail_us REAL NOT NULL, watts REAL NOT NULL,
        PRIMARY KEY (machine, app, bin, objective, knobs)
    );";

/// The result of a search replaces the stored result for its load.
const REPLACE: &str = "INSERT OR REPLACE INTO spot VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A new measurement of a stored setting updates its figures. It applies to the nearest stored
/// load, which may be in a neighbouring bin, because measured loads vary.
const RENEW: &str = "
    UPDATE spot SET tail_us = ?1, watts = ?2
    WHERE machine = ?3 AND app = ?4 AND objective = ?5 AND knobs = ?6 AND knob_values = ?7
      AND meets AND bin = (
        SELECT bin FROM spot WHERE machine = ?3 AND app = ?4 AND objective = ?5 AND knobs = ?6
          AND abs(bin - ?8) <= 1 ORDER BY abs(bin - ?8) LIMIT 1)";

/// Without a stored result near this load, the measurement is added as a new one. A result that
/// another search has stored meanwhile is kept.
const ADD: &str = "
    INSERT INTO spot SELECT ?3, ?4, ?8, ?5, ?6, ?9, ?7, TRUE, ?1, ?2 WHERE NOT EXISTS (
        SELECT 1 FROM spot WHERE machine = ?3 AND app = ?4 AND objective = ?5 AND knobs = ?6
          AND abs(bin - ?8) <= 1)";

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

/// The subject of stored results: an app's objective on a machine, over a set of knobs.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    machine: String,
    app: String,
    objective: String,
    knobs: String,
}

/// The key under which a search stores its trials.
pub struct Key {
    subject: Subject,
    bin: i64,
    /// Objective, method, space and length of trials. Only a search with an equal key reuses
    /// the trials.
    search: String,
    rate_per_s: f64,
}

/// A setting that was found to meet the objective.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownSetting {
    /// Requests per second at which it was found.
    pub rate_per_s: f64,
    /// Values in the order of the knobs, each in its own unit.
    pub values: Vec<f64>,
}

impl Subject {
    /// Returns the subject for an app's objective on a machine and the knobs of a search space.
    pub fn new(
        machine: &Machine,
        app: &str,
        (percentile, bound): (Percentile, Nanos),
        space: &Space,
    ) -> Self {
        let knobs: Vec<_> = space.dimensions().iter().map(|it| it.knob.name()).collect();
        Self {
            machine: fingerprint(machine),
            app: app.to_owned(),
            objective: format!("{percentile} < {bound}"),
            knobs: knobs.join(","),
        }
    }
}

impl Key {
    /// Returns the key of a search. `plant` names further conditions that must be equal for
    /// trials to be reused: for a simulated server, its exact load and seed.
    pub fn new(
        subject: Subject,
        search: &Search,
        protocol: &Protocol,
        (plant, rate_per_s): (&str, f64),
    ) -> Self {
        let space = search.space();
        let levels: Vec<_> = space
            .dimensions()
            .iter()
            .map(|it| format!("{} {}", it.knob, it.levels.len()))
            .collect();
        let what = format!(
            "{:?}; {}; {}; {} after {}; {plant}",
            search.rules().method,
            subject.objective,
            levels.join(", "),
            protocol.window,
            protocol.settle
        );
        Self { bin: bin(rate_per_s), subject, search: what, rate_per_s }
    }
}

/// Returns the load bin of a rate.
pub fn bin(rate_per_s: f64) -> i64 {
    (rate_per_s.max(1e-3).ln() / BIN.ln()).round() as i64
}

/// Returns the identity of a machine: its name and a checksum of everything that a setting may
/// depend on. Gates are left out because they belong to apps; their settings are stored under
/// the knobs of the app.
fn fingerprint(machine: &Machine) -> String {
    let mut bare = Machine { gates: Vec::new(), ..machine.clone() };
    for capability in Capability::OF_GATES {
        bare.capabilities = std::mem::take(&mut bare.capabilities).unstated(capability);
    }
    let all = serde_json::to_string(&bare).unwrap_or_default();
    format!("{} {:08x}", machine.name, crc32fast::hash(all.as_bytes()))
}

impl Store {
    /// Opens a store, or creates it.
    ///
    /// # Errors
    /// [`UsageError`] if the file is not a store, or damaged.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Self::try_open(path).map_err(|error| damaged(path, &error))
    }

    fn try_open(path: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
        anyhow::ensure!(version == VERSION || tables == 0, "it has other tables");
        let sound: String = connection.query_row("PRAGMA quick_check", [], |row| row.get(0))?;
        anyhow::ensure!(sound == "ok", "{sound}");
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "user_version", VERSION)?;
        connection.execute_batch(TABLES)?;
        Ok(Self { connection, path: path.to_owned() })
    }

    /// Returns the trials of a search that has not ended, in order.
    ///
    /// # Errors
    /// [`UsageError`] if a row cannot be parsed.
    pub fn trials(&self, key: &Key) -> anyhow::Result<Vec<Trial>> {
        self.read_trials(key).map_err(|error| damaged(&self.path, &error))
    }

    fn read_trials(&self, key: &Key) -> anyhow::Result<Vec<Trial>> {
        // By position: stores of earlier builds have another name for the last column.
        let sql = "SELECT * FROM trial
                   WHERE machine = ? AND app = ? AND bin = ? AND search = ? ORDER BY number";
        let mut statement = self.connection.prepare(sql)?;
        let of = params![key.subject.machine, key.subject.app, key.bin, key.search];
        let rows = statement
            .query_map(of, |row| Ok((row.get::<_, String>(5)?, row.get::<_, String>(6)?)))?;
        rows.map(|row| {
            let (place, came) = row?;
            Ok(Trial { place: serde_json::from_str(&place)?, came: serde_json::from_str(&came)? })
        })
        .collect()
    }

    /// Returns the key under which a search continues. If its own load bin has no trials but a
    /// neighbouring bin has those of an interrupted search, this is the key of that bin, because
    /// measured loads vary.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn adopt(&self, key: Key) -> anyhow::Result<Key> {
        let sql = "SELECT bin FROM trial WHERE machine = ? AND app = ? AND search = ? AND
                   abs(bin - ?) <= 1 ORDER BY abs(bin - ?) LIMIT 1";
        let Subject { machine, app, .. } = &key.subject;
        let of = params![machine, app, key.search, key.bin, key.bin];
        let mut statement = self.connection.prepare(sql)?;
        let bin = statement.query_map(of, |row| row.get(0))?.next().transpose()?;
        Ok(Key { bin: bin.unwrap_or(key.bin), ..key })
    }

    /// Stores a trial.
    pub fn keep_trial(
        &self,
        key: &Key,
        number: usize,
        place: &Place,
        came: &Result<Reading, String>,
    ) -> anyhow::Result<()> {
        let (place, came) = (serde_json::to_string(place)?, serde_json::to_string(came)?);
        let Subject { machine, app, .. } = &key.subject;
        self.connection.execute(
            "INSERT OR REPLACE INTO trial VALUES (?, ?, ?, ?, ?, ?, ?)",
            params![machine, app, key.bin, key.search, number as i64, place, came],
        )?;
        Ok(())
    }

    /// Returns the settings that meet a subject's objective, by load.
    ///
    /// # Errors
    /// [`UsageError`] if a row cannot be parsed.
    pub fn known_settings(&self, subject: &Subject) -> anyhow::Result<Vec<KnownSetting>> {
        self.read_known_settings(subject).map_err(|error| damaged(&self.path, &error))
    }

    fn read_known_settings(&self, subject: &Subject) -> anyhow::Result<Vec<KnownSetting>> {
        let sql = "SELECT rate_per_s, knob_values FROM spot WHERE machine = ? AND app = ? AND
                   objective = ? AND knobs = ? AND meets ORDER BY rate_per_s";
        let mut statement = self.connection.prepare(sql)?;
        let Subject { machine, app, objective, knobs } = subject;
        let rows = statement.query_map(params![machine, app, objective, knobs], |row| {
            Ok((row.get::<_, f64>(0)?, row.get::<_, String>(1)?))
        })?;
        rows.map(|row| {
            let (rate_per_s, values) = row?;
            let values: Vec<f64> = serde_json::from_str(&values)?;
            anyhow::ensure!(values.len() == knobs.split(',').count(), "a setting has {values:?}");
            Ok(KnownSetting { rate_per_s, values })
        })
        .collect()
    }

    /// Returns the stored setting in the load bin of a search.
    ///
    /// # Errors
    /// As [`Store::known_settings`].
    pub fn known_setting(&self, key: &Key) -> anyhow::Result<Option<KnownSetting>> {
        let all = self.known_settings(&key.subject)?;
        Ok(all.into_iter().find(|known| bin(known.rate_per_s) == key.bin))
    }

    /// Stores the result of a search in place of the previous one for its load, and deletes the
    /// search's trials, so that the next search measures again.
    pub fn keep_choice(&self, key: &Key, space: &Space, choice: &Choice) -> anyhow::Result<()> {
        let values = serde_json::to_string(&space.values(&choice.place))?;
        let Subject { machine, app, objective, knobs } = &key.subject;
        let transaction = self.connection.unchecked_transaction()?;
        transaction.execute(
            REPLACE,
            params![
                machine,
                app,
                key.bin,
                objective,
                knobs,
                key.rate_per_s,
                values,
                choice.meets,
                choice.tail_us,
                choice.watts
            ],
        )?;
        transaction.execute(
            "DELETE FROM trial WHERE machine = ? AND app = ? AND bin = ? AND search = ?",
            params![machine, app, key.bin, key.search],
        )?;
        transaction.commit()?;
        Ok(())
    }

    /// Stores the result of a search of a run's policy for a subject, in place of the previous
    /// one for its load.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_found(&self, subject: &Subject, found: &Discovery) -> anyhow::Result<()> {
        let values = serde_json::to_string(&found.values)?;
        let Subject { machine, app, objective, knobs } = subject;
        let (rate, bin) = (found.rate_per_s, bin(found.rate_per_s));
        let (meets, tail_us, watts) = (found.meets, found.tail_us, found.watts);
        let row = params![machine, app, bin, objective, knobs, rate, values, meets, tail_us, watts];
        self.connection.execute(REPLACE, row)?;
        Ok(())
    }

    /// Stores a new measurement of a setting that still meets its objective.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_seen(&self, subject: &Subject, seen: &Discovery) -> anyhow::Result<()> {
        let values = serde_json::to_string(&seen.values)?;
        let Subject { machine, app, objective, knobs } = subject;
        let (rate, bin) = (seen.rate_per_s, bin(seen.rate_per_s));
        let (tail_us, watts) = (seen.tail_us, seen.watts);
        let transaction = self.connection.unchecked_transaction()?;
        let figures = params![tail_us, watts, machine, app, objective, knobs, values, bin];
        transaction.execute(RENEW, figures)?;
        let row = params![tail_us, watts, machine, app, objective, knobs, values, bin, rate];
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
