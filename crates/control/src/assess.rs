//! From an observation to entropy: tails with their gaps filled, E_S with its parts.
//!
//! Policies and the loop share this, so that the number a policy steers by is
//! the number the operator sees.

use crate::{AppId, AppObservation, AppSpec, LatencyObservation, Observation, Progress};
use lull_measure::entropy::{BeReading, LcReading, RelativeImportance, SystemEntropy};
use lull_measure::entropy::{be_entropy, combine, lc_entropy};
use lull_measure::{Nanos, Percentile};
use serde::{Deserialize, Serialize};

/// A tail latency, and whether it belongs to this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// The latency at the objective's percentile.
    pub latency: Nanos,
    /// Whether no request was answered in the epoch, so that this is the last known one.
    pub stale: bool,
}

/// One app's readings against its objectives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AppAssessment {
    /// Its tail latency; `None` before the first request and for best-effort apps.
    pub tail: Option<Tail>,
    /// Its latencies for the entropy family. Without a known ideal the best
    /// tail so far is used instead; A and R are then only lower bounds.
    pub lc: Option<LcReading>,
    /// Its progress for E_BE. Without a known solo rate the best so far is used instead.
    pub be: Option<BeReading>,
}

/// The readings of all apps against their objectives, and the entropy of the system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assessment {
    /// Indexed by [`crate::AppId`].
    pub apps: Vec<AppAssessment>,
    /// E_LC, E_BE, E_S.
    pub entropy: SystemEntropy,
}

/// Assesses observations; remembers the last tails.
#[derive(Debug, Clone)]
pub struct Assessor {
    importance: RelativeImportance,
    specs: Vec<AppSpec>,
    memory: Vec<Memory>,
}

#[derive(Debug, Clone, Default)]
struct Memory {
    last_tail: Option<Nanos>,
    best_tail: Option<Nanos>,
    /// The best progress so far in the current unit.
    best_progress: Option<Progress>,
}

impl Assessor {
    /// Creates an assessor of these apps that weighs latency-critical ones by `importance`.
    pub fn new(specs: &[AppSpec], importance: RelativeImportance) -> Self {
        let memory = vec![Memory::default(); specs.len()];
        Self { importance, specs: specs.to_vec(), memory }
    }

    /// Continues with other objectives and references of the same apps, and with more apps.
    pub fn respecify(&mut self, specs: &[AppSpec], importance: RelativeImportance) {
        self.specs = specs.to_vec();
        self.memory.resize(specs.len(), Memory::default());
        self.importance = importance;
    }

    /// Continues with other references of the same apps.
    pub fn set_references(&mut self, specs: &[AppSpec]) {
        self.specs = specs.to_vec();
    }

    /// Discards the observations of an app that was removed or is another program from now on.
    pub fn forget(&mut self, app: AppId) {
        if let Some(memory) = self.memory.get_mut(app.index()) {
            *memory = Memory::default();
        }
    }

    /// Assesses all apps after one epoch.
    pub fn assess(&mut self, seen: &Observation) -> Assessment {
        let each = self.specs.iter().zip(&mut self.memory).zip(&seen.apps);
        let apps: Vec<_> =
            each.map(|((spec, memory), seen)| assess_app(spec, memory, seen)).collect();
        let lc: Vec<_> = apps.iter().filter_map(|app| app.lc).collect();
        let be: Vec<_> = apps.iter().filter_map(|app| app.be).collect();
        let entropy = combine(lc_entropy(&lc), be_entropy(&be), self.importance);
        Assessment { apps, entropy }
    }
}

fn assess_app(spec: &AppSpec, memory: &mut Memory, seen: &AppObservation) -> AppAssessment {
    let Some((percentile, bound)) = spec.tail().filter(|_| spec.is_latency_critical()) else {
        return AppAssessment { be: progress_of(spec, memory, seen), ..AppAssessment::default() };
    };
    let tail = seen.latency.as_ref().ok().and_then(|seen| tail_of(seen, percentile, memory));
    let lc = tail.and_then(|tail| {
        let best = memory.best_tail.unwrap_or(tail.latency);
        let ideal = spec.ideal.unwrap_or(best).min(bound);
        LcReading::new(ideal, tail.latency, bound).ok()
    });
    AppAssessment { tail, lc, be: None }
}

/// Returns the tail of the epoch. If no request was answered in it, the tail is the last
/// tail or the age of the oldest waiting request, whichever is larger. So an idle app
/// keeps its tail, and the tail of a stuck app grows.
fn tail_of(seen: &LatencyObservation, at: Percentile, memory: &mut Memory) -> Option<Tail> {
    if let Some(latency) = seen.tail(at) {
        memory.last_tail = Some(latency);
        memory.best_tail = Some(memory.best_tail.map_or(latency, |best| best.min(latency)));
        return Some(Tail { latency, stale: false });
    }
    let waiting = seen.oldest.filter(|_| seen.outstanding > 0);
    let latency = waiting.into_iter().chain(memory.last_tail).max()?;
    Some(Tail { latency, stale: true })
}

