//! The cells of a sweep as Parquet: a row a cell, with whether it lies on the
//! front of its load.

use super::{Cell, pareto};
use crate::scenario::RecordError;
use parquet::basic::Compression;
use parquet::data_type::{BoolType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use std::io::Write;
use std::sync::Arc;

/// One column: its declaration in Parquet's schema language, and its values.
struct Column {
    declared: String,
    values: Values,
}

enum Values {
    Whole(Vec<i64>),
    Number(Vec<f64>),
    /// `None` where the driver or the governor chose.
    Chosen(Vec<Option<f64>>),
    Truth(Vec<bool>),
}

/// Writes cells with the columns of `lull sweep`'s CSV and `on_front`: whether
/// no other cell of its load beats it in both tail and power. A setting that
/// was left to the kernel is null.
///
/// # Errors
/// If the destination cannot be written.
pub fn write_parquet(
    cells: &[Cell],
    percentile: f64,
    to: impl Write + Send,
) -> Result<(), RecordError> {
    let columns = columns(cells, percentile);
    let declared: String = columns.iter().map(|column| column.declared.as_str()).collect();
    let schema = Arc::new(parse_message_type(&format!("message lull_sweep {{ {declared} }}"))?);
    let properties = WriterProperties::builder().set_compression(Compression::UNCOMPRESSED);
    let mut file = SerializedFileWriter::new(to, schema, Arc::new(properties.build()))?;
    let mut group = file.next_row_group()?;
    for column in &columns {
        let Some(mut writer) = group.next_column()? else { break };
        write(&column.values, &mut writer)?;
        writer.close()?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

fn columns(cells: &[Cell], percentile: f64) -> Vec<Column> {
    let number = |name: &str, of: fn(&Cell) -> f64| Column {
        declared: format!("REQUIRED DOUBLE {name};"),
        values: Values::Number(cells.iter().map(of).collect()),
    };
    let whole = |name: &str, of: fn(&Cell) -> u64| Column {
        declared: format!("REQUIRED INT64 {name};"),
        values: Values::Whole(cells.iter().map(|cell| of(cell).cast_signed()).collect()),
    };
    let chosen = |name: &str, of: fn(&Cell) -> Option<f64>| Column {
        declared: format!("OPTIONAL DOUBLE {name};"),
        values: Values::Chosen(cells.iter().map(of).collect()),
    };
    vec![
        number("rate_per_s", |cell| cell.rate_per_s),
        chosen("delay_us", |cell| cell.setting.delay_us),
        chosen("frequency_ghz", |cell| cell.setting.frequency_ghz),
        whole("arrived", |cell| cell.arrived),
        whole("answered", |cell| cell.answered),
        number("p50_us", |cell| cell.p50_us),
        number("p90_us", |cell| cell.p90_us),
        number("p99_us", |cell| cell.p99_us),
        number("percentile", |cell| cell.percentile),
        number("tail_us", |cell| cell.tail_us),
        number("watts", |cell| cell.watts),
        number("cycles_a_request", |cell| cell.cycles_a_request),
        number("interrupts_per_s", |cell| cell.interrupts_per_s),
        number("busy", |cell| cell.busy),
        Column {
            declared: "REQUIRED BOOLEAN on_front;".to_owned(),
            values: Values::Truth(on_front(cells, percentile)),
        },
    ]
}

/// For each cell, whether it lies on the front of its load.
fn on_front(cells: &[Cell], percentile: f64) -> Vec<bool> {
    let of_load = |rate_per_s: f64| -> Vec<Cell> {
        cells.iter().filter(|cell| cell.rate_per_s == rate_per_s).cloned().collect()
    };
    let lies = |cell: &Cell| {
        let all = of_load(cell.rate_per_s);
        pareto(&all, percentile).into_iter().any(|it| it.setting == cell.setting)
    };
    cells.iter().map(lies).collect()
}

fn write(values: &Values, to: &mut SerializedColumnWriter<'_>) -> Result<(), RecordError> {
    match values {
        Values::Whole(all) => to.typed::<Int64Type>().write_batch(all, None, None)?,
        Values::Number(all) => to.typed::<DoubleType>().write_batch(all, None, None)?,
        Values::Truth(all) => to.typed::<BoolType>().write_batch(all, None, None)?,
        Values::Chosen(all) => {
            let there: Vec<i16> = all.iter().map(|it| i16::from(it.is_some())).collect();
            let known: Vec<f64> = all.iter().flatten().copied().collect();
            to.typed::<DoubleType>().write_batch(&known, Some(&there), None)?
        }
    };
    Ok(())
}
