//! `lull.simulate`: a scenario under several policies.

use crate::background::{self, Shared};
use crate::error::{config_error, simulation_error};
use crate::policy::{self, OnError};
use crate::results::Results;
use crate::scenario::Scenario;
use lull_agent::located::InputError;
use lull_lab::progress::Progress;
use lull_lab::scenario::{Choice, Outcome, RunError};
use lull_policies::POLICIES;
use pyo3::prelude::*;
use rayon::prelude::*;
use std::sync::Arc;

/// Why a scenario has no result.
enum SimulateError {
    Input(InputError),
    Run(RunError),
    Threads(String),
}

/// The names of the policies in the registry.
#[pyfunction]
pub(crate) fn policies() -> Vec<&'static str> {
    POLICIES.names().collect()
}

/// Runs a scenario; see `lull.simulate`.
///
/// `policies` lists names with the class or object of those that are written in Python; no seed
/// means that of the scenario.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    scenario: &Scenario,
    policies: Vec<(String, Option<Py<PyAny>>)>,
    seeds: Vec<Option<u64>>,
    replications: Option<u64>,
    threads: Option<usize>,
) -> PyResult<Results> {
    let shared = Arc::new(Shared::default());
    let names: Vec<String> = policies.iter().map(|(name, _)| name.clone()).collect();
    let own = policies.into_iter().filter_map(|(name, template)| Some((name, template?)));
    let custom: Vec<_> = own
        .map(|(name, template)| policy::custom(name, template, &shared, OnError::Raise))
        .collect();
    let scenario = scenario.clone();
    let outcomes = background::run(py, &shared, move |shared| {
        let one = |seed: Option<u64>| {
            let custom = custom.clone();
            let choice = Choice { policies: names.clone(), replications, seed, custom };
            let scenario = scenario.read(&choice).map_err(SimulateError::Input)?;
            let progress = Progress::silent().until(shared.stop());
            scenario.run(&progress).map_err(SimulateError::Run)
        };
        let pool = match custom.as_slice() {
            [] => background::pool(threads),
            _ => background::policy_pool(threads),
        };
        let pool = pool.map_err(|error| SimulateError::Threads(error.to_string()))?;
        let all: Vec<_> = pool.install(|| seeds.into_par_iter().map(one).collect());
        // The first failure in the order of the seeds, whichever thread was first.
        all.into_iter().collect::<Result<Vec<Outcome>, _>>()
    })?;
    let outcomes = outcomes.map_err(|error| match error {
        SimulateError::Input(error) => config_error(py, &error),
        SimulateError::Run(error) => simulation_error(py, error.to_string()),
        SimulateError::Threads(error) => simulation_error(py, error),
    })?;
    Ok(Results::new(outcomes))
}
