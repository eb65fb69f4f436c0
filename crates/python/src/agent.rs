//! `lull.agent`: an agent in this process.
//!
//! The session runs on a thread of its own that never takes the interpreter's lock, so that a
//! busy or stuck interpreter delays no epoch and no restoration. The thread hands what it has
//! observed to a bounded queue ([`Feed`]); objects of Python are made by the thread that takes.

mod feed;
mod session;

use crate::background::Shared;
use crate::error::{agent_error, config_error, restore_error};
use crate::machine::{App, Machine, Owner};
use crate::observation::{Observation, Roster};
use crate::policy::{self, OnError};
use feed::{EpochObservation, Facts, Failure, Feed, State};
use lull_agent::Stop;
use lull_agent::config::{Config, PolicyRole};
use lull_agent::located::Located;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use session::{OwnPolicy, Start};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Time between two checks for signals while the interpreter waits.
const SIGNALS: Duration = Duration::from_millis(50);

/// An agent that runs in this process; `lull.agent.start` makes one.
#[pyclass(frozen, module = "lull.agent")]
pub(crate) struct AgentRun {
    feed: Arc<Feed>,
    stop: Stop,
    /// The process that runs it: a fork has a copy of this object, but not the thread.
    process: u32,
    /// State shared with the policy in Python, with the exception that its constructor raised.
    shared: Arc<Shared>,
    facts: Facts,
    roster: Arc<Roster>,
}

/// The observation of an epoch of an agent, and the decisions on it.
#[pyclass(frozen, extends = Observation, get_all, module = "lull.agent")]
pub(crate) struct AgentObservation {
    /// The number of the epoch, from 0.
    number: u64,
    /// E_S, the entropy of the machine.
    entropy: f64,
    /// E_LC; None without a latency-critical app.
    entropy_lc: Option<f64>,
    /// E_BE; None without a best-effort app.
    entropy_be: Option<f64>,
    /// The policy that is followed.
    policy: String,
    /// Whether the SLO-safe state is in force instead of the policy.
    safe: bool,
    /// The journal of the epoch, in the words of `lull run`.
    journal: Vec<String>,
    /// The settings that the shadow policy would have made.
    shadow: Vec<String>,
    /// The values of the knobs, by knob and owner, as in `Machine.knobs`.
    settings: std::collections::HashMap<(&'static str, Option<Owner>), String>,
}

/// How an agent is started from Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct AgentOptions {
    program: PathBuf,
    dry_run: bool,
    shadow: Option<String>,
    /// A policy in Python with its name.
    policy: Option<(String, Py<PyAny>)>,
    steer: bool,
    time_limit_s: Option<f64>,
}

/// Starts an agent; see `lull.agent.start`.
#[pyfunction]
pub(crate) fn agent_start(
    py: Python<'_>,
    config: &Bound<'_, PyAny>,
    options: AgentOptions,
) -> PyResult<AgentRun> {
    let AgentOptions { program, dry_run, shadow, policy, steer, time_limit_s } = options;
    let mut config = read_config(py, config)?;
    if shadow.is_some() {
        config.agent.shadow = shadow;
    }
    let shared = Arc::new(Shared::default());
    // A decision delays the next epoch.
    let half_epoch = config.epoch_rule().longest().as_secs_f64() / 2.0;
    let limit = Duration::from_secs_f64(time_limit_s.unwrap_or(half_epoch.min(1.0)));
    let own = policy.map(|(name, template)| OwnPolicy {
        policy: policy::custom(name, template, &shared, OnError::Report),
        role: if steer { PolicyRole::Steers } else { PolicyRole::Shadow },
        limit,
    });
    let stop = Stop::new()?;
    let feed = Arc::new(Feed::new()?);
    let start = Start { config, program, dry_run, own, stop: stop.clone() };
    let of_thread = Arc::clone(&feed);
    let work = move || session::run(start, &of_thread);
    thread::Builder::new().name("lull-agent".to_owned()).spawn(work)?;
    let opened = wait_until(py, &feed, &stop, State::facts)?;
    let Some(facts) = opened else {
        return Err(ended(py, &feed, &shared));
    };
    let roster = Roster::new(py, &facts.apps);
    Ok(AgentRun { feed, stop, process: std::process::id(), shared, facts, roster })
}

/// Waits without the interpreter's lock until there is something in the feed, or the agent has
/// ended (`None`).
///
/// # Errors
/// The exception of a signal's handler, after the agent has ended and restored the knobs.
fn wait_until<T: Send>(
    py: Python<'_>,
    feed: &Feed,
    stop: &Stop,
    take: fn(&mut State) -> Option<T>,
) -> PyResult<Option<T>> {
    loop {
        let (taken, is_over) = py.detach(|| feed.wait_for(take, SIGNALS));
        if taken.is_some() || is_over {
            return Ok(taken);
        }
        if let Err(signal) = py.check_signals() {
            stop.request();
            // The signal is why it ends; what could not be restored is in `lull restore`.
            let _ = py.detach(|| feed.wait_for_end());
            return Err(signal);
        }
    }
}

