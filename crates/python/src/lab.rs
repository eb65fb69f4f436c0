//! `lull.lab`: the experiments that compare papers with our measurements, and the claims.

use crate::background;
use crate::error::simulation_error;
use crate::table::{Column, Table};
use lull_agent::cells::{CellChoice, LabCells};
use lull_agent::error::{UsageError, describe};
use lull_lab::claims::Finding;
use lull_lab::claims::check::embedded;
use lull_lab::experiment::{Experiment, LabError, Setup};
use lull_lab::progress::Progress;
use lull_lab::registry::{ALL, find};
use lull_lab::report::{Printed, Report, Row};
use lull_lab::seeds;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of an experiment; `lull.lab.run` makes one.
#[pyclass(frozen, module = "lull.lab")]
pub(crate) struct LabReport(Report);

/// Why an experiment has no report.
enum Failure {
    Lab(LabError),
    Usage(String),
    Other(String),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<LabError>() {
            Ok(error) => Self::Lab(error),
            Err(error) if error.is::<UsageError>() => Self::Usage(error.to_string()),
            Err(error) => Self::Other(describe(&error)),
        }
    }
}

/// How an experiment is run from Python.
#[derive(Debug, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct LabOptions {
    seed: u64,
    most: usize,
    quick: bool,
    threads: Option<usize>,
    /// The directory of finished seeds.
    path: Option<PathBuf>,
}

/// Column of texts.
fn text<T>(rows: &[T], read: impl Fn(&T) -> Option<String>) -> Column {
    Column::Text(rows.iter().map(read).collect())
}

/// Column of numbers; one that is not finite is missing.
fn real<T>(rows: &[T], read: impl Fn(&T) -> Option<f64>) -> Column {
    Column::Real(rows.iter().map(|row| read(row).filter(|it| it.is_finite())).collect())
}

fn named(columns: Vec<(&str, Column)>) -> PyResult<Table> {
    Table::new(columns.into_iter().map(|(name, column)| (name.to_owned(), column)).collect())
}

/// The experiments; see `lull.lab.experiments`.
#[pyfunction]
pub(crate) fn lab_experiments() -> PyResult<Table> {
    named(vec![
        ("experiment", text(ALL, |it| Some(it.name.to_owned()))),
        ("paper", text(ALL, |it| Some(it.paper.to_owned()))),
        ("summary", text(ALL, |it| Some(it.summary.to_owned()))),
    ])
}

/// Runs an experiment; see `lull.lab.run`.
#[pyfunction]
pub(crate) fn lab_run(py: Python<'_>, name: &str, options: LabOptions) -> PyResult<LabReport> {
    let report = in_background(py, name, options, |experiment, setup, options| {
        let Some(path) = &options.path else {
            return seeds::run_until_decided(experiment, setup, options.most).map_err(Failure::Lab);
        };
        let cells = LabCells::open(path, experiment, &setup, options.most, None)?;
        Ok(cells.run_until_decided(setup)?)
    });
    report.map(LabReport)
}

/// Runs some seeds of an experiment; see `lull.lab.run_cells`.
#[pyfunction]
pub(crate) fn lab_run_cells(
    py: Python<'_>,
    name: &str,
    cells: &str,
    options: LabOptions,
) -> PyResult<String> {
    let chosen = cells.parse::<CellChoice>();
    let wanted = chosen.and_then(|cells| cells.choose(options.most as u64));
    let wanted = wanted.map_err(|why| PyValueError::new_err(format!("cells: {why}")))?;
    in_background(py, name, options, move |experiment, setup, options| {
        let path = options.path.as_deref().unwrap_or(Path::new("."));
        let cells = LabCells::open(path, experiment, &setup, options.most, Some(wanted))?;
        cells.run_wanted(setup)?;
        Ok(cells.summary())
    })
}

