//! One table as Parquet and CSV, a block of rows at a time.

use crate::cli::ExportFormat;
use crate::commands::UsageError;
use anyhow::Context;
use lull_agent::recorded::ColumnKind;
use lull_host::own_directory::replace_file;
use lull_lab::parquet_table::{Column, Kind, ParquetTable, TableValue};
use lull_measure::escape::csv_text;
use rusqlite::types::Value;
use std::fs::File;
use std::path::Path;

/// Rows kept before they are written: a few megabytes.
const BLOCK: usize = 32_768;

const fn parquet_kind(kind: ColumnKind) -> Kind {
    match kind {
        ColumnKind::Integer => Kind::Integer,
        ColumnKind::Real => Kind::Real,
        ColumnKind::Text => Kind::Text,
    }
}

/// A table being written.
pub(super) struct TableFile {
    parquet: Option<ParquetTable<File>>,
    csv: Option<csv::Writer<File>>,
    block: Vec<Vec<Value>>,
    rows: u64,
}

impl TableFile {
    /// `NAME.parquet` and `NAME.csv` in a directory, as far as wanted.
    pub(super) fn create(
        place: &Path,
        name: &str,
        columns: &[(String, ColumnKind)],
        formats: &[ExportFormat],
    ) -> anyhow::Result<Self> {
        // Names of columns are part of Parquet's schema, which has no quotation.
        let is_plain = |name: &str| name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_');
        if let Some((odd, _)) = columns.iter().find(|(column, _)| !is_plain(column)) {
            return Err(UsageError(format!("`{name}` has a column `{odd}`: rename it")).into());
        }
        let (mut parquet, mut csv) = (None, None);
        for format in formats {
            let path = place.join(format!("{name}.{}", format.extension()));
            let file =
                replace_file(&path).with_context(|| format!("cannot write {}", path.display()))?;
            match format {
                ExportFormat::Parquet => {
                    let column =
                        |(name, kind): &(String, _)| Column::optional(name, parquet_kind(*kind));
                    let columns = columns.iter().map(column);
                    parquet = Some(ParquetTable::new(file, name, columns.collect())?);
                }
                ExportFormat::Csv => {
                    let mut writer = csv::Writer::from_writer(file);
                    writer.write_record(
                        columns.iter().map(|(name, _)| csv_text(name).into_owned()),
                    )?;
                    csv = Some(writer);
                }
            }
        }
        Ok(Self { parquet, csv, block: Vec::new(), rows: 0 })
    }

    /// Adds a row: a cell a column.
    pub(super) fn append(&mut self, row: Vec<Value>) -> anyhow::Result<()> {
        self.block.push(row);
        if self.block.len() == BLOCK { self.flush() } else { Ok(()) }
    }

    /// Writes the remaining rows; returns the number of rows.
    pub(super) fn finish(mut self) -> anyhow::Result<u64> {
        self.flush()?;
        if let Some(parquet) = self.parquet {
            parquet.finish()?;
        }
        Ok(self.rows)
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.rows += block.len() as u64;
        if let Some(csv) = &mut self.csv {
            for row in &block {
                csv.write_record(row.iter().map(text))?;
            }
            csv.flush()?;
        }
        if let Some(parquet) = &mut self.parquet {
            parquet.append(block.len(), |row, column| table_value(&block[row][column]))?;
        }
        Ok(())
    }
}

fn table_value(cell: &Value) -> TableValue<'_> {
    match cell {
        Value::Null | Value::Blob(_) => TableValue::Missing,
        Value::Integer(value) => TableValue::Integer(*value),
        Value::Real(value) => TableValue::Real(*value),
        Value::Text(text) => TableValue::Text(text),
    }
}

/// Returns the shortest text that reads back as the same value; an empty one for a missing value.
/// Text is escaped for spreadsheets.
fn text(cell: &Value) -> String {
    match cell {
        Value::Null | Value::Blob(_) => String::new(),
        Value::Integer(value) => value.to_string(),
        Value::Real(value) => value.to_string(),
        Value::Text(value) => csv_text(value).into_owned(),
    }
}
