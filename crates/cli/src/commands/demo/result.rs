//! The demo's table: off, on, difference, and whether there is one.

use super::block::Block;
use crate::text::{estimate, table};
use lull_agent::blocks::Paired;
use lull_control::AppSpec;
use lull_measure::statistics::{Estimate, holm};
use lull_measure::{Nanos, Percentile};
use serde::Serialize;
use std::path::PathBuf;

/// Probability of claiming a difference where there is none, over all rows together.
const LEVEL: f64 = 0.05;

/// One quantity.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// The quantity with its unit.
    quantity: String,
    /// Without the policy, in that unit.
    off: Option<Estimate>,
    /// With the policy.
    on: Option<Estimate>,
    /// On minus off, over pairs.
    difference: Option<Estimate>,
    /// Whether a difference is claimed, with all rows taken together.
    clear: bool,
}

/// The result of the demo.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    /// The policy.
    pub(super) policy: String,
    /// Its keys, as in a config.
    pub(super) keys: Vec<String>,
    /// The objective as text.
    pub(super) objective: String,
    /// Pairs of blocks.
    pub(super) pairs: usize,
    /// The table.
    pub(super) rows: Vec<Row>,
    /// The source of energy figures, or why there are none.
    pub(super) energy_source: String,
    /// Path of the record.
    pub(super) record: PathBuf,
    /// Path of the picture.
    pub(super) figure: Option<PathBuf>,
    /// Notes on what the machine is too small to show.
    pub(super) caveat: Option<String>,
}

/// A quantity of a block in SI units: its name, the factor to the unit of the name, and its
/// value.
pub(super) type Quantity<'a, B> = (String, f64, Box<dyn Fn(&B) -> Option<f64> + 'a>);

/// The rows of the table from pairs of blocks (off, on).
pub(super) fn rows(pairs: &[(Block, Block)], server: &AppSpec, solo_per_s: f64) -> Vec<Row> {
    let (percentile, bound) = server.tail().unwrap_or((Percentile::P95, Nanos::ZERO));
    let quantities: Vec<Quantity<'_, Block>> = vec![
        (format!("{percentile} latency, ms"), 1e3, Box::new(|b| b.tail_s(percentile))),
        ("p99 latency, ms".to_owned(), 1e3, Box::new(|b| b.tail_s(Percentile::P99))),
        (format!("requests over {bound:.2}, %"), 100.0, Box::new(|b| b.missed(bound))),
        ("requests answered, 1/s".to_owned(), 1.0, Box::new(Block::throughput)),
        (
            "best-effort progress, % of alone".to_owned(),
            100.0,
            Box::new(|b| b.progress(solo_per_s)),
        ),
        ("system entropy E_S".to_owned(), 1.0, Box::new(|b| b.entropy(solo_per_s))),
        ("power, W".to_owned(), 1.0, Box::new(Block::power_w)),
        ("energy per request, J".to_owned(), 1.0, Box::new(Block::energy_per_request_j)),
    ];
    paired_rows(quantities, pairs)
}

/// A row for each quantity from pairs of blocks (off, on).
pub(super) fn paired_rows<B>(quantities: Vec<Quantity<'_, B>>, pairs: &[(B, B)]) -> Vec<Row> {
    let row = |(quantity, scale, of): Quantity<'_, B>| {
        let mut paired = Paired::default();
        let of = |block: &B| of(block).map(|si| si * scale);
        pairs.iter().for_each(|(off, on)| paired.push(of(off), of(on)));
        let difference = paired.difference();
        Row { quantity, off: paired.off(), on: paired.on(), difference, clear: false }
    };
    let mut rows: Vec<Row> = quantities.into_iter().map(row).collect();
    claim(&mut rows);
    rows
}

/// The rows as text; `off` and `on` name the two kinds of blocks.
pub(super) fn text(rows: &[Row], off: &str, on: &str) -> String {
    let cells = rows.iter().map(|row| {
        let verdict = if row.clear { "yes" } else { "not shown" };
        vec![
            row.quantity.clone(),
            estimate(row.off),
            estimate(row.on),
            estimate(row.difference),
            verdict.to_owned(),
        ]
    });
    table(&["", off, on, "difference", "a difference?"], cells)
}

/// Describes the figures of this many pairs of blocks.
fn explain_pairs(pairs: usize) -> String {
    if pairs < 2 {
        return "One pair of blocks: too few for intervals, and no difference can be claimed. \
                Try --pairs 4 or more."
            .to_owned();
    }
    format!(
        "Means over {pairs} pairs of blocks with 95 % intervals (Student's t over pairs). A \
         difference is claimed only if, over all these figures together, chance alone would show \
         one in at most 5 of 100 such demos."
    )
}

/// Claims the differences that may be claimed together (Holm).
fn claim(rows: &mut [Row]) {
    let (at, chances): (Vec<usize>, Vec<f64>) = rows
        .iter()
        .enumerate()
        .filter_map(|(at, row)| Some((at, row.difference?.chance())))
        .unzip();
    for (at, clear) in at.into_iter().zip(holm(&chances, LEVEL)) {
        rows[at].clear = clear;
    }
}

impl Findings {
    /// Prints the result as text.
    pub(super) fn print(&self) {
        println!("Policy: {}", [&[self.policy.clone()][..], &self.keys].concat().join(", "));
        println!("Objective: {}\n", self.objective);
        println!("{}\n", text(&self.rows, "off", "on"));
        println!("{}", explain_pairs(self.pairs));
        println!("Energy {}.", self.energy_source);
        if let Some(caveat) = &self.caveat {
            println!("{caveat}");
        }
        println!("Record: {}", self.record.display());
        if let Some(figure) = &self.figure {
            println!("Figure: {}", figure.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_comes_without_a_word_of_intervals() {
        assert!(explain_pairs(1).starts_with("One pair of blocks: too few for intervals"));
        assert!(explain_pairs(2).starts_with("Means over 2 pairs of blocks with 95 % intervals"));
    }
}
