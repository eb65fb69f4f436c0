//! A machine and its apps as policies in Python know them.

use lull_control::{AppSpec, KNOBS, Knob, KnobScope};
use lull_measure::Nanos;
use pyo3::prelude::*;

/// A machine; fixed for a run.
#[pyclass(frozen, get_all, module = "lull")]
pub(crate) struct Machine {
    /// The name of the model or scenario.
    name: String,
    /// Number of cores, which are numbered from 0.
    cores: usize,
    /// Ways of the last-level cache; None if they cannot be divided.
    cache_ways: Option<u32>,
    /// The frequencies of each domain in Hz, ascending; empty where they cannot be set.
    frequencies_hz: Vec<Vec<u64>>,
    /// The knobs that can be set, each with its owner: an app's name, a number, or None for the
    /// machine.
    knobs: Vec<(&'static str, Option<Owner>)>,
}

/// The owner of a knob.
#[derive(Debug, Clone, PartialEq, Eq, Hash, IntoPyObject)]
pub(crate) enum Owner {
    App(String),
    Number(u16),
}

impl Owner {
    /// Returns the owner of a knob; `None` for the machine.
    pub(crate) fn from_knob(knob: Knob, apps: &[AppSpec]) -> Option<Self> {
        match knob.app() {
            Some(app) => Some(Self::App(apps[app.index()].name.clone())),
            None if knob.row().scope == KnobScope::Machine => None,
            None => Some(Self::Number(knob.number())),
        }
    }
}

/// An app; fixed for a run.
#[pyclass(frozen, get_all, module = "lull")]
pub(crate) struct App {
    /// Its name.
    name: String,
    /// Whether requests wait for it; otherwise it is best-effort.
    latency_critical: bool,
    /// The percentile of its objective, such as 95.0; None without one.
    percentile: Option<f64>,
    /// The bound on that percentile, in ms.
    bound_ms: Option<f64>,
    /// Its tail alone on the machine, in ms.
    ideal_ms: Option<f64>,
    /// Threads that can work at once.
    threads: Option<u32>,
    /// The largest load that it can serve, in requests per second.
    max_load_per_s: Option<f64>,
    /// Its progress alone, per second; for best-effort apps.
    solo_per_s: Option<f64>,
}

#[pymethods]
impl Machine {
    fn __repr__(&self) -> String {
        format!("<lull.Machine {:?} of {} cores>", self.name, self.cores)
    }
}

#[pymethods]
impl App {
    fn __repr__(&self) -> String {
        let class = if self.latency_critical { "latency-critical" } else { "best-effort" };
        format!("<lull.App {:?}, {class}>", self.name)
    }
}

impl Machine {
    pub(crate) fn new(machine: &lull_control::Machine, apps: &[AppSpec]) -> Self {
        let rows = KNOBS.iter().filter(|row| machine.capabilities.has(row.capability));
        let knobs = rows.flat_map(|row| machine.knobs(row, apps.len()));
        let knobs = knobs.map(|knob| (knob.row().name, Owner::from_knob(knob, apps)));
        let steps = |domain: &lull_control::FrequencyDomain| {
            domain.steps.iter().map(|step| step.0).collect::<Vec<_>>()
        };
        Self {
            name: machine.name.clone(),
            cores: machine.cores.len(),
            cache_ways: machine.cache.as_ref().map(|cache| cache.ways),
            frequencies_hz: machine.domains.iter().map(steps).collect(),
            knobs: knobs.collect(),
        }
    }
}

impl From<&AppSpec> for App {
    fn from(spec: &AppSpec) -> Self {
        let tail = spec.tail();
        Self {
            name: spec.name.clone(),
            latency_critical: spec.is_latency_critical(),
            percentile: tail.map(|(percentile, _)| percentile.percent()),
            bound_ms: tail.map(|(_, bound)| bound.as_millis_f64()),
            ideal_ms: spec.ideal.map(Nanos::as_millis_f64),
            threads: spec.threads,
            max_load_per_s: spec.max_load_per_s,
            solo_per_s: spec.solo_per_s,
        }
    }
}
