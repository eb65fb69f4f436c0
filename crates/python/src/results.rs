//! The results of a simulation as tables.

use crate::table::{Column, Table};
use lull_lab::scenario::Outcome;
use lull_measure::escape::visible_line;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// The results of `lull.simulate`.
///
/// They are themselves a table (see `table`) for libraries that take Arrow data.
#[pyclass(frozen, module = "lull")]
pub(crate) struct Results {
    outcomes: Vec<Outcome>,
}

impl Results {
    pub(crate) fn new(outcomes: Vec<Outcome>) -> Self {
        Self { outcomes }
    }
}

/// Returns the subject of a figure and the column that holds it: `p95[site]` in ms is `p95_ms` of
/// `site`.
fn place(id: &str, unit: &str) -> (Option<String>, String) {
    let (kind, of) = match id.split_once('[') {
        Some((kind, rest)) => (kind, Some(rest.trim_end_matches(']').to_owned())),
        None => (id, None),
    };
    let mut column = kind.replace(|it: char| !it.is_ascii_alphanumeric(), "_");
    let suffix = match unit {
        "1" => String::new(),
        "%" => "_percent".to_owned(),
        "1/s" => "_per_s".to_owned(),
        other => format!("_{}", other.to_ascii_lowercase()),
    };
    if !column.ends_with(&suffix) {
        column.push_str(&suffix);
    }
    (of, column)
}

/// A value that is a number.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The first columns of every table, a row a value.
#[derive(Default)]
struct Head {
    policy: Vec<Option<String>>,
    seed: Vec<Option<i64>>,
    replication: Vec<Option<i64>>,
}

impl Head {
    fn push(&mut self, outcome: &Outcome, policy: usize, replication: usize) {
        self.policy.push(Some(outcome.policies[policy].label.clone()));
        self.seed.push(Some(outcome.seed.cast_signed()));
        self.replication.push(Some(replication as i64));
    }

    fn columns(self) -> Vec<(String, Column)> {
        vec![
            ("policy".to_owned(), Column::Text(self.policy)),
            ("seed".to_owned(), Column::Integer(self.seed)),
            ("replication".to_owned(), Column::Integer(self.replication)),
        ]
    }
}

#[pymethods]
impl Results {
    /// One row a policy, seed, replication and subject; one column a figure, with its unit.
    ///
    /// The subject is an app, a tier or a class of requests; None means the whole machine.
    /// A figure that a subject does not have is missing.
    fn table(&self) -> PyResult<Table> {
        let (mut head, mut subjects) = (Head::default(), Vec::new());
        let mut figures: Vec<(String, Vec<Option<f64>>)> = Vec::new();
        for outcome in &self.outcomes {
            let places: Vec<_> =
                outcome.quantities.iter().map(|it| place(&it.id, it.unit)).collect();
            let mut of: Vec<_> = places.iter().map(|(of, _)| of.clone()).collect();
            let mut seen = Vec::new();
            of.retain(|of| {
                !seen.contains(of) && {
                    seen.push(of.clone());
                    true
                }
            });
            for policy in 0..outcome.policies.len() {
                for replication in 0..outcome.replications() {
                    let first = subjects.len();
                    for of in &of {
                        head.push(outcome, policy, replication);
                        subjects.push(of.clone());
                    }
                    for (at, (owner, column)) in places.iter().enumerate() {
                        let row = first + of.iter().position(|it| it == owner).unwrap_or(0);
                        let known = figures.iter().position(|(name, _)| name == column);
                        let known = known.unwrap_or_else(|| {
                            figures.push((column.clone(), Vec::new()));
                            figures.len() - 1
                        });
                        let values = &mut figures[known].1;
                        values.resize(subjects.len(), None);
                        values[row] = finite(outcome.policies[policy].values[at][replication]);
                    }
                }
            }
        }
        let rows = subjects.len();
        let mut columns = head.columns();
        columns.push(("subject".to_owned(), Column::Text(subjects)));
        columns.extend(figures.into_iter().map(|(name, mut values)| {
            values.resize(rows, None);
            (name, Column::Real(values))
        }));
        Table::new(columns)
    }

