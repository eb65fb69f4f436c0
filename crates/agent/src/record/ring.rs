//! Deletion of the oldest epochs of a record with a bounded length.
//!
//! SQLite reuses the pages that become free, so that the file stays at
//! the size it had when the first epochs were deleted. A row that is valid from its
//! epoch on (a missing gauge, a plan) is kept until a newer row with the same key exists.

use super::schema::{BY_EPOCH, FROM_EPOCH};
use lull_measure::Nanos;
use rusqlite::{Connection, params};

/// Epochs between two deletions, because each one scans every table.
const EVERY: u64 = 64;

/// A bound on the length of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    keep: Nanos,
    written: u64,
}

impl Ring {
    /// Keeps at least the last `keep`.
    pub(super) const fn new(keep: Nanos) -> Self {
        Self { keep, written: 0 }
    }

    /// Called after an epoch at `time`: deletes older epochs once every [`EVERY`] calls.
    pub(super) fn turn(&mut self, database: &Connection, time: Nanos) -> rusqlite::Result<()> {
        self.written += 1;
        if !self.written.is_multiple_of(EVERY) || time <= self.keep {
            return Ok(());
        }
        let oldest = time.saturating_sub(self.keep);
        let first: i64 = database.query_row(
            "SELECT coalesce(min(number), 0) FROM epochs WHERE time_ns >= ?1",
            [oldest.0 as i64],
            |row| row.get(0),
        )?;
        forget(database, first)
    }
}

/// Forgets all before an epoch. Rows are in the order of their epochs, so that
/// only those to be forgotten are looked at.
fn forget(database: &Connection, first: i64) -> rusqlite::Result<()> {
    database.execute("DELETE FROM epochs WHERE number < ?1", [first])?;
    for table in BY_EPOCH {
        let sql = format!(
            "DELETE FROM {table} WHERE rowid < coalesce(
                (SELECT rowid FROM {table} WHERE epoch >= ?1 ORDER BY rowid LIMIT 1),
                (SELECT max(rowid) + 1 FROM {table}))"
        );
        database.prepare_cached(&sql)?.execute(params![first])?;
    }
    for (table, keys) in FROM_EPOCH {
        let same: String = keys.iter().map(|key| format!(" AND newer.{key} = it.{key}")).collect();
        let sql = format!(
            "DELETE FROM {table} AS it WHERE epoch < ?1 AND EXISTS
                (SELECT 1 FROM {table} AS newer
                 WHERE newer.rowid > it.rowid AND newer.epoch <= ?1{same})"
        );
        database.prepare_cached(&sql)?.execute(params![first])?;
    }
    Ok(())
}
