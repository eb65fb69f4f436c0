//! Running a scenario: replications of every policy, until they are enough.

use super::{Outcome, PolicyOutcome, Quantity, Scenario, Variant};
use crate::progress::Progress;
use crate::report::number_text;
use crate::trial::{Trial, of};
use lull_measure::Nanos;
use lull_sim::Totals;
use lull_sim::model::Source;
use lull_sim::stats::Failure;
use std::ops::Range;

/// Replications between two looks at the precision. Fixed, so that how many
/// are run does not depend on the number of threads.
const ROUND: u64 = 4;
/// Share of an open app's requests that may be without answer in the end.
const UNANSWERED: f64 = 0.02;

/// A simulation that failed, and under which policy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("policy `{policy}`: {failure}")]
pub struct RunError {
    /// Its label.
    pub policy: String,
    /// What happened.
    pub failure: Failure,
}

/// What has been measured under one policy.
#[derive(Debug, Clone, Default)]
struct Samples {
    /// By quantity, then by replication.
    values: Vec<Vec<f64>>,
    /// Requests of each app that came, and how many of them were not answered.
    came: Vec<u64>,
    left: Vec<i64>,
}

/// What is kept of one replication.
struct Sample {
    /// By quantity.
    values: Vec<f64>,
    /// By app: requests that came, and how many of them were not answered.
    requests: Vec<(u64, i64)>,
}

impl Scenario {
    /// Runs all policies on the same replications.
    ///
    /// The result is the same to the last bit on any number of threads.
    ///
    /// # Errors
    /// The first simulation that cannot be set up or reaches a bound.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        progress.expect(self.replications * self.variants.len() as u64);
        let warmup = self.find_warmup()?;
        let quantities = self.quantities();
        let mut samples =
            vec![Samples::new(&quantities, self.model.app.len()); self.variants.len()];
        let mut done = 0;
        while let Some(round) = self.next_round(done, &samples) {
            if done > 0 {
                progress.expect((round.end - round.start) * self.variants.len() as u64);
            }
            done = round.end;
            for (variant, samples) in self.variants.iter().zip(&mut samples) {
                let failed = failed(variant);
                let trial = Trial { warmup, ..self.trial(variant) };
                let read = |totals: Totals| Sample::of(&quantities, &totals);
                let all = trial.measure(round.clone(), progress, read).map_err(failed)?;
                all.into_iter().for_each(|sample| samples.add(sample));
            }
        }
        Ok(self.outcome(warmup, quantities, samples))
    }

    /// The replications to run next; `None` if those done are enough.
    fn next_round(&self, done: u64, samples: &[Samples]) -> Option<Range<u64>> {
        if done == 0 {
            return Some(0..self.replications);
        }
        let wanted = self.precision.filter(|wanted| done < wanted.most)?;
        let enough = self.is_precise(samples);
        (!enough).then(|| done..wanted.most.min(done + ROUND))
    }

    /// Whether the wanted figure is known well enough under every policy.
    fn is_precise(&self, samples: &[Samples]) -> bool {
        self.precision.is_none_or(|wanted| {
            let relative = |samples: &Samples| of(&samples.values[wanted.quantity]).relative();
            samples.iter().all(|samples| relative(samples) <= wanted.relative)
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

    fn outcome(&self, warmup: Nanos, quantities: Vec<Quantity>, samples: Vec<Samples>) -> Outcome {
        let mut notices = self.notices.clone();
        if !self.is_precise(&samples)
            && let Some(wanted) = self.precision
        {
            notices.push(format!(
                "after {} replications {} is not known to ±{} % under every policy: raise \
                 run.precision.most, or run longer",
                wanted.most,
                quantities[wanted.quantity].id,
                number_text(100.0 * wanted.relative)
            ));
        }
        if samples.iter().any(|samples| samples.replications() < 2) {
            notices.push("one replication has no interval: run at least two".to_owned());
        }
        for (variant, samples) in self.variants.iter().zip(&samples) {
            notices.extend(self.doubts(variant, samples));
        }
        let policies = self.variants.iter().zip(samples).map(|(variant, samples)| PolicyOutcome {
            label: variant.label.clone(),
            policy: variant.control.policy.clone(),
            values: samples.values,
        });
        Outcome {
            title: self.title.clone(),
            seed: self.seed,
            warmup,
            length: self.length,
            quantities,
            policies: policies.collect(),
            notices,
        }
    }

    /// What is to be said of apps whose figures are not what they seem.
    fn doubts(&self, variant: &Variant, samples: &Samples) -> Vec<String> {
        let mut doubts = Vec::new();
        for (at, app) in self.model.app.iter().enumerate() {
            let (came, left) = (samples.came[at] as f64, samples.left[at] as f64);
            let (policy, name) = (&variant.label, &app.name);
            if came == 0.0 {
                doubts.push(format!("policy `{policy}`: no request of app `{name}` came"));
            }
            // Beyond chance: five standard deviations of a Poisson count.
            let many = left > UNANSWERED * came && left > 5.0 * came.sqrt();
            if many && matches!(app.source, Source::Open(_)) {
                doubts.push(format!(
                    "policy `{policy}`: {:.1} % of the requests of app `{name}` were not answered \
                     before the end: the system does not keep up, and its response times grow \
                     with the length of the run",
                    100.0 * left / came
                ));
            }
        }
        doubts
    }
}

/// Names the policy of a failure.
pub(super) fn failed(variant: &Variant) -> impl Fn(Failure) -> RunError + use<> {
    let policy = variant.label.clone();
    move |failure| RunError { policy: policy.clone(), failure }
}

impl Samples {
    fn new(quantities: &[Quantity], apps: usize) -> Self {
        Self {
            values: vec![Vec::new(); quantities.len()],
            came: vec![0; apps],
            left: vec![0; apps],
        }
    }

    fn replications(&self) -> usize {
        self.values.first().map_or(0, Vec::len)
    }

    fn add(&mut self, sample: Sample) {
        for (values, value) in self.values.iter_mut().zip(sample.values) {
            values.push(value);
        }
        for (at, (came, left)) in sample.requests.into_iter().enumerate() {
            self.came[at] += came;
            self.left[at] += left;
        }
    }
}

impl Sample {
    fn of(quantities: &[Quantity], totals: &Totals) -> Self {
        let requests = totals.apps.iter().map(|app| {
            let ended = (app.answered + app.lost).cast_signed();
            (app.arrived, app.arrived.cast_signed() - ended)
        });
        Self {
            values: quantities.iter().map(|quantity| quantity.value(totals)).collect(),
            requests: requests.collect(),
        }
    }
}
