//! The power model of a machine by least squares against its own meter.
//!
//! Every step holds a frequency, a number of busy cores and a depth of idle for
//! a while; its sample is the mean power and what the cores did. The model is
//! that of [`PowerModel`], linear in
//!
//! ```text
//!   1    sum u    sum u (f/full)^3    sum max(1 - u - d, 0)
//! ```
//!
//! An idle core's least power is part of the base, since the number of cores
//! never changes: the two cannot be distinguished. A term that the steps did not
//! vary is left out and named. No term may be negative: of all sets of terms
//! whose constants are not, the one that fits best is taken, which is the
//! solution of the non-negative problem (Lawson and Hanson, Solving Least
//! Squares Problems, 1974, chapter 23), found by trying all sixteen sets.
//!
//! The error of the model is estimated by leaving each sample out in turn and
//! predicting it from the others.

use crate::gauges::energy::{ByFrequency, PowerModel};
use lull_control::CoreId;
use lull_measure::{Hertz, Watts};
use nalgebra::{DMatrix, DVector};

/// Names of the terms, for people.
const TERMS: [&str; 4] =
    ["the base", "busy cores", "the cube of the frequency", "shallow idle states"];
const COUNT: usize = TERMS.len();
/// A rise with load below this share of the base is none.
const FLAT: f64 = 1e-3;
/// Values of a term that differ by less of the largest do not vary.
const VARIES: f64 = 0.02;
/// Singular values below this share of the largest are those of terms that go together.
const RANK: f64 = 1e-6;

/// The load to hold while power is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Frequency of all cores, as a share of the way from lowest to highest;
    /// `None` leaves it to the governor.
    pub frequency: Option<f64>,
    /// Cores to keep busy.
    pub busy: Vec<CoreId>,
    /// Whether only shallow idle states may be entered.
    pub shallow: bool,
}

/// The steps for these cores: no, one, half and all of them busy at three
/// frequencies, where they can be set, then no and half of them with shallow
/// idle only, where there is a deeper state.
pub fn steps(cores: &[CoreId], sets_frequency: bool, sets_idle: bool) -> Vec<Step> {
    let mut counts = vec![0, 1.min(cores.len()), cores.len() / 2, cores.len()];
    counts.sort_unstable();
    counts.dedup();
    let frequencies: &[Option<f64>] =
        if sets_frequency { &[Some(0.0), Some(0.5), Some(1.0)] } else { &[None] };
    let mut steps = Vec::new();
    for frequency in frequencies {
        for count in &counts {
            let busy = cores[..*count].to_vec();
            steps.push(Step { frequency: *frequency, busy, shallow: false });
        }
    }
    if sets_idle {
        let frequency = frequencies[frequencies.len() - 1];
        for count in [0, cores.len() / 2] {
            steps.push(Step { frequency, busy: cores[..count].to_vec(), shallow: true });
        }
    }
    steps
}

/// The measurement of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct PowerSample {
    /// Mean power.
    pub power: Watts,
    /// The activity of each online core.
    pub cores: Vec<CoreSample>,
}

/// The activity of a core during a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoreSample {
    /// Share of the time not idle.
    pub busy: f64,
    /// Mean frequency, where it can be read.
    pub frequency: Option<Hertz>,
    /// Share of the time in the deepest idle state, where it can be read.
    pub deep: Option<f64>,
}

/// A model and how well it fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The model, without its source yet.
    pub model: PowerModel,
    /// Root mean square of its errors on its own samples.
    pub residual: Watts,
    /// The same on samples that it was not fitted to, each left out in turn.
    pub left_out: Watts,
    /// Share of the variance of power that it explains.
    pub explained: f64,
    /// Terms left out and why.
    pub notes: Vec<String>,
}

/// Why samples give no model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Fewer than one more than there are terms.
    #[error("{found} steps were measured and {needed} are needed: give it more time")]
    Few {
        /// Samples there are.
        found: usize,
        /// Samples that it takes.
        needed: usize,
    },
    /// Load does not show in the power.
    #[error(
        "power does not rise with load: {idle:.3} W with the fewest busy cores, {busy:.3} W with \
         the most; the meter does not measure these cores, or it is too coarse for the steps: \
         make them longer"
    )]
    Flat {
        /// Power with the fewest busy cores.
        idle: f64,
        /// Power with the most busy cores.
        busy: f64,
    },
    /// A number that is none.
    #[error("a sample is not a number: {0:?}")]
    Nonsense(Watts),
}

