//! Replays the recorded policy and measures the error, and predicts other policies.

use super::Replay;
use super::demand::{self, AGAIN};
use super::figures::{Figure, Reproduced, figures};
use super::model::Fit;
use super::play::{ReplayError, Steered};
use super::tally::Tally;
use super::windows::Cut;
use crate::progress::Progress;
use crate::scenario::{Outcome, PolicyOutcome};
use crate::trial::estimate_of;
use lull_measure::Nanos;
use rayon::prelude::*;

/// Share of an app's requests that may be without answer in the end.
const UNANSWERED: f64 = 0.02;

/// The recorded policy, replayed on the calibrated node.
#[derive(Debug, Clone)]
pub struct Reproduction {
    /// Figure by figure.
    pub figures: Vec<Reproduced>,
    /// Share of the recorded epochs that were simulated.
    pub share: f64,
    /// Relative error of the requests' demand.
    pub demand_error: f64,
    /// Indexed by quantity, then replication.
    values: Vec<Vec<f64>>,
    warnings: Vec<String>,
}

impl Reproduction {
    /// The largest error of all, and the figure that has it.
    pub fn worst(&self) -> Option<(&Reproduced, f64)> {
        let judged = self.figures.iter().filter_map(|figure| Some((figure, figure.error?)));
        judged.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Replay<'_> {
    fn cut(&self) -> Cut {
        Cut::new(self.recording, self.effort.requests)
    }

    /// Plays the recorded policy and compares it with the measurements of the same epochs.
    ///
    /// # Errors
    /// If it cannot be simulated, or a stop is requested.
    pub fn reproduce(
        &self,
        fit: &Fit,
        progress: &Progress<'_>,
    ) -> Result<Reproduction, ReplayError> {
        let (specs, importance) = (&self.recording.apps, self.recording.rules.importance);
        let replications = self.effort.replications;
        progress.expect(replications);
        let (values, warnings) = self.replicate(fit, &self.recorded, replications, progress)?;
        let measured = self.recorded_of(self.cut(), 0..replications.min(self.cut().every));
        let cores = self.recording.machine.cores.len();
        let reproduced = figures(specs).into_iter().zip(&values).map(|(figure, values)| {
            let was = figure.value(&measured, specs, importance);
            let is = estimate_of(values).mean;
            let error = figure.error(was, is, &measured, cores);
            let finite = |value: f64| value.is_finite().then_some(value);
            let (measured, replayed) = (finite(was), finite(is));
            Reproduced { quantity: figure.quantity, measured, replayed, error }
        });
        let figures: Vec<Reproduced> = reproduced.collect();
        let share = self.cut().share(replications);
        let demand_error = demand::error(self.recording, &figures);
        Ok(Reproduction { figures, share, demand_error, values, warnings })
    }

    /// Plays other policies on the same requests, and some of them again with
    /// what requests demand smaller and larger by its error.
    ///
    /// # Errors
    /// If one cannot be simulated, or a stop is requested.
    pub fn predict(
        &self,
        fit: &Fit,
        reproduction: &Reproduction,
        others: &[Steered],
        progress: &Progress<'_>,
    ) -> Result<Outcome, ReplayError> {
        let (replications, error) = (self.effort.replications, reproduction.demand_error);
        let again = replications.min(AGAIN);
        let played = replications * others.len() as u64;
        progress.expect(played + 2 * again * (1 + others.len() as u64));
        let fits = [-error, error].map(|error| demand::scaled(fit, 1.0 + error));
        let otherwise = |steered: &Steered| -> Result<Vec<Vec<Vec<f64>>>, ReplayError> {
            let other = |fit| Ok(self.replicate(fit, steered, again, progress)?.0);
            fits.iter().map(other).collect()
        };
        let outcome = |steered: &Steered, label: String, values| -> Result<_, ReplayError> {
            let (policy, otherwise) = (steered.policy.name().to_owned(), otherwise(steered)?);
            let epoch = Some(self.recording.epoch.clone());
            Ok(PolicyOutcome { label, policy, epoch, values, otherwise })
        };
        let label = format!("{} (recorded)", self.recorded.policy.name());
        let mut policies = vec![outcome(&self.recorded, label, reproduction.values.clone())?];
        let mut notices = reproduction.warnings.clone();
        for steered in others {
            let (values, warnings) = self.replicate(fit, steered, replications, progress)?;
            policies.push(outcome(steered, steered.policy.name().to_owned(), values)?);
            notices.extend(warnings);
        }
        let span: f64 = self.recorded_of(self.cut(), 0..1).span_s;
        let figures = figures(&self.recording.apps);
        let mut outcome = Outcome {
            title: format!("replay of a run under {}", self.recorded.policy.name()),
            seed: self.effort.seed,
            warmup: self.recording.skip,
            length: Nanos::from_secs_f64(span),
            quantities: figures.into_iter().map(|figure| figure.quantity).collect(),
            policies,
            notices,
        };
        demand::withhold(&mut outcome, self.recording, error);
        Ok(outcome)
    }

    /// Figures of a policy by quantity, then replication; and notices about them.
    fn replicate(
        &self,
        fit: &Fit,
        steered: &Steered,
        replications: u64,
        progress: &Progress<'_>,
    ) -> Result<(Vec<Vec<f64>>, Vec<String>), ReplayError> {
        let cut = self.cut();
        let one = |replication| {
            let played = self.play(fit, steered, cut, replication);
            progress.step();
            played
        };
        let played: Vec<_> = (0..replications).into_par_iter().map(one).collect();
        let played = played.into_iter().collect::<Result<Vec<Tally>, _>>()?;
        let importance = self.recording.rules.importance;
        let values = |figure: Figure| {
            played.iter().map(|tally| figure.value(tally, &self.specs, importance)).collect()
        };
        let values = figures(&self.specs).into_iter().map(values).collect();
        Ok((values, self.warnings(steered.policy.name(), &played)))
    }

    /// Apps that do not keep up: their figures grow with the length of the run.
    fn warnings(&self, policy: &str, played: &[Tally]) -> Vec<String> {
        let mut warnings = Vec::new();
        for (at, spec) in self.recording.apps.iter().enumerate() {
            let left: u64 = played.iter().map(|tally| tally.apps[at].outstanding).sum();
            let arrivals: f64 = played.iter().map(|tally| tally.apps[at].offered).sum();
            if spec.is_latency_critical() && left as f64 > UNANSWERED * arrivals {
                warnings.push(format!(
                    "policy `{policy}`: {:.1} % of the requests of `{}` were not answered before \
                     the end: it does not keep up, and its latencies grow with the run",
                    100.0 * left as f64 / arrivals,
                    spec.name
                ));
            }
        }
        warnings
    }
}
