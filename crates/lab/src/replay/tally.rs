//! Sums over epochs, recorded or simulated.

use super::recording::{RecordedEpoch, Recording};
use lull_control::AppSpec;
use lull_measure::entropy::{
    BeReading, LcReading, RelativeImportance, SystemEntropy, system_entropy,
};
use lull_measure::{Latency, Nanos};

/// Sums over some epochs.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) span_s: f64,
    pub(super) epochs: u64,
    /// Epochs in which some app missed its first tail objective.
    pub(super) missed: u64,
    pub(super) apps: Vec<AppTally>,
}

/// Sums of one app.
#[derive(Debug, Clone, Default)]
pub(super) struct AppTally {
    pub(super) latency: Latency,
    pub(super) offered: f64,
    pub(super) answered: f64,
    pub(super) cpu_s: f64,
    /// Time that its threads waited for cores.
    pub(super) waiting_s: f64,
    /// Work in the unit of the app's `solo_per_s`.
    pub(super) work: f64,
    /// Requests unanswered at the end of the last epoch.
    pub(super) outstanding: u64,
}

/// One epoch of one app, to be added.
#[derive(Debug, Default)]
pub(super) struct AppEpoch<'a> {
    pub(super) latency: Option<&'a Latency>,
    pub(super) offered_per_s: f64,
    pub(super) answered_per_s: f64,
    pub(super) cpu: f64,
    pub(super) waiting: f64,
    pub(super) progress_per_s: f64,
    pub(super) outstanding: u64,
}

impl Tally {
    /// Adds an epoch.
    pub(super) fn add(&mut self, specs: &[AppSpec], length: Nanos, apps: &[AppEpoch<'_>]) {
        let seconds = length.as_secs_f64();
        self.apps.resize_with(specs.len(), AppTally::default);
        self.span_s += seconds;
        self.epochs += 1;
        let missed = specs.iter().zip(apps).any(|(spec, seen)| {
            let tail = spec.tail().filter(|_| spec.is_latency_critical());
            let found = tail.and_then(|(percentile, _)| seen.latency?.quantile(percentile));
            found.zip(tail).is_some_and(|(found, (_, bound))| found > bound)
        });
        self.missed += u64::from(missed);
        for (sum, seen) in self.apps.iter_mut().zip(apps) {
            seen.latency.into_iter().for_each(|latency| sum.latency.merge(latency));
            sum.offered += seen.offered_per_s * seconds;
            sum.answered += seen.answered_per_s * seconds;
            sum.cpu_s += seen.cpu * seconds;
            sum.waiting_s += seen.waiting * seconds;
            sum.work += seen.progress_per_s * seconds;
            sum.outstanding = seen.outstanding;
        }
    }

    /// The sums over these recorded epochs.
    pub(super) fn recorded<'a>(
        recording: &Recording,
        epochs: impl Iterator<Item = &'a RecordedEpoch>,
    ) -> Self {
        let mut tally = Self::default();
        for epoch in epochs {
            let seen = epoch.apps.iter().map(|app| AppEpoch {
                latency: app.latency.as_ref(),
                offered_per_s: app.offered_per_s.unwrap_or(0.0),
                answered_per_s: app.completed_per_s.unwrap_or(0.0),
                cpu: app.cpu.unwrap_or(0.0),
                waiting: app.waiting.unwrap_or(0.0),
                progress_per_s: app.progress_per_s.unwrap_or(0.0),
                outstanding: 0,
            });
            tally.add(&recording.apps, epoch.length, &seen.collect::<Vec<_>>());
        }
        tally
    }

    /// E_S of the tails over all requests and of the mean progress (Ah-Q, section V-B, as in `lull
    /// entropy`).
    pub(super) fn entropy(
        &self,
        specs: &[AppSpec],
        importance: RelativeImportance,
    ) -> SystemEntropy {
        let (mut lc, mut be) = (Vec::new(), Vec::new());
        for (spec, sum) in specs.iter().zip(&self.apps) {
            match spec.tail().filter(|_| spec.is_latency_critical()) {
                Some((percentile, bound)) => {
                    let tail = sum.latency.quantile(percentile).unwrap_or(Nanos::MAX);
                    let ideal = spec.ideal.unwrap_or(bound).min(bound);
                    lc.extend(LcReading::new(ideal, tail, bound));
                }
                None => {
                    let solo = spec.solo_per_s.filter(|solo| *solo > 0.0);
                    be.extend(solo.map(|solo| BeReading { solo, real: sum.work / self.span_s }));
                }
            }
        }
        system_entropy(&lc, &be, importance)
    }
}
