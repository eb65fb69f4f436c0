//! Which tail objective an app of a record had in each epoch: that of its config, or the one that
//! a pod or a `LatencyObjective` brought while it had the app.

use super::epochs::Epochs;
use super::{Database, SummedApp};
use lull_measure::catalogue::{Scope, TAIL_BOUND, TAIL_OBJECTIVE};
use lull_measure::{Nanos, Percentile};
use std::collections::BTreeMap;

type Tail = (Percentile, Nanos);

/// Millionths of a percent in a percent.
const MILLION: f64 = 1e6;

/// A tail objective, which distinguishes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailObjective {
    /// The longest latency at the percentile.
    pub bound: Nanos,
    /// The percentile in millionths of a percent, which have an order.
    percent_millionths: u32,
}

impl TailObjective {
    /// The percentile in percent.
    pub fn percent(self) -> f64 {
        f64::from(self.percent_millionths) / MILLION
    }
}

impl From<Tail> for TailObjective {
    fn from((percentile, bound): Tail) -> Self {
        Self { bound, percent_millionths: (percentile.percent() * MILLION).round() as u32 }
    }
}

/// The tail objectives of the latency-critical apps of a record.
#[derive(Debug)]
pub(super) struct ObjectiveHistory {
    /// Indexed by app: the epochs from which it had each objective or none, ascending; the first is
    /// of the config.
    by_app: BTreeMap<String, Vec<(i64, Option<Tail>)>>,
}

impl ObjectiveHistory {
    /// Reads them. Records of older agents have those of the config only.
    pub(super) fn read(
        record: &Database,
        epochs: &Epochs,
        apps: &[SummedApp],
    ) -> anyhow::Result<Self> {
        let critical = apps.iter().filter(|app| app.spec.is_latency_critical());
        let of_config = |app: &SummedApp| vec![(i64::MIN, app.spec.tail())];
        let mut by_app: BTreeMap<String, Vec<(i64, Option<Tail>)>> =
            critical.map(|app| (app.spec.name.clone(), of_config(app))).collect();
        let metrics = [TAIL_BOUND, TAIL_OBJECTIVE];
        if !Epochs::has_columns(record, Scope::App, &metrics)? {
            return Ok(Self { by_app });
        }
        epochs.each_row(record, Scope::App, metrics, |epoch, app, [bound_s, share]| {
            // A pod without an objective has that of no other pod.
            let tail = bound_s.zip(share).and_then(|(bound_s, share)| tail(bound_s, share));
            let Some(changes) = by_app.get_mut(app) else { return };
            if changes.last().is_none_or(|(_, last)| *last != tail) {
                changes.push((epoch.number, tail));
            }
        })?;
        Ok(Self { by_app })
    }

    /// The objective of an app in an epoch, if it is latency-critical and has one.
    pub(super) fn tail(&self, app: &str, epoch: i64) -> Option<Tail> {
        let changes = self.by_app.get(app)?;
        let begun = changes.partition_point(|(from, _)| *from <= epoch);
        changes.get(begun.checked_sub(1)?).and_then(|(_, tail)| *tail)
    }
}

/// An objective from its metrics: a bound in seconds, and the share that may not be later.
fn tail(bound_s: f64, share: f64) -> Option<Tail> {
    // A share is a hundredth of the percentile, with the error of its division.
    let percent = (share * 100.0 * MILLION).round() / MILLION;
    Some((Percentile::new(percent).ok()?, Nanos::from_secs_f64(bound_s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_the_same_after_it_was_recorded() {
        for percent in [50.0, 95.0, 99.0, 99.9, 99.99] {
            let percentile = Percentile::new(percent).unwrap();
            for bound in [Nanos(1), Nanos::from_millis(5), Nanos::from_millis(50), Nanos(1_234_567)]
            {
                let read = tail(bound.as_secs_f64(), percentile.fraction());
                assert_eq!(read, Some((percentile, bound)));
                assert_eq!(TailObjective::from((percentile, bound)).percent(), percent);
            }
        }
        assert_eq!(tail(0.05, 1.0), None);
    }
}
