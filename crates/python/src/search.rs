//! Searches by ask and tell.

use lull_control::{Capability, KNOBS, Rng, TrialEvidence};
use lull_measure::Percentile;
use lull_policies::search::{
    Choice, FrontSetting, Method, NextTrial, Reading, Refusal, Rules, SearchPoint, Space, Trial,
};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rand::SeedableRng;
use std::collections::BTreeMap;

/// A search for the settings of least power whose tail latency stays within a bound; see
/// `lull.Search`.
#[pyclass(module = "lull")]
pub(crate) struct Search {
    search: lull_policies::search::Search,
    names: Vec<&'static str>,
    /// Candidates that were proposed and have no reading yet, with their numbers.
    open: Vec<(usize, SearchPoint)>,
    next: usize,
    rng: Rng,
}

/// How a search chooses candidates, as in `lull.Search`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SearchOptions {
    trials: usize,
    percentile: f64,
    method: String,
    safe: bool,
    harm_max: f64,
    /// A setting that was good before, by knob.
    begin_with: Option<BTreeMap<String, f64>>,
    seed: u64,
}

/// The measurements of a candidate, in the form of `lull.Search.tell`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Measured {
    tail_us: f64,
    watts: f64,
    requests: u64,
    late: u64,
    progress_per_s: Option<f64>,
}

/// The fields of `lull.Evidence`.
#[derive(IntoPyObject)]
pub(crate) struct EvidenceParts {
    trials: u32,
    requests: u64,
    late: u64,
    at_least: f64,
    at_most: f64,
    allowed: f64,
    probability: f64,
}

/// The parts of a proposal: number, values, and the gain that is expected.
type Proposal<'py> = (usize, Bound<'py, PyDict>, Option<f64>);

/// The parts of a trial: values, tail in us, watts, and why there is no reading.
type TrialParts<'py> = (Bound<'py, PyDict>, Option<f64>, Option<f64>, Option<String>);

/// The parts of an incumbent: values, whether it meets the bound, its evidence, tail in us, watts.
type Best<'py> = (Bound<'py, PyDict>, bool, EvidenceParts, f64, f64);

/// The parts of a setting of the front: values, tail in us, watts, and progress per second.
type FrontParts<'py> = (Bound<'py, PyDict>, f64, f64, Option<f64>);

#[pymethods]
impl Search {
    #[new]
    fn new(space: &Bound<'_, PyDict>, bound_us: f64, options: SearchOptions) -> PyResult<Self> {
        let mut values = Vec::new();
        for (name, levels) in space {
            values.push((knob(&name.extract::<String>()?)?, levels.extract::<Vec<f64>>()?));
        }
        let space = Space::from_values(&values).map_err(|error| wrong(error.to_string()))?;
        let rules = options.rules(bound_us)?;
        let mut search = Self {
            names: values.iter().map(|(knob, _)| knob.name()).collect(),
            search: lull_policies::search::Search::new(space, rules),
            open: Vec::new(),
            next: 0,
            rng: Rng::seed_from_u64(options.seed),
        };
        if let Some(setting) = &options.begin_with {
            search.begin_with(setting)?;
        }
        Ok(search)
    }

    /// The number, the values and the expected gain of the next candidate; None at the end.
    fn ask<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Proposal<'py>>> {
        let (search, rng) = (&mut self.search, &mut self.rng);
        let open: Vec<SearchPoint> = self.open.iter().map(|(_, point)| point.clone()).collect();
        let next = py.detach(|| search.ask_beside(&open, rng));
        let Some(NextTrial { point, expected_gain }) = next else {
            return Ok(None);
        };
        let number = self.next;
        self.next += 1;
        let values = self.values(py, &point)?;
        self.open.push((number, point));
        Ok(Some((number, values, expected_gain)))
    }

    /// Takes the measurements of a candidate.
    fn tell(&mut self, number: usize, measured: Measured) -> PyResult<()> {
        let reading = measured.reading()?;
        let point = self.take(number)?;
        self.search.tell(point, Ok(reading));
        Ok(())
    }

    /// Takes why a candidate could not be measured, and which knob refused it.
    #[pyo3(signature = (number, why, knob))]
    fn refuse(&mut self, number: usize, why: String, knob: Option<&str>) -> PyResult<()> {
        let refusal = match knob {
            Some(name) => Refusal::of_knob(self.knob(name)?, why),
            None => why.into(),
        };
        let point = self.take(number)?;
        self.search.tell(point, Err(refusal));
        Ok(())
    }

    /// The incumbent; None before the first reading.
    fn best<'py>(&self, py: Python<'py>) -> PyResult<Option<Best<'py>>> {
        let Some(Choice { point, meets, evidence, watts, tail_us }) =
            py.detach(|| self.search.choice())
        else {
            return Ok(None);
        };
        Ok(Some((self.values(py, &point)?, meets, evidence.into(), tail_us, watts)))
    }

    /// The tried settings within the bound that no other one beats, by ascending power.
    fn front<'py>(&self, py: Python<'py>) -> PyResult<Vec<FrontParts<'py>>> {
        let parts = |FrontSetting { point, tail_us, watts, progress_per_s }| {
            Ok((self.values(py, &point)?, tail_us, watts, progress_per_s))
        };
        py.detach(|| self.search.front()).into_iter().map(parts).collect()
    }

    /// All trials in order.
    fn trials<'py>(&self, py: Python<'py>) -> PyResult<Vec<TrialParts<'py>>> {
        let parts = |trial: &Trial| {
            let values = self.values(py, &trial.point)?;
            Ok(match &trial.outcome {
                Ok(reading) => (values, Some(reading.tail_us), Some(reading.watts), None),
                Err(refusal) => (values, None, None, Some(refusal.why.clone())),
            })
        };
        self.search.trials().iter().map(parts).collect()
    }

    /// Why a safe search tried nothing but the fastest setting; None if it did.
    #[getter]
    fn stayed(&self) -> Option<String> {
        self.search.confinement()
    }

    /// Share of all requests so far that were over the bound.
    #[getter]
    fn harm(&self) -> f64 {
        self.search.harm()
    }

    /// Number of candidates.
    #[getter]
    fn size(&self) -> usize {
        self.search.space().size()
    }

    /// Requests that a trial takes at least.
    #[getter]
    fn least_requests(&self) -> u64 {
        self.search.rules().least_requests()
    }
}

