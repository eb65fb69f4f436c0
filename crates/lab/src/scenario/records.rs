//! The figures of every replication as CSV and Parquet, in long form: one
//! value a row, so that a new figure is a new row and not a new column.

use super::{Outcome, WorstCycles};
use crate::cycles::{BACKLOG, Cycle, LARGEST, WINDOW};
use crate::parquet_table::{Column, Kind, ParquetError, ParquetTable, TableValue};
use lull_measure::escape::csv_text;
use std::io::Write;

/// The columns. A replication's random numbers follow from the scenario's
/// seed and its number.
const HEADER: [&str; 6] = ["scenario", "policy", "replication", "figure", "unit", "value"];
/// A further one where the burst cycle was varied.
const CYCLE: &str = "cycle_s";

/// Why a record could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Writing CSV failed.
    #[error("cannot write CSV: {0}")]
    Csv(#[from] csv::Error),
    /// Writing Parquet failed.
    #[error("cannot write Parquet: {0}")]
    Parquet(#[from] ParquetError),
    /// Writing to the destination failed.
    #[error("cannot write: {0}")]
    Write(#[from] std::io::Error),
}

/// One row.
struct RecordRow<'a> {
    policy: &'a str,
    replication: usize,
    figure: &'a str,
    unit: &'a str,
    /// `None` where there is no value, such as the response time of no request.
    value: Option<f64>,
    /// The burst cycle, where it was varied.
    cycle_s: Option<f64>,
}

/// All rows of a result.
struct Rows<'a> {
    title: &'a str,
    rows: Vec<RecordRow<'a>>,
    has_cycles: bool,
}

impl Outcome {
    /// All values: policy by policy, replication by replication.
    fn rows(&self) -> Rows<'_> {
        let mut rows = Vec::new();
        for policy in &self.policies {
            for replication in 0..self.replications() {
                let values = policy.values.iter().zip(&self.quantities);
                rows.extend(values.map(|(values, quantity)| RecordRow {
                    policy: &policy.label,
                    replication,
                    figure: &quantity.id,
                    unit: quantity.unit,
                    value: finite(values[replication]),
                    cycle_s: None,
                }));
            }
        }
        Rows { title: &self.title, rows, has_cycles: false }
    }

    /// Writes CSV with a header: scenario, policy, replication, figure, unit,
    /// value. A missing value is an empty field.
    ///
    /// # Errors
    /// If the destination cannot be written.
    pub fn write_csv(&self, to: impl Write) -> Result<(), RecordError> {
        self.rows().write_csv(to)
    }

    /// Writes Parquet with the columns of [`Outcome::write_csv`]; a missing
    /// value is null.
    ///
    /// # Errors
    /// If the destination cannot be written.
    pub fn write_parquet(&self, to: impl Write + Send) -> Result<(), RecordError> {
        self.rows().write_parquet(to)
    }
}

impl WorstCycles {
    /// All values: policy by policy, cycle by cycle, replication by replication.
    fn rows(&self) -> Rows<'_> {
        let mut rows = Vec::new();
        for sweep in &self.policies {
            for cycle in &sweep.cycles {
                for replication in 0..cycle.responses_ms.len() {
                    rows.extend(of_cycle(cycle, replication).map(|(figure, value)| RecordRow {
                        policy: &sweep.label,
                        replication,
                        figure,
                        unit: "ms",
                        value: finite(value),
                        cycle_s: Some(cycle.seconds()),
                    }));
                }
            }
        }
        Rows { title: &self.title, rows, has_cycles: true }
    }

    /// Writes CSV as [`Outcome::write_csv`] does, with a further column `cycle_s`.
    ///
    /// # Errors
    /// If the destination cannot be written.
    pub fn write_csv(&self, to: impl Write) -> Result<(), RecordError> {
        self.rows().write_csv(to)
    }

    /// Writes Parquet as [`Outcome::write_parquet`] does, with a further column `cycle_s`.
    ///
    /// # Errors
    /// If the destination cannot be written.
    pub fn write_parquet(&self, to: impl Write + Send) -> Result<(), RecordError> {
        self.rows().write_parquet(to)
    }
}

/// The figures of one replication at a cycle, in milliseconds.
fn of_cycle(cycle: &Cycle, replication: usize) -> [(&'static str, f64); 4] {
    let error = &cycle.errors[replication];
    [
        ("mean", cycle.responses_ms[replication]),
        ("error", 1e3 * BACKLOG(error)),
        ("largest-error", 1e3 * LARGEST(error)),
        ("window-error", 1e3 * WINDOW(error)),
    ]
}

fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

impl Rows<'_> {
    fn write_csv(&self, to: impl Write) -> Result<(), RecordError> {
        let mut csv = csv::Writer::from_writer(to);
        let cycle = self.has_cycles.then_some(CYCLE);
        csv.write_record(HEADER.into_iter().chain(cycle))?;
        // The shortest text that reads back as the same number.
        let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for row in &self.rows {
            let (replication, value) = (row.replication.to_string(), number(row.value));
            let (title, policy) = (csv_text(self.title), csv_text(row.policy));
            let fields = [&*title, &policy, &replication, row.figure, row.unit, &value];
            let cycle = row.cycle_s.map(|_| number(row.cycle_s));
            csv.write_record(fields.into_iter().chain(cycle.as_deref()))?;
        }
        csv.flush()?;
        Ok(())
    }

    fn write_parquet(&self, to: impl Write + Send) -> Result<(), RecordError> {
        let kinds = [Kind::Text, Kind::Text, Kind::Integer, Kind::Text, Kind::Text];
        let required = HEADER.iter().zip(kinds).map(|(name, kind)| Column::required(name, kind));
        let mut columns: Vec<Column> = required.collect();
        columns.push(Column::optional("value", Kind::Real));
        columns.extend(self.has_cycles.then(|| Column::required(CYCLE, Kind::Real)));
        let mut table = ParquetTable::new(to, "lull_sim", columns)?;
        table.append(self.rows.len(), |row, column| {
            let row = &self.rows[row];
            match column {
                0 => TableValue::Text(self.title),
                1 => TableValue::Text(row.policy),
                2 => TableValue::Integer(row.replication as i64),
                3 => TableValue::Text(row.figure),
                4 => TableValue::Text(row.unit),
                5 => row.value.into(),
                _ => row.cycle_s.into(),
            }
        })?;
        Ok(table.finish()?)
    }
}