    /// One row a value, as `lull sim --csv` writes it: figure, unit and value, with the seed.
    fn figures(&self) -> PyResult<Table> {
        let (mut head, mut names, mut units, mut values) =
            (Head::default(), Vec::new(), Vec::new(), Vec::new());
        for outcome in &self.outcomes {
            for policy in 0..outcome.policies.len() {
                for replication in 0..outcome.replications() {
                    for (at, quantity) in outcome.quantities.iter().enumerate() {
                        head.push(outcome, policy, replication);
                        names.push(Some(quantity.id.clone()));
                        units.push(Some(quantity.unit.to_owned()));
                        let value = outcome.policies[policy].values[at][replication];
                        values.push(finite(value));
                    }
                }
            }
        }
        let mut columns = head.columns();
        columns.push(("figure".to_owned(), Column::Text(names)));
        columns.push(("unit".to_owned(), Column::Text(units)));
        columns.push(("value".to_owned(), Column::Real(values)));
        Table::new(columns)
    }

    /// One row a policy, seed and figure: the mean over replications and its 95 % interval, and
    /// the paired difference to the first policy with its interval, as `lull sim --json` has them.
    fn estimates(&self) -> PyResult<Table> {
        let (mut policies, mut seeds, mut names, mut units) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut numbers: [Vec<Option<f64>>; 7] = Default::default();
        for outcome in &self.outcomes {
            for (policy, of) in outcome.policies.iter().enumerate() {
                for (at, quantity) in outcome.quantities.iter().enumerate() {
                    policies.push(Some(of.label.clone()));
                    seeds.push(Some(outcome.seed.cast_signed()));
                    names.push(Some(quantity.id.clone()));
                    units.push(Some(quantity.unit.to_owned()));
                    let compared = (policy > 0).then(|| outcome.compare(policy, at));
                    let interval = outcome.interval(policy, at);
                    let difference = compared.and_then(|compared| compared.interval());
                    let row = [
                        finite(outcome.estimate(policy, at).mean),
                        interval.map(|[low, _]| low),
                        interval.map(|[_, high]| high),
                        compared.and_then(|compared| finite(compared.difference.mean)),
                        difference.map(|[low, _]| low),
                        difference.map(|[_, high]| high),
                        compared.and_then(|compared| finite(compared.percent)),
                    ];
                    numbers.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
                }
            }
        }
        let mut columns = vec![
            ("policy".to_owned(), Column::Text(policies)),
            ("seed".to_owned(), Column::Integer(seeds)),
            ("figure".to_owned(), Column::Text(names)),
            ("unit".to_owned(), Column::Text(units)),
        ];
        let names = [
            "mean",
            "low",
            "high",
            "difference",
            "difference_low",
            "difference_high",
            "difference_percent",
        ];
        let numbers = names.into_iter().zip(numbers);
        columns.extend(numbers.map(|(name, values)| (name.to_owned(), Column::Real(values))));
        Table::new(columns)
    }

    /// The labels of the policies, the reference first.
    #[getter]
    fn policies(&self) -> Vec<String> {
        let first = self.outcomes.first().into_iter().flat_map(|outcome| &outcome.policies);
        first.map(|policy| policy.label.clone()).collect()
    }

    /// Notices about how far the figures are valid, without repeats.
    #[getter]
    fn notices(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for notice in self.outcomes.iter().flat_map(|outcome| &outcome.notices) {
            if !all.contains(notice) {
                all.push(notice.clone());
            }
        }
        all
    }

    /// The warm-up of each seed's replications, in seconds, which is not counted.
    #[getter]
    fn warmup_s(&self) -> Vec<f64> {
        self.outcomes.iter().map(|outcome| outcome.warmup.as_secs_f64()).collect()
    }

    /// Results cannot be pickled; their tables can.
    fn __reduce__(&self) -> PyResult<()> {
        let message = "lull.Results cannot be pickled: send or store its tables, such as \
                       results.estimates() or results.table()";
        Err(PyTypeError::new_err(message))
    }

    fn __repr__(&self) -> String {
        let title = self.outcomes.first().map_or("", |outcome| outcome.title.as_str());
        let (policies, seeds) = (self.policies().join(", "), self.outcomes.len());
        format!("<lull.Results of {title:?}: {}; seeds: {seeds}>", visible_line(&policies))
    }

    /// `table` as an ArrowArrayStream.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self.table()?.__arrow_c_stream__(py, requested_schema)
    }
}
