//! Searches in progress: their trials, seeds and loads.

use super::{Key, Store, Subject, damaged, rates_near};
use anyhow::Context;
use lull_policies::search::{Reading, Refusal, SearchPoint, Trial};
use rusqlite::params;

/// The age of its last trial up to which a search on a running server continues, in seconds.
const CONTINUED_S: u32 = 86_400;

impl Store {
    /// Returns the trials of a search that has not ended, in order.
    ///
    /// # Errors
    /// [`UsageError`](crate::error::UsageError) if a row cannot be parsed.
    pub fn trials(&self, key: &Key) -> anyhow::Result<Vec<Trial>> {
        self.read_trials(key).map_err(|error| damaged(&self.path, &error))
    }

    fn read_trials(&self, key: &Key) -> anyhow::Result<Vec<Trial>> {
        // Columns are read by position: earlier builds had another name for the last one.
        let sql = "SELECT * FROM trial
                   WHERE machine = ? AND app = ? AND bin = ? AND search = ? ORDER BY number";
        let mut statement = self.connection.prepare(sql)?;
        let of = params![key.subject.machine, key.subject.app, key.bin, key.search];
        let rows = statement
            .query_map(of, |row| Ok((row.get::<_, String>(5)?, row.get::<_, String>(6)?)))?;
        rows.map(|row| {
            let (point, outcome) = row?;
            Ok(Trial {
                point: serde_json::from_str(&point)?,
                outcome: serde_json::from_str(&outcome)?,
            })
        })
        .collect()
    }

    /// Returns the key under which a search continues: that of the interrupted search which began
    /// at about its load, the nearest one. Its load bin may be a neighbouring one, because measured
    /// loads vary. Former versions stored no load; their searches continue in their own bin.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn adopt(&self, key: Key) -> anyhow::Result<Key> {
        let sql = "SELECT bin FROM search JOIN trial USING (machine, app, bin, search)
                   WHERE machine = ?1 AND app = ?2 AND search = ?3
                   AND rate_per_s BETWEEN ?4 AND ?5 ORDER BY abs(rate_per_s - ?6) LIMIT 1";
        let Subject { machine, app, .. } = &key.subject;
        let (rate, near) = (key.rate_per_s, rates_near(key.rate_per_s));
        let of = params![machine, app, key.search, near.start(), near.end(), rate];
        let mut statement = self.connection.prepare(sql)?;
        let bin = statement.query_map(of, |row| row.get(0))?.next().transpose()?;
        Ok(Key { bin: bin.unwrap_or(key.bin), ..key })
    }

    /// Returns the seed of a search that continues; `None` for one without trials.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn seed(&self, key: &Key) -> anyhow::Result<Option<u32>> {
        let sql = "SELECT seed FROM search JOIN trial USING (machine, app, bin, search)
                   WHERE machine = ? AND app = ? AND bin = ? AND search = ? LIMIT 1";
        let of = params![key.subject.machine, key.subject.app, key.bin, key.search];
        let mut statement = self.connection.prepare(sql)?;
        Ok(statement.query_map(of, |row| row.get(0))?.next().transpose()?)
    }

    /// Stores the seed of a search, with which it continues after an interruption, and its load. A
    /// search that continues with trials keeps those with which it began.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_seed(&self, key: &Key, seed: u32) -> anyhow::Result<()> {
        let sql = "INSERT INTO search VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE
                   SET seed = ?5, rate_per_s = ?6 WHERE NOT EXISTS (SELECT 1 FROM trial
                   WHERE machine = ?1 AND app = ?2 AND bin = ?3 AND search = ?4)";
        let Key { subject: Subject { machine, app, .. }, bin, search, rate_per_s } = key;
        let row = params![machine, app, bin, search, seed, rate_per_s];
        self.connection.execute(sql, row).with_context(|| self.unwritable())?;
        Ok(())
    }

    /// Deletes the trials of a search that is not continued.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn forget(&self, key: &Key) -> anyhow::Result<()> {
        for table in ["trial", "search"] {
            let rows = "machine = ? AND app = ? AND bin = ? AND search = ?";
            let of = params![key.subject.machine, key.subject.app, key.bin, key.search];
            self.connection.execute(&format!("DELETE FROM {table} WHERE {rows}"), of)?;
        }
        Ok(())
    }

    /// Deletes the trials of the search at any load whose last one is more than a day old, or of
    /// unknown age, because the server may have changed since. Returns how many there were.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn forget_old(&self, key: &Key) -> anyhow::Result<usize> {
        let of = "machine = ?1 AND app = ?2 AND search = ?3";
        // The clock may have been set back.
        let recent = format!(
            "SELECT bin FROM trial WHERE {of} AND abs(unixepoch() - measured_s) <= {CONTINUED_S}"
        );
        let Subject { machine, app, .. } = &key.subject;
        let transaction = self.connection.unchecked_transaction()?;
        let delete = |table: &str| {
            let sql = format!("DELETE FROM {table} WHERE {of} AND bin NOT IN ({recent})");
            transaction.execute(&sql, params![machine, app, key.search])
        };
        let deleted = delete("trial").and_then(|trials| delete("search").map(|_| trials));
        let trials = deleted.with_context(|| self.unwritable())?;
        transaction.commit()?;
        Ok(trials)
    }

    /// Stores a trial.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_trial(
        &self,
        key: &Key,
        number: usize,
        point: &SearchPoint,
        outcome: &Result<Reading, Refusal>,
    ) -> anyhow::Result<()> {
        let (point, outcome) = (serde_json::to_string(point)?, serde_json::to_string(outcome)?);
        let Subject { machine, app, .. } = &key.subject;
        let row = params![machine, app, key.bin, key.search, number as i64, point, outcome];
        let sql = "INSERT OR REPLACE INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, unixepoch())";
        self.connection.execute(sql, row).with_context(|| self.unwritable())?;
        Ok(())
    }
}
