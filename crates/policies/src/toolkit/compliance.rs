//! Whether apps meet their objectives, over windows that are long enough to decide it.
//!
//! A tail over 100 ms of a few connections is noise, so the share of late requests is counted
//! instead (REEF, Li et al., SoCC'25, section 5.4, as implemented by [`lull_measure::compliance`]),
//! over the last second or a minimum number of requests, whichever is longer. With a p99.9 and 200
//! requests a single late one would be a violation, so the minimum allows at least two (ours).

use lull_control::{AppId, AppObservation, AppSpec, LatencyObservation, Objective, Observation};
use lull_measure::Nanos;
use lull_measure::compliance::{Patience, compliance};
use std::collections::VecDeque;

/// Windows at most that are waited for answers.
const WINDOWS_MAX: u64 = 30;
/// Late answers that a window allows at least.
const LATE: f64 = 2.0;

/// The counts of one app in one epoch, or in several.
#[derive(Debug, Clone, Default)]
struct Counts {
    span: Nanos,
    /// Answers, or units of progress.
    count: f64,
    /// For each objective, the sum of its marks: late answers, or users that have left.
    marks: Vec<f64>,
}

/// One app.
#[derive(Debug, Clone)]
struct Record {
    spec: AppSpec,
    epochs: VecDeque<Counts>,
    sum: Counts,
    answers: f64,
    /// No answer, and a query that waits for longer than its bound.
    is_stuck: bool,
}

/// All apps.
#[derive(Debug, Clone)]
pub(crate) struct ComplianceMonitor {
    window: Nanos,
    least: u64,
    records: Vec<Record>,
}

impl ComplianceMonitor {
    /// Over windows of at least this length and this many answers.
    pub(crate) fn new(apps: &[AppSpec], window: Nanos, least: u64) -> Self {
        let record = |spec: &AppSpec| Record::new(spec, least);
        Self { window, least, records: apps.iter().map(record).collect() }
    }

    /// Sets other objectives; the windows of apps whose objectives changed are cleared.
    pub(crate) fn retarget(&mut self, apps: &[AppSpec]) {
        for (record, spec) in self.records.iter_mut().zip(apps) {
            if record.spec.objectives != spec.objectives {
                *record = Record::new(spec, self.least);
            }
        }
    }

    /// Takes note of an epoch.
    pub(crate) fn note(&mut self, seen: &Observation) {
        for (record, app) in self.records.iter_mut().zip(&seen.apps) {
            record.note(app, seen.epoch, self.window);
        }
    }

    /// Returns the worst of an app's latency objectives: the late share over the allowed one, met
    /// if at most 1; `None` without such an objective or an answer.
    pub(crate) fn compliance(&self, app: AppId) -> Option<f64> {
        self.records.get(app.index())?.compliance()
    }

    /// Returns an app's throughput over its floor, met if at least 1; `None` without a floor.
    pub(crate) fn attainment(&self, app: AppId) -> Option<f64> {
        let record = self.records.get(app.index())?;
        let floors = record.spec.objectives.iter().filter_map(|objective| match objective {
            Objective::Throughput { floor_per_s } => Some(*floor_per_s),
            Objective::Tail { .. } | Objective::Disengagement { .. } => None,
        });
        let rate = record.per_s()?;
        floors.map(|floor| rate / floor).min_by(f64::total_cmp)
    }

    /// Returns whether an objective of an app is missed, as far as the window shows.
    pub(crate) fn is_missed(&self, app: AppId) -> bool {
        self.compliance(app).is_some_and(|late| late > 1.0)
            || self.attainment(app).is_some_and(|share| share < 1.0)
    }

    /// Answers, or units of progress, a second; `None` before the first epoch.
    pub(crate) fn per_s(&self, app: AppId) -> Option<f64> {
        self.records.get(app.index())?.per_s()
    }
}

impl Record {
    fn new(spec: &AppSpec, least: u64) -> Self {
        let needed = |objective: &Objective| match objective {
            Objective::Tail { percentile, .. } => LATE / (1.0 - percentile.fraction()).max(1e-6),
            Objective::Disengagement { .. } | Objective::Throughput { .. } => 0.0,
        };
        let most = spec.objectives.iter().map(needed).fold(0.0, f64::max);
        let sum = Counts { marks: vec![0.0; spec.objectives.len()], ..Counts::default() };
        Self {
            spec: spec.clone(),
            epochs: VecDeque::new(),
            sum,
            answers: most.max(least as f64),
            is_stuck: false,
        }
    }

    fn note(&mut self, seen: &AppObservation, epoch: Nanos, window: Nanos) {
        let marks = vec![0.0; self.spec.objectives.len()];
        let mut counts = Counts { span: epoch, count: 0.0, marks };
        self.is_stuck = false;
        if let Ok(latency) = &seen.latency {
            self.count(latency, &mut counts);
        } else if let Ok(progress) = &seen.progress {
            // NaN counts as no progress.
            let per_s = Some(progress.per_s).filter(|per_s| per_s.is_finite() && *per_s >= 0.0);
            counts.count = per_s.unwrap_or(0.0) * epoch.as_secs_f64();
        }
        self.sum.add(&counts, 1.0);
        self.epochs.push_back(counts);
        while self.has_more_than_needed(window)
            && let Some(first) = self.epochs.pop_front()
        {
            self.sum.add(&first, -1.0);
        }
    }

