//! The observation of an epoch that a policy receives.
//!
//! An observation is made for every call of a policy, so that it copies numbers only: the objects
//! of apps and cores are made when they are read.

use lull_control::{AppSpec, readings_of_apps};
use lull_measure::catalogue::Metric;
use lull_measure::{Gauge, Nanos, Percentile};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};
use std::sync::Arc;

/// The names of the apps of a run, as its observations share them.
pub(crate) struct Roster(Vec<Py<PyString>>);

impl Roster {
    pub(crate) fn new(py: Python<'_>, apps: &[AppSpec]) -> Arc<Self> {
        let names = apps.iter().map(|spec| PyString::new(py, &spec.name).unbind());
        Arc::new(Self(names.collect()))
    }
}

/// Everything measured in one epoch; None where a value is missing.
#[pyclass(frozen, subclass, module = "lull")]
pub(crate) struct Observation {
    numbers: Numbers,
    roster: Arc<Roster>,
    apps: PyOnceLock<Py<PyTuple>>,
    cores: PyOnceLock<Py<PyTuple>>,
}

/// The numbers of an observation, without objects of the interpreter.
pub(crate) struct Numbers {
    time_s: f64,
    epoch_s: f64,
    energy_j: Option<f64>,
    cpu_pressure: Option<f64>,
    interrupts_per_s: Option<f64>,
    packets_per_s: Option<f64>,
    apps: Vec<Arc<AppNumbers>>,
    cores: Vec<CoreObservation>,
}

/// The observation of one app.
#[pyclass(frozen, module = "lull")]
pub(crate) struct AppObservation {
    /// Its name.
    #[pyo3(get)]
    name: Py<PyString>,
    numbers: Arc<AppNumbers>,
}

/// The numbers of an app.
struct AppNumbers {
    is_alive: bool,
    tail_ms: Option<f64>,
    mean_ms: Option<f64>,
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    offered_per_s: Option<f64>,
    completed_per_s: Option<f64>,
    errors_per_s: Option<f64>,
    outstanding: Option<u64>,
    oldest_ms: Option<f64>,
    progress_per_s: Option<f64>,
    threads: Option<u32>,
    /// The other metrics, as far as they are known.
    readings: Vec<(&'static Metric, f64)>,
}

/// The observation of one core.
#[pyclass(frozen, get_all, module = "lull", skip_from_py_object)]
#[derive(Clone, Copy)]
pub(crate) struct CoreObservation {
    /// Share of the epoch not idle.
    utilisation: Option<f64>,
    /// Share of the epoch in idle states.
    idle_residency: Option<f64>,
    /// Frequency now, in Hz.
    frequency_hz: Option<u64>,
}

#[pymethods]
impl Observation {
    /// End of the epoch, in seconds since the run began.
    #[getter]
    fn time_s(&self) -> f64 {
        self.numbers.time_s
    }

    /// Length of the epoch, in seconds.
    #[getter]
    fn epoch_s(&self) -> f64 {
        self.numbers.epoch_s
    }

    /// Energy of the machine in the epoch, in joules.
    #[getter]
    fn energy_j(&self) -> Option<f64> {
        self.numbers.energy_j
    }

    /// Share of the epoch in which some task waited for a CPU.
    #[getter]
    fn cpu_pressure(&self) -> Option<f64> {
        self.numbers.cpu_pressure
    }

    /// Interrupts per second.
    #[getter]
    fn interrupts_per_s(&self) -> Option<f64> {
        self.numbers.interrupts_per_s
    }

    /// Packets received and sent per second.
    #[getter]
    fn packets_per_s(&self) -> Option<f64> {
        self.numbers.packets_per_s
    }

    /// The apps, in the order of the scenario.
    #[getter]
    fn apps<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyTuple>> {
        let made = self.apps.get_or_try_init(py, || {
            let each = self.roster.0.iter().zip(&self.numbers.apps).map(|(name, numbers)| {
                AppObservation { name: name.clone_ref(py), numbers: Arc::clone(numbers) }
            });
            PyTuple::new(py, each.collect::<Vec<_>>()).map(Bound::unbind)
        });
        Ok(made?.bind(py))
    }

    /// The cores, by number.
    #[getter]
    fn cores<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyTuple>> {
        let made = self.cores.get_or_try_init(py, || {
            PyTuple::new(py, self.numbers.cores.iter().copied()).map(Bound::unbind)
        });
        Ok(made?.bind(py))
    }

    /// The observation of the app with this name.
    fn app<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        for (known, app) in self.roster.0.iter().zip(self.apps(py)?) {
            if known.bind(py).to_str()? == name {
                return Ok(app);
            }
        }
        Err(pyo3::exceptions::PyKeyError::new_err(format!("there is no app `{name}`")))
    }

    fn __repr__(&self) -> String {
        format!(
            "<lull.Observation at {} s of {} apps>",
            self.numbers.time_s,
            self.numbers.apps.len()
        )
    }
}

#[pymethods]
impl AppObservation {
    /// Whether one of its threads lives.
    #[getter]
    fn alive(&self) -> bool {
        self.numbers.is_alive
    }

    /// Latency at the percentile of its objective, in ms; None without a request.
    #[getter]
    fn tail_ms(&self) -> Option<f64> {
        self.numbers.tail_ms
    }

