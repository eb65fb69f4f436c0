//! Independent replications, until an estimate is precise enough.

use super::{Estimate, mser5, paired_difference};
use crate::engine::{Stop, Totals};
use crate::model::ModelError;
use crate::plant::System;
use lull_control::LimitsError;
use lull_measure::Nanos;
use rayon::prelude::*;

/// Replications run at a time. It is fixed, so that the number of replications of a
/// precision rule does not depend on the number of threads.
const ROUND: u64 = 4;
/// Slices of the pilot run on which the warm-up is judged.
const SLICES: u64 = 1000;

/// How a model is run: warm-up, length, and how often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experiment {
    /// Warm-up of each replication, which is not counted.
    pub warmup: Warmup,
    /// Counted time of each replication, after the warm-up.
    pub length: Nanos,
    /// Number of the first replication. Policies that run the same numbers receive the
    /// same requests (common random numbers).
    pub first: u64,
    /// Replications to run, at least.
    pub replications: u64,
}

/// How the end of the warm-up is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warmup {
    /// A fixed warm-up.
    Fixed(Nanos),
    /// By MSER-5 on the mean response times of a pilot run, whose length is
    /// that of a replication, cut into a thousand slices. All replications
    /// then have this warm-up.
    Mser,
}

/// When an estimate is good enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precision {
    /// Wanted half width of the 95 % interval, relative to the mean.
    pub relative: f64,
    /// Most replications.
    pub most: u64,
}

/// Why an experiment has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The model cannot be simulated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A run reached a bound.
    #[error("replication {replication}: {stop}")]
    Stopped {
        /// The replication.
        replication: u64,
        /// The bound.
        stop: Stop,
    },
    /// The limits of a controller do not fit its machine.
    #[error("limits.{}: {}", .0.key, .0.message)]
    Limits(#[from] LimitsError),
    /// The pilot found no steady state.
    #[error(
        "no steady state within {length}: the response times of the pilot run still drift; \
         run longer, give a fixed warm-up, or check that the load is below the capacity"
    )]
    NoSteadyState {
        /// Length of the pilot.
        length: Nanos,
    },
    /// The caller has stopped it.
    #[error("stopped before its end")]
    Cancelled,
    /// The system cannot be set up.
    #[error("{0}")]
    Setup(String),
}

/// Sets up the replication of a number.
type Make<'m> = dyn Fn(u64) -> Result<System, Failure> + Sync + 'm;

/// The replications of one model under one set of policies.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Warm-up of each replication.
    pub warmup: Nanos,
    /// Totals of each replication, in order.
    pub totals: Vec<Totals>,
}

impl Experiment {
    /// Runs all replications; `make` sets up the one with a number.
    ///
    /// The result is the same to the last bit on any number of threads: replications
    /// share no state, and sums are computed in the order of their numbers.
    ///
    /// # Errors
    /// The first failure, in the order of the replications.
    pub fn run(
        &self,
        make: impl Fn(u64) -> Result<System, Failure> + Sync,
    ) -> Result<Runs, Failure> {
        let warmup = self.find_warmup(&make)?;
        let totals = self.round(warmup, self.first..self.first + self.replications, &make)?;
        Ok(Runs { warmup, totals })
    }

    /// Runs replications until the estimate of `value` is precise enough, or
    /// there are `precision.most` of them.
    ///
    /// # Errors
    /// As [`Experiment::run`].
    pub fn run_until_precise(
        &self,
        precision: Precision,
        value: impl Fn(&Totals) -> f64,
        make: impl Fn(u64) -> Result<System, Failure> + Sync,
    ) -> Result<Runs, Failure> {
        let mut runs = self.run(&make)?;
        loop {
            let done = runs.totals.len() as u64;
            let precise = runs.estimate(&value).is_some_and(|e| e.relative() <= precision.relative);
            if precise || done >= precision.most {
                return Ok(runs);
            }
            let next = self.first + done;
            let end = next + ROUND.min(precision.most - done);
            runs.totals.extend(self.round(runs.warmup, next..end, &make)?);
        }
    }

    fn round(
        &self,
        warmup: Nanos,
        numbers: std::ops::Range<u64>,
        make: &Make<'_>,
    ) -> Result<Vec<Totals>, Failure> {
        let all: Vec<Result<Totals, Failure>> = numbers
            .into_par_iter()
            .map(|replication| self.replicate(warmup, replication, make))
            .collect();
        all.into_iter().collect()
    }

    fn replicate(
        &self,
        warmup: Nanos,
        replication: u64,
        make: &Make<'_>,
    ) -> Result<Totals, Failure> {
        let stopped = |stop| Failure::Stopped { replication, stop };
        let mut system = make(replication)?;
        system.run_until(warmup).map_err(stopped)?;
        system.engine_mut().forget();
        system.run_until(warmup.saturating_add(self.length)).map_err(stopped)?;
        Ok(system.engine().totals())
    }

    fn find_warmup(&self, make: &Make<'_>) -> Result<Nanos, Failure> {
        match self.warmup {
            Warmup::Fixed(warmup) => Ok(warmup),
            Warmup::Mser => {
                let mut pilot = make(self.first)?;
                let stopped = |stop| Failure::Stopped { replication: self.first, stop };
                let series = response_series(&mut pilot, self.length).map_err(stopped)?;
                let cuts = series.iter().map(|series| mser5(series));
                let last =
                    cuts.collect::<Option<Vec<usize>>>().and_then(|cuts| cuts.into_iter().max());
                let cut = last.ok_or(Failure::NoSteadyState { length: self.length })?;
                Ok(self.length.scale(cut as f64 / SLICES as f64))
            }
        }
    }
}

/// Mean response time of each app in each slice of a run; a slice without
/// answers repeats the one before.
fn response_series(system: &mut System, length: Nanos) -> Result<Vec<Vec<f64>>, Stop> {
    let apps = system.engine().app_count();
    let mut series = vec![Vec::with_capacity(SLICES as usize); apps];
    let mut before = vec![(0, 0); apps];
    for slice in 1..=SLICES {
        system.run_until(length.scale(slice as f64 / SLICES as f64))?;
        for (app, series) in series.iter_mut().enumerate() {
            let now = system.engine().responses(app);
            let (count, sum) = (now.0 - before[app].0, now.1 - before[app].1);
            let last = series.last().copied().unwrap_or(0.0);
            series.push(if count == 0 { last } else { sum as f64 / count as f64 });
            before[app] = now;
        }
    }
    Ok(series)
}

impl Runs {
    /// Mean and interval of a value over the replications; `None` without any.
    pub fn estimate(&self, value: impl Fn(&Totals) -> f64) -> Option<Estimate> {
        Estimate::from_values(&self.values(value))
    }

    /// The value of each replication.
    pub fn values(&self, value: impl Fn(&Totals) -> f64) -> Vec<f64> {
        self.totals.iter().map(value).collect()
    }

    /// Mean and interval of `ours - theirs`, replication by replication;
    /// `None` if the numbers of replications differ.
    pub fn difference(&self, theirs: &Self, value: impl Fn(&Totals) -> f64) -> Option<Estimate> {
        paired_difference(&self.values(&value), &theirs.values(&value))
    }
}
