//! The exceptions of the package, which are classes of `lull.errors`.

use crate::table::Table;
use lull_agent::located::InputError;
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

/// The module that defines them.
const MODULE: &str = "lull.errors";

/// An exception of the class with this name.
fn exception<'py>(py: Python<'py>, class: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
    let made = py.import(MODULE).and_then(|module| module.getattr(class));
    match made.and_then(|class| class.call1(arguments)) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// `ConfigError`: a scenario that cannot be used, with file, line and key.
pub(crate) fn config_error(py: Python<'_>, error: &InputError) -> PyErr {
    let file = error.file().display().to_string();
    let parts = (error.to_string(), file, error.line(), error.key(), error.message());
    exception(py, "ConfigError", parts)
}

/// `PlanError`: a plan that no machine can follow.
pub(crate) fn plan_error(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, "PlanError", (message.into(),))
}

/// `SimulationError`: a simulation that cannot be set up or reaches a bound.
pub(crate) fn simulation_error(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, "SimulationError", (message.into(),))
}

/// `RecordError`: a file that is not a record, or a damaged one.
pub(crate) fn record_error(py: Python<'_>, error: &anyhow::Error) -> PyErr {
    exception(py, "RecordError", (lull_agent::error::describe(error),))
}

/// `ConfigError`: a policy that cannot be used with a file.
pub(crate) fn policy_error(py: Python<'_>, file: &str, text: String, message: String) -> PyErr {
    exception(py, "ConfigError", (text, file, None::<usize>, "--policy", message))
}

/// `ReplayError`: a record that cannot be replayed, or is not reproduced; then with the table of
/// measured and replayed figures.
pub(crate) fn replay_error(py: Python<'_>, message: String, reproduction: Option<Table>) -> PyErr {
    exception(py, "ReplayError", (message, reproduction))
}

/// `AgentError`: an agent that cannot start, or whose run failed.
pub(crate) fn agent_error(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, "AgentError", (message.into(),))
}

/// `RestoreError`: knobs that could not be restored.
pub(crate) fn restore_error(py: Python<'_>, text: String, left: Vec<String>) -> PyErr {
    exception(py, "RestoreError", (text, left))
}
