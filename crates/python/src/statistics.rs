//! Intervals, bounds and tests; `lull.statistics` says when each is to be used.

use lull_control::Rng;
use lull_measure::statistics::{self, Estimate, PairedRatio};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rand::SeedableRng;

/// Mean, half width of the 95 % interval, and number of values.
type Parts = (f64, f64, usize);

fn finite(values: &[f64]) -> PyResult<()> {
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(()),
        false => Err(PyValueError::new_err("a value is not a number: leave missing values out")),
    }
}

fn pairs(ours: &[f64], theirs: &[f64]) -> PyResult<()> {
    if ours.len() != theirs.len() {
        let (ours, theirs) = (ours.len(), theirs.len());
        let message = format!("{ours} and {theirs} values are not pairs: give as many of both");
        return Err(PyValueError::new_err(message));
    }
    finite(ours).and_then(|()| finite(theirs))
}

fn share(name: &str, share: f64) -> PyResult<f64> {
    match share > 0.0 && share < 1.0 {
        true => Ok(share),
        false => {
            let message = format!("{name} = {share}: write a share above 0 and below 1");
            Err(PyValueError::new_err(message))
        }
    }
}

fn parts(estimate: Estimate) -> Parts {
    (estimate.mean, estimate.half_width, estimate.values)
}

/// The mean of independent values; None without one.
#[pyfunction]
pub(crate) fn estimate(values: Vec<f64>) -> PyResult<Option<Parts>> {
    finite(&values)?;
    Ok(Estimate::from_values(&values).map(parts))
}

/// The mean difference within pairs.
#[pyfunction]
pub(crate) fn paired_difference(ours: Vec<f64>, theirs: Vec<f64>) -> PyResult<Option<Parts>> {
    pairs(&ours, &theirs)?;
    Ok(statistics::paired_difference(&ours, &theirs).map(parts))
}

/// The ratio within pairs with the ends of its 95 % interval.
#[pyfunction]
pub(crate) fn paired_ratio(ours: Vec<f64>, theirs: Vec<f64>) -> PyResult<Option<(f64, f64, f64)>> {
    pairs(&ours, &theirs)?;
    let ratio = PairedRatio::from_pairs(&ours, &theirs);
    Ok(ratio.map(|PairedRatio { ratio, low, high, .. }| (ratio, low, high)))
}

fn counts(events: u64, trials: u64) -> PyResult<()> {
    match events <= trials && trials > 0 {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!("{events} events of {trials} trials"))),
    }
}

/// Upper bound of a share, at confidence 1 - alpha.
#[pyfunction]
pub(crate) fn proportion_upper(events: u64, trials: u64, alpha: f64) -> PyResult<f64> {
    counts(events, trials)?;
    Ok(statistics::proportion_upper(events, trials, share("alpha", alpha)?))
}

/// Lower bound of a share, at confidence 1 - alpha.
#[pyfunction]
pub(crate) fn proportion_lower(events: u64, trials: u64, alpha: f64) -> PyResult<f64> {
    counts(events, trials)?;
    Ok(statistics::proportion_lower(events, trials, share("alpha", alpha)?))
}

fn sorted(mut values: Vec<f64>) -> PyResult<Vec<f64>> {
    finite(&values)?;
    values.sort_by(f64::total_cmp);
    Ok(values)
}

/// Upper bound of a quantile of independent values; None with too few of them.
#[pyfunction]
pub(crate) fn quantile_upper(values: Vec<f64>, at: f64, alpha: f64) -> PyResult<Option<f64>> {
    let (at, alpha) = (share("share", at)?, share("alpha", alpha)?);
    Ok(statistics::quantile_upper(&sorted(values)?, at, alpha))
}

/// Lower bound of a quantile of independent values; None with too few of them.
#[pyfunction]
pub(crate) fn quantile_lower(values: Vec<f64>, at: f64, alpha: f64) -> PyResult<Option<f64>> {
    let (at, alpha) = (share("share", at)?, share("alpha", alpha)?);
    Ok(statistics::quantile_lower(&sorted(values)?, at, alpha))
}

/// The interval of a mean by the studentised bootstrap; None with fewer than two values.
#[pyfunction]
pub(crate) fn studentised_interval(
    values: Vec<f64>,
    level: f64,
    seed: u64,
) -> PyResult<Option<(f64, f64)>> {
    finite(&values)?;
    let mut rng = Rng::seed_from_u64(seed);
    let interval = statistics::studentised_interval(&values, share("level", level)?, &mut rng);
    Ok(interval.map(|[low, high]| (low, high)))
}

/// The chance of differences within pairs as large as these if the order in a pair were all.
#[pyfunction]
pub(crate) fn sign_flip_chance(differences: Vec<f64>, seed: u64) -> PyResult<f64> {
    finite(&differences)?;
    Ok(statistics::sign_flip_chance(&differences, &mut Rng::seed_from_u64(seed)))
}

/// Decides which of several claims hold together (Holm).
#[pyfunction]
pub(crate) fn holm(chances: Vec<f64>, alpha: f64) -> PyResult<Vec<bool>> {
    finite(&chances)?;
    Ok(statistics::holm(&chances, share("alpha", alpha)?))
}
