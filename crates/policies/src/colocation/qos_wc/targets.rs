//! Objectives converted to a mean latency (REEF, Li et al., SoCC'25, section 3.5).
//!
//! ```text
//! throughput x      w = n/x                      n queries at a time (Little's law)
//! percentile p, l   w = l/rho                    rho = p-th percentile over mean, measured
//! disengagement u   w = s mean                   s the most with mean g(s latency) <= u (ours)
//! nothing           w = infinity
//! ```
//!
//! The ratio is taken over the last 10 s or so (ours); where nothing was
//! answered yet it is 1. An app with several promises has the strictest target.

use lull_control::{AppId, AppSpec, Objective, Observation};
use lull_measure::compliance::Patience;
use lull_measure::{Latency, Nanos, Percentile};

/// Latencies are remembered for one to two of these.
const HALF: Nanos = Nanos::from_secs(5);
/// The factor by which an area without an objective is laxer than the laxest objective.
const LAX: f64 = 1000.0;

/// Recent latencies of all apps.
#[derive(Debug, Clone)]
pub(super) struct Shapes {
    now: Vec<Latency>,
    before: Vec<Latency>,
    spent: Nanos,
}

impl Shapes {
    pub(super) fn new(apps: usize) -> Self {
        let empty = vec![Latency::default(); apps];
        Self { now: empty.clone(), before: empty, spent: Nanos::ZERO }
    }

    /// Takes note of an epoch.
    pub(super) fn note(&mut self, seen: &Observation) {
        if self.spent >= HALF {
            std::mem::swap(&mut self.now, &mut self.before);
            self.now.iter_mut().for_each(Latency::clear);
            self.spent = Nanos::ZERO;
        }
        self.spent += seen.epoch;
        for (latency, app) in self.now.iter_mut().zip(&seen.apps) {
            if let Ok(seen) = &app.latency {
                latency.merge(&seen.window);
            }
        }
    }

    fn merged(&self, app: AppId) -> Latency {
        let mut all = self.before[app.index()].clone();
        all.merge(&self.now[app.index()]);
        all
    }

    /// Returns a recent tail, in seconds.
    pub(super) fn tail_s(&self, app: AppId, at: Percentile) -> Option<f64> {
        self.merged(app).quantile(at).map(Nanos::as_secs_f64)
    }

    /// The strictest target of an app, in seconds.
    pub(super) fn target_s(&self, app: AppId, spec: &AppSpec) -> f64 {
        let latency = self.merged(app);
        let each = spec.objectives.iter().map(|objective| target_s(*objective, spec, &latency));
        each.fold(f64::INFINITY, f64::min)
    }
}

/// Queries that an app may have at a time: one a thread, for clients wait for answers.
pub(super) fn queries(spec: &AppSpec) -> f64 {
    f64::from(spec.threads.unwrap_or(1).max(1))
}

fn target_s(objective: Objective, spec: &AppSpec, latency: &Latency) -> f64 {
    let mean_s = latency.mean().map(Nanos::as_secs_f64).filter(|mean_s| *mean_s > 0.0);
    match objective {
        Objective::Throughput { floor_per_s } => queries(spec) / floor_per_s,
        Objective::Tail { percentile, bound } => {
            let tail_s = latency.quantile(percentile).map(Nanos::as_secs_f64);
            let ratio = tail_s.zip(mean_s).map_or(1.0, |(tail_s, mean_s)| tail_s / mean_s);
            bound.as_secs_f64() / ratio.max(f64::MIN_POSITIVE)
        }
        Objective::Disengagement { ratio } => {
            let patience = Patience::OURS;
            let mean_s = mean_s.unwrap_or(patience.start.as_secs_f64());
            mean_s * stretch(latency, patience, ratio)
        }
    }
}

