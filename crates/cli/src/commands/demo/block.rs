//! One block of the demo: what was measured in it.

use lull_control::{AppId, Epoch};
use lull_measure::{Joules, Latency, Nanos, Percentile};

/// Sums over the epochs of one block, its settling time left out.
#[derive(Debug, Default)]
pub(super) struct Block {
    latency: Latency,
    progress_shares: Vec<f64>,
    entropies: Vec<f64>,
    energy: Option<Joules>,
    span: Nanos,
}

impl Block {
    /// Adds one epoch.
    pub(super) fn add(&mut self, epoch: &Epoch, server: AppId, burner: AppId) {
        if let Some(Ok(seen)) = epoch.seen.app(server).map(|app| &app.latency) {
            self.latency.merge(&seen.window);
        }
        let standing = &epoch.standing;
        let progress = standing.apps[burner.index()].be;
        self.progress_shares.extend(progress.map(|be| be.real / be.solo));
        self.entropies.push(standing.entropy.system);
        if let Ok(seen) = &epoch.seen.energy {
            self.energy = Some(self.energy.unwrap_or_default() + seen.energy);
        }
        self.span += epoch.seen.epoch;
    }

    /// Latency at a percentile, in seconds.
    pub(super) fn tail_s(&self, at: Percentile) -> Option<f64> {
        self.latency.quantile(at).map(Nanos::as_secs_f64)
    }

    /// Share of the requests over the bound.
    pub(super) fn missed(&self, bound: Nanos) -> Option<f64> {
        let count = self.latency.count();
        (count > 0).then(|| self.latency.count_above(bound) as f64 / count as f64)
    }

    /// Requests answered per second.
    pub(super) fn throughput(&self) -> Option<f64> {
        (self.span > Nanos::ZERO).then(|| self.latency.count() as f64 / self.span.as_secs_f64())
    }

    /// Progress of the best-effort app, as a share of its progress alone.
    pub(super) fn progress(&self) -> Option<f64> {
        mean(&self.progress_shares)
    }

    /// Mean E_S.
    pub(super) fn entropy(&self) -> Option<f64> {
        mean(&self.entropies)
    }

    /// Mean power in watts.
    pub(super) fn power_w(&self) -> Option<f64> {
        self.energy.and_then(|energy| energy.over(self.span)).map(|power| power.0)
    }

    /// Energy over requests, in joules.
    pub(super) fn energy_per_request_j(&self) -> Option<f64> {
        let count = self.latency.count();
        self.energy.filter(|_| count > 0).map(|energy| energy.0 / count as f64)
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
