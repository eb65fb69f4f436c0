//! What searches have tried and found, in SQLite.
//!
//! Trials are rows of their own, written as they come: WAL keeps what was
//! written when the process is killed.

use super::UsageError;
use lull_control::{Machine, Plant};
use lull_lab::server::Run;
use lull_policies::tuning::{Choice, Place, Reading, Search, Space, Trial};
use rusqlite::{Connection, params};
use std::path::Path;

/// The width of a load bin: rates within 15 % share what was found.
const BIN: f64 = 1.15;
/// Raised when a reader of older stores would misread a new one.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS trial (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, search TEXT NOT NULL,
        number INTEGER NOT NULL, place TEXT NOT NULL, came TEXT NOT NULL,
        PRIMARY KEY (machine, app, bin, search, number)
    );
    CREATE TABLE IF NOT EXISTS spot (
        machine TEXT NOT NULL, app TEXT NOT NULL, bin INTEGER NOT NULL, search TEXT NOT NULL,
        rate_per_s REAL NOT NULL, knobs TEXT NOT NULL, knob_values TEXT NOT NULL,
        meets INTEGER NOT NULL, tail_us REAL NOT NULL, watts REAL NOT NULL,
        PRIMARY KEY (machine, app, bin, search)
    );";

/// An open store.
pub(super) struct Store {
    connection: Connection,
}

/// What a search is of.
pub(super) struct Key {
    machine: String,
    app: String,
    bin: i64,
    /// Objective, method, space and length of trials: what must be equal for
    /// trials to count for another search.
    search: String,
    rate_per_s: f64,
}

impl Key {
    pub(super) fn of(
        plant: &impl Plant,
        search: &Search,
        (method, rate_per_s): (&str, f64),
        run: &Run,
    ) -> Self {
        let app = plant.apps().first().map_or(String::new(), |app| app.name.clone());
        let space = search.space();
        let levels: Vec<_> = space
            .dimensions()
            .iter()
            .map(|it| format!("{} {}", it.knob, it.levels.len()))
            .collect();
        let what = format!(
            "{method}; bound {} us; {}; {} after {}; {rate_per_s}/s",
            search.rules().bound_us,
            levels.join(", "),
            run.length,
            run.warmup
        );
        Self {
            machine: fingerprint(plant.machine()),
            app,
            bin: (rate_per_s.ln() / BIN.ln()).round() as i64,
            search: what,
            rate_per_s,
        }
    }
}

/// What a machine is known by: everything that a setting may depend on.
fn fingerprint(machine: &Machine) -> String {
    let all = serde_json::to_string(machine).unwrap_or_default();
    format!("{} {:08x}", machine.name, crc32fast::hash(all.as_bytes()))
}

impl Store {
    /// Opens a store, or makes one.
    ///
    /// # Errors
    /// [`UsageError`] if the file is something else, or damaged.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        Self::try_open(path).map_err(|error| {
            let advice = "is not a store of `lull tune`, or is damaged";
            let move_away = "move it away, or name another with --store";
            UsageError(format!("{} {advice} ({error}): {move_away}", path.display())).into()
        })
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
        Ok(Self { connection })
    }

    /// The trials of a search that has not ended, in order.
    pub(super) fn trials(&self, key: &Key) -> anyhow::Result<Vec<Trial>> {
        let sql = "SELECT place, came FROM trial
                   WHERE machine = ? AND app = ? AND bin = ? AND search = ? ORDER BY number";
        let mut statement = self.connection.prepare(sql)?;
        let of = params![key.machine, key.app, key.bin, key.search];
        let rows = statement
            .query_map(of, |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        rows.map(|row| {
            let (place, came) = row?;
            Ok(Trial { place: serde_json::from_str(&place)?, came: serde_json::from_str(&came)? })
        })
        .collect()
    }

    /// Keeps a trial.
    pub(super) fn keep_trial(
        &self,
        key: &Key,
        number: usize,
        place: &Place,
        came: &Result<Reading, String>,
    ) -> anyhow::Result<()> {
        let (place, came) = (serde_json::to_string(place)?, serde_json::to_string(came)?);
        self.connection.execute(
            "INSERT OR REPLACE INTO trial VALUES (?, ?, ?, ?, ?, ?, ?)",
            params![key.machine, key.app, key.bin, key.search, number as i64, place, came],
        )?;
        Ok(())
    }

    /// Keeps what a search found, and forgets its trials: the next search
    /// looks afresh.
    pub(super) fn keep_spot(
        &self,
        key: &Key,
        space: &Space,
        choice: &Choice,
    ) -> anyhow::Result<()> {
        let knobs: Vec<_> = space.dimensions().iter().map(|it| it.knob.name()).collect();
        let values = serde_json::to_string(&space.values(&choice.place))?;
        let transaction = self.connection.unchecked_transaction()?;
        transaction.execute(
            "INSERT OR REPLACE INTO spot VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                key.machine,
                key.app,
                key.bin,
                key.search,
                key.rate_per_s,
                knobs.join(","),
                values,
                choice.meets,
                choice.tail_us,
                choice.watts
            ],
        )?;
        transaction.execute(
            "DELETE FROM trial WHERE machine = ? AND app = ? AND bin = ? AND search = ?",
            params![key.machine, key.app, key.bin, key.search],
        )?;
        transaction.commit()?;
        Ok(())
    }
}