/// Returns the largest factor by which latencies can grow before this share of users leaves, by
/// bisection.
fn stretch(latency: &Latency, patience: Patience, ratio: f64) -> f64 {
    let count = latency.count();
    if count == 0 {
        return 1.0;
    }
    let gone = |factor: f64| {
        let each = latency.buckets();
        let sum: f64 =
            each.map(|(value, number)| patience.gone(value.scale(factor)) * number as f64).sum();
        sum / count as f64
    };
    let (mut low, mut high) = (1.0 / 1024.0, 1024.0);
    for _ in 0..40 {
        let middle: f64 = f64::sqrt(low * high);
        if gone(middle) <= ratio { low = middle } else { high = middle }
    }
    low
}

/// Targets as they are clustered: logarithms, and no infinities.
pub(super) fn to_cluster(targets_s: &[f64]) -> Vec<f64> {
    let finite = targets_s.iter().copied().filter(|target_s| target_s.is_finite());
    let lax = finite.fold(f64::MIN_POSITIVE, f64::max) * LAX;
    let log = |target_s: &f64| target_s.clamp(f64::MIN_POSITIVE, lax).ln();
    targets_s.iter().map(log).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(objective: Objective, threads: u32) -> AppSpec {
        let objectives = vec![objective];
        AppSpec { objectives, threads: Some(threads), ..AppSpec::best_effort("app") }
    }

    /// 98 answers of 1 ms and two of 51 ms: mean 2 ms, p99 51 ms.
    fn latency() -> Latency {
        let mut latency = Latency::default();
        latency.record_many(Nanos::from_millis(1), 98);
        latency.record_many(Nanos::from_millis(51), 2);
        latency
    }

    fn target(objective: Objective, latency: &Latency) -> f64 {
        target_s(objective, &spec(objective, 4), latency)
    }

    #[test]
    fn a_throughput_is_a_mean_latency_by_littles_law() {
        let floor = Objective::Throughput { floor_per_s: 100.0 };
        assert_eq!(target(floor, &Latency::default()), 0.04);
    }

    #[test]
    fn a_percentile_is_one_by_its_measured_ratio() {
        let tail = Objective::Tail { percentile: Percentile::P99, bound: Nanos::from_millis(102) };
        assert!((target(tail, &latency()) - 0.004).abs() < 1e-5, "102 ms over 51/2");
        assert_eq!(target(tail, &Latency::default()), 0.102, "nothing is known yet");
    }

    #[test]
    fn disengagement_is_one_by_how_far_latencies_may_stretch() {
        let users = Objective::Disengagement { ratio: 0.001 };
        let latency: Latency = [Nanos::from_millis(1); 100].into_iter().collect();
        // 1 - exp(-(w - 20 ms)/2 s) = 0.001 at w = 22.001 ms.
        assert!((target(users, &latency) - 0.022).abs() < 1e-4, "{}", target(users, &latency));
    }

    #[test]
    fn nothing_promised_is_laxer_than_any_promise_and_finite() {
        let all = to_cluster(&[0.01, f64::INFINITY, 0.1]);
        assert!(all[1] > all[2] && all[2] > all[0] && all[1].is_finite());
        assert!(to_cluster(&[f64::INFINITY; 2]).iter().all(|value| value.is_finite()));
    }

    #[test]
    fn what_is_long_ago_does_not_shape_a_target() {
        let mut shapes = Shapes::new(1);
        let spec =
            spec(Objective::Tail { percentile: Percentile::P50, bound: Nanos::from_millis(10) }, 1);
        let epoch = |latency_ms| {
            let seen = crate::testing::lc(latency_ms);
            crate::testing::observation(Nanos::ZERO, Nanos::from_secs(1), vec![seen])
        };
        (0..10).for_each(|_| shapes.note(&epoch(40.0)));
        assert!((shapes.tail_s(AppId(0), Percentile::P99).unwrap() - 0.04).abs() < 1e-4);
        (0..11).for_each(|_| shapes.note(&epoch(1.0)));
        assert!((shapes.tail_s(AppId(0), Percentile::P99).unwrap() - 0.001).abs() < 1e-5);
        assert!((shapes.target_s(AppId(0), &spec) - 0.01).abs() < 1e-4);
    }
}
