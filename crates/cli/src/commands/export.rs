//! `lull export`: a record as Parquet and CSV, for DuckDB, pandas, polars.
//!
//! Each table becomes one file. Packed columns are unpacked: `latencies` has a row for each
//! histogram bucket, `requests` a row for each sampled request. Rows are written as they are
//! read, so that memory does not grow with the length of a run. The directory appears only
//! when all files are complete.

mod file;

use crate::cli::{ExportArgs, ExportFormat};
use crate::commands::UsageError;
use anyhow::Context;
use file::{TableFile, declared};
use lull_agent::record::unpack;
use lull_agent::recorded::{Database, open};
use lull_lab::parquet_table::Kind;
use lull_measure::Latency;
use rusqlite::types::Value;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Tables whose rows are exported unchanged.
const PLAIN: [&str; 9] = [
    "run",
    "apps",
    "epochs",
    "machine_epochs",
    "app_epochs",
    "core_epochs",
    "journal",
    "plans",
    "missing",
];

/// What was written.
#[derive(Debug, Serialize)]
struct Exported {
    directory: PathBuf,
    /// Rows by table.
    tables: Vec<(String, u64)>,
}

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let to = args.to.clone().unwrap_or_else(|| args.run.with_extension(""));
    check_free(&to)?;
    let record = open(&args.run)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let cannot = || format!("cannot write {}", to.display());
    let beside =
        tempfile::Builder::new().prefix(".lull-").tempdir_in(parent).with_context(cannot)?;
    let formats: &[ExportFormat] = match &args.format {
        Some(format) => std::slice::from_ref(format),
        None if cfg!(feature = "parquet") => &[ExportFormat::Parquet, ExportFormat::Csv],
        None => &[ExportFormat::Csv],
    };
    let tables = Export { record: &record, formats, place: beside.path() }.all()?;
    // Only the owner may read a temporary directory, and so the export.
    let made = beside.keep();
    std::fs::rename(&made, &to).with_context(cannot)?;
    let exported = Exported { directory: to, tables };
    if args.json {
        return super::print_json(&exported);
    }
    println!("{}", exported.directory.display());
    for (table, rows) in &exported.tables {
        println!("  {table}: {rows} rows");
    }
    Ok(())
}

fn check_free(to: &Path) -> Result<(), UsageError> {
    let is_empty = std::fs::read_dir(to).is_ok_and(|mut files| files.next().is_none());
    match to.symlink_metadata() {
        Ok(_) if !is_empty => {
            let what = format!("{} is there already: name another with --to", to.display());
            Err(UsageError(what))
        }
        _ => Ok(()),
    }
}

/// The export of one record.
struct Export<'a> {
    record: &'a Database,
    formats: &'a [ExportFormat],
    place: &'a Path,
}

impl Export<'_> {
    fn all(&self) -> anyhow::Result<Vec<(String, u64)>> {
        let mut tables = Vec::new();
        for name in PLAIN.into_iter().chain(["sources", "shadow"]) {
            if self.has(name)? {
                tables.push((name.to_owned(), self.plain(name)?));
            }
        }
        tables.push(("latencies".to_owned(), self.latencies()?));
        if self.has("requests")? {
            tables.push(("requests".to_owned(), self.requests()?));
        }
        Ok(tables)
    }

    /// Whether the record has this table: older ones have fewer.
    fn has(&self, table: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1";
        self.record.database.query_row(sql, [table], |row| Ok(row.get::<_, i64>(0)? > 0))
    }

    fn file(&self, name: &str, columns: &[(String, Kind)]) -> anyhow::Result<TableFile> {
        TableFile::create(self.place, name, columns, self.formats)
    }

    /// Copies a table unchanged; each column has its declared type.
    fn plain(&self, name: &str) -> anyhow::Result<u64> {
        let sql = "SELECT name, type FROM pragma_table_info(?1) ORDER BY cid";
        let mut query = self.record.database.prepare(sql)?;
        let columns = query.query_map([name], |row| {
            let kind: String = row.get(1)?;
            Ok((row.get::<_, String>(0)?, declared(&kind)))
        })?;
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let width = columns.len();
        let mut file = self.file(name, &columns)?;
        let mut query =
            self.record.database.prepare(&format!("SELECT * FROM {name} ORDER BY rowid"))?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let cells = (0..width).map(|column| row.get::<_, Value>(column));
            file.append(cells.collect::<Result<Vec<_>, _>>()?)?;
        }
        file.finish()
    }

    fn latencies(&self) -> anyhow::Result<u64> {
        let mut file = self.file("latencies", &columns(&["latency_ns", "count"]))?;
        let is_text = self.record.version < 2;
        let column = if is_text { "hdr_v2_base64" } else { "hdr_v2_deflate" };
        let sql = format!("SELECT epoch, app, {column} FROM latencies ORDER BY rowid");
        let mut query = self.record.database.prepare(&sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, app): (i64, String) = (row.get(0)?, row.get(1)?);
            let latency = match is_text {
                true => Latency::from_base64(&row.get::<_, String>(2)?)?,
                false => Latency::from_deflated(&row.get::<_, Vec<u8>>(2)?)?,
            };
            for (value, count) in latency.buckets() {
                file.append(numbers(epoch, &app, [value.0, count]))?;
            }
        }
        file.finish()
    }

    fn requests(&self) -> anyhow::Result<u64> {
        let wanted = columns(&["one_in", "due_ns", "wait_ns", "latency_ns"]);
        let mut file = self.file("requests", &wanted)?;
        let sql = "SELECT epoch, app, one_in, packed FROM requests ORDER BY rowid";
        let mut query = self.record.database.prepare(sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let (epoch, app): (i64, String) = (row.get(0)?, row.get(1)?);
            let (one_in, packed): (i64, Vec<u8>) = (row.get(2)?, row.get(3)?);
            let requests = unpack(&packed)
                .with_context(|| format!("the requests of {app} in epoch {epoch} are damaged"))?;
            for one in requests {
                let values =
                    [one_in.cast_unsigned(), one.due_ns.0, one.wait_ns.0, one.latency_ns.0];
                file.append(numbers(epoch, &app, values))?;
            }
        }
        file.finish()
    }
}

/// Epoch and app, then whole numbers.
fn columns(names: &[&str]) -> Vec<(String, Kind)> {
    let head = [("epoch".to_owned(), Kind::Integer), ("app".to_owned(), Kind::Text)];
    head.into_iter().chain(names.iter().map(|name| ((*name).to_owned(), Kind::Integer))).collect()
}

fn numbers<const N: usize>(epoch: i64, app: &str, values: [u64; N]) -> Vec<Value> {
    let head = [Value::Integer(epoch), Value::Text(app.to_owned())];
    head.into_iter().chain(values.map(|value| Value::Integer(value.cast_signed()))).collect()
}
