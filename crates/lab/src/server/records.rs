//! The cells of a sweep as Parquet: a row a cell, with whether it lies on the
//! front of its load.

use super::{Cell, pareto};
use crate::parquet_table::{Column, Kind, ParquetTable, TableValue};
use crate::scenario::RecordError;
use std::io::Write;

/// The columns of numbers of `lull sweep`'s CSV, and whether each cell has a value.
type Number = (&'static str, bool, fn(&Cell) -> Option<f64>);
const NUMBERS: [Number; 14] = [
    ("rate_per_s", true, |cell| Some(cell.rate_per_s)),
    ("delay_us", false, |cell| cell.delay_us),
    ("frequency_ghz", false, |cell| cell.frequency_ghz),
    ("arrived", true, |cell| Some(cell.arrived as f64)),
    ("answered", true, |cell| Some(cell.answered as f64)),
    ("p50_us", true, |cell| Some(cell.p50_us)),
    ("p90_us", true, |cell| Some(cell.p90_us)),
    ("p99_us", true, |cell| Some(cell.p99_us)),
    ("percentile", true, |cell| Some(cell.percentile)),
    ("tail_us", true, |cell| Some(cell.tail_us)),
    ("watts", true, |cell| Some(cell.watts)),
    ("cycles_a_request", true, |cell| Some(cell.cycles_a_request)),
    ("interrupts_per_s", true, |cell| Some(cell.interrupts_per_s)),
    ("busy", true, |cell| Some(cell.busy)),
];

/// Writes cells with the columns of `lull sweep`'s CSV and `on_front`: whether
/// no other cell of its load beats it in both tail and power. A setting that
/// was left to the kernel is null.
///
/// # Errors
/// If the destination cannot be written, or the program was built without Parquet.
pub fn write_parquet(
    cells: &[Cell],
    percentile: f64,
    to: impl Write + Send,
) -> Result<(), RecordError> {
    let number = |(name, is_required, _): &Number| Column {
        is_required: *is_required,
        ..Column::optional(name, kind(name))
    };
    let on_front = on_front(cells, percentile);
    let columns = NUMBERS.iter().map(number).chain([Column::required("on_front", Kind::Truth)]);
    let mut table = ParquetTable::new(to, "lull_sweep", columns.collect())?;
    table.append(cells.len(), |row, column| match NUMBERS.get(column) {
        Some((name, _, value)) if kind(name) == Kind::Integer => {
            value(&cells[row]).map_or(TableValue::Missing, |it| TableValue::Integer(it as i64))
        }
        Some((_, _, value)) => value(&cells[row]).into(),
        None => TableValue::Truth(on_front[row]),
    })?;
    Ok(table.finish()?)
}

/// Counts of requests are integers.
fn kind(name: &str) -> Kind {
    if matches!(name, "arrived" | "answered") { Kind::Integer } else { Kind::Real }
}

/// For each cell, whether it lies on the front of its load.
fn on_front(cells: &[Cell], percentile: f64) -> Vec<bool> {
    let of_load = |rate_per_s: f64| -> Vec<Cell> {
        cells.iter().filter(|cell| cell.rate_per_s == rate_per_s).cloned().collect()
    };
    let lies = |cell: &Cell| {
        let all = of_load(cell.rate_per_s);
        pareto(&all, percentile).into_iter().any(|it| it.setting() == cell.setting())
    };
    cells.iter().map(lies).collect()
}