impl Search {
    fn values<'py>(&self, py: Python<'py>, point: &SearchPoint) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (name, value) in self.names.iter().zip(self.search.space().values(point)) {
            all.set_item(name, value)?;
        }
        Ok(all)
    }

    /// Sets the setting that is tried early: the nearest one to these values.
    fn begin_with(&mut self, setting: &BTreeMap<String, f64>) -> PyResult<()> {
        let values: Option<Vec<f64>> =
            self.names.iter().map(|name| setting.get(*name).copied()).collect();
        let is_setting = |values: &Vec<f64>| {
            values.len() == setting.len() && values.iter().all(|it| it.is_finite())
        };
        let Some(values) = values.filter(is_setting) else {
            let names = self.names.join(", ");
            let what = format!("begin_with = {setting:?}: write a number for each of {names}");
            return Err(wrong(what));
        };
        let point = self.search.space().nearest(&values);
        self.search.begin_with(point);
        Ok(())
    }

    /// The knob of the space with this name.
    fn knob(&self, name: &str) -> PyResult<Capability> {
        match self.names.contains(&name) {
            true => knob(name),
            false => {
                let names = self.names.join(", ");
                Err(wrong(format!("the search has no knob `{name}`; it has: {names}")))
            }
        }
    }

    /// The point of a candidate that was proposed and has no reading yet.
    fn take(&mut self, number: usize) -> PyResult<SearchPoint> {
        let at = self.open.iter().position(|(known, _)| *known == number);
        let at = at.ok_or_else(|| {
            let message = format!("candidate {number} was not proposed, or has a reading already");
            PyKeyError::new_err(message)
        })?;
        Ok(self.open.remove(at).1)
    }
}

impl SearchOptions {
    fn rules(&self, bound_us: f64) -> PyResult<Rules> {
        if !(bound_us.is_finite() && bound_us > 0.0) {
            return Err(wrong(format!("bound_us = {bound_us}: write a time above 0")));
        }
        let Self { trials, safe, harm_max, method: name, .. } = self;
        if !(0.0..=1.0).contains(harm_max) {
            return Err(wrong(format!("harm_max = {harm_max}: write a share from 0 to 1")));
        }
        let percentile =
            Percentile::new(self.percentile).map_err(|error| wrong(error.to_string()))?;
        let method = name.parse::<Method>();
        let method = method.map_err(|error| wrong(format!("method = {name:?}: {error}")))?;
        if *safe {
            method.check_safe().map_err(|error| wrong(format!("safe = True: {error}")))?;
        }
        let rules = Rules::new(method, bound_us, *trials).at(percentile);
        Ok(Rules { safe: *safe, harm_max: *harm_max, ..rules })
    }
}

impl Measured {
    fn reading(self) -> PyResult<Reading> {
        let Self { tail_us, watts, requests, late, progress_per_s } = self;
        if late > requests {
            let message = format!("{late} of {requests} requests were late: late is part of them");
            return Err(wrong(message));
        }
        if ![tail_us, watts].iter().all(|value| value.is_finite() && *value > 0.0) {
            return Err(wrong(format!(
                "tail_us = {tail_us}, watts = {watts}: both are above 0; call \
                 tell(number, refused=WHY) where nothing was measured"
            )));
        }
        if progress_per_s.is_some_and(|it| !it.is_finite() || it < 0.0) {
            let per_s = progress_per_s.unwrap_or_default();
            return Err(wrong(format!("progress_per_s = {per_s}: write 0 or more")));
        }
        Ok(Reading { tail_us, watts, requests, late, progress_per_s })
    }
}

impl From<TrialEvidence> for EvidenceParts {
    fn from(evidence: TrialEvidence) -> Self {
        let TrialEvidence { trials, requests, late, at_least, at_most, allowed, probability } =
            evidence;
        Self { trials, requests, late, at_least, at_most, allowed, probability }
    }
}

fn wrong(message: String) -> PyErr {
    PyValueError::new_err(message)
}

/// The knob with this name.
fn knob(name: &str) -> PyResult<Capability> {
    let found = KNOBS.iter().find(|row| row.name == name).map(|row| row.capability);
    found.ok_or_else(|| {
        let names = KNOBS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        wrong(format!("there is no knob `{name}`; there are: {names}"))
    })
}