    /// Mean latency, in ms.
    #[getter]
    fn mean_ms(&self) -> Option<f64> {
        self.numbers.mean_ms
    }

    /// Median latency, in ms.
    #[getter]
    fn p50_ms(&self) -> Option<f64> {
        self.numbers.p50_ms
    }

    /// 95th percentile of latency, in ms.
    #[getter]
    fn p95_ms(&self) -> Option<f64> {
        self.numbers.p95_ms
    }

    /// 99th percentile of latency, in ms.
    #[getter]
    fn p99_ms(&self) -> Option<f64> {
        self.numbers.p99_ms
    }

    /// Requests due per second.
    #[getter]
    fn offered_per_s(&self) -> Option<f64> {
        self.numbers.offered_per_s
    }

    /// Requests answered per second.
    #[getter]
    fn completed_per_s(&self) -> Option<f64> {
        self.numbers.completed_per_s
    }

    /// Requests that failed per second.
    #[getter]
    fn errors_per_s(&self) -> Option<f64> {
        self.numbers.errors_per_s
    }

    /// Requests sent and not answered at the end.
    #[getter]
    fn outstanding(&self) -> Option<u64> {
        self.numbers.outstanding
    }

    /// Age of the oldest unanswered request, in ms.
    #[getter]
    fn oldest_ms(&self) -> Option<f64> {
        self.numbers.oldest_ms
    }

    /// Work done per second; for best-effort apps.
    #[getter]
    fn progress_per_s(&self) -> Option<f64> {
        self.numbers.progress_per_s
    }

    /// Threads alive at the end.
    #[getter]
    fn threads(&self) -> Option<u32> {
        self.numbers.threads
    }

    /// The metrics without an attribute of their own, by the names of columns in records.
    #[getter]
    fn readings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (metric, _) in readings_of_apps() {
            all.set_item(metric.json_key(), None::<f64>)?;
        }
        for (metric, value) in &self.numbers.readings {
            all.set_item(metric.json_key(), value)?;
        }
        Ok(all)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<lull.AppObservation of {:?}>", self.name.bind(py).to_str()?))
    }
}

/// The value of a gauge where there is one.
fn known<T: Copy>(gauge: &Gauge<T>) -> Option<T> {
    gauge.as_ref().ok().copied()
}

impl Observation {
    /// The object of an observation of these apps.
    pub(crate) fn new(numbers: Numbers, roster: &Arc<Roster>) -> Self {
        let roster = Arc::clone(roster);
        Self { numbers, roster, apps: PyOnceLock::new(), cores: PyOnceLock::new() }
    }
}

impl Numbers {
    /// The numbers of an observation, with the tails of these apps' objectives.
    pub(crate) fn new(seen: &lull_control::Observation, specs: &[AppSpec]) -> Self {
        let apps = specs.iter().zip(&seen.apps);
        let apps = apps.map(|(spec, app)| Arc::new(AppNumbers::new(spec, app)));
        let cores = seen.cores.iter().map(|core| CoreObservation {
            utilisation: known(&core.utilisation),
            idle_residency: known(&core.idle_residency),
            frequency_hz: known(&core.frequency).map(|frequency| frequency.0),
        });
        Self {
            time_s: seen.time.as_secs_f64(),
            epoch_s: seen.epoch.as_secs_f64(),
            energy_j: seen.energy.as_ref().ok().map(|energy| energy.energy.0),
            cpu_pressure: known(&seen.cpu_pressure),
            interrupts_per_s: known(&seen.interrupts_per_s),
            packets_per_s: known(&seen.packets_per_s),
            apps: apps.collect(),
            cores: cores.collect(),
        }
    }
}

impl AppNumbers {
    fn new(spec: &AppSpec, app: &lull_control::AppObservation) -> Self {
        let latency = app.latency.as_ref().ok();
        let quantile = |at: Percentile| latency?.tail(at).map(Nanos::as_millis_f64);
        let (p50_ms, p95_ms, p99_ms) =
            (quantile(Percentile::P50), quantile(Percentile::P95), quantile(Percentile::P99));
        let tail_ms = match spec.tail().map(|(percentile, _)| percentile) {
            Some(at) if at == Percentile::P95 => p95_ms,
            Some(at) if at == Percentile::P99 => p99_ms,
            other => other.and_then(quantile),
        };
        // A source that reports a tail only has no rates.
        let counted = latency.filter(|latency| latency.reported.is_none());
        Self {
            is_alive: app.alive,
            tail_ms,
            mean_ms: latency.and_then(|it| it.window.mean()).map(Nanos::as_millis_f64),
            p50_ms,
            p95_ms,
            p99_ms,
            offered_per_s: counted.map(|it| it.offered_per_s),
            completed_per_s: counted.map(|it| it.completed_per_s),
            errors_per_s: counted.map(|it| it.errors_per_s),
            outstanding: counted.map(|it| it.outstanding),
            oldest_ms: counted.and_then(|it| it.oldest).map(Nanos::as_millis_f64),
            progress_per_s: app.progress.as_ref().ok().map(|progress| progress.per_s),
            threads: known(&app.threads),
            readings: app.readings.known().collect(),
        }
    }
}
