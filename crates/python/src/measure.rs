//! Entropy, the bound of tail latency on throughput, and queueing theory.

use lull_measure::entropy::{BeReading, LcReading, RelativeImportance, system_entropy};
use lull_measure::equivalence::Measured;
use lull_measure::{Nanos, Percentile};
use lull_sim::theory::{self, SteadyState};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::fmt::Display;

/// A value that cannot be used as an exception.
fn wrong(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// E_S, E_LC and E_BE of (ideal, measured, bound) in ms and (solo, real) in any unit.
#[pyfunction]
pub(crate) fn entropy(
    latency_critical: Vec<(f64, f64, f64)>,
    best_effort: Vec<(f64, f64)>,
    importance: f64,
) -> PyResult<(f64, Option<f64>, Option<f64>)> {
    let ms = |value: f64| Nanos::from_secs_f64(value / 1e3);
    let reading = |(ideal, measured, bound): (f64, f64, f64)| {
        if ![ideal, measured, bound].iter().all(|value| value.is_finite() && *value > 0.0) {
            let message = format!("({ideal}, {measured}, {bound}): latencies in ms are above 0");
            return Err(wrong(message));
        }
        LcReading::new(ms(ideal), ms(measured), ms(bound)).map_err(wrong)
    };
    let lc = latency_critical.into_iter().map(reading).collect::<PyResult<Vec<_>>>()?;
    let progress = |(solo, real): (f64, f64)| {
        let is_usable = solo > 0.0 && real >= 0.0 && solo.is_finite() && real.is_finite();
        let message =
            || format!("({solo}, {real}): progress alone is a number above 0, real one 0 or above");
        is_usable.then_some(BeReading { solo, real }).ok_or_else(|| wrong(message()))
    };
    let be = best_effort.into_iter().map(progress).collect::<PyResult<Vec<_>>>()?;
    if lc.is_empty() && be.is_empty() {
        return Err(wrong("no app: give latency_critical, best_effort or both"));
    }
    let importance = RelativeImportance::new(importance).map_err(wrong)?;
    let all = system_entropy(&lc, &be, importance);
    Ok((all.system, all.lc, all.be))
}

/// Tail in ms, share of latency below it, and tail over mean latency: at most, and as it is.
#[pyfunction]
pub(crate) fn tlt(latencies_ms: Vec<f64>, percentile: f64) -> PyResult<(f64, f64, f64, f64)> {
    if !latencies_ms.iter().all(|value| value.is_finite() && *value >= 0.0) {
        return Err(wrong("latencies are numbers of ms, not below 0"));
    }
    let percentile = Percentile::new(percentile).map_err(wrong)?;
    let mut latencies: Vec<_> =
        latencies_ms.into_iter().map(|value| Nanos::from_secs_f64(value / 1e3)).collect();
    let bound = lull_measure::tlt::bound(&mut latencies, percentile);
    let bound = bound.ok_or_else(|| wrong("no latency above 0 ms: give one at least"))?;
    Ok((bound.tail.as_millis_f64(), bound.share_below, bound.ratio_max, bound.ratio))
}

/// How much more of a resource the first policy needs than the second for an entropy.
#[pyfunction]
pub(crate) fn equivalence(
    target: f64,
    first: Vec<(f64, f64)>,
    second: Vec<(f64, f64)>,
) -> Option<f64> {
    let points = |points: Vec<(f64, f64)>| -> Vec<_> {
        points.into_iter().map(|(amount, entropy)| Measured { amount, entropy }).collect()
    };
    lull_measure::equivalence::equivalence(target, &points(first), &points(second))
}

/// Utilisation, response time in s, requests present and share lost.
type State = (f64, f64, f64, f64);

fn state(state: SteadyState) -> State {
    (state.utilisation, state.response_s, state.present, state.lost)
}

fn check(arrivals_per_s: f64, work_s: f64, servers: u32) -> PyResult<()> {
    let is_rate = |value: f64| value.is_finite() && value > 0.0;
    match is_rate(arrivals_per_s) && is_rate(work_s) && servers > 0 {
        true => Ok(()),
        false => Err(wrong("arrivals_per_s and work_s are numbers above 0, servers 1 at least")),
    }
}

/// M/M/1; None if it has no steady state.
#[pyfunction]
pub(crate) fn mm1(arrivals_per_s: f64, work_s: f64) -> PyResult<Option<State>> {
    check(arrivals_per_s, work_s, 1)?;
    Ok(theory::mm1(arrivals_per_s, work_s).map(state))
}

/// M/M/c; None if it has no steady state.
#[pyfunction]
pub(crate) fn mmc(arrivals_per_s: f64, work_s: f64, servers: u32) -> PyResult<Option<State>> {
    check(arrivals_per_s, work_s, servers)?;
    Ok(theory::mmc(arrivals_per_s, work_s, servers).map(state))
}

/// M/G/1 with the squared coefficient of variation of the work; None without a steady state.
#[pyfunction]
pub(crate) fn mg1(arrivals_per_s: f64, work_s: f64, cv2: f64) -> PyResult<Option<State>> {
    check(arrivals_per_s, work_s, 1)?;
    if !(cv2.is_finite() && cv2 >= 0.0) {
        return Err(wrong(format!("cv2 = {cv2}: write a number not below 0")));
    }
    Ok(theory::mg1(arrivals_per_s, work_s, cv2).map(state))
}

/// M/M/c/K: `room` requests at most are present.
#[pyfunction]
pub(crate) fn mmck(arrivals_per_s: f64, work_s: f64, servers: u32, room: u32) -> PyResult<State> {
    check(arrivals_per_s, work_s, servers)?;
    if room < servers {
        return Err(wrong(format!("room = {room} is below servers = {servers}")));
    }
    Ok(state(theory::mmck(arrivals_per_s, work_s, servers, room)))
}

/// Throughput, response time, and each station's requests and utilisation of a closed network.
#[pyfunction]
pub(crate) fn mva(
    think_s: f64,
    stations: Vec<(f64, u32)>,
    customers: u32,
) -> PyResult<(f64, f64, Vec<f64>, Vec<f64>)> {
    let is_sound = think_s.is_finite()
        && think_s >= 0.0
        && !stations.is_empty()
        && stations.iter().all(|(work_s, servers)| *work_s > 0.0 && *servers > 0);
    if !is_sound {
        return Err(wrong("think_s is not below 0; stations are (work_s above 0, servers)"));
    }
    let network = theory::ClosedNetwork { think_s, stations };
    let state = theory::mva(&network, customers);
    Ok((state.throughput_per_s, state.response_s, state.present, state.utilisation))
}
