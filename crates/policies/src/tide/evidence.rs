//! What was seen since the level last changed.
//!
//! One period of a lightly loaded app has some hundred requests; its p95 is
//! then known to a quarter. Over several periods at one level and load the mean
//! of the tails is known better, and the mean of their upper ends says how far
//! up chance alone carries a period's tail.

use super::reading::Reading;
use lull_control::{AppId, Observation};

/// Change of load after which what was seen says nothing of now (ours).
const LOAD_CHANGE: f64 = 0.2;

/// Periods at one level and load.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    sums: Vec<Sum>,
    /// Requests offered per second by app when it began.
    offered: Vec<Option<f64>>,
}

/// Sums over the periods in which an app was at work.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    value: f64,
    high: f64,
    periods: u32,
}

/// The app that stands worst over all these periods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pooled {
    pub(super) app: AppId,
    /// Mean tail over bound.
    pub(super) value: f64,
    /// Mean upper end of a period's tail over bound.
    pub(super) high: f64,
    pub(super) periods: u32,
}

impl Evidence {
    /// None yet.
    pub(super) fn new(apps: usize) -> Self {
        Self { sums: vec![Sum::default(); apps], offered: Vec::new() }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.sums.fill(Sum::default());
        self.offered.clear();
    }

    /// Adds a period; where the load has changed it is the first.
    pub(super) fn note(&mut self, all: &[Reading], seen: &Observation) {
        let offered: Vec<_> = seen
            .apps
            .iter()
            .map(|app| app.latency.as_ref().ok().map(|latency| latency.offered_per_s))
            .collect();
        let seconds = seen.epoch.as_secs_f64().max(f64::MIN_POSITIVE);
        let pairs = self.offered.iter().zip(&offered);
        if pairs.into_iter().any(|(then, now)| has_changed(*then, *now, seconds)) {
            self.clear();
        }
        if self.offered.is_empty() {
            self.offered = offered;
        }
        for one in all {
            let sum = &mut self.sums[one.app.index()];
            sum.value += one.tail.value;
            sum.high += one.tail.high;
            sum.periods += 1;
        }
    }

    /// The worst of all apps; `None` before anything was seen.
    pub(super) fn worst(&self) -> Option<Pooled> {
        let pooled = |(app, sum): (u16, &Sum)| {
            let periods = f64::from(sum.periods);
            (sum.periods > 0).then(|| Pooled {
                app: AppId(app),
                value: sum.value / periods,
                high: sum.high / periods,
                periods: sum.periods,
            })
        };
        let all = (0u16..).zip(&self.sums).filter_map(pooled);
        all.max_by(|a, b| a.high.total_cmp(&b.high))
    }
}

/// By more than a fifth, and by more than three deviations of a Poisson count.
fn has_changed(then: Option<f64>, now: Option<f64>, seconds: f64) -> bool {
    let (Some(then), Some(now)) = (then, now) else { return then.is_some() != now.is_some() };
    let chance = 3.0 * (then.max(now) / seconds).sqrt();
    (now - then).abs() > (LOAD_CHANGE * then).max(chance)
}

#[cfg(test)]
mod tests {
    use super::super::reading::Bounded;
    use super::*;
    use crate::testing::{lc, observation};
    use lull_measure::Nanos;

    fn note(evidence: &mut Evidence, value: f64, per_s: f64) {
        let mut app = lc(5.0);
        app.latency.as_mut().unwrap().offered_per_s = per_s;
        let seen = observation(Nanos::from_secs(1), Nanos::from_secs(1), vec![app]);
        let tail = Bounded { low: value - 0.2, value, high: value + 0.2 };
        evidence.note(&[Reading { app: AppId(0), tail }], &seen);
    }

    #[test]
    fn periods_are_pooled_until_the_load_changes_by_more_than_chance() {
        let mut evidence = Evidence::new(1);
        assert_eq!(evidence.worst(), None);
        for (value, per_s) in [(0.6, 1_000.0), (0.8, 1_080.0), (0.7, 920.0)] {
            note(&mut evidence, value, per_s);
        }
        let pooled = evidence.worst().unwrap();
        assert!((pooled.value - 0.7).abs() < 1e-12 && (pooled.high - 0.9).abs() < 1e-12);
        assert_eq!(pooled.periods, 3);
        note(&mut evidence, 0.9, 2_000.0);
        assert_eq!(evidence.worst().unwrap().periods, 1, "another load is another matter");
        evidence.clear();
        assert_eq!(evidence.worst(), None);
    }

    #[test]
    fn a_few_requests_more_or_less_are_chance() {
        assert!(!has_changed(Some(20.0), Some(30.0), 1.0));
        assert!(has_changed(Some(2_000.0), Some(3_000.0), 1.0));
        assert!(has_changed(None, Some(1.0), 1.0));
    }
}
