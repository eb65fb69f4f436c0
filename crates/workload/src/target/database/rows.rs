//! Statements that create tables and fill them.

const ROWS_PER_INSERT: u32 = 1_000;

/// Returns statements that drop and create tables of these names and columns.
pub(super) fn empty<'t>(
    tables: impl IntoIterator<Item = (&'t str, &'t str)>,
) -> impl Iterator<Item = String> {
    tables.into_iter().flat_map(|(table, columns)| {
        [format!("DROP TABLE IF EXISTS {table}"), format!("CREATE TABLE {table} ({columns})")]
    })
}

/// Returns a statement that inserts rows with these numbers.
pub(super) fn insert(into: &str, first: u32, rows: u32, row: impl Fn(u32) -> String) -> String {
    let mut text = format!("INSERT INTO {into} VALUES ");
    for number in first..first + rows {
        let gap = if number == first { "" } else { ", " };
        text.push_str(gap);
        text.push_str(&row(number));
    }
    text
}

/// Returns statements that insert this many rows, at most [`ROWS_PER_INSERT`] at a time.
pub(super) fn insert_in_batches(
    table: &'static str,
    rows: u32,
    row: impl Fn(u32) -> String + Copy,
) -> impl Iterator<Item = String> {
    (0..rows.div_ceil(ROWS_PER_INSERT)).map(move |batch| {
        let first = batch * ROWS_PER_INSERT + 1;
        insert(table, first, ROWS_PER_INSERT.min(rows + 1 - first), row)
    })
}
