//! The tables of a record, row by row: what `lull export` writes and the Python package reads.
//!
//! Packed columns are unpacked: `latencies` has a row for each histogram bucket, `requests` a
//! row for each sampled request.

use super::Database;
use crate::record::unpack;
use anyhow::Context;
use lull_measure::Latency;
use rusqlite::types::Value;

/// Tables whose rows are read unchanged.
const PLAIN: [&str; 14] = [
    "run",
    "apps",
    "epochs",
    "machine_epochs",
    "app_epochs",
    "core_epochs",
    "client_class_epochs",
    "client_account_epochs",
    "journal",
    "plans",
    "missing",
    "sources",
    "shadow",
    "pods",
];
const LATENCIES: &str = "latencies";
const REQUESTS: &str = "requests";

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Whole numbers of 64 bits.
    Integer,
    /// Numbers.
    Real,
    /// Texts.
    Text,
}

impl ColumnKind {
    /// Reads the type from the word in `CREATE TABLE`.
    fn declared(word: &str) -> Self {
        match word {
            "INTEGER" => Self::Integer,
            "REAL" => Self::Real,
            _ => Self::Text,
        }
    }
}

impl Database {
    /// Returns the names of the tables that the record has; older ones have fewer.
    ///
    /// # Errors
    /// If the record is damaged.
    pub fn tables(&self) -> rusqlite::Result<Vec<&'static str>> {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1";
        let all = PLAIN.into_iter().chain([LATENCIES, REQUESTS]);
        let there = all.map(|name| {
            let count: i64 = self.database.query_row(sql, [name], |row| row.get(0))?;
            Ok((count > 0).then_some(name))
        });
        there.filter_map(Result::transpose).collect()
    }

    /// Returns the columns of a table with their declared kinds.
    ///
    /// # Errors
    /// If the record is damaged.
    pub fn columns(&self, table: &str) -> rusqlite::Result<Vec<(String, ColumnKind)>> {
        match table {
            LATENCIES => return Ok(whole_numbers(&["latency_ns", "count"])),
            REQUESTS => return Ok(whole_numbers(&["one_in", "due_ns", "wait_ns", "latency_ns"])),
            _ => {}
        }
        let sql = "SELECT name, type FROM pragma_table_info(?1) ORDER BY cid";
        let mut query = self.database.prepare(sql)?;
        let columns = query.query_map([table], |row| {
            let kind: String = row.get(1)?;
            Ok((row.get::<_, String>(0)?, ColumnKind::declared(&kind)))
        })?;
        columns.collect()
    }

    /// Calls `take` with each row of one of [`Database::tables`], a cell a column.
    ///
    /// # Errors
    /// If the record is damaged, and the first error of `take`.
    pub fn each_row(
        &self,
        table: &str,
        mut take: impl FnMut(Vec<Value>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match table {
            LATENCIES => return self.each_bucket(take),
            REQUESTS => return self.each_request(take),
            _ => {}
        }
        let width = self.columns(table)?.len();
        let mut query = self.database.prepare(&format!("SELECT * FROM {table} ORDER BY rowid"))?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let cells = (0..width).map(|column| row.get::<_, Value>(column));
            take(cells.collect::<Result<Vec<_>, _>>()?)?;
        }
        Ok(())
    }

    fn each_bucket(
        &self,
        mut take: impl FnMut(Vec<Value>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.each_histogram(i64::MIN, |epoch, app, latency| {
            for (value, count) in latency.buckets() {
                take(numbers(epoch, app, [value.0, count]))?;
            }
            Ok(())
        })
    }

    /// Calls `take` with epoch, app and histogram of each row of `latencies` whose epoch is
    /// `from` or later.
    pub(super) fn each_histogram(
        &self,
        from: i64,
        mut take: impl FnMut(i64, &str, Latency) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let is_text = self.version < 2;
        let column = if is_text { "hdr_v2_base64" } else { "hdr_v2_deflate" };
        let sql =
            format!("SELECT epoch, app, {column} FROM latencies WHERE epoch >= ?1 ORDER BY rowid");
        let mut query = self.database.prepare(&sql)?;
        let mut rows = query.query([from])?;
        while let Some(row) = rows.next()? {
            let (epoch, app): (i64, String) = (row.get(0)?, row.get(1)?);
            let latency = match is_text {
                true => Latency::from_base64(&row.get::<_, String>(2)?)?,
                false => Latency::from_deflated(&row.get::<_, Vec<u8>>(2)?)?,
            };
            take(epoch, &app, latency)?;
        }
        Ok(())
    }

    fn each_request(
        &self,
        mut take: impl FnMut(Vec<Value>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let sql = "SELECT epoch, app, one_in, packed FROM requests ORDER BY rowid";
        let mut query = self.database.prepare(sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, app): (i64, String) = (row.get(0)?, row.get(1)?);
            let (one_in, packed): (i64, Vec<u8>) = (row.get(2)?, row.get(3)?);
            let requests = unpack(&packed)
                .with_context(|| format!("the requests of {app} in epoch {epoch} are damaged"))?;
            for one in requests {
                let values =
                    [one_in.cast_unsigned(), one.due_ns.0, one.wait_ns.0, one.latency_ns.0];
                take(numbers(epoch, &app, values))?;
            }
        }
        Ok(())
    }
}

/// Epoch and app, then whole numbers.
fn whole_numbers(names: &[&str]) -> Vec<(String, ColumnKind)> {
    let head = [("epoch", ColumnKind::Integer), ("app", ColumnKind::Text)];
    let rest = names.iter().map(|name| (*name, ColumnKind::Integer));
    head.into_iter().chain(rest).map(|(name, kind)| (name.to_owned(), kind)).collect()
}

fn numbers<const N: usize>(epoch: i64, app: &str, values: [u64; N]) -> Vec<Value> {
    let head = [Value::Integer(epoch), Value::Text(app.to_owned())];
    head.into_iter().chain(values.map(|value| Value::Integer(value.cast_signed()))).collect()
}