/// Terms of one sample, by [`TERMS`].
type Row = [f64; COUNT];

/// The model that fits best.
///
/// # Errors
/// [`FitError`].
pub fn fit(samples: &[PowerSample]) -> Result<Fit, FitError> {
    if let Some(wrong) = samples.iter().find(|sample| !sample.power.0.is_finite()) {
        return Err(FitError::Nonsense(wrong.power));
    }
    let full = highest(samples);
    let rows: Vec<Row> = samples.iter().map(|sample| row(sample, full)).collect();
    let power: Vec<f64> = samples.iter().map(|sample| sample.power.0).collect();
    let (terms, mut notes) = usable(&rows, samples, full);
    if samples.len() <= terms.len() {
        return Err(FitError::Few { found: samples.len(), needed: terms.len() + 1 });
    }
    let found = solve(&rows, &power, &terms);
    let rise =
        predicted(&rows[most_busy(&rows)], &found) - predicted(&rows[least_busy(&rows)], &found);
    if rise <= FLAT * found[0].max(1.0) {
        return Err(flat(&rows, &power));
    }
    let zero = terms.iter().filter(|term| found[**term] == 0.0);
    notes.extend(zero.map(|term| format!("{} cost nothing that shows", TERMS[*term])));
    let residual = off(&rows, &power, |row, _| predicted(row, &found));
    let left_out =
        off(&rows, &power, |row, index| predicted(row, &without(&rows, &power, &terms, index)));
    let mean = power.iter().sum::<f64>() / power.len() as f64;
    let spread = off(&rows, &power, |_, _| mean);
    Ok(Fit {
        model: model(&found, &terms, full),
        residual: Watts(residual),
        left_out: Watts(left_out),
        explained: 1.0 - (residual / spread).powi(2),
        notes,
    })
}

/// The highest frequency that was seen; `None` if a core's is not known.
fn highest(samples: &[PowerSample]) -> Option<Hertz> {
    let all = samples.iter().flat_map(|sample| &sample.cores);
    let known: Option<Vec<Hertz>> = all.map(|core| core.frequency).collect();
    known?.into_iter().max().filter(|full| full.0 > 0)
}

fn row(sample: &PowerSample, full: Option<Hertz>) -> Row {
    let mut row = [1.0, 0.0, 0.0, 0.0];
    for core in &sample.cores {
        row[1] += core.busy;
        if let (Some(full), Some(frequency)) = (full, core.frequency) {
            row[2] += core.busy * ByFrequency::cube(full, frequency);
        }
        if let Some(deep) = core.deep {
            row[3] += (1.0 - core.busy - deep).max(0.0);
        }
    }
    row
}

/// Returns the terms that the samples identify, and why the rest are not identified.
fn usable(rows: &[Row], samples: &[PowerSample], full: Option<Hertz>) -> (Vec<usize>, Vec<String>) {
    let has_depth = samples.iter().flat_map(|sample| &sample.cores).all(|core| core.deep.is_some());
    let mut terms = vec![0, 1];
    let mut notes = Vec::new();
    let mut leave = |term: usize, why: &str| notes.push(format!("{} left out: {why}", TERMS[term]));
    match full {
        None => leave(2, "not every core's frequency can be read"),
        Some(_) if !varies(rows, |row| row[2] / row[1].max(1e-9)) => {
            leave(2, "busy cores ran at one frequency");
        }
        Some(_) => terms.push(2),
    }
    match has_depth {
        false => leave(3, "not every core's idle states can be read"),
        true if !is_identifiable(rows, &terms, 3) => {
            leave(3, "idle cores were equally deep asleep");
        }
        true => terms.push(3),
    }
    (terms, notes)
}

/// Whether a value differs among the rows in which cores were busy.
fn varies(rows: &[Row], of: impl Fn(&Row) -> f64) -> bool {
    let values = || rows.iter().filter(|row| row[1] > 0.1).map(&of);
    let most = values().fold(0.0, f64::max);
    let least = values().fold(f64::INFINITY, f64::min);
    most - least > VARIES * most
}