/// The exception of an agent that has ended before a stop was requested.
fn ended(py: Python<'_>, feed: &Feed, shared: &Shared) -> PyErr {
    if let Some(raised) = shared.take() {
        return raised;
    }
    match feed.end() {
        Some(Err(failure)) => exception(py, &failure),
        _ => agent_error(py, "stopped before any knob was taken"),
    }
}

fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    match failure {
        Failure::Input(error) => config_error(py, error),
        Failure::Left(text, left) => restore_error(py, text.clone(), left.clone()),
        Failure::Other(text) => agent_error(py, text.clone()),
    }
}

/// Reads a config: the text, or the path of a file.
fn read_config(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Config> {
    let text = given.cast::<PyString>().ok().map(ToString::to_string);
    let config = match text.filter(|text| text.contains(['\n', '='])) {
        Some(text) => Config::from_located(Located::embedded("config", &text)),
        None => Config::load(&given.extract::<PathBuf>()?),
    };
    config.map_err(|error| config_error(py, &error))
}

#[pymethods]
impl AgentRun {
    /// The file of the record.
    #[getter]
    fn record(&self) -> PathBuf {
        self.facts.record.clone()
    }

    /// The page's address as text; None without one.
    #[getter]
    fn page(&self) -> Option<String> {
        self.facts.page.clone()
    }

    /// The machine.
    #[getter]
    fn machine(&self) -> Machine {
        Machine::new(&self.facts.machine, &self.facts.apps)
    }

    /// The apps, in the order of observations.
    #[getter]
    fn apps(&self) -> Vec<App> {
        self.facts.apps.iter().map(App::from).collect()
    }

    /// Observations that were dropped because they were not read.
    #[getter]
    fn dropped(&self) -> u64 {
        self.feed.dropped()
    }

    /// Whether it has ended.
    #[getter]
    fn ended(&self) -> bool {
        self.feed.end().is_some()
    }

    /// The notices since the last call.
    fn take_notices(&self) -> Vec<String> {
        self.feed.take_notices()
    }

    /// A descriptor that is readable while `take` may return something.
    fn fileno(&self) -> i32 {
        self.feed.descriptor()
    }

    /// The oldest observation that was not taken yet; None if there is none at present.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<AgentObservation>>> {
        self.feed.take().map(|seen| self.observation(py, seen)).transpose()
    }

    /// Waits for the next observation; None after the end.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Py<AgentObservation>>> {
        self.check_process()?;
        let taken = wait_until(py, &self.feed, &self.stop, State::take)?;
        taken.map(|seen| self.observation(py, seen)).transpose()
    }

    /// Restores every knob, ends the started programs, and returns how the run ended.
    fn stop(&self, py: Python<'_>) -> PyResult<String> {
        self.check_process()?;
        self.stop.request();
        // Signals are not checked here: the knobs are restored first.
        match py.detach(|| self.feed.wait_for_end()) {
            Ok(outcome) => Ok(outcome),
            Err(failure) => Err(self.shared.take().unwrap_or_else(|| exception(py, &failure))),
        }
    }
}

impl AgentRun {
    fn check_process(&self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let message = format!(
            "the agent runs in process {}, of which this one is a fork: stop it there",
            self.process
        );
        Err(PyRuntimeError::new_err(message))
    }

    fn observation(
        &self,
        py: Python<'_>,
        seen: EpochObservation,
    ) -> PyResult<Py<AgentObservation>> {
        let observation = Observation::new(seen.numbers, &self.roster);
        let names = &self.facts.apps;
        let settings = seen.settings.iter().map(|setting| {
            let knob = setting.knob();
            ((knob.row().name, Owner::from_knob(knob, names)), setting.value().to_string())
        });
        let of_agent = AgentObservation {
            number: seen.number,
            entropy: seen.entropy.system,
            entropy_lc: seen.entropy.lc,
            entropy_be: seen.entropy.be,
            settings: settings.collect(),
            policy: seen.policy,
            safe: seen.is_safe,
            journal: seen.journal,
            shadow: seen.shadow,
        };
        Py::new(py, PyClassInitializer::from(observation).add_subclass(of_agent))
    }
}

impl Drop for AgentRun {
    fn drop(&mut self) {
        // In a fork the request would reach the agent of the parent.
        if self.process == std::process::id() {
            self.stop.request();
        }
    }
}
