//! Mean offered loads, until a load changes by more than chance.

use lull_control::Observation;

/// Relative change of load after which earlier measurements no longer apply (ours).
const CHANGE: f64 = 0.2;

/// Standard deviations of a Poisson count up to which a change is chance (ours: over hundreds
/// of periods of several apps, three would be exceeded every minute).
const CHANCE: f64 = 4.0;

/// Mean load of each app since it last changed.
#[derive(Debug, Clone, Default)]
pub(super) struct Loads {
    /// Indexed by app; `None` for an app without a load or without a reading.
    offered_per_s: Vec<Option<f64>>,
    /// Time over which the means are taken.
    seconds: f64,
}

impl Loads {
    /// Adds a period. Returns whether its loads differ from those before it.
    pub(super) fn note(&mut self, seen: &Observation) -> bool {
        let offered: Vec<_> = seen
            .apps
            .iter()
            .map(|app| app.latency.as_ref().ok().map(|latency| latency.offered_per_s))
            .collect();
        let seconds = seen.epoch.as_secs_f64().max(f64::MIN_POSITIVE);
        let pairs = self.offered_per_s.iter().zip(&offered);
        let is_other = pairs.into_iter().any(|(then, now)| self.has_changed(*then, *now, seconds));
        if is_other || self.offered_per_s.is_empty() {
            (self.offered_per_s, self.seconds) = (offered, seconds);
            return is_other;
        }
        let share = seconds / (self.seconds + seconds);
        for (mean, now) in self.offered_per_s.iter_mut().zip(offered) {
            *mean = mean.zip(now).map(|(mean, now)| mean + share * (now - mean));
        }
        self.seconds += seconds;
        false
    }

    /// Returns whether a load changed by more than a fifth, and by more than the counts of both
    /// spans differ by chance.
    fn has_changed(&self, then: Option<f64>, now: Option<f64>, seconds: f64) -> bool {
        let (Some(then), Some(now)) = (then, now) else { return then.is_some() != now.is_some() };
        let variance = then.max(now) * (1.0 / seconds + 1.0 / self.seconds);
        (now - then).abs() > (CHANGE * then).max(CHANCE * variance.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{alive, lc, observation};
    use lull_measure::Nanos;

    fn seen(per_s: Option<f64>) -> Observation {
        let app = |per_s| {
            let mut app = lc(5.0);
            app.latency.as_mut().unwrap().offered_per_s = per_s;
            app
        };
        let half = Nanos::from_millis(500);
        observation(half, half, vec![per_s.map_or_else(alive, app)])
    }

    fn changes(loads: &mut Loads, per_s: &[f64]) -> Vec<bool> {
        per_s.iter().map(|per_s| loads.note(&seen(Some(*per_s)))).collect()
    }

    #[test]
    fn a_load_changes_beyond_chance_and_beyond_a_fifth() {
        let mut loads = Loads::default();
        assert_eq!(changes(&mut loads, &[10_000.0, 11_500.0, 12_500.0, 9_500.0]), [false; 4]);
        assert_eq!(changes(&mut loads, &[14_000.0, 14_000.0]), [true, false]);
        // 100 in half a second: four deviations of two such counts are 57, and 40 of one.
        let mut few = Loads::default();
        assert_eq!(changes(&mut few, &[200.0, 300.0, 160.0]), [false; 3]);
        assert_eq!(changes(&mut few, &[400.0]), [true]);
    }

    #[test]
    fn an_app_that_falls_silent_or_speaks_up_is_a_change() {
        let mut loads = Loads::default();
        assert!(!loads.note(&seen(Some(100.0))));
        assert!(loads.note(&seen(None)) && !loads.note(&seen(None)));
        assert!(loads.note(&seen(Some(100.0))));
    }
}