/// Calls `run` with an experiment on a thread of its own, without the interpreter's lock.
fn in_background<T, F>(py: Python<'_>, name: &str, options: LabOptions, run: F) -> PyResult<T>
where
    T: Send + 'static,
    F: FnOnce(&'static Experiment, Setup<'_>, &LabOptions) -> Result<T, Failure> + Send + 'static,
{
    let experiment = find(name).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let done = background::run(py, &Arc::default(), move |shared| -> Result<T, Failure> {
        let pool = background::pool(options.threads);
        let pool = pool.map_err(|error| Failure::Other(error.to_string()))?;
        pool.install(|| {
            let progress = Progress::silent().until(shared.stop());
            let commit = lull_agent::COMMIT.to_owned();
            let setup = Setup { seed: options.seed, quick: options.quick, commit, progress };
            run(experiment, setup, &options)
        })
    })?;
    done.map_err(|failure| match failure {
        Failure::Lab(error @ LabError::Known { .. }) => PyValueError::new_err(error.to_string()),
        Failure::Usage(text) => PyValueError::new_err(text),
        Failure::Lab(error) => simulation_error(py, error.to_string()),
        Failure::Other(error) => simulation_error(py, error),
    })
}

/// The claims of the papers; see `lull.lab.claims`.
#[pyfunction]
pub(crate) fn lab_claims(py: Python<'_>) -> PyResult<Table> {
    let (papers, results) = embedded().map_err(|all| {
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        simulation_error(py, all.join("; "))
    })?;
    let all = papers.iter().flat_map(|paper| paper.claim.iter().map(move |claim| (paper, claim)));
    let all: Vec<_> =
        all.map(|(paper, claim)| (&paper.paper, claim, claim.judge(&results))).collect();
    let estimate = |finding: &Finding| match finding {
        Finding::Judged(_, estimate) | Finding::Quick(estimate) => Some(*estimate),
        Finding::TooFew | Finding::NoRow => None,
    };
    named(vec![
        ("paper", text(&all, |it| Some(it.0.clone()))),
        ("claim", text(&all, |it| Some(it.1.text.clone()))),
        ("place", text(&all, |it| Some(it.1.place.clone()))),
        ("printed", real(&all, |it| it.1.printed)),
        ("unit", text(&all, |it| Some(it.1.unit.clone()))),
        ("experiment", text(&all, |it| Some(it.1.row.as_ref()?.experiment.clone()))),
        ("row", text(&all, |it| Some(it.1.row.as_ref()?.name.clone()))),
        ("ours", real(&all, |it| Some(estimate(&it.2)?.mean))),
        ("half_width", real(&all, |it| Some(estimate(&it.2)?.half_width))),
        ("verdict", text(&all, |it| Some(it.2.verdict()?.to_string().to_lowercase()))),
    ])
}

fn printed(row: &Row) -> (Option<f64>, Option<String>) {
    match row.paper {
        Printed::Number(number) => (Some(number), None),
        Printed::Claim(claim) => (None, Some(claim.to_owned())),
        Printed::Nothing => (None, None),
    }
}

#[pymethods]
impl LabReport {
    /// The name of the experiment.
    #[getter]
    fn experiment(&self) -> &str {
        self.0.experiment
    }

    /// The title.
    #[getter]
    fn title(&self) -> &str {
        &self.0.title
    }

    /// The seeds that it ran on.
    #[getter]
    fn seeds(&self) -> Vec<u64> {
        self.0.seeds.clone()
    }

    /// Whether lengths were cut down, so that tolerances need not hold.
    #[getter]
    fn quick(&self) -> bool {
        self.0.quick
    }

    /// Number of held rows that miss their tolerance.
    #[getter]
    fn misses(&self) -> usize {
        self.0.misses()
    }

    /// Choices that the paper does not print, and remarks on rows.
    #[getter]
    fn remarks(&self) -> Vec<String> {
        self.0.remarks()
    }

    /// One row a figure: printed and measured, with tolerance and verdict.
    fn rows(&self) -> PyResult<Table> {
        let rows = &self.0.rows[..];
        let end = |at: usize| move |row: &Row| row.ci95.map(|ends| ends[at]);
        named(vec![
            ("row", text(rows, |it| Some(it.row.clone()))),
            ("paper", real(rows, |it| printed(it).0)),
            ("claim", text(rows, |it| printed(it).1)),
            ("ours", real(rows, |it| Some(it.ours))),
            ("low", real(rows, end(0))),
            ("high", real(rows, end(1))),
            ("values", Column::Integer(rows.iter().map(|it| Some(it.values as i64)).collect())),
            ("unit", text(rows, |it| Some(it.unit.to_owned()))),
            ("tolerance", text(rows, |it| Some(it.tolerance.to_string()))),
            ("held", Column::Integer(rows.iter().map(|it| Some(i64::from(it.held))).collect())),
            ("verdict", text(rows, |it| Some(it.verdict.to_string().to_lowercase()))),
            ("why", text(rows, |it| it.why.clone())),
        ])
    }

    fn __repr__(&self) -> String {
        format!("<lull.lab.LabReport of {:?}: {} rows>", self.0.experiment, self.0.rows.len())
    }
}
