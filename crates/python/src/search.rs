//! Searches by ask and tell.

use lull_control::{Capability, KNOBS, Rng};
use lull_measure::Percentile;
use lull_policies::search::{Choice, Method, Next, Place, Reading, Rules, Space};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rand::SeedableRng;

/// A search for the settings of least power whose tail latency stays within a bound.
///
/// The caller measures: `ask` proposes settings and `tell` takes what was measured there.
///
/// Parameters
/// ----------
/// space : dict of str to list of float
///     The values of each knob, in its unit: `coalescing`, `gate-delay` and `idle-latency` in us,
///     `frequency` and `uncore-frequency` in GHz, `cores`, `cache-ways`, `gate-cap` and
///     `gate-batch` as counts, `energy-preference` from 0 (performance) to 255.
/// bound_us : float
///     The bound on the tail latency, in us.
/// trials : int
///     Trials at most.
/// percentile : float
///     The percentile of the tail.
/// method : {"apart", "penalty", "front", "random"}
///     Latency and power modelled apart (ours), the penalty of BayOp (Dong et al., CCDS 2026),
///     the front of power and latency below the bound, or candidates drawn at random.
/// seed : int
///     Seed of its random numbers.
#[pyclass(module = "lull")]
pub(crate) struct Search {
    search: lull_policies::search::Search,
    names: Vec<&'static str>,
    /// Candidates that were proposed and have no reading yet, with their numbers.
    open: Vec<(usize, Place)>,
    next: usize,
    rng: Rng,
}

/// What `lull.search` makes of a proposal: number, values, and the gain that it expects.
type Proposal<'py> = (usize, Bound<'py, PyDict>, Option<f64>);

/// A trial: values, tail in us, watts, and why there is no reading.
type TrialParts<'py> = (Bound<'py, PyDict>, Option<f64>, Option<f64>, Option<String>);

#[pymethods]
impl Search {
    #[new]
    #[pyo3(signature = (
        space, bound_us, *, trials = 30, percentile = 99.0, method = "apart", seed = 0
    ))]
    fn new(
        space: &Bound<'_, PyDict>,
        bound_us: f64,
        trials: usize,
        percentile: f64,
        method: &str,
        seed: u64,
    ) -> PyResult<Self> {
        let wrong = |message: String| PyValueError::new_err(message);
        let mut values = Vec::new();
        for (name, levels) in space {
            values.push((knob(&name.extract::<String>()?)?, levels.extract::<Vec<f64>>()?));
        }
        let space = Space::from_values(&values).map_err(|error| wrong(error.to_string()))?;
        if !(bound_us.is_finite() && bound_us > 0.0) {
            return Err(wrong(format!("bound_us = {bound_us}: write a time above 0")));
        }
        let percentile = Percentile::new(percentile).map_err(|error| wrong(error.to_string()))?;
        let method = match method {
            "apart" => Method::Apart,
            "penalty" => Method::Penalty,
            "front" => Method::Front,
            "random" => Method::Random,
            other => {
                let names = "write \"apart\", \"penalty\", \"front\" or \"random\"";
                return Err(wrong(format!("method = {other:?}: {names}")));
            }
        };
        Ok(Self {
            names: values.iter().map(|(knob, _)| knob.name()).collect(),
            search: lull_policies::search::Search::new(
                space,
                Rules::new(method, bound_us, trials).at(percentile),
            ),
            open: Vec::new(),
            next: 0,
            rng: Rng::seed_from_u64(seed),
        })
    }

    /// The number, the values and the expected gain of the next candidate; None at the end.
    fn ask<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Proposal<'py>>> {
        let (search, rng) = (&mut self.search, &mut self.rng);
        let open: Vec<Place> = self.open.iter().map(|(_, place)| place.clone()).collect();
        let next = py.detach(|| search.ask_beside(&open, rng));
        let Some(Next { place, expected_gain }) = next else {
            return Ok(None);
        };
        let number = self.next;
        self.next += 1;
        let values = self.values(py, &place)?;
        self.open.push((number, place));
        Ok(Some((number, values, expected_gain)))
    }

    /// Takes what was measured at a candidate.
    #[pyo3(signature = (number, tail_us, watts, requests, late))]
    fn tell(
        &mut self,
        number: usize,
        tail_us: f64,
        watts: f64,
        requests: u64,
        late: u64,
    ) -> PyResult<()> {
        if late > requests {
            let message = format!("{late} of {requests} requests were late: late is part of them");
            return Err(PyValueError::new_err(message));
        }
        if ![tail_us, watts].iter().all(|value| value.is_finite() && *value > 0.0) {
            let message = format!(
                "tail_us = {tail_us}, watts = {watts}: both are above 0; call \
                                   tell(number, refused=WHY) where nothing was measured"
            );
            return Err(PyValueError::new_err(message));
        }
        let place = self.take(number)?;
        let reading = Reading { tail_us, watts, requests, late, progress_per_s: None };
        self.search.tell(place, Ok(reading));
        Ok(())
    }

    /// Takes why a candidate could not be measured.
    fn refuse(&mut self, number: usize, why: String) -> PyResult<()> {
        let place = self.take(number)?;
        self.search.tell(place, Err(why.into()));
        Ok(())
    }

    /// The incumbent: its values, whether it meets the bound, the probability that the next
    /// reading of it does, its predicted tail in us and its power in watts; None before the
    /// first reading.
    fn best<'py>(&self, py: Python<'py>) -> PyResult<Option<Best<'py>>> {
        let Some(Choice { place, meets, evidence, watts, tail_us }) =
            py.detach(|| self.search.choice())
        else {
            return Ok(None);
        };
        Ok(Some((self.values(py, &place)?, meets, evidence.probability, tail_us, watts)))
    }

    /// All trials in order.
    fn trials<'py>(&self, py: Python<'py>) -> PyResult<Vec<TrialParts<'py>>> {
        let parts = |trial: &lull_policies::search::Trial| {
            let values = self.values(py, &trial.place)?;
            Ok(match &trial.came {
                Ok(reading) => (values, Some(reading.tail_us), Some(reading.watts), None),
                Err(refusal) => (values, None, None, Some(refusal.why.clone())),
            })
        };
        self.search.trials().iter().map(parts).collect()
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
}

/// The parts of an incumbent.
type Best<'py> = (Bound<'py, PyDict>, bool, f64, f64, f64);

impl Search {
    fn values<'py>(&self, py: Python<'py>, place: &Place) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (name, value) in self.names.iter().zip(self.search.space().values(place)) {
            all.set_item(name, value)?;
        }
        Ok(all)
    }

    /// The place of a candidate that was proposed and has no reading yet.
    fn take(&mut self, number: usize) -> PyResult<Place> {
        let at = self.open.iter().position(|(known, _)| *known == number);
        let at = at.ok_or_else(|| {
            let message = format!("candidate {number} was not proposed, or has a reading already");
            PyKeyError::new_err(message)
        })?;
        Ok(self.open.remove(at).1)
    }
}

/// The knob with this name.
fn knob(name: &str) -> PyResult<Capability> {
    let found = KNOBS.iter().find(|row| row.name == name).map(|row| row.capability);
    found.ok_or_else(|| {
        let names = KNOBS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        PyValueError::new_err(format!("there is no knob `{name}`; there are: {names}"))
    })
}
