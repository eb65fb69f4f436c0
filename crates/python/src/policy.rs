//! Policies that are written in Python, as policies of the simulator.

use crate::background::{Shared, attach};
use crate::error::plan_error;
use crate::machine::{App, Machine};
use crate::observation::{Numbers, Observation, Roster};
use crate::plan::{Plan, Target};
use lull_control::{AppSpec, Policy, PolicyError, Reason, Rng, Setting};
use lull_lab::CustomPolicy;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

/// Why a policy is not called any more.
const INTERPRETER_ENDS: &str = "the interpreter has ended";

/// The random numbers of a run, which follow from its seed.
///
/// A policy that draws all of its random numbers here gives the same results for the same seed.
#[pyclass(module = "lull")]
pub(crate) struct PolicyRng(Rng);

#[pymethods]
impl PolicyRng {
    /// A number from 0 to 1, without 1.
    fn random(&mut self) -> f64 {
        self.0.random()
    }

    /// A whole number from `low` to `high`, without `high`.
    fn integers(&mut self, low: i64, high: i64) -> PyResult<i64> {
        if low >= high {
            let message = format!("no number is from {low} to below {high}");
            return Err(pyo3::exceptions::PyValueError::new_err(message));
        }
        Ok(self.0.random_range(low..high))
    }

    /// A seed for a generator of another library, such as `numpy.random.default_rng`.
    fn seed(&mut self) -> u64 {
        self.0.random()
    }
}

/// The handling of an exception in a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnError {
    /// The exception ends the run and is raised there; so does a refused setting.
    Raise,
    /// The journal records the exception as the policy's fault, and the run continues.
    Report,
}

/// How a policy in Python is made: a class is called without arguments, an object is copied, so
/// that every replication has a policy with a state of its own.
pub(crate) fn custom(
    name: String,
    template: Py<PyAny>,
    shared: &Arc<Shared>,
    on_error: OnError,
) -> CustomPolicy {
    let shared = Arc::clone(shared);
    CustomPolicy::new(name.clone(), move |machine, apps| {
        let label = name.clone();
        let made = attach(|py| -> PyResult<Box<dyn Policy>> {
            let object = start(py, &template, Target { machine, apps })?;
            let rng = Py::new(py, PolicyRng(Rng::seed_from_u64(0)))?;
            Ok(Box::new(PythonPolicy {
                label,
                object,
                rng,
                roster: Roster::new(py, apps),
                machine: machine.clone(),
                apps: apps.to_vec(),
                shared: Arc::clone(&shared),
                on_error,
                fault: None,
            }))
        });
        let message = match made {
            Some(Ok(policy)) => return Ok(policy),
            Some(Err(error)) => {
                let message = error.to_string();
                shared.raise(error);
                message
            }
            None => INTERPRETER_ENDS.to_owned(),
        };
        Err(PolicyError::Config { key: String::new(), message })
    })
}

/// Makes the object of one replication and shows it its machine.
fn start(py: Python<'_>, template: &Py<PyAny>, target: Target<'_>) -> PyResult<Py<PyAny>> {
    let template = template.bind(py);
    let object = match template.is_instance_of::<PyType>() {
        true => template.call0()?,
        false => py.import("copy")?.call_method1("deepcopy", (template,))?,
    };
    let machine = Machine::new(target.machine, target.apps);
    let apps = PyTuple::new(py, target.apps.iter().map(App::from))?;
    object.call_method1("start", (machine, apps))?;
    Ok(object.unbind())
}

/// A policy in Python.
struct PythonPolicy {
    label: String,
    object: Py<PyAny>,
    /// The generator that `decide` gets; its state is that of the run's generator during the call.
    rng: Py<PolicyRng>,
    roster: Arc<Roster>,
    machine: lull_control::Machine,
    apps: Vec<AppSpec>,
    shared: Arc<Shared>,
    on_error: OnError,
    fault: Option<String>,
}

impl PythonPolicy {
    fn ask(
        &self,
        py: Python<'_>,
        seen: &lull_control::Observation,
        rng: &mut Rng,
    ) -> PyResult<lull_control::Plan> {
        let seen = Observation::new(Numbers::new(seen, &self.apps), &self.roster);
        self.rng.borrow_mut(py).0 = rng.clone();
        let answer = self.object.bind(py).call_method1(intern!(py, "decide"), (seen, &self.rng))?;
        *rng = self.rng.borrow(py).0.clone();
        let mut plan = lull_control::Plan::keep();
        if answer.is_none() {
            return Ok(plan);
        }
        let Ok(wanted) = answer.cast::<Plan>() else {
            let (label, kind) = (&self.label, answer.get_type().name()?);
            let message = format!(
                "policy `{label}` returned {answer}, a {kind}: return a lull.Plan, or None to \
                 keep every knob as it is"
            );
            return Err(plan_error(py, message));
        };
        let target = Target { machine: &self.machine, apps: &self.apps };
        for setting in wanted.borrow().settings(py, target)? {
            plan.set(setting, Reason::Fixed);
        }
        Ok(plan)
    }
}

impl PythonPolicy {
    fn fail(&mut self, py: Python<'_>, error: PyErr) {
        match self.on_error {
            OnError::Raise => self.shared.raise(error),
            OnError::Report => {
                let place = place(py, &error).map_or_else(String::new, |at| format!(" ({at})"));
                let label = &self.label;
                self.fault = Some(format!("policy `{label}` cannot be followed: {error}{place}"));
            }
        }
    }
}

/// The file and line where an exception was raised.
fn place(py: Python<'_>, error: &PyErr) -> Option<String> {
    let mut at = error.traceback(py)?.into_any();
    while let Ok(next) = at.getattr("tb_next")
        && !next.is_none()
    {
        at = next;
    }
    let file: String = at
        .getattr("tb_frame")
        .ok()?
        .getattr("f_code")
        .ok()?
        .getattr("co_filename")
        .ok()?
        .extract()
        .ok()?;
    let line: u32 = at.getattr("tb_lineno").ok()?.extract().ok()?;
    Some(format!("{file}:{line}"))
}

impl Policy for PythonPolicy {
    fn decide(&mut self, seen: &lull_control::Observation, rng: &mut Rng) -> lull_control::Plan {
        // After an exception or an interrupt the run ends at its next check.
        if self.shared.is_stopped() {
            return lull_control::Plan::keep();
        }
        self.fault = None;
        let decided = attach(|py| match self.ask(py, seen, rng) {
            Ok(plan) => plan,
            Err(error) => {
                self.fail(py, error);
                lull_control::Plan::keep()
            }
        });
        decided.unwrap_or_else(|| {
            self.fault = Some(format!("policy `{}`: {INTERPRETER_ENDS}", self.label));
            lull_control::Plan::keep()
        })
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    fn refused(&mut self, refused: &[(Setting, String)]) {
        // The journal of a host has refused settings with reasons.
        let Some((setting, why)) = refused.first().filter(|_| self.on_error == OnError::Raise)
        else {
            return;
        };
        let message = format!("policy `{}` wants {setting}, which is refused: {why}", self.label);
        if let Some(error) = attach(|py| plan_error(py, message)) {
            self.shared.raise(error);
        }
    }
}
