//! CLITE's score of a division (section 4, equation 3).

use lull_control::{AppAssessment, AppObservation, AppSpec};

/// How one app did in one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Reading {
    /// Bound over tail: 1 and above is met. Infinite for an idle app.
    Critical(f64),
    /// Progress per second; `None` if it cannot be read.
    BestEffort(Option<f64>),
}

/// Reads the result of one app; `None` if it cannot be scored yet.
pub(super) fn read(
    spec: &AppSpec,
    seen: &AppObservation,
    stand: &AppAssessment,
) -> Option<Reading> {
    if !spec.is_latency_critical() {
        return Some(Reading::BestEffort(stand.be.map(|be| be.real)));
    }
    let (_, bound) = spec.tail()?;
    let latency = seen.latency.as_ref().ok()?;
    let tail = stand.tail.filter(|tail| !tail.stale || latency.outstanding > 0);
    let room = match tail {
        Some(tail) => bound.as_secs_f64() / tail.latency.as_secs_f64().max(1e-9),
        None if latency.outstanding == 0 => f64::INFINITY,
        None => return None,
    };
    Some(Reading::Critical(room))
}

/// Whether a bound is met; best-effort apps have none.
pub(super) fn is_met(reading: Reading) -> bool {
    !matches!(reading, Reading::Critical(room) if room < 1.0)
}

/// The result of each app with all that it can have.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    most: Vec<Option<f64>>,
}

impl Scale {
    /// Creates a scale from the trials in which each app had the most. A best-effort
    /// app's progress alone, where it is known, is used until its trial has been run.
    pub(super) fn from_trials<'a>(
        with_most: Vec<Option<Reading>>,
        specs: impl Iterator<Item = &'a AppSpec>,
    ) -> Self {
        let most = |(reading, spec): (Option<Reading>, &AppSpec)| match reading {
            Some(Reading::Critical(room)) => Some(room),
            Some(Reading::BestEffort(progress)) => progress.or(spec.solo_per_s),
            None => spec.solo_per_s,
        };
        let most = with_most.into_iter().zip(specs).map(most);
        Self { most: most.map(|most| most.filter(|most| *most > 0.0)).collect() }
    }

    /// A value as a share of the most, at most 1; 1 where the most is not known.
    fn share(&self, place: usize, value: f64) -> f64 {
        match self.most[place] {
            // An idle app now or then is not slower than it could be.
            Some(most) if most.is_finite() && value.is_finite() => (value / most).min(1.0),
            _ => 1.0,
        }
    }
}

/// How well one app did by itself, at most 1.
pub(super) fn performance(reading: Reading, scale: &Scale, place: usize) -> f64 {
    match reading {
        Reading::Critical(room) => room.min(1.0),
        Reading::BestEffort(progress) => progress.map_or(0.0, |value| scale.share(place, value)),
    }
}

/// The score, in [0, 1]: at most 1/2 if some bound is missed, at least 1/2 if none is.
pub(super) fn score(readings: &[Reading], scale: &Scale) -> f64 {
    let rooms = || {
        readings.iter().enumerate().filter_map(|(place, reading)| match reading {
            Reading::Critical(room) => Some((place, *room)),
            Reading::BestEffort(_) => None,
        })
    };
    if rooms().any(|(_, room)| room < 1.0) {
        return 0.5 * geometric_mean(rooms().map(|(_, room)| room.min(1.0))).unwrap_or(0.0);
    }
    let progress = readings.iter().enumerate().filter_map(|(place, reading)| match reading {
        Reading::BestEffort(Some(value)) => Some(scale.share(place, *value)),
        _ => None,
    });
    let best_effort = geometric_mean(progress);
    let instead = || geometric_mean(rooms().map(|(place, room)| scale.share(place, room)));
    0.5 + 0.5 * best_effort.or_else(instead).unwrap_or(0.0)
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, product) =
        values.fold((0u32, 1.0), |(count, product), value| (count + 1, product * value));
    (count > 0).then(|| f64::powf(product, 1.0 / f64::from(count)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reading::{BestEffort, Critical};

    fn scale(most: &[Option<f64>]) -> Scale {
        Scale { most: most.to_vec() }
    }

    #[test]
    fn a_missed_bound_scores_by_how_far_it_was_missed() {
        // Half of sqrt(0.25 * 1): an app within its bound does not compensate for one that
        // misses it.
        let readings = [Critical(0.25), Critical(3.0), BestEffort(Some(100.0))];
        assert!((score(&readings, &scale(&[None, None, Some(100.0)])) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn with_all_bounds_met_best_effort_work_is_the_score() {
        let readings = [Critical(1.0), BestEffort(Some(25.0)), BestEffort(Some(300.0))];
        // 1/2 + 1/2 sqrt(0.25 * 1): faster than at most counts as 1.
        let scale = scale(&[None, Some(100.0), Some(100.0)]);
        assert!((score(&readings, &scale) - 0.75).abs() < 1e-12);
    }

    #[test]
    fn without_best_effort_apps_tails_take_their_place() {
        let scale = scale(&[Some(4.0), Some(2.0)]);
        let readings = [Critical(1.0), Critical(2.0)];
        assert!((score(&readings, &scale) - 0.75).abs() < 1e-12);
    }

    #[test]
    fn the_two_halves_meet_at_one_half() {
        let scale = scale(&[None, Some(100.0)]);
        let just_met = score(&[Critical(1.0), BestEffort(Some(0.0))], &scale);
        let just_missed = score(&[Critical(1.0 - 1e-9), BestEffort(Some(100.0))], &scale);
        assert!((just_met - 0.5).abs() < 1e-12 && (just_missed - 0.5).abs() < 1e-8);
    }

    #[test]
    fn an_idle_app_meets_its_bound_and_a_missing_progress_is_left_out() {
        let scale = scale(&[Some(2.0), Some(100.0), Some(100.0)]);
        let readings = [Critical(f64::INFINITY), BestEffort(None), BestEffort(Some(49.0))];
        assert!((score(&readings, &scale) - (0.5 + 0.5 * 0.49)).abs() < 1e-12);
        assert!(is_met(Critical(f64::INFINITY)) && is_met(BestEffort(None)));
        assert!(!is_met(Critical(0.99)));
    }
}
