//! One table as Parquet and CSV, a block of rows at a time.

use crate::cli::ExportFormat;
use crate::commands::UsageError;
use anyhow::Context;
use lull_host::own_directory::replace_file;
use lull_measure::escape::csv_text;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rusqlite::types::Value;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Rows kept before they are written: a few megabytes.
const BLOCK: usize = 32_768;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Real,
    Text,
}

impl Kind {
    /// By the word in `CREATE TABLE`.
    pub(super) fn declared(word: &str) -> Self {
        match word {
            "INTEGER" => Self::Integer,
            "REAL" => Self::Real,
            _ => Self::Text,
        }
    }

    const fn parquet(self) -> (&'static str, &'static str) {
        match self {
            Self::Integer => ("INT64", ""),
            Self::Real => ("DOUBLE", ""),
            Self::Text => ("BYTE_ARRAY", " (UTF8)"),
        }
    }
}

/// A table being written.
pub(super) struct TableFile {
    columns: Vec<(String, Kind)>,
    parquet: Option<SerializedFileWriter<File>>,
    csv: Option<csv::Writer<File>>,
    block: Vec<Vec<Value>>,
    rows: u64,
}

impl TableFile {
    /// `NAME.parquet` and `NAME.csv` in a directory, as far as wanted.
    pub(super) fn create(
        place: &Path,
        name: &str,
        columns: Vec<(String, Kind)>,
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
                    let schema = Arc::new(parse_message_type(&schema(name, &columns))?);
                    let properties = Arc::new(WriterProperties::builder().build());
                    parquet = Some(SerializedFileWriter::new(file, schema, properties)?);
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
        Ok(Self { columns, parquet, csv, block: Vec::new(), rows: 0 })
    }

    /// Adds a row: a cell a column.
    pub(super) fn append(&mut self, row: Vec<Value>) -> anyhow::Result<()> {
        self.block.push(row);
        if self.block.len() == BLOCK { self.flush() } else { Ok(()) }
    }

    /// Writes what is left; the number of rows.
    pub(super) fn finish(mut self) -> anyhow::Result<u64> {
        self.flush()?;
        if let Some(parquet) = self.parquet {
            parquet.close()?;
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
        if let Some(parquet) = self.parquet.as_mut().filter(|_| !block.is_empty()) {
            let mut group = parquet.next_row_group()?;
            for (index, (_, kind)) in self.columns.iter().enumerate() {
                let Some(mut column) = group.next_column()? else { break };
                let cells = || block.iter().map(|row| &row[index]);
                let there: Vec<i16> = cells().map(|cell| i16::from(is_of(cell, *kind))).collect();
                match kind {
                    Kind::Integer => column.typed::<Int64Type>().write_batch(
                        &cells().filter_map(integer).collect::<Vec<_>>(),
                        Some(&there),
                        None,
                    )?,
                    Kind::Real => column.typed::<DoubleType>().write_batch(
                        &cells().filter_map(real).collect::<Vec<_>>(),
                        Some(&there),
                        None,
                    )?,
                    Kind::Text => column.typed::<ByteArrayType>().write_batch(
                        &cells().filter_map(bytes).collect::<Vec<_>>(),
                        Some(&there),
                        None,
                    )?,
                };
                column.close()?;
            }
            group.close()?;
        }
        Ok(())
    }
}

fn schema(name: &str, columns: &[(String, Kind)]) -> String {
    let column = |(name, kind): &(String, Kind)| {
        let (physical, logical) = kind.parquet();
        format!("OPTIONAL {physical} {name}{logical};\n")
    };
    format!("message {name} {{ {} }}", columns.iter().map(column).collect::<String>())
}

fn is_of(cell: &Value, kind: Kind) -> bool {
    match kind {
        Kind::Integer => integer(cell).is_some(),
        Kind::Real => real(cell).is_some(),
        Kind::Text => bytes(cell).is_some(),
    }
}

fn integer(cell: &Value) -> Option<i64> {
    match cell {
        Value::Integer(value) => Some(*value),
        _ => None,
    }
}

fn real(cell: &Value) -> Option<f64> {
    match cell {
        Value::Real(value) => Some(*value),
        Value::Integer(value) => Some(*value as f64),
        _ => None,
    }
}

fn bytes(cell: &Value) -> Option<ByteArray> {
    match cell {
        Value::Text(value) => Some(value.as_str().into()),
        _ => None,
    }
}

/// The shortest text that reads back as the same value; nothing for what is missing. Text is
/// escaped for spreadsheets.
fn text(cell: &Value) -> String {
    match cell {
        Value::Null | Value::Blob(_) => String::new(),
        Value::Integer(value) => value.to_string(),
        Value::Real(value) => value.to_string(),
        Value::Text(value) => csv_text(value).into_owned(),
    }
}
