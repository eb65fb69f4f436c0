//! `lull sim --parts`: a cell is one replication of one policy.
//!
//! Cells are numbered by replication, then policy: neighbours met the same requests, so that a
//! part of a comparison holds whole pairs but at its ends.

use super::UsageError;
use crate::cli::SimArgs;
use csv::StringRecord;
use lull_agent::cells::{Key, Parts, scenario_hash};
use lull_agent::located::Located;
use lull_lab::cells::{CellStore, Quantity, ReplicationCell, Sample};
use lull_lab::scenario::AnyScenario;
use std::path::Path;

/// The columns behind the key.
const COLUMNS: [&str; 5] = ["policy", "replication", "figure", "unit", "value"];
/// Figures of an app's requests, from which the notices of the result follow.
const REQUESTS: [&str; 2] = ["requests", "unanswered"];

/// The finished cells of a comparison.
pub(super) struct SimParts {
    pub(super) parts: Parts,
    policies: u64,
}

impl SimParts {
    /// Opens the directory of the arguments; `None` without `--parts`.
    pub(super) fn from_args(
        texts: &[Option<&Located>],
        scenario: &AnyScenario,
        args: &SimArgs,
    ) -> anyhow::Result<Option<Self>> {
        let labels = scenario.labels();
        let Some(replications) = scenario.replications() else {
            if args.cells.parts.is_none() {
                return Ok(None);
            }
            let message = "--parts: run.precision decides the number of replications from those \
                           that are done; fix it with --seeds N";
            return Err(UsageError(message.to_owned()).into());
        };
        let policies = labels.len() as u64;
        let base = args.scenario.parent().unwrap_or(Path::new("."));
        let further: Vec<&str> = ["sim"].into_iter().chain(labels).collect();
        let text: String = texts.iter().flatten().map(|text| text.text()).collect();
        let scenario_hash = scenario_hash(&text, base, &further);
        let key = Key { scenario: scenario_hash, seed: scenario.seed() };
        let total = policies * replications;
        let Some(directory) = &args.cells.parts else { return Ok(None) };
        let wanted = args.cells.wanted(total)?;
        let parts = Parts::open(directory, &key, &COLUMNS, total, wanted)?;
        Ok(Some(Self { parts, policies }))
    }

    fn number(&self, cell: &ReplicationCell<'_>) -> u64 {
        cell.replication * self.policies + cell.policy as u64
    }

    fn load(&self, cell: &ReplicationCell<'_>) -> anyhow::Result<Option<Sample>> {
        let number = self.number(cell);
        let Some(rows) = self.parts.load(number)? else { return Ok(None) };
        sample(&rows, cell).map(Some).ok_or_else(|| self.parts.damaged(number))
    }
}

impl CellStore for SimParts {
    fn is_wanted(&self, cell: &ReplicationCell<'_>) -> bool {
        self.parts.is_wanted(self.number(cell))
    }

    fn load(&self, cell: &ReplicationCell<'_>) -> Result<Option<Sample>, String> {
        Self::load(self, cell).map_err(|error| format!("{error:#}"))
    }

    fn save(&self, cell: &ReplicationCell<'_>, sample: &Sample) -> Result<(), String> {
        self.parts
            .save(self.number(cell), &rows(cell, sample))
            .map_err(|error| format!("{error:#}"))
    }
}

/// The rows of a cell: one a figure, and two for the requests of each app.
fn rows(cell: &ReplicationCell<'_>, sample: &Sample) -> Vec<Vec<String>> {
    let row = |figure: &str, unit: &str, value: String| {
        let replication = cell.replication.to_string();
        vec![cell.label.to_owned(), replication, figure.to_owned(), unit.to_owned(), value]
    };
    // As in `--csv`: the shortest text that reads back as the same number, none for none.
    let text = |value: f64| if value.is_nan() { String::new() } else { value.to_string() };
    let figures = cell.quantities.iter().zip(&sample.values);
    let figures = figures.map(|(quantity, value)| row(&quantity.id, quantity.unit, text(*value)));
    let requests = sample.requests.iter().enumerate().flat_map(|(app, (arrived, left))| {
        let names = REQUESTS.map(|name| format!("{name}[{app}]"));
        [row(&names[0], "1", arrived.to_string()), row(&names[1], "1", left.to_string())]
    });
    figures.chain(requests).collect()
}

/// The sample of a cell's rows; `None` if they are not those of [`rows`].
fn sample(rows: &[StringRecord], cell: &ReplicationCell<'_>) -> Option<Sample> {
    let count = cell.quantities.len();
    let is_of_cell =
        |row: &StringRecord| &row[0] == cell.label && row[1] == cell.replication.to_string();
    if rows.len() < count || (rows.len() - count) % 2 == 1 || !rows.iter().all(is_of_cell) {
        return None;
    }
    let (figures, requests) = rows.split_at(count);
    let value = |(row, quantity): (&StringRecord, &Quantity)| {
        let is_known = row[2] == *quantity.id;
        let value = if row[4].is_empty() { Some(f64::NAN) } else { row[4].parse().ok() };
        value.filter(|_| is_known)
    };
    let of_app = |pair: &[StringRecord]| Some((pair[0][4].parse().ok()?, pair[1][4].parse().ok()?));
    Some(Sample {
        values: figures.iter().zip(cell.quantities).map(value).collect::<Option<_>>()?,
        requests: requests.chunks_exact(2).map(of_app).collect::<Option<_>>()?,
    })
}
