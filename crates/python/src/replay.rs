//! `lull.replay`: a recorded run under other policies.

use crate::background::{self, Shared};
use crate::error::{policy_error, record_error, replay_error, simulation_error};
use crate::policy::{self, OnError};
use crate::results::Results;
use crate::table::{Column, Table};
use lull_agent::recorded::{RecordPart, Recorded};
use lull_lab::PolicySource;
use lull_lab::progress::Progress;
use lull_lab::replay::{Answer, Effort, Replay as Model, ReplayError, Reproduced, Steered};
use lull_measure::Nanos;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The part of the record to replay, and the amount to simulate.
#[derive(Debug, Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Extent {
    part: Option<String>,
    skip_s: Option<f64>,
    max_error: f64,
    replications: u64,
    seed: u64,
    threads: Option<usize>,
}

/// Why nothing was replayed.
enum Failure {
    Record(anyhow::Error),
    Policy(String),
    Replay(ReplayError),
    Threads(String),
}

/// The replayed run, and its record.
struct Replayed {
    answer: Answer,
    policy: String,
    notices: Vec<String>,
}

/// A recorded run, replayed, and other policies predicted for it; `lull.replay` makes one.
#[pyclass(frozen, module = "lull")]
pub(crate) struct Replay {
    policy: String,
    error: f64,
    error_of: String,
    share: f64,
    demand_error: f64,
    figures: Vec<Reproduced>,
    notices: Vec<String>,
    results: Py<Results>,
}

/// Replays a record; see `lull.replay`.
///
/// `policies` lists names with the class or object of those that are written in Python.
#[pyfunction]
pub(crate) fn replay(
    py: Python<'_>,
    record: PathBuf,
    policies: Vec<(String, Option<Py<PyAny>>)>,
    extent: Extent,
) -> PyResult<Replay> {
    let shared = Arc::new(Shared::default());
    let sources = policies.into_iter().map(|(name, template)| match template {
        Some(template) => {
            Ok(PolicySource::Custom(policy::custom(name, template, &shared, OnError::Raise)))
        }
        None => PolicySource::registered(&name).map_err(|error| error.to_string()),
    });
    let sources = sources.collect::<Result<Vec<_>, String>>();
    let run = record.display().to_string();
    let replayed = background::run(py, &shared, move |shared| -> Result<_, Failure> {
        let recorded = recorded(&record, &extent).map_err(Failure::Record)?;
        let sources = sources.map_err(Failure::Policy)?;
        let has_custom = sources.iter().any(|it| matches!(it, PolicySource::Custom(_)));
        let pool = match has_custom {
            true => background::policy_pool(extent.threads),
            false => background::pool(extent.threads),
        };
        let pool = pool.map_err(|error| Failure::Threads(error.to_string()))?;
        let answer = pool.install(|| answer(&recorded, sources, &extent, shared));
        let answer = answer.map_err(Failure::Replay)?;
        let (policy, notices) = (recorded.policy, recorded.notices);
        Ok(Replayed { answer, policy, notices })
    })?;
    let replayed = replayed.map_err(|failure| failure.raise(py, &run))?;
    Replay::new(py, &run, replayed)
}

fn recorded(record: &Path, extent: &Extent) -> anyhow::Result<Recorded> {
    let skip = extent.skip_s.map(Nanos::from_secs_f64);
    Recorded::read(record, RecordPart { part: extent.part.as_deref(), skip })
}

fn answer(
    recorded: &Recorded,
    sources: Vec<PolicySource>,
    extent: &Extent,
    shared: &Shared,
) -> Result<Answer, ReplayError> {
    let is_stopped = || shared.is_stopped();
    let Extent { replications, seed, .. } = *extent;
    let effort = Effort { replications, seed, ..Effort::default() };
    let others: Vec<Steered> = sources.into_iter().map(|it| recorded.steered(it)).collect();
    let model = Model::new(&recorded.recording, recorded.acted(), effort, &is_stopped)?;
    others.iter().try_for_each(|other| model.check_policy(other))?;
    let progress = Progress::silent().until(shared.stop());
    model.answer(&others, extent.max_error / 100.0, &progress, || ())
}

