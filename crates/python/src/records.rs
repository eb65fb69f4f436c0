//! Records of runs as tables.

use crate::background::{self, Shared};
use crate::error::record_error;
use crate::table::{Column, Table};
use lull_agent::recorded::{ColumnKind, Database, open};
use lull_measure::escape::visible_line;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use rusqlite::types::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The record of a run; `lull.records.open` opens one.
///
/// Every table is read from the file when it is requested, so the record of a run that continues
/// grows.
#[pyclass(frozen, module = "lull")]
pub(crate) struct Record {
    path: PathBuf,
    tables: Vec<&'static str>,
}

#[pymethods]
impl Record {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let file = path.clone();
        let tables = background::run(py, &Arc::default(), move |_| -> anyhow::Result<_> {
            Ok(open(&file)?.tables()?)
        })?;
        let tables = tables.map_err(|error| record_error(py, &error))?;
        Ok(Self { path, tables })
    }

    /// The names of the tables.
    #[getter]
    fn tables(&self) -> Vec<&'static str> {
        self.tables.clone()
    }

    /// A table with the columns of `lull export`.
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Table> {
        let Some(known) = self.tables.iter().find(|known| **known == name).copied() else {
            let names = self.tables.join(", ");
            let message = format!("the record has no table `{name}`; it has: {names}");
            return Err(PyKeyError::new_err(message));
        };
        let path = self.path.clone();
        let columns =
            background::run(py, &Arc::default(), move |shared| read(&path, known, shared))?;
        Table::new(columns.map_err(|error| record_error(py, &error))?)
    }

    fn __repr__(&self) -> String {
        format!("<lull.Record {}>", visible_line(&self.path.to_string_lossy()))
    }
}

/// All columns of a table.
fn read(path: &Path, table: &str, shared: &Shared) -> anyhow::Result<Vec<(String, Column)>> {
    let record: Database = open(path)?;
    let columns = record.columns(table)?;
    let empty = |kind: ColumnKind| match kind {
        ColumnKind::Integer => Column::Integer(Vec::new()),
        ColumnKind::Real => Column::Real(Vec::new()),
        ColumnKind::Text => Column::Text(Vec::new()),
    };
    let mut all: Vec<_> = columns.into_iter().map(|(name, kind)| (name, empty(kind))).collect();
    record.each_row(table, |row| {
        anyhow::ensure!(!shared.is_stopped(), "interrupted");
        all.iter_mut().zip(row).for_each(|((_, column), cell)| column.push(cell));
        Ok(())
    })?;
    Ok(all)
}

impl Column {
    /// Adds a cell; one of another kind is missing.
    fn push(&mut self, cell: Value) {
        match (self, cell) {
            (Self::Integer(all), Value::Integer(value)) => all.push(Some(value)),
            (Self::Integer(all), _) => all.push(None),
            (Self::Real(all), Value::Real(value)) => all.push(Some(value)),
            (Self::Real(all), Value::Integer(value)) => all.push(Some(value as f64)),
            (Self::Real(all), _) => all.push(None),
            (Self::Text(all), Value::Text(value)) => all.push(Some(value)),
            (Self::Text(all), _) => all.push(None),
        }
    }
}
