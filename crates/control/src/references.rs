//! References that the run refutes: an ideal tail above the tail beside other apps, and solo
//! progress below the progress beside other apps.
//!
//! Other apps do not make an app faster. If an app is faster beside them than its reference, the
//! reference was disturbed while it was measured, or is of a higher load. The decision is about
//! the median epoch of the last [`EPOCHS`], by order statistics: no distribution is assumed, and a
//! few epochs that differ do not decide. The replacement is the bound of that median, so that it
//! is no better than what the app has reached beside others.

use crate::{AppAssessment, AppId, AppSpec, Assessment, numbered};
use lull_measure::Nanos;
use lull_measure::statistics::{quantile_lower, quantile_upper};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Epochs on which a correction is based.
const EPOCHS: usize = 20;
/// Probability of refuting a reference that equals the median epoch.
const ALPHA: f64 = 0.001;
/// Share of the reference within which a difference is not corrected.
const MARGIN: f64 = 0.05;

/// A reference that the run has refuted, and its replacement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Correction {
    /// The ideal tail was above the tail beside other apps.
    Ideal {
        /// The refuted ideal.
        was: Nanos,
        /// The ideal from now on.
        now: Nanos,
    },
    /// The solo progress was below the progress beside other apps.
    Solo {
        /// The refuted progress per second.
        was: f64,
        /// The solo progress per second from now on.
        now: f64,
    },
}

impl Correction {
    /// Replaces the reference of the app.
    pub fn apply(self, spec: &mut AppSpec) {
        match self {
            Self::Ideal { now, .. } => spec.ideal = Some(now),
            Self::Solo { now, .. } => spec.solo_per_s = Some(now),
        }
    }

    /// Returns the correction if the last epochs refute the app's reference. `values` are tails
    /// in nanoseconds of a latency-critical app, and work per second of a best-effort one.
    fn from_epochs(spec: &AppSpec, values: &VecDeque<f64>) -> Option<Self> {
        if values.len() < EPOCHS {
            return None;
        }
        let mut sorted: Vec<f64> = values.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        if spec.is_latency_critical() {
            let (was, now) = (spec.ideal?, quantile_upper(&sorted, 0.5, ALPHA)?);
            let is_refuted = now < was.0 as f64 * (1.0 - MARGIN);
            return is_refuted.then_some(Self::Ideal { was, now: Nanos(now.ceil() as u64) });
        }
        let (was, now) = (spec.solo_per_s?, quantile_lower(&sorted, 0.5, ALPHA)?);
        (now > was * (1.0 + MARGIN)).then_some(Self::Solo { was, now })
    }
}

/// Compares the references of apps with what the apps reach in the run.
#[derive(Debug, Clone, Default)]
pub struct ReferenceCheck {
    /// The values of each app in the last epochs, by [`AppId`].
    recent: Vec<VecDeque<f64>>,
}

impl ReferenceCheck {
    /// Forgets the epochs of an app, which is another program or has other objectives from now on.
    pub fn forget(&mut self, app: AppId) {
        if let Some(recent) = self.recent.get_mut(app.index()) {
            recent.clear();
        }
    }

    /// Takes note of an epoch, and returns the references that the last epochs refute.
    pub fn note(&mut self, apps: &[AppSpec], assessment: &Assessment) -> Vec<(AppId, Correction)> {
        self.recent.resize_with(apps.len(), VecDeque::new);
        let mut all = Vec::new();
        let each = numbered(apps).zip(&assessment.apps).zip(&mut self.recent);
        for (((app, spec), stand), recent) in each {
            let Some(value) = value_of(spec, stand) else { continue };
            if recent.len() == EPOCHS {
                recent.pop_front();
            }
            recent.push_back(value);
            if let Some(correction) = Correction::from_epochs(spec, recent) {
                // The next correction needs new evidence.
                recent.clear();
                all.push((app, correction));
            }
        }
        all
    }
}

