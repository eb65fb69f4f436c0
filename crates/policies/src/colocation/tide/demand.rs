//! The number of cores that an app needs, by Little's law.
//!
//! An app with φ offered requests per second of s CPU seconds each keeps φ s cores busy.

use lull_control::{AppId, AppSpec, Observation, numbered};
use lull_measure::catalogue::CPU;

/// Requests without which a mean of them says little (ours).
const COUNTED: u64 = 30;

/// CPU time of a request, by app.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    /// The least seen: interference only ever adds to it.
    service_s: Vec<Option<f64>>,
}

impl Demand {
    /// Creates the demand of this many apps, all unknown.
    pub(super) fn new(apps: usize) -> Self {
        Self { service_s: vec![None; apps] }
    }

    /// Learns from a period.
    pub(super) fn note(&mut self, apps: &[AppSpec], seen: &Observation) {
        for ((app, spec), least) in numbered(apps).zip(&mut self.service_s) {
            let Some(now) = seen.app(app).filter(|_| spec.is_latency_critical()) else { continue };
            let (Ok(cpu), Ok(latency)) = (now.readings.get(CPU), &now.latency) else { continue };
            if latency.window.count() >= COUNTED && cpu > 0.0 && cpu.is_finite() {
                let service_s = cpu / latency.completed_per_s;
                *least = Some(least.map_or(service_s, |least| least.min(service_s)));
            }
        }
    }

    /// Cores that an app's requests keep busy, if known.
    fn busy(&self, app: AppId, seen: &Observation) -> Option<f64> {
        let latency = seen.app(app)?.latency.as_ref().ok()?;
        Some(latency.offered_per_s * self.service_s[app.index()]?)
    }

    /// An app's load as a share of what its stated maximum, or its threads, can carry.
    pub(super) fn load(&self, app: AppId, spec: &AppSpec, seen: &Observation) -> Option<f64> {
        if let Some(most) = spec.max_load_per_s {
            return Some(seen.app(app)?.latency.as_ref().ok()?.offered_per_s / most);
        }
        let threads = threads(app, spec, seen)?;
        Some(self.busy(app, seen)? / f64::from(threads.max(1)))
    }

    /// Cores that all latency-critical apps should find free: square-root
    /// staffing, at most one a thread.
    pub(super) fn staff(&self, apps: &[AppSpec], seen: &Observation) -> u32 {
        let of = |(app, spec): (AppId, &AppSpec)| {
            let busy = self.busy(app, seen)?;
            let wanted = (busy + busy.sqrt()).ceil() as u32;
            Some(threads(app, spec, seen).map_or(wanted, |threads| wanted.min(threads)))
        };
        numbered(apps).filter_map(of).sum()
    }
}

fn threads(app: AppId, spec: &AppSpec, seen: &Observation) -> Option<u32> {
    let now = seen.app(app)?;
    spec.threads.or_else(|| now.threads.as_ref().ok().copied())
}
