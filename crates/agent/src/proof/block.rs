//! One block of a proof: sums over its epochs, its settling time left out.

use lull_control::{AppId, AppSpec, Epoch};
use lull_measure::{Joules, Latency, Missing, Nanos, Percentile};

/// The measurements of one block.
#[derive(Debug, Clone, Default)]
pub struct Block {
    apps: Vec<AppSums>,
    energy: Joules,
    span: Nanos,
    /// The source of energy figures, or the reason why some of them are unknown.
    source: Option<Result<String, Missing>>,
    /// Epochs that were added.
    pub(super) epochs: u64,
    /// Epochs in which the SLO-safe state was in force instead of the policy.
    pub(super) safe_epochs: u64,
}

#[derive(Debug, Clone, Default)]
struct AppSums {
    latency: Latency,
    /// Time in which its requests were seen.
    seen: Nanos,
    /// Fresh tails of epochs, in milliseconds, for a source that gives only these.
    tails_ms: Vec<f64>,
    work: f64,
    worked: Nanos,
    unit: Option<String>,
    /// Epochs in which it was absent or was restarted.
    disturbed: u64,
}

impl AppSums {
    fn has_tails_only(&self) -> bool {
        self.latency.count() == 0 && !self.tails_ms.is_empty()
    }
}

impl Block {
    /// Adds one epoch.
    pub fn add(&mut self, epoch: &Epoch) {
        let length = epoch.seen.epoch;
        self.apps.resize_with(epoch.seen.apps.len(), AppSums::default);
        let seen = (0..).map(AppId).zip(&epoch.seen.apps);
        let each = self.apps.iter_mut().zip(seen).zip(&epoch.assessment.apps);
        for ((sums, (app, seen)), stand) in each {
            sums.disturbed += u64::from(!seen.alive || epoch.seen.restarted.contains(&app));
            let fresh = stand.tail.filter(|tail| !tail.stale);
            sums.tails_ms.extend(fresh.map(|tail| tail.latency.as_millis_f64()));
            if let Ok(latency) = &seen.latency {
                sums.latency.merge(&latency.window);
                sums.seen += length;
            }
            if let Ok(progress) = &seen.progress {
                sums.work += progress.per_s * length.as_secs_f64();
                sums.worked += length;
                sums.unit = Some(progress.source.to_string());
            }
        }
        match (&epoch.seen.energy, &self.source) {
            // With energy missing in one epoch the sum would be too small: it is dropped.
            (_, Some(Err(_))) => {}
            (Ok(seen), _) => {
                self.energy += seen.energy;
                self.source = Some(Ok(seen.source.to_string()));
            }
            (Err(why), _) => self.source = Some(Err(why.clone())),
        }
        self.span += length;
        self.epochs += 1;
        self.safe_epochs += u64::from(epoch.safe);
    }

    /// Epochs in which an app was absent or was restarted.
    pub(super) fn disturbed_epochs(&self, app: usize) -> u64 {
        self.apps.get(app).map_or(0, |sums| sums.disturbed)
    }

    /// Latency of an app, in milliseconds.
    pub(super) fn latency_ms(&self, app: usize, at: Percentile) -> Option<f64> {
        self.apps.get(app)?.latency.quantile(at).map(Nanos::as_millis_f64)
    }

    /// Mean of the tails of an app's epochs, where its requests are not seen one by one.
    pub(super) fn mean_tail_ms(&self, app: usize) -> Option<f64> {
        let sums = self.apps.get(app).filter(|sums| sums.has_tails_only())?;
        Some(sums.tails_ms.iter().sum::<f64>() / sums.tails_ms.len() as f64)
    }

    /// Requests of an app answered per second.
    pub(super) fn answered_per_s(&self, app: usize) -> Option<f64> {
        let is_known = |sums: &&AppSums| sums.seen > Nanos::ZERO && !sums.has_tails_only();
        let sums = self.apps.get(app).filter(is_known)?;
        Some(sums.latency.count() as f64 / sums.seen.as_secs_f64())
    }

    /// Work of an app per second.
    pub(super) fn progress_per_s(&self, app: usize) -> Option<f64> {
        let sums = self.apps.get(app).filter(|sums| sums.worked > Nanos::ZERO)?;
        Some(sums.work / sums.worked.as_secs_f64())
    }

    /// The unit of that work.
    pub(super) fn unit(&self, app: usize) -> Option<&str> {
        self.apps.get(app)?.unit.as_deref()
    }

    /// Returns the source of energy figures, or the reason why energy is unknown; `None` of an
    /// empty block.
    pub(super) fn energy_source(&self) -> Option<Result<&str, &Missing>> {
        self.source.as_ref().map(|source| source.as_deref())
    }

    /// Mean power in watts.
    pub(super) fn power_w(&self) -> Option<f64> {
        let is_known = matches!(self.source, Some(Ok(_)));
        let power = is_known.then(|| self.energy.over(self.span))??;
        Some(power.0)
    }

    /// Energy over all requests of these apps, in joules.
    pub(super) fn energy_per_request_j(&self, apps: &[AppSpec]) -> Option<f64> {
        let is_known = matches!(self.source, Some(Ok(_)));
        let each = apps.iter().zip(&self.apps).filter(|(spec, _)| spec.is_latency_critical());
        let count: u64 = each.map(|(_, sums)| sums.latency.count()).sum();
        (is_known && count > 0).then(|| self.energy.0 / count as f64)
    }
}
