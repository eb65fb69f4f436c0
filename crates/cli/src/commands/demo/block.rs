//! The measurements of one block of the demo.

use lull_control::{AppId, Epoch};
use lull_measure::entropy::{BeReading, LcReading, RelativeImportance, system_entropy};
use lull_measure::{Joules, Latency, Nanos, Percentile};

/// The readings that one epoch adds to entropy. Solo progress is not part of it, because a run may
/// correct it.
#[derive(Debug)]
struct Readings {
    lc: Option<LcReading>,
    /// Progress of the best-effort app per second.
    progress_per_s: Option<f64>,
}

/// Sums over the epochs of one block, its settling time left out.
#[derive(Debug, Default)]
pub(super) struct Block {
    latency: Latency,
    readings: Vec<Readings>,
    energy: Option<Joules>,
    span: Nanos,
}

impl Block {
    /// Adds one epoch.
    pub(super) fn add(&mut self, epoch: &Epoch, server: AppId, burner: AppId) {
        if let Some(Ok(seen)) = epoch.seen.app(server).map(|app| &app.latency) {
            self.latency.merge(&seen.window);
        }
        let stand = &epoch.assessment.apps;
        let progress_per_s = stand[burner.index()].be.map(|be| be.real);
        self.readings.push(Readings { lc: stand[server.index()].lc, progress_per_s });
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

    /// Progress of the best-effort app, as a share of its solo progress.
    pub(super) fn progress(&self, solo_per_s: f64) -> Option<f64> {
        let rates = self.readings.iter().filter_map(|epoch| epoch.progress_per_s);
        mean(&rates.map(|rate| rate / solo_per_s).collect::<Vec<_>>())
    }

    /// Mean E_S with this solo progress of the best-effort app.
    pub(super) fn entropy(&self, solo_per_s: f64) -> Option<f64> {
        let system = |epoch: &Readings| {
            let be = epoch.progress_per_s.map(|real| BeReading { solo: solo_per_s, real });
            system_entropy(epoch.lc.as_slice(), be.as_slice(), RelativeImportance::default()).system
        };
        mean(&self.readings.iter().map(system).collect::<Vec<_>>())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_and_entropy_follow_the_solo_progress_that_holds_at_the_end() {
        let readings = |rate| Readings { lc: None, progress_per_s: Some(rate) };
        let block = Block { readings: [150.0, 250.0].map(readings).into(), ..Block::default() };
        assert_eq!(block.progress(100.0), Some(2.0), "a solo rate that was too low");
        assert_eq!((block.progress(250.0), block.entropy(250.0)), (Some(0.8), Some(0.2)));
    }
}
