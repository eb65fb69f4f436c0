//! Cache lanes: each latency-critical app has ways of its own.
//!
//! Priority does not protect cache. In a shared cache apps get ways in proportion to their miss
//! traffic, so an app with few requests gets few, although its tail needs them as much. The ways
//! are therefore divided evenly between the latency-critical apps that are present, and then move
//! one at a time from the app with the lowest ratio of tail to bound to the one with the highest.
//! When such an app arrives or departs they are divided evenly again. Best-effort work may fill
//! the first lanes, which belong to the most tolerant apps.

use lull_control::{AppId, AppSpec, WayMask};

/// The difference by which the receiver's ratio of tail to bound must exceed the giver's (ours).
const APART: f64 = 0.2;

/// The ways that each app fills.
#[derive(Debug, Clone)]
pub(super) struct Lanes {
    /// The apps from the first way on.
    order: Vec<AppId>,
    /// Indexed by position in `order`.
    ways: Vec<u32>,
}

impl Lanes {
    /// Creates even lanes of these latency-critical apps; `None` for fewer than two, and where not
    /// each can have a way.
    pub(super) fn even(apps: &[AppSpec], critical: &[AppId], ways: u32) -> Option<Self> {
        let mut order = critical.to_vec();
        let count = order.len() as u32;
        if count < 2 || count > ways {
            return None;
        }
        let tolerance = |app: &AppId| {
            let spec = &apps[app.index()];
            let (ideal, (_, bound)) = (spec.ideal?, spec.tail()?);
            Some(1.0 - ideal.as_secs_f64() / bound.as_secs_f64())
        };
        // Stable: apps of unknown tolerance stay in the order of the config, last.
        order.sort_by(|a, b| {
            let known = |app| tolerance(app).unwrap_or(f64::NEG_INFINITY);
            known(b).total_cmp(&known(a))
        });
        // The last lanes get the remaining ways: they belong to the least tolerant apps.
        let share = |place: u32| ways / count + u32::from(place >= count - ways % count);
        Some(Self { ways: (0..count).map(share).collect(), order })
    }

    /// The ways of an app.
    pub(super) fn mask(&self, app: AppId) -> Option<WayMask> {
        let place = self.order.iter().position(|one| *one == app)?;
        let first = self.ways[..place].iter().sum();
        Some(WayMask::run(first, self.ways[place]))
    }

    /// Moves a way from the app with the best value to the one with the worst, if they
    /// are far enough apart; returns whether it did.
    pub(super) fn even_out(&mut self, assessment: &[(AppId, f64)]) -> bool {
        let place = |app: AppId| self.order.iter().position(|one| *one == app);
        let placed = assessment.iter().filter_map(|(app, value)| Some((place(*app)?, *value)));
        let placed: Vec<(usize, f64)> = placed.collect();
        let worst = placed.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let can_give = placed.iter().filter(|(place, _)| self.ways[*place] > 1);
        let best = can_give.min_by(|a, b| a.1.total_cmp(&b.1));
        let (Some(worst), Some(best)) = (worst, best) else { return false };
        if worst.1 - best.1 < APART {
            return false;
        }
        self.ways[best.0] -= 1;
        self.ways[worst.0] += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{be_spec, lc_spec};
    use lull_measure::Nanos;

    fn lanes(ways: u32) -> Option<Lanes> {
        let ideal = |name, ms| AppSpec { ideal: Some(Nanos::from_millis(ms)), ..lc_spec(name) };
        let apps = [ideal("strict", 8), be_spec("be"), ideal("tolerant", 1)];
        Lanes::even(&apps, &[AppId(0), AppId(2)], ways)
    }

    #[test]
    fn lanes_are_even_and_best_effort_work_reaches_into_the_most_tolerant() {
        let lanes = lanes(5).unwrap();
        assert_eq!(lanes.mask(AppId(2)), Some(WayMask::run(0, 2)));
        assert_eq!(lanes.mask(AppId(0)), Some(WayMask::run(2, 3)));
        assert_eq!(lanes.mask(AppId(1)), None);
    }

    #[test]
    fn a_way_goes_from_best_to_worst_while_they_are_far_apart() {
        let mut lanes = lanes(4).unwrap();
        let far = [(AppId(0), 0.9), (AppId(2), 0.5)];
        assert!(lanes.even_out(&far));
        assert_eq!(lanes.mask(AppId(0)), Some(WayMask::run(1, 3)));
        assert!(!lanes.even_out(&far), "the last way stays");
        assert!(!lanes.even_out(&[(AppId(2), 0.6), (AppId(0), 0.5)]), "not far apart");
        assert!(!lanes.even_out(&[]));
    }

    #[test]
    fn one_app_or_too_few_ways_have_no_lanes() {
        assert!(lanes(1).is_none());
        assert!(Lanes::even(&[lc_spec("only")], &[AppId(0)], 20).is_none());
    }
}
