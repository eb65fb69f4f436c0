//! Cells of `lull lab run`: a cell is one seed of an experiment.

use super::{Key, Parts, scenario_hash};
use csv::StringRecord;
use lull_lab::experiment::{Experiment, LabError, Setup};
use lull_lab::report::{Printed, Report, Row, StoredReport};
use lull_lab::seeds;
use std::collections::BTreeSet;
use std::path::Path;

/// The columns behind the key. The last has the whole report, in the first row only; a seed
/// that is passed over has one row in which all are empty.
const COLUMNS: [&str; 13] = [
    "experiment",
    "row",
    "paper",
    "claim",
    "ours",
    "low",
    "high",
    "values",
    "unit",
    "tolerance",
    "held",
    "verdict",
    "report",
];

/// The finished seeds of an experiment, by a directory of cells.
pub struct LabCells {
    experiment: &'static Experiment,
    parts: Parts,
    first_seed: u64,
    most: usize,
}

impl LabCells {
    /// Opens the directory of an experiment from `setup.seed` on, which runs on `most` seeds at
    /// most: it has as many cells. This process is to have the `wanted` ones, or all.
    ///
    /// # Errors
    /// If the directory cannot be made, or has cells of another experiment, version or seed.
    pub fn open(
        directory: &Path,
        experiment: &'static Experiment,
        setup: &Setup<'_>,
        most: usize,
        wanted: Option<BTreeSet<u64>>,
    ) -> anyhow::Result<Self> {
        let length = if setup.quick { "quick" } else { "full" };
        let scenario = scenario_hash("", Path::new("."), &["lab", experiment.name, length]);
        let key = Key { scenario, seed: setup.seed };
        let parts = Parts::open(directory, &key, &COLUMNS, most as u64, wanted)?;
        Ok(Self { experiment, parts, first_seed: setup.seed, most })
    }

    /// Runs the cells that this process is to have and that are not finished.
    ///
    /// # Errors
    /// As [`Experiment::run`], and if a file cannot be read or written.
    pub fn run_wanted(&self, mut setup: Setup<'_>) -> anyhow::Result<()> {
        let wanted = (0..self.most as u64).filter(|cell| self.parts.is_wanted(*cell));
        for cell in wanted {
            self.cell(cell, &mut setup)?;
        }
        Ok(())
    }

    /// Returns the report of [`seeds::run_until_decided`], to which finished cells
    /// contribute without being run again.
    ///
    /// # Errors
    /// As [`LabCells::run_wanted`].
    pub fn run_until_decided(&self, mut setup: Setup<'_>) -> anyhow::Result<Report> {
        let mut whole = match self.cell(0, &mut setup)? {
            Some(first) => first,
            // The error names the seeds that are passed over.
            None => seeds::run(self.experiment, &setup)?,
        };
        let further = |cell| self.cell(cell, &mut setup);
        seeds::run_further(&mut whole, self.most, further)?;
        Ok(whole)
    }

    /// Describes how many cells were run and how many were found.
    pub fn summary(&self) -> String {
        self.parts.summary()
    }

    /// The report of a cell, which is run and kept unless it is finished; `None` if its seed is
    /// passed over.
    fn cell(&self, cell: u64, setup: &mut Setup<'_>) -> anyhow::Result<Option<Report>> {
        if let Some(rows) = self.parts.load(cell)? {
            return self.read(&rows).ok_or_else(|| self.parts.damaged(cell));
        }
        setup.seed = self.first_seed + cell;
        let mut report = match seeds::run(self.experiment, setup) {
            Ok(report) => Some(report),
            // A first seed on which a parameter was found is an error of the command.
            Err(LabError::Known { .. }) if cell > 0 => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(report) = report.as_mut().filter(|_| cell > 0) {
            // Only the pictures of the first seed are shown.
            report.figures.clear();
        }
        self.parts.save(cell, &rows(report.as_ref())?)?;
        Ok(report)
    }

    /// Reads a cell; `None` if its rows are not those of [`rows`].
    fn read(&self, rows: &[StringRecord]) -> Option<Option<Report>> {
        let kept = rows.first()?.get(COLUMNS.len() - 1)?;
        if kept.is_empty() {
            return rows[0].iter().all(str::is_empty).then_some(None);
        }
        let stored: StoredReport = serde_json::from_str(kept).ok()?;
        stored.into_report(self.experiment.name, self.experiment.seed_file).map(Some)
    }
}

/// The rows of a cell.
fn rows(report: Option<&Report>) -> anyhow::Result<Vec<Vec<String>>> {
    let Some(report) = report else { return Ok(vec![vec![String::new(); COLUMNS.len()]]) };
    let mut rows: Vec<_> = report.rows.iter().map(|row| fields(report, row)).collect();
    if rows.is_empty() {
        rows.push(vec![String::new(); COLUMNS.len() - 1]);
    }
    let mut kept = serde_json::to_string(&StoredReport::from(report))?;
    for row in &mut rows {
        row.push(std::mem::take(&mut kept));
    }
    Ok(rows)
}

/// A row of a report as all columns but the last.
fn fields(report: &Report, row: &Row) -> Vec<String> {
    let (paper, claim) = match row.paper {
        Printed::Number(number) => (number.to_string(), String::new()),
        Printed::Claim(claim) => (String::new(), claim.to_owned()),
        Printed::Nothing => (String::new(), String::new()),
    };
    let end = |at: usize| row.ci95.map_or(String::new(), |ends| ends[at].to_string());
    vec![
        report.experiment.to_owned(),
        row.row.clone(),
        paper,
        claim,
        if row.ours.is_nan() { String::new() } else { row.ours.to_string() },
        end(0),
        end(1),
        row.values.to_string(),
        row.unit.to_owned(),
        row.tolerance.to_string(),
        row.held.to_string(),
        row.verdict.to_string().to_lowercase(),
    ]
}