fn progress_of(spec: &AppSpec, memory: &mut Memory, seen: &AppObservation) -> Option<BeReading> {
    // What is no number is no reading: `NaN` would pass for an unharmed app.
    let is_number = |it: &&Progress| it.per_s.is_finite() && it.per_s >= 0.0;
    let progress = seen.progress.as_ref().ok().filter(is_number)?;
    let best = match memory.best_progress.take() {
        // An app that reports again after a silence may count something else.
        Some(best) if best.source == progress.source && best.per_s > progress.per_s => best,
        _ => progress.clone(),
    };
    let (real, best) = (progress.per_s, memory.best_progress.insert(best).per_s);
    let solo = spec.solo_per_s.unwrap_or(best);
    // An app that has never moved has no slow-down yet.
    (solo > 0.0).then_some(BeReading { solo, real })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Progress, ProgressSource};
    use lull_measure::{Latency, Missing};

    const BOUND: Nanos = Nanos::from_millis(4);

    fn observation(apps: Vec<AppObservation>) -> Observation {
        let second = Nanos::from_secs(1);
        Observation { apps, ..Observation::unknown(second, second, &Missing::because("test")) }
    }

    fn unknown() -> AppObservation {
        AppObservation::unknown(&Missing::because("test"))
    }

    fn answered(millis: &[u64]) -> AppObservation {
        let window: Latency = millis.iter().copied().map(Nanos::from_millis).collect();
        AppObservation {
            latency: Ok(LatencyObservation { window, ..LatencyObservation::default() }),
            ..unknown()
        }
    }

    fn waiting(oldest: Option<Nanos>) -> AppObservation {
        let outstanding = u64::from(oldest.is_some());
        let seen = LatencyObservation { outstanding, oldest, ..LatencyObservation::default() };
        AppObservation { latency: Ok(seen), ..unknown() }
    }

    fn working(per_s: f64) -> AppObservation {
        let progress = Progress { per_s, source: ProgressSource::Simulated };
        AppObservation { progress: Ok(progress), ..unknown() }
    }

    fn lc_assessor() -> Assessor {
        let spec = AppSpec::latency_critical("lc", Percentile::P95, BOUND);
        Assessor::new(&[spec], RelativeImportance::default())
    }

    fn tail(assessor: &mut Assessor, app: AppObservation) -> Option<Tail> {
        assessor.assess(&observation(vec![app])).apps[0].tail
    }

    #[test]
    fn an_idle_app_keeps_its_last_tail_and_a_stuck_one_ages() {
        let mut assessor = lc_assessor();
        assert_eq!(tail(&mut assessor, waiting(None)), None);
        let fresh = tail(&mut assessor, answered(&[2])).unwrap();
        assert!(!fresh.stale);
        let idle = tail(&mut assessor, waiting(None)).unwrap();
        assert_eq!(idle, Tail { latency: fresh.latency, stale: true });
        let stuck = tail(&mut assessor, waiting(Some(Nanos::from_millis(900)))).unwrap();
        assert_eq!(stuck, Tail { latency: Nanos::from_millis(900), stale: true });
    }

    #[test]
    fn a_silent_source_is_not_a_good_tail() {
        let mut assessor = lc_assessor();
        tail(&mut assessor, answered(&[2]));
        assert_eq!(tail(&mut assessor, unknown()), None);
    }

    #[test]
    fn entropy_is_that_of_the_measure_crate() {
        let mut lc = AppSpec::latency_critical("lc", Percentile::P95, BOUND);
        lc.ideal = Some(Nanos::from_millis(2));
        let mut be = AppSpec::best_effort("be");
        be.solo_per_s = Some(100.0);
        let mut assessor = Assessor::new(&[lc, be], RelativeImportance::default());
        let assessment = assessor.assess(&observation(vec![answered(&[8]), working(50.0)]));
        let q = assessment.apps[0].lc.unwrap().untolerated();
        assert!((q - 0.5).abs() < 1e-3, "{q}");
        assert!((assessment.entropy.system - (0.8 * q + 0.2 * 0.5)).abs() < 1e-12);
    }

    #[test]
    fn progress_that_is_no_number_is_missing_and_not_perfect() {
        let be = AppSpec { solo_per_s: Some(100.0), ..AppSpec::best_effort("be") };
        let mut assessor = Assessor::new(&[be], RelativeImportance::default());
        let mut e_be = |per_s| assessor.assess(&observation(vec![working(per_s)])).entropy.be;
        for strange in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(e_be(strange), None, "{strange}");
        }
        assert_eq!(e_be(50.0), Some(0.5));
    }

    #[test]
    fn entropy_follows_corrected_references() {
        let be = AppSpec { solo_per_s: Some(100.0), ..AppSpec::best_effort("be") };
        let mut assessor = Assessor::new(std::slice::from_ref(&be), RelativeImportance::default());
        let seen = observation(vec![working(200.0)]);
        assert_eq!(assessor.assess(&seen).entropy.be, Some(0.0), "an excess counts as unharmed");
        assessor.set_references(&[AppSpec { solo_per_s: Some(400.0), ..be }]);
        assert_eq!(assessor.assess(&seen).entropy.be, Some(0.5));
    }

    #[test]
    fn progress_in_another_unit_is_not_compared_with_the_best_in_the_former_one() {
        let mut assessor =
            Assessor::new(&[AppSpec::best_effort("be")], RelativeImportance::default());
        let pushed = |unit: &str, per_s| {
            let source = ProgressSource::Pushed(unit.to_owned());
            AppObservation { progress: Ok(Progress { per_s, source }), ..unknown() }
        };
        let mut e_be = |app| assessor.assess(&observation(vec![app])).entropy.be;
        assert_eq!(e_be(pushed("bytes", 8e6)), Some(0.0));
        assert_eq!(e_be(unknown()), None);
        assert_eq!(e_be(pushed("files", 80.0)), Some(0.0));
        assert_eq!(e_be(pushed("files", 40.0)), Some(0.5));
    }

    #[test]
    fn the_best_progress_replaces_an_unknown_solo_rate() {
        let mut assessor =
            Assessor::new(&[AppSpec::best_effort("be")], RelativeImportance::default());
        let mut e_be = |per_s| assessor.assess(&observation(vec![working(per_s)])).entropy.be;
        assert_eq!(e_be(0.0), None);
        assert_eq!(e_be(80.0), Some(0.0));
        assert_eq!(e_be(40.0), Some(0.5));
    }
}