/// Returns the value of an epoch to be compared with the app's reference, if it has both.
fn value_of(spec: &AppSpec, stand: &AppAssessment) -> Option<f64> {
    if spec.is_latency_critical() {
        spec.ideal?;
        let tail = stand.tail.filter(|tail| !tail.stale && tail.latency > Nanos::ZERO)?;
        return Some(tail.latency.0 as f64);
    }
    spec.solo_per_s?;
    stand.be.map(|reading| reading.real)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tail;
    use lull_measure::Percentile;
    use lull_measure::entropy::{BeReading, RelativeImportance, combine};

    fn apps() -> Vec<AppSpec> {
        let mut lc = AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(50));
        lc.ideal = Some(Nanos::from_millis(20));
        let be = AppSpec { solo_per_s: Some(100.0), ..AppSpec::best_effort("be") };
        vec![lc, be]
    }

    fn assessment(tail_ms: u64, per_s: f64) -> Assessment {
        let tail = Tail { latency: Nanos::from_millis(tail_ms), stale: false };
        let lc = AppAssessment { tail: Some(tail), ..AppAssessment::default() };
        let be = Some(BeReading { solo: 100.0, real: per_s });
        let be = AppAssessment { be, ..AppAssessment::default() };
        let entropy = combine(None, None, RelativeImportance::default());
        Assessment { apps: vec![lc, be], entropy }
    }

    /// Returns the corrections of these epochs, and applies each to its app.
    fn corrected(apps: &mut [AppSpec], epochs: &[Assessment]) -> Vec<(AppId, Correction)> {
        let mut check = ReferenceCheck::default();
        let mut all = Vec::new();
        for assessment in epochs {
            let found = check.note(apps, assessment);
            found.iter().for_each(|(app, correction)| correction.apply(&mut apps[app.index()]));
            all.extend(found);
        }
        all
    }

    #[test]
    fn references_that_twenty_epochs_refute_are_replaced_by_what_was_reached() {
        let mut specs = apps();
        let epochs: Vec<_> = (0..20).map(|_| assessment(2, 173.0)).collect();
        assert_eq!(corrected(&mut specs, &epochs[..19]), [], "19 epochs are too few");
        let ideal = Correction::Ideal { was: Nanos::from_millis(20), now: Nanos::from_millis(2) };
        let solo = Correction::Solo { was: 100.0, now: 173.0 };
        assert_eq!(corrected(&mut specs, &epochs), [(AppId(0), ideal), (AppId(1), solo)]);
        assert_eq!(specs[0].ideal, Some(Nanos::from_millis(2)));
        assert_eq!(specs[1].solo_per_s, Some(173.0));
        assert_eq!(corrected(&mut specs, &epochs), [], "the new references hold");
    }

    #[test]
    fn epochs_of_a_former_program_are_no_evidence_on_the_next_one() {
        let (specs, epoch) = (apps(), assessment(2, 173.0));
        let mut check = ReferenceCheck::default();
        for _ in 0..19 {
            assert_eq!(check.note(&specs, &epoch), []);
        }
        check.forget(AppId(1));
        check.forget(AppId(7));
        let found = check.note(&specs, &epoch);
        let found: Vec<AppId> = found.iter().map(|(app, _)| *app).collect();
        assert_eq!(found, [AppId(0)], "app 1 has one epoch");
    }

    #[test]
    fn single_epochs_and_noise_refute_nothing() {
        // Half of the epochs are better than the references.
        let epoch = |at| if at % 2 == 0 { assessment(2, 200.0) } else { assessment(30, 50.0) };
        let half: Vec<_> = (0..60).map(epoch).collect();
        assert_eq!(corrected(&mut apps(), &half), []);
        let within_margin: Vec<_> = (0..60).map(|_| assessment(20, 104.0)).collect();
        assert_eq!(corrected(&mut apps(), &within_margin), []);
    }

    #[test]
    fn a_few_disturbed_epochs_do_not_keep_a_wrong_reference() {
        let disturbed = |at: u64| at.is_multiple_of(10);
        let epoch = |at| if disturbed(at) { assessment(40, 10.0) } else { assessment(2, 200.0) };
        let found = corrected(&mut apps(), &(0..20).map(epoch).collect::<Vec<_>>());
        let now: Vec<_> = found.iter().map(|(app, _)| app.index()).collect();
        assert_eq!(now, [0, 1], "{found:?}");
    }

    #[test]
    fn apps_without_references_and_stale_tails_are_left_alone() {
        let mut specs = apps();
        (specs[0].ideal, specs[1].solo_per_s) = (None, None);
        let epochs: Vec<_> = (0..40).map(|_| assessment(2, 173.0)).collect();
        assert_eq!(corrected(&mut specs, &epochs), []);
        let stale = epochs.into_iter().map(|mut assessment| {
            let tail = Tail { latency: Nanos::from_millis(2), stale: true };
            assessment.apps[0].tail = Some(tail);
            assessment
        });
        let found = corrected(&mut apps(), &stale.collect::<Vec<_>>());
        assert_eq!(found.iter().map(|(app, _)| *app).collect::<Vec<_>>(), [AppId(1)]);
    }
}
