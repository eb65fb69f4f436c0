//! A simulated machine that is steered from Python an epoch at a time.

use crate::background;
use crate::error::{config_error, simulation_error};
use crate::machine::{App, Machine};
use crate::observation::{Numbers, Observation, Roster};
use crate::plan::{Plan, Target};
use crate::scenario::Scenario;
use lull_agent::located::InputError;
use lull_control::{ApplyOutcome, Outcome};
use lull_lab::scenario::Choice;
use lull_measure::Nanos;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// One replication of a scenario with `[node]`, an epoch at a time.
///
/// Parameters
/// ----------
/// scenario : Scenario
///     Apps that share one machine.
/// seed : int, optional
///     Seed of all random numbers; by default that of the scenario.
/// replication : int
///     Number of the replication below the seed.
/// epoch_s : float
///     Length of an epoch in seconds.
#[pyclass(frozen, module = "lull")]
pub(crate) struct Environment {
    inner: Mutex<lull_lab::environment::Environment>,
    roster: Arc<Roster>,
}

/// The result of one step: the observation, E_S with its parts, and the refused settings.
type Stepped = (Observation, (f64, Option<f64>, Option<f64>), Vec<String>);

#[pymethods]
impl Environment {
    #[new]
    #[pyo3(signature = (scenario, seed = None, replication = 0, epoch_s = 0.5))]
    fn new(
        py: Python<'_>,
        scenario: &Scenario,
        seed: Option<u64>,
        replication: u64,
        epoch_s: f64,
    ) -> PyResult<Self> {
        if !(epoch_s > 0.0 && epoch_s <= 86_400.0) {
            let message = format!("epoch_s = {epoch_s}: write seconds above 0, a day at most");
            return Err(PyValueError::new_err(message));
        }
        let policies =
            if scenario.has_policies() { Vec::new() } else { vec!["unmanaged".to_owned()] };
        let choice = Choice { policies, seed, ..Choice::default() };
        let scenario = scenario.clone();
        let made = background::run(py, &Arc::default(), move |_| -> Result<_, InputError> {
            let epoch = Nanos::from_secs_f64(epoch_s);
            let scenario = scenario.read(&choice)?;
            Ok(lull_lab::environment::Environment::new(&scenario, replication, epoch))
        })?;
        let made = made.map_err(|error| config_error(py, &error))?;
        let inner = made.map_err(|error| simulation_error(py, error.to_string()))?;
        let roster = Roster::new(py, inner.apps());
        Ok(Self { inner: Mutex::new(inner), roster })
    }

    /// The machine.
    #[getter]
    fn machine(&self) -> Machine {
        self.locked(|inner| Machine::new(inner.machine(), inner.apps()))
    }

    /// The apps, in the order of observations.
    #[getter]
    fn apps(&self) -> Vec<App> {
        self.locked(|inner| inner.apps().iter().map(App::from).collect())
    }

    /// Applies a plan, lets one epoch pass, and returns its measurements.
    #[pyo3(signature = (plan = None))]
    fn step(&self, py: Python<'_>, plan: Option<&Plan>) -> PyResult<Stepped> {
        let (machine, apps) = self.locked(|inner| (inner.machine().clone(), inner.apps().to_vec()));
        let target = Target { machine: &machine, apps: &apps };
        let wanted = plan.map_or(Ok(Vec::new()), |plan| plan.settings(py, target))?;
        let step = py.detach(|| self.locked(|inner| inner.step(&wanted)));
        let step = step.map_err(|error| simulation_error(py, error.to_string()))?;
        let refused =
            step.applied.outcomes.iter().filter_map(|Outcome { wanted, got }| match got {
                ApplyOutcome::Refused { why } => Some(format!("{wanted}: {why}")),
                ApplyOutcome::Done | ApplyOutcome::Already | ApplyOutcome::Clamped { .. } => None,
            });
        let entropy = step.assessment.entropy;
        let seen = Observation::new(Numbers::new(&step.seen, &apps), &self.roster);
        Ok((seen, (entropy.system, entropy.lc, entropy.be), refused.collect()))
    }
}

impl Environment {
    fn locked<T>(&self, act: impl FnOnce(&mut lull_lab::environment::Environment) -> T) -> T {
        act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
