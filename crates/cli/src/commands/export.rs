//! `lull export`: a record as Parquet and CSV, for DuckDB, pandas, polars.
//!
//! Each table becomes one file. Packed columns are unpacked: `latencies` has a row for each
//! histogram bucket, `requests` a row for each sampled request. Each row ends with its run and its
//! host, so that tables of several records can be put together. Rows are written as they are
//! read, so that memory does not grow with the length of a run. The directory appears only
//! when all files are complete. `--dataset` adds up minutes and days instead ([`dataset`]).

mod dataset;
mod file;

use crate::cli::{ExportArgs, ExportFormat};
use crate::commands::UsageError;
use anyhow::Context;
use file::TableFile;
use lull_agent::recorded::{ColumnKind, Database, RunLabel, open};
use rusqlite::types::Value;
use serde::Serialize;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The files that were written.
#[derive(Debug, Serialize)]
struct Exported {
    directory: PathBuf,
    /// Rows by table.
    tables: Vec<(String, u64)>,
}

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<()> {
    if let Some(place) = &args.dataset {
        return dataset::run(args, place);
    }
    let [run] = args.runs.as_slice() else {
        let what = "lull export takes one record, and several with --dataset";
        return Err(UsageError(what.to_owned()).into());
    };
    let to = args.to.clone().unwrap_or_else(|| run.with_extension(""));
    check_free(&to)?;
    let record = open(run)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let cannot = || format!("cannot write {}", to.display());
    // Only the owner may read the tables, as the record.
    let only_owner = Permissions::from_mode(0o700);
    let beside =
        tempfile::Builder::new().prefix(".lull-").permissions(only_owner).tempdir_in(parent);
    let beside = beside.with_context(cannot)?;
    let formats: &[ExportFormat] = match &args.format {
        Some(format) => std::slice::from_ref(format),
        None if cfg!(feature = "parquet") => &[ExportFormat::Parquet, ExportFormat::Csv],
        None => &[ExportFormat::Csv],
    };
    let origin = origin(&record);
    let export = Export { record: &record, formats, place: beside.path(), origin };
    let which = || format!("cannot export {} to {}", run.display(), to.display());
    let tables = export.all().with_context(which)?;
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

/// The run of a record and its host, as far as the record says.
fn origin(record: &Database) -> [(&'static str, Value); 2] {
    let (run, host) = match RunLabel::read(record) {
        Ok(label) => (Some(label.run), label.host),
        Err(_) => (None, None),
    };
    let value = |text: Option<String>| text.map_or(Value::Null, Value::Text);
    [("run", value(run)), ("host", value(host))]
}

/// The export of one record.
struct Export<'a> {
    record: &'a Database,
    formats: &'a [ExportFormat],
    place: &'a Path,
    /// The columns that each table gets besides its own.
    origin: [(&'static str, Value); 2],
}

impl Export<'_> {
    fn all(&self) -> anyhow::Result<Vec<(String, u64)>> {
        let table = |name: &str| Ok((name.to_owned(), self.table(name)?));
        self.record.tables()?.into_iter().map(table).collect()
    }

    /// Copies a table; returns the number of its rows.
    fn table(&self, name: &str) -> anyhow::Result<u64> {
        let mut columns = self.record.columns(name)?;
        let is_free = |(column, _): &&(&str, Value)| columns.iter().all(|(it, _)| it != column);
        let added: Vec<_> = self.origin.iter().filter(is_free).collect();
        columns.extend(added.iter().map(|(column, _)| ((*column).to_owned(), ColumnKind::Text)));
        let mut file = TableFile::create(self.place, name, &columns, self.formats)?;
        self.record.each_row(name, |mut row| {
            row.extend(added.iter().map(|(_, value)| value.clone()));
            file.append(row)
        })?;
        file.finish()
    }
}