    fn count(&mut self, latency: &LatencyObservation, counts: &mut Counts) {
        counts.count = latency.window.count() as f64;
        let reported = latency.reported.and_then(|reported| reported.tail);
        if reported.is_some() {
            counts.count = 1.0;
        }
        for (mark, objective) in counts.marks.iter_mut().zip(&self.spec.objectives) {
            *mark = match (objective, reported) {
                (Objective::Tail { bound, .. }, Some(tail)) => f64::from(u8::from(tail > *bound)),
                (Objective::Tail { bound, .. }, None) => latency.window.count_above(*bound) as f64,
                (Objective::Disengagement { .. }, _) => {
                    Patience::OURS.ratio(&latency.window).unwrap_or(0.0) * counts.count
                }
                (Objective::Throughput { .. }, _) => 0.0,
            };
        }
        let bound = self.spec.tail().map_or(Nanos::MAX, |(_, bound)| bound);
        let waits = latency.outstanding > 0 && latency.oldest.is_some_and(|age| age > bound);
        self.is_stuck = waits && counts.count == 0.0;
    }

    /// Whether the oldest epoch can go and enough is left.
    fn has_more_than_needed(&self, window: Nanos) -> bool {
        let Some(first) = self.epochs.front().filter(|_| self.epochs.len() > 1) else {
            return false;
        };
        let span = self.sum.span.saturating_sub(first.span);
        let enough = span >= window && self.sum.count - first.count >= self.answers;
        enough || span >= window * WINDOWS_MAX
    }

    fn per_s(&self) -> Option<f64> {
        let seconds = self.sum.span.as_secs_f64();
        (seconds > 0.0).then(|| self.sum.count.max(0.0) / seconds)
    }

    fn compliance(&self) -> Option<f64> {
        if self.is_stuck {
            return Some(f64::INFINITY);
        }
        if self.sum.count < 1.0 {
            return None;
        }
        let each = self.spec.objectives.iter().zip(&self.sum.marks);
        let each = each.filter_map(|(objective, marks)| {
            // Sums of differences may end a hair below zero.
            let share = (marks / self.sum.count).max(0.0);
            match objective {
                Objective::Tail { percentile, .. } => Some(compliance(share, *percentile)),
                Objective::Disengagement { ratio } => Some(share / ratio),
                Objective::Throughput { .. } => None,
            }
        });
        each.max_by(f64::total_cmp)
    }
}

impl Counts {
    fn add(&mut self, other: &Self, sign: f64) {
        self.span = match sign > 0.0 {
            true => self.span + other.span,
            false => self.span.saturating_sub(other.span),
        };
        self.count += sign * other.count;
        for (sum, marks) in self.marks.iter_mut().zip(&other.marks) {
            *sum += sign * marks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BOUND, be, lc, lc_spec, observation, silent};
    use lull_measure::Percentile;

    const EPOCH: Nanos = Nanos::from_millis(100);

    fn monitor_after(spec: AppSpec, seen: &[AppObservation]) -> ComplianceMonitor {
        let mut kept = ComplianceMonitor::new(&[spec], Nanos::from_secs(1), 200);
        for app in seen {
            kept.note(&observation(Nanos::ZERO, EPOCH, vec![app.clone()]));
        }
        kept
    }

    fn floor(floor_per_s: f64) -> AppSpec {
        let objectives = vec![Objective::Throughput { floor_per_s }];
        AppSpec { objectives, ..AppSpec::best_effort("be") }
    }

    #[test]
    fn late_answers_count_against_what_the_percentile_allows() {
        // One epoch in ten is late: 10 % of the answers, 5 % may be.
        let mut seen = vec![lc(1.0); 9];
        seen.push(lc(20.0));
        let kept = monitor_after(lc_spec("a"), &seen);
        assert!((kept.compliance(AppId(0)).unwrap() - 2.0).abs() < 1e-9);
        assert!(kept.is_missed(AppId(0)));
    }

    #[test]
    fn what_lies_a_window_back_is_forgotten() {
        let mut seen = vec![lc(20.0)];
        seen.extend(vec![lc(1.0); 10]);
        assert_eq!(monitor_after(lc_spec("a"), &seen).compliance(AppId(0)), Some(0.0));
    }

    #[test]
    fn a_far_percentile_is_judged_by_more_answers() {
        let bound = BOUND;
        let objectives = vec![Objective::Tail { percentile: Percentile::P999, bound }];
        let spec = AppSpec { objectives, ..lc_spec("a") };
        // 1000 answers an epoch: 2000 are two epochs, so the window decides.
        assert_eq!(Record::new(&spec, 200).answers.round(), 2000.0);
        assert_eq!(Record::new(&lc_spec("a"), 200).answers, 200.0);
    }

    #[test]
    fn a_floor_is_kept_if_it_is_reached() {
        let kept_at = |rate| monitor_after(floor(100.0), &vec![be(rate); 5]);
        assert_eq!(kept_at(150.0).attainment(AppId(0)), Some(1.5));
        assert!(kept_at(90.0).is_missed(AppId(0)) && !kept_at(110.0).is_missed(AppId(0)));
        assert!(kept_at(f64::NAN).is_missed(AppId(0)), "NaN counts as no progress");
    }

    #[test]
    fn a_query_that_is_never_answered_is_late() {
        let stuck = monitor_after(lc_spec("a"), &[silent(3)]);
        assert!(stuck.is_missed(AppId(0)));
        assert!(
            !monitor_after(lc_spec("a"), &[silent(0)]).is_missed(AppId(0)),
            "an idle app is not"
        );
    }

    #[test]
    fn other_objectives_restart_the_count() {
        let mut kept = monitor_after(lc_spec("a"), &[lc(20.0)]);
        kept.retarget(&[lc_spec("a")]);
        assert!(kept.is_missed(AppId(0)), "the same ones do not");
        kept.retarget(&[floor(1.0)]);
        assert_eq!(kept.compliance(AppId(0)), None);
    }
}
