//! Replications of every policy, until the target precision is reached.

use super::choice::{Described, Labelled};
use super::stored::StoredRound;
use super::{PolicyOutcome, Quantity, TargetPrecision};
use crate::cells::{ReplicationCell, Sample, StoreError};
use crate::progress::Progress;
use crate::report::number_text;
use crate::trial::estimate_of;
use std::ops::Range;

/// Replications between two checks of the precision. It is fixed, so that the number of
/// replications does not depend on the number of threads.
const ROUND: u64 = 4;
/// Share of an open app's requests that may be without answer in the end.
const UNANSWERED: f64 = 0.02;

/// The number of replications, the policies, and the figures.
#[derive(Debug)]
pub(super) struct Replications<'s> {
    pub(super) least: u64,
    pub(super) precision: Option<TargetPrecision>,
    pub(super) quantities: &'s [Quantity],
    /// The labels of the policies.
    pub(super) labels: Vec<&'s str>,
}

/// The measurements under one policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples {
    /// Indexed by quantity, then by replication.
    pub(super) values: Vec<Vec<f64>>,
    /// Requests of each app that arrived, and how many of them were not answered.
    arrived: Vec<u64>,
    left: Vec<i64>,
}

impl Replications<'_> {
    /// Measures all policies on the same replications: `measure` gets a policy's
    /// number and the replications to run, and gives a sample of each in order.
    ///
    /// # Errors
    /// The first of `measure`.
    pub(super) fn run<E: From<StoreError>>(
        &self,
        progress: &Progress<'_>,
        mut measure: impl FnMut(usize, Range<u64>) -> Result<Vec<Sample>, E>,
    ) -> Result<Vec<Samples>, E> {
        let policies = self.labels.len();
        progress.expect(self.expected(progress));
        let mut samples = vec![Samples::default(); policies];
        let mut done = 0;
        while let Some(round) = self.next_round(done, &samples) {
            if done > 0 {
                progress.expect((round.end - round.start) * policies as u64);
            }
            done = round.end;
            for (policy, samples) in samples.iter_mut().enumerate() {
                let measured = match progress.store() {
                    None => measure(policy, round.clone()),
                    Some(store) => {
                        let kept = StoredRound { store, cell: self.cell(policy, 0) };
                        kept.run(round.clone(), progress, |missing| measure(policy, missing))
                    }
                }?;
                measured.into_iter().for_each(|sample| samples.add(sample));
            }
        }
        Ok(samples)
    }

    fn cell(&self, policy: usize, replication: u64) -> ReplicationCell<'_> {
        let (label, quantities) = (self.labels[policy], self.quantities);
        ReplicationCell { policy, label, replication, quantities }
    }

    /// The cells of the first round that this process is to have.
    fn expected(&self, progress: &Progress<'_>) -> u64 {
        let policies = self.labels.len();
        let Some(store) = progress.store() else { return self.least * policies as u64 };
        let cells = (0..policies).flat_map(|policy| (0..self.least).map(move |at| (policy, at)));
        cells.filter(|(policy, at)| store.is_wanted(&self.cell(*policy, *at))).count() as u64
    }

    /// The replications to run next; `None` if those done are enough.
    fn next_round(&self, done: u64, samples: &[Samples]) -> Option<Range<u64>> {
        if done == 0 {
            return Some(0..self.least);
        }
        let target = self.precision.filter(|target| done < target.most)?;
        let enough = self.is_precise(samples);
        (!enough).then(|| done..target.most.min(done + ROUND))
    }

    /// Whether the required figure is known precisely enough under every policy.
    fn is_precise(&self, samples: &[Samples]) -> bool {
        self.precision.is_none_or(|target| {
            let relative =
                |samples: &Samples| estimate_of(&samples.values[target.quantity]).relative();
            samples.iter().all(|samples| relative(samples) <= target.relative)
        })
    }

    /// Notices about the precision of the figures, and about open apps, whose requests pile up
    /// because no client waits for an answer.
    pub(super) fn notices(&self, samples: &[Samples], apps: &[(&str, bool)]) -> Vec<String> {
        let mut notices = Vec::new();
        if !self.is_precise(samples)
            && let Some(target) = self.precision
        {
            notices.push(format!(
                "after {} replications {} is not known to ±{} % under every policy: raise \
                 run.precision.most, or run longer",
                target.most,
                self.quantities[target.quantity].id,
                number_text(100.0 * target.relative)
            ));
        }
        if samples.iter().any(|samples| samples.replications() < 2) {
            notices.push("one replication has no interval: run at least two".to_owned());
        }
        for (label, samples) in self.labels.iter().zip(samples) {
            notices.extend(samples.warnings(label, apps));
        }
        notices
    }
}

/// Returns a policy with its measurements.
pub(super) fn policy_outcome(policy: &impl Labelled, samples: Samples) -> PolicyOutcome {
    let Described { label, name, epoch, .. } = policy.described();
    PolicyOutcome {
        label: label.to_owned(),
        policy: name.to_owned(),
        epoch,
        values: samples.values,
        otherwise: Vec::new(),
    }
}

impl Samples {
    fn replications(&self) -> usize {
        self.values.first().map_or(0, Vec::len)
    }

    fn add(&mut self, sample: Sample) {
        self.values.resize_with(sample.values.len(), Vec::new);
        self.arrived.resize(sample.requests.len(), 0);
        self.left.resize(sample.requests.len(), 0);
        for (values, value) in self.values.iter_mut().zip(sample.values) {
            values.push(value);
        }
        for (at, (arrived, left)) in sample.requests.into_iter().enumerate() {
            self.arrived[at] += arrived;
            self.left[at] += left;
        }
    }

    /// Notices about apps whose figures mislead.
    fn warnings(&self, label: &str, apps: &[(&str, bool)]) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.replications() == 0 {
            return warnings;
        }
        for (at, (name, is_open)) in apps.iter().enumerate() {
            let (arrived, left) = (self.arrived[at] as f64, self.left[at] as f64);
            if arrived == 0.0 {
                warnings.push(format!("policy `{label}`: no request of app `{name}` arrived"));
            }
            // Beyond chance: five standard deviations of a Poisson count.
            let many = left > UNANSWERED * arrived && left > 5.0 * arrived.sqrt();
            if many && *is_open {
                warnings.push(format!(
                    "policy `{label}`: {:.1} % of the requests of app `{name}` were not answered \
                     before the end: the system does not keep up, and its response times grow \
                     with the length of the run",
                    100.0 * left / arrived
                ));
            }
        }
        warnings
    }
}