impl Failure {
    /// The exception, with the text of the command.
    fn raise(self, py: Python<'_>, run: &str) -> PyErr {
        match self {
            Self::Record(error) => record_error(py, &error),
            Self::Policy(message) => policy_error(py, run, format!("--policy: {message}"), message),
            Self::Threads(message) => simulation_error(py, message),
            Self::Replay(error) => match &error {
                ReplayError::Policy(_) | ReplayError::Beyond { .. } => {
                    policy_error(py, run, error.of_run(run), error.to_string())
                }
                ReplayError::Unfit(_) => replay_error(py, error.of_run(run), None),
                ReplayError::Model(_) | ReplayError::Stopped => {
                    simulation_error(py, error.of_run(run))
                }
            },
        }
    }
}

impl Replay {
    fn new(py: Python<'_>, run: &str, replayed: Replayed) -> PyResult<Self> {
        let Replayed { answer, policy, mut notices } = replayed;
        let shortfall = answer.shortfall(run, &policy);
        let Answer { reproduction, error, error_of, prediction, .. } = answer;
        let Some(outcome) = prediction else {
            let table = reproduced(&reproduction.figures)?;
            return Err(replay_error(py, shortfall, Some(table)));
        };
        notices.extend(outcome.notices.iter().cloned());
        Ok(Self {
            policy,
            error,
            error_of,
            share: reproduction.share,
            demand_error: reproduction.demand_error,
            figures: reproduction.figures,
            notices,
            results: Py::new(py, Results::new(vec![outcome]))?,
        })
    }
}

#[pymethods]
impl Replay {
    /// The policy that acted in the record.
    #[getter]
    fn policy(&self) -> &str {
        &self.policy
    }

    /// The largest relative error of the reproduction.
    #[getter]
    fn error(&self) -> f64 {
        self.error
    }

    /// The figure with that error.
    #[getter]
    fn error_of(&self) -> &str {
        &self.error_of
    }

    /// Share of the recorded epochs that was simulated.
    #[getter]
    fn share(&self) -> f64 {
        self.share
    }

    /// Possible error of the demand of requests, as a share of the demand.
    #[getter]
    fn demand_error(&self) -> f64 {
        self.demand_error
    }

    /// Notices about the record and about how far the figures are valid.
    #[getter]
    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }

    /// The predicted figures; the first policy is the recorded one, the reference of differences.
    #[getter]
    fn results(&self, py: Python<'_>) -> Py<Results> {
        self.results.clone_ref(py)
    }

    /// One row a figure: as measured, as replayed, and the relative error of those that are
    /// judged.
    fn reproduction(&self) -> PyResult<Table> {
        reproduced(&self.figures)
    }

    fn __repr__(&self) -> String {
        let (policy, error, of) = (&self.policy, 100.0 * self.error, &self.error_of);
        format!("<lull.Replay of {policy:?}: off by at most {error:.1} % ({of})>")
    }
}

fn reproduced(figures: &[Reproduced]) -> PyResult<Table> {
    let text = |read: fn(&Reproduced) -> String| {
        Column::Text(figures.iter().map(|figure| Some(read(figure))).collect())
    };
    let real = |read: fn(&Reproduced) -> Option<f64>| {
        Column::Real(figures.iter().map(|it| read(it).filter(|it| it.is_finite())).collect())
    };
    Table::new(vec![
        ("figure".to_owned(), text(|it| it.quantity.id.clone())),
        ("unit".to_owned(), text(|it| it.quantity.unit.to_owned())),
        ("measured".to_owned(), real(|it| it.measured)),
        ("replayed".to_owned(), real(|it| it.replayed)),
        ("error".to_owned(), real(|it| it.error)),
    ])
}
