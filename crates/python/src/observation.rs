//! What a policy sees of an epoch.

use lull_control::{AppSpec, readings_of_apps};
use lull_measure::catalogue::Metric;
use lull_measure::{Gauge, Nanos, Percentile};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Everything measured in one epoch; None where a value is missing.
#[pyclass(frozen, get_all, module = "lull")]
pub(crate) struct Observation {
    /// End of the epoch, in seconds since the run began.
    time_s: f64,
    /// Length of the epoch, in seconds.
    epoch_s: f64,
    /// The apps, in the order of the scenario.
    apps: Py<PyTuple>,
    /// The cores, by number.
    cores: Py<PyTuple>,
    /// Energy of the machine in the epoch, in joules.
    energy_j: Option<f64>,
    /// Share of the epoch in which some task waited for a CPU.
    cpu_pressure: Option<f64>,
    /// Interrupts per second.
    interrupts_per_s: Option<f64>,
    /// Packets received and sent per second.
    packets_per_s: Option<f64>,
}

/// What was seen of one app.
#[pyclass(frozen, module = "lull")]
pub(crate) struct AppObservation {
    /// Its name.
    #[pyo3(get)]
    name: String,
    /// Whether one of its threads lives.
    #[pyo3(get)]
    alive: bool,
    /// Latency at the percentile of its objective, in ms; None without a request.
    #[pyo3(get)]
    tail_ms: Option<f64>,
    /// Mean latency, in ms.
    #[pyo3(get)]
    mean_ms: Option<f64>,
    /// Median latency, in ms.
    #[pyo3(get)]
    p50_ms: Option<f64>,
    /// 95th percentile of latency, in ms.
    #[pyo3(get)]
    p95_ms: Option<f64>,
    /// 99th percentile of latency, in ms.
    #[pyo3(get)]
    p99_ms: Option<f64>,
    /// Requests due per second.
    #[pyo3(get)]
    offered_per_s: Option<f64>,
    /// Requests answered per second.
    #[pyo3(get)]
    completed_per_s: Option<f64>,
    /// Requests that failed per second.
    #[pyo3(get)]
    errors_per_s: Option<f64>,
    /// Requests sent and not answered at the end.
    #[pyo3(get)]
    outstanding: Option<u64>,
    /// Age of the oldest unanswered request, in ms.
    #[pyo3(get)]
    oldest_ms: Option<f64>,
    /// Work done per second; for best-effort apps.
    #[pyo3(get)]
    progress_per_s: Option<f64>,
    /// Threads alive at the end.
    #[pyo3(get)]
    threads: Option<u32>,
    /// The other metrics.
    readings: Vec<(&'static Metric, Option<f64>)>,
}

/// What was seen of one core.
#[pyclass(frozen, get_all, module = "lull")]
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
    /// What was seen of the app with this name.
    fn app<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let apps = self.apps.bind(py);
        for app in apps {
            if app.cast::<AppObservation>()?.get().name == name {
                return Ok(app);
            }
        }
        Err(pyo3::exceptions::PyKeyError::new_err(format!("there is no app `{name}`")))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<lull.Observation at {} s of {} apps>", self.time_s, self.apps.bind(py).len())
    }
}

#[pymethods]
impl AppObservation {
    /// The metrics without an attribute of their own, by the names of columns in records.
    #[getter]
    fn readings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (metric, value) in &self.readings {
            all.set_item(metric.json_key(), value)?;
        }
        Ok(all)
    }

    fn __repr__(&self) -> String {
        format!("<lull.AppObservation of {:?}>", self.name)
    }
}

/// The value of a gauge where there is one.
fn known<T: Copy>(gauge: &Gauge<T>) -> Option<T> {
    gauge.as_ref().ok().copied()
}

impl Observation {
    /// The observation in Python, with the tails of these apps' objectives.
    ///
    /// # Errors
    /// If the interpreter has no memory left.
    pub(crate) fn new(
        py: Python<'_>,
        seen: &lull_control::Observation,
        specs: &[AppSpec],
    ) -> PyResult<Self> {
        let apps = specs.iter().zip(&seen.apps);
        let apps: Vec<_> = apps.map(|(spec, app)| AppObservation::new(spec, app)).collect();
        let cores = seen.cores.iter().map(|core| CoreObservation {
            utilisation: known(&core.utilisation),
            idle_residency: known(&core.idle_residency),
            frequency_hz: known(&core.frequency).map(|frequency| frequency.0),
        });
        let cores: Vec<_> = cores.collect();
        Ok(Self {
            time_s: seen.time.as_secs_f64(),
            epoch_s: seen.epoch.as_secs_f64(),
            apps: PyTuple::new(py, apps)?.unbind(),
            cores: PyTuple::new(py, cores)?.unbind(),
            energy_j: seen.energy.as_ref().ok().map(|energy| energy.energy.0),
            cpu_pressure: known(&seen.cpu_pressure),
            interrupts_per_s: known(&seen.interrupts_per_s),
            packets_per_s: known(&seen.packets_per_s),
        })
    }
}

impl AppObservation {
    fn new(spec: &AppSpec, app: &lull_control::AppSeen) -> Self {
        let latency = app.latency.as_ref().ok();
        let quantile = |at: Percentile| latency?.tail(at).map(Nanos::as_millis_f64);
        // A source that reports a tail only has no rates.
        let counted = latency.filter(|latency| latency.reported.is_none());
        let readings = readings_of_apps();
        Self {
            name: spec.name.clone(),
            alive: app.alive,
            tail_ms: spec.tail().and_then(|(percentile, _)| quantile(percentile)),
            mean_ms: latency.and_then(|it| it.window.mean()).map(Nanos::as_millis_f64),
            p50_ms: quantile(Percentile::P50),
            p95_ms: quantile(Percentile::P95),
            p99_ms: quantile(Percentile::P99),
            offered_per_s: counted.map(|it| it.offered_per_s),
            completed_per_s: counted.map(|it| it.completed_per_s),
            errors_per_s: counted.map(|it| it.errors_per_s),
            outstanding: counted.map(|it| it.outstanding),
            oldest_ms: counted.and_then(|it| it.oldest).map(Nanos::as_millis_f64),
            progress_per_s: app.progress.as_ref().ok().map(|progress| progress.per_s),
            threads: known(&app.threads),
            readings: readings.map(|(metric, _)| (metric, app.readings.value(metric))).collect(),
        }
    }
}
