//! Running a scenario of tiers.

use super::quantity::MeasuredQuantity;
use super::replicate::{Replications, policy_outcome};
use super::{Outcome, Scenario, Variant};
use crate::cells::{Sample, StoreError};
use crate::progress::Progress;
use crate::trial::Trial;
use lull_measure::Nanos;
use lull_sim::Totals;
use lull_sim::model::Source;
use lull_sim::stats::Failure;

/// A simulation that failed, and under which policy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("policy `{policy}`: {failure}")]
pub struct RunError {
    /// Its label.
    pub policy: String,
    /// The error.
    pub failure: Failure,
}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> Self {
        Self { policy: error.policy, failure: Failure::Setup(error.message) }
    }
}

impl Scenario {
    /// Runs all policies on the same replications.
    ///
    /// The result is the same to the last bit on any number of threads.
    ///
    /// # Errors
    /// The first simulation that cannot be set up or reaches a bound.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        let warmup = self.find_warmup()?;
        let (measured, quantities) = (self.measured(), self.quantities());
        let replications = Replications {
            least: self.replications,
            precision: self.precision,
            quantities: &quantities,
            labels: self.variants.iter().map(|variant| variant.label.as_str()).collect(),
        };
        let samples = replications.run(progress, |policy, round| {
            let variant = &self.variants[policy];
            let trial = Trial { warmup, ..self.trial(variant) };
            let read = |totals: Totals| sample(&measured, &totals);
            trial.measure(round, progress, read).map_err(failed(variant))
        })?;
        let open = |app: &lull_sim::model::App| matches!(app.source, Source::Open(_));
        let apps: Vec<_> =
            self.model.app.iter().map(|app| (app.name.as_str(), open(app))).collect();
        let mut notices = self.notices.clone();
        notices.extend(replications.notices(&samples, &apps));
        let policies = self
            .variants
            .iter()
            .zip(samples)
            .map(|(variant, samples)| policy_outcome(variant, samples));
        Ok(Outcome {
            title: self.title.clone(),
            seed: self.seed,
            warmup,
            length: self.length,
            policies: policies.collect(),
            quantities,
            notices,
        })
    }

    /// The warm-up: as given, or the longest that any policy needs, so that
    /// all count the same time.
    pub(super) fn find_warmup(&self) -> Result<Nanos, RunError> {
        if let Some(warmup) = self.warmup {
            return Ok(warmup);
        }
        let mut longest = Nanos::ZERO;
        for variant in &self.variants {
            let found = self.trial(variant).find_warmup().map_err(failed(variant))?;
            longest = longest.max(found);
        }
        Ok(longest)
    }
}

/// Names the policy of a failure.
pub(super) fn failed(variant: &Variant) -> impl Fn(Failure) -> RunError + use<> {
    let policy = variant.label.clone();
    move |failure| RunError { policy: policy.clone(), failure }
}

fn sample(measured: &[MeasuredQuantity], totals: &Totals) -> Sample {
    let requests = totals.apps.iter().map(|app| {
        let ended = (app.answered + app.lost).cast_signed();
        (app.arrived, app.arrived.cast_signed() - ended)
    });
    Sample {
        values: measured.iter().map(|measured| measured.value(totals)).collect(),
        requests: requests.collect(),
    }
}
