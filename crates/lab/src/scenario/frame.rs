//! The common part of all scenarios of one machine: the compared policies, the length and
//! number of replications, and the figures.
//!
//! Scenarios of tiers do not use it, because they may determine their warm-up by MSER-5 and
//! search for the worst burst cycle.

use super::check::RunSize;
use super::choice::Labelled;
use super::file::{RunSection, WarmupRule};
use super::replicate::{Replications, policy_outcome};
use super::{Choice, InvalidKey, Outcome, Quantity, RunError, TargetPrecision};
use crate::cells::Sample;
use crate::progress::Progress;
use lull_measure::Nanos;
use lull_sim::stats::Failure;
use rayon::prelude::*;
use std::fmt::Display;

/// The policies that a scenario compares, and its figures.
#[derive(Debug, Clone)]
pub(super) struct Contents<V, W> {
    /// Its title.
    pub(super) title: String,
    /// Notices about how far the figures are valid.
    pub(super) notices: Vec<String>,
    /// The policies, the reference first.
    pub(super) variants: Vec<V>,
    /// The measured quantities in the order of tables, and where each is found.
    pub(super) figures: Vec<(Quantity, W)>,
}

/// A scenario without its machine.
#[derive(Debug, Clone)]
pub(super) struct Frame<V, W> {
    pub(super) contents: Contents<V, W>,
    pub(super) seed: u64,
    pub(super) warmup: Nanos,
    pub(super) length: Nanos,
    replications: u64,
    precision: Option<TargetPrecision>,
}

impl<V: Labelled + Sync, W: Copy + Sync> Frame<V, W> {
    /// Checks how long and how often; `warmup` is forgotten where the file does
    /// not say.
    ///
    /// # Errors
    /// The first key of `[run]` that makes no sense.
    pub(super) fn new(
        contents: Contents<V, W>,
        run: &RunSection,
        choice: &Choice,
        warmup: Nanos,
    ) -> Result<Self, InvalidKey> {
        let mut frame = Self {
            contents,
            seed: choice.seed.unwrap_or(run.seed),
            warmup: run.warmup.given().unwrap_or(warmup),
            length: run.length,
            replications: choice.replications.unwrap_or(run.replications),
            precision: None,
        };
        let quantities = frame.quantities();
        let size = RunSize {
            quantities: &quantities,
            replications: frame.replications,
            policies: frame.contents.variants.len(),
            span: [frame.warmup, frame.length],
        };
        let written = run.precision.as_ref().filter(|_| choice.replications.is_none());
        frame.precision = written.map(|written| size.target_precision(written)).transpose()?;
        size.check(frame.precision.as_ref())?;
        Ok(frame)
    }

    /// The labels of the policies, the reference first.
    pub(super) fn labels(&self) -> Vec<&str> {
        self.contents.variants.iter().map(Labelled::label).collect()
    }

    /// The number of replications; `None` if a precision decides it.
    pub(super) fn fixed_replications(&self) -> Option<u64> {
        self.precision.is_none().then_some(self.replications)
    }

    fn quantities(&self) -> Vec<Quantity> {
        self.contents.figures.iter().map(|(quantity, _)| quantity.clone()).collect()
    }

    /// Where each figure is found, in order.
    pub(super) fn figures(&self) -> impl Iterator<Item = W> + '_ {
        self.contents.figures.iter().map(|(_, what)| *what)
    }

    /// Runs all policies on the same replications. The result is the same to the last bit on
    /// any number of threads. `apps` lists the name of each app and whether it is open.
    ///
    /// # Errors
    /// The first replication that fails.
    pub(super) fn run<E: Display>(
        &self,
        apps: &[(&str, bool)],
        progress: &Progress<'_>,
        replicate: impl Fn(&V, u64) -> Result<Sample, E> + Sync,
    ) -> Result<Outcome, RunError> {
        let quantities = self.quantities();
        let replications = Replications {
            least: self.replications,
            precision: self.precision,
            quantities: &quantities,
            labels: self.labels(),
        };
        let variants = &self.contents.variants;
        let samples = replications.run(progress, |policy, round| {
            let one = |replication| {
                progress.check().map_err(|failure| failure.to_string())?;
                let sample = replicate(&variants[policy], replication).map_err(|e| e.to_string());
                progress.step();
                sample
            };
            let all: Vec<_> = round.into_par_iter().map(one).collect();
            all.into_iter().collect::<Result<Vec<_>, String>>().map_err(|error| RunError {
                policy: variants[policy].label().to_owned(),
                failure: Failure::Setup(error),
            })
        })?;
        let mut notices = self.contents.notices.clone();
        notices.extend(replications.notices(&samples, apps));
        let policies = variants.iter().zip(samples);
        let policies = policies.map(|(one, samples)| policy_outcome(one, samples));
        Ok(Outcome {
            title: self.contents.title.clone(),
            seed: self.seed,
            warmup: self.warmup,
            length: self.length,
            policies: policies.collect(),
            quantities,
            notices,
        })
    }
}

impl WarmupRule {
    /// The time that was given; `None` if it is to be found.
    pub(super) fn given(self) -> Option<Nanos> {
        match self {
            Self::Found(_) => None,
            Self::Given(warmup) => Some(warmup),
        }
    }
}