/// Whether a term is not a sum of the others.
fn is_identifiable(rows: &[Row], terms: &[usize], term: usize) -> bool {
    let all: Vec<usize> = terms.iter().copied().chain([term]).collect();
    let most = rows.iter().map(|row| row[term]).fold(0.0, f64::max);
    let least = rows.iter().map(|row| row[term]).fold(f64::INFINITY, f64::min);
    if most - least <= VARIES * most.max(1.0) {
        return false;
    }
    let values = matrix(rows, &all).svd(false, false).singular_values;
    values.min() > RANK * values.max()
}

fn matrix(rows: &[Row], terms: &[usize]) -> DMatrix<f64> {
    DMatrix::from_fn(rows.len(), terms.len(), |at, column| rows[at][terms[column]])
}

/// Constants of the terms, none negative; zero for all others.
fn solve(rows: &[Row], power: &[f64], terms: &[usize]) -> Row {
    let sets = 1..1_usize << terms.len();
    let chosen = |set: usize| -> Vec<usize> {
        (0..terms.len()).filter(|bit| set >> bit & 1 == 1).map(|bit| terms[bit]).collect()
    };
    let solved = sets.filter_map(|set| unbounded(rows, power, &chosen(set)));
    let mut best = ([0.0; COUNT], f64::INFINITY);
    for found in solved.filter(|found| found.iter().all(|constant| *constant >= 0.0)) {
        let error = off(rows, power, |row, _| predicted(row, &found));
        if error < best.1 {
            best = (found, error);
        }
    }
    best.0
}

/// Least squares over some terms; `None` if the samples do not identify them.
fn unbounded(rows: &[Row], power: &[f64], terms: &[usize]) -> Option<Row> {
    let svd = matrix(rows, terms).svd(true, true);
    if svd.singular_values.min() <= RANK * svd.singular_values.max() {
        return None;
    }
    let solution = svd.solve(&DVector::from_column_slice(power), 0.0).ok()?;
    let mut found = [0.0; COUNT];
    for (term, constant) in terms.iter().zip(solution.iter()) {
        found[*term] = *constant;
    }
    Some(found)
}

/// Constants from all samples but one.
fn without(rows: &[Row], power: &[f64], terms: &[usize], left_out: usize) -> Row {
    let others = |index: &usize| *index != left_out;
    let kept: Vec<usize> = (0..rows.len()).filter(others).collect();
    let rows: Vec<Row> = kept.iter().map(|index| rows[*index]).collect();
    let power: Vec<f64> = kept.iter().map(|index| power[*index]).collect();
    solve(&rows, &power, terms)
}

fn predicted(row: &Row, constants: &Row) -> f64 {
    row.iter().zip(constants).map(|(value, constant)| value * constant).sum()
}

/// Root mean square of the errors of a prediction.
fn off(rows: &[Row], power: &[f64], predict: impl Fn(&Row, usize) -> f64) -> f64 {
    let squares = rows.iter().zip(power).enumerate();
    let sum: f64 = squares.map(|(index, (row, power))| (power - predict(row, index)).powi(2)).sum();
    (sum / rows.len() as f64).sqrt()
}

fn flat(rows: &[Row], power: &[f64]) -> FitError {
    FitError::Flat { idle: power[least_busy(rows)], busy: power[most_busy(rows)] }
}

fn least_busy(rows: &[Row]) -> usize {
    (0..rows.len()).min_by(|a, b| rows[*a][1].total_cmp(&rows[*b][1])).unwrap_or_default()
}

fn most_busy(rows: &[Row]) -> usize {
    (0..rows.len()).max_by(|a, b| rows[*a][1].total_cmp(&rows[*b][1])).unwrap_or_default()
}

fn model(found: &Row, terms: &[usize], full: Option<Hertz>) -> PowerModel {
    let by_frequency = full.filter(|_| terms.contains(&2));
    PowerModel {
        base: Watts(found[0]),
        busy: Watts(found[1]),
        idle: Watts(0.0),
        by_frequency: by_frequency.map(|full| ByFrequency { dynamic: Watts(found[2]), full }),
        shallow: terms.contains(&3).then_some(Watts(found[3])),
        calibration: None,
    }
}

#[cfg(test)]
mod tests;
