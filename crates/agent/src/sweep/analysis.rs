//! The analysis of the trials of a sweep.
//!
//! The front holds the settings that no other one beats: another one beats a setting if its mean
//! tail and its mean power are no higher, one of them is lower, and its throughput is not shown
//! to be lower. Throughput counts only where the difference within blocks excludes zero (95 %),
//! because under a steady load all settings answer as many requests up to chance. The progress of
//! best-effort apps counts in the same way.

use super::{Measured, Sweep};
use lull_control::{Capability, TrialEvidence};
use lull_measure::statistics::{Estimate, paired_difference};
use lull_policies::search::{SearchPoint, evidence_of};
use serde::Serialize;
use std::collections::BTreeMap;

/// Probability of calling a knob effective that is not, over all quantities.
const ALPHA: f64 = 0.05;

/// A summary of the trials of one setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingSummary {
    /// The setting as text.
    pub setting: String,
    /// Values of the knobs, each in its own unit.
    pub values: BTreeMap<Capability, f64>,
    /// The tail at the percentile of the objective, in microseconds, over blocks.
    pub tail_us: Estimate,
    /// Power in watts, over blocks.
    pub watts: Estimate,
    /// Requests answered per second, over blocks.
    pub completed_per_s: Estimate,
    /// Progress of the best-effort apps per second, over blocks; `None` unless each trial has it.
    pub progress_per_s: Option<Estimate>,
    /// The evidence for or against the objective.
    pub evidence: TrialEvidence,
    /// Whether its trials show that it meets the bound.
    pub meets: bool,
    /// Whether no other setting beats it.
    pub on_front: bool,
    /// The setting.
    #[serde(skip)]
    pub point: SearchPoint,
}

/// How a knob's highest level differs from its lowest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KnobEffect {
    /// The knob.
    pub knob: Capability,
    /// The lowest and the highest level that were set.
    pub levels: [f64; 2],
    /// Difference of the logarithm of the tail, within blocks at equal other knobs.
    pub log_tail: Estimate,
    /// Difference of the logarithm of power.
    pub log_watts: Estimate,
    /// Difference of the logarithm of throughput.
    pub log_completed: Estimate,
    /// Difference of the logarithm of the progress of best-effort apps, if there is any.
    pub log_progress: Option<Estimate>,
    /// Whether one of them is shown not to be zero.
    pub is_shown: bool,
}

impl Sweep {
    /// Returns the results of every setting that was measured, in the order of the space.
    pub fn summaries(&self) -> Vec<SettingSummary> {
        let mut by_point: BTreeMap<&SearchPoint, Vec<(usize, Measured)>> = BTreeMap::new();
        for trial in &self.trials {
            if let Ok(measured) = &trial.outcome {
                by_point.entry(&trial.point).or_default().push((trial.block, *measured));
            }
        }
        let all = by_point.iter().filter_map(|(point, measured)| self.summary(point, measured));
        let mut all: Vec<_> = all.collect();
        let of = |one: &SettingSummary| &by_point[&one.point];
        let beaten: Vec<bool> = all
            .iter()
            .map(|one| all.iter().any(|other| beats((other, of(other)), (one, of(one)))))
            .collect();
        for (one, is_beaten) in all.iter_mut().zip(beaten) {
            one.on_front = !is_beaten;
        }
        all
    }

    fn summary(
        &self,
        point: &SearchPoint,
        measured: &[(usize, Measured)],
    ) -> Option<SettingSummary> {
        let mean = |of: fn(&Measured) -> f64| {
            Estimate::from_values(&measured.iter().map(|(_, it)| of(it)).collect::<Vec<_>>())
        };
        let readings: Vec<_> = measured.iter().map(|(_, it)| it.reading).collect();
        let evidence = evidence_of(&readings, &self.rules);
        let knobs = self.space.dimensions().iter().map(|it| it.knob);
        Some(SettingSummary {
            setting: self.space.describe(point),
            values: knobs.zip(self.space.values(point)).collect(),
            tail_us: mean(|it| it.reading.tail_us)?,
            watts: mean(|it| it.reading.watts)?,
            completed_per_s: mean(|it| it.completed_per_s)?,
            progress_per_s: progresses(measured).and_then(|all| Estimate::from_values(&all)),
            meets: evidence.is_within() && evidence.probability >= self.rules.final_floor,
            evidence,
            on_front: false,
            point: point.clone(),
        })
    }

    /// Returns the setting of least mean power among those that are shown to meet the bound; of
    /// equal ones, that of the lowest tail.
    pub fn best(&self) -> Option<SettingSummary> {
        let meets = self.summaries().into_iter().filter(|it| it.meets);
        meets.min_by(|a, b| {
            let by_power = a.watts.mean.total_cmp(&b.watts.mean);
            by_power.then(a.tail_us.mean.total_cmp(&b.tail_us.mean))
        })
    }

    /// Returns the effects of the knobs of which two levels were set in comparable trials; a knob
    /// that accepts its levels and does nothing has none that is shown.
    pub fn effects(&self) -> Vec<KnobEffect> {
        (0..self.space.dimensions().len()).filter_map(|axis| self.effect(axis)).collect()
    }

    fn effect(&self, axis: usize) -> Option<KnobEffect> {
        let measured = || {
            let trials = self.trials.iter();
            trials.filter_map(|it| Some((it.block, &it.point, it.outcome.as_ref().ok()?)))
        };
        let levels = || measured().map(|(_, point, _)| point.0[axis]);
        let (low, high) = (levels().min()?, levels().max()?);
        // Pairs of one block whose settings differ in this knob alone.
        let at = |block: usize, point: &SearchPoint| {
            let mut all = measured();
            all.find(|(other, one, _)| *other == block && *one == point).map(|it| it.2)
        };
        let pairs = measured().filter(|(_, point, _)| point.0[axis] == low);
        let pairs: Vec<(&Measured, &Measured)> = pairs
            .filter_map(|(block, point, lower)| {
                let mut other = point.clone();
                other.0[axis] = high;
                Some((lower, at(block, &other)?))
            })
            .collect();
        let difference = |of: &dyn Fn(&Measured) -> f64| {
            let [lower, higher]: [Vec<f64>; 2] = [
                pairs.iter().map(|pair| of(pair.0).max(f64::MIN_POSITIVE).ln()).collect(),
                pairs.iter().map(|pair| of(pair.1).max(f64::MIN_POSITIVE).ln()).collect(),
            ];
            paired_difference(&higher, &lower)
        };
        if low == high || pairs.len() < 2 {
            return None;
        }
        let dimension = &self.space.dimensions()[axis];
        let value = |level: u16| dimension.levels[usize::from(level)].value;
        let log_tail = difference(&|it| it.reading.tail_us)?;
        let log_watts = difference(&|it| it.reading.watts)?;
        let log_completed = difference(&|it| it.completed_per_s)?;
        let both = || pairs.iter().flat_map(|pair| [pair.0, pair.1]);
        let log_progress = both()
            .all(|it| it.reading.progress_per_s.is_some())
            .then(|| difference(&|it| it.reading.progress_per_s.unwrap_or_default()))
            .flatten();
        let known = [Some(log_tail), Some(log_watts), Some(log_completed), log_progress];
        let all: Vec<Estimate> = known.into_iter().flatten().collect();
        let is_shown = all.iter().any(|it| it.chance() * all.len() as f64 <= ALPHA);
        let (knob, levels) = (dimension.knob, [value(low), value(high)]);
        Some(KnobEffect {
            knob,
            levels,
            log_tail,
            log_watts,
            log_completed,
            log_progress,
            is_shown,
        })
    }
}

/// A setting, and its measurements by block.
type Swept<'a> = (&'a SettingSummary, &'a Vec<(usize, Measured)>);

/// Whether a setting beats another one.
fn beats((one, ours): Swept<'_>, (other, theirs): Swept<'_>) -> bool {
    let pairs = [(&one.tail_us, &other.tail_us), (&one.watts, &other.watts)];
    let is_no_worse = pairs.iter().all(|(a, b)| a.mean <= b.mean);
    let is_better = pairs.iter().any(|(a, b)| a.mean < b.mean);
    let answered = |it: &Measured| Some(it.completed_per_s);
    let progress = |it: &Measured| it.reading.progress_per_s;
    is_no_worse && is_better && !is_less(ours, theirs, answered) && !is_less(ours, theirs, progress)
}

/// Returns the progress of all trials; `None` unless each has it.
fn progresses(measured: &[(usize, Measured)]) -> Option<Vec<f64>> {
    measured.iter().map(|(_, it)| it.reading.progress_per_s).collect()
}

/// Whether a quantity of the first setting is shown to be less than that of the second one, in
/// the blocks that have both.
fn is_less(
    ours: &[(usize, Measured)],
    theirs: &[(usize, Measured)],
    of: impl Fn(&Measured) -> Option<f64>,
) -> bool {
    let both = ours.iter().filter_map(|(block, our)| {
        let (_, their) = theirs.iter().find(|(other, _)| other == block)?;
        of(our).zip(of(their))
    });
    let (ours, theirs): (Vec<f64>, Vec<f64>) = both.unzip();
    paired_difference(&ours, &theirs).is_some_and(|it| it.mean < 0.0 && it.excludes_zero())
}

#[cfg(test)]
mod tests {
    use super::super::SweepTrial;
    use super::*;
    use lull_policies::search::{Method, Reading, Rules, Space};
    use rand::{RngExt, SeedableRng};

    /// A server that is swept over cores and over a frequency that lies: its levels are accepted
    /// and change nothing.
    fn server(values: &[f64], bound_us: f64, noise: f64) -> Measured {
        let tail_us = (100.0 + 400.0 / values[0]) * (1.0 + 0.02 * noise);
        let late = if tail_us > bound_us { 40 } else { 1 };
        let watts = 20.0 + 5.0 * values[0];
        let reading = Reading { tail_us, watts, requests: 1000, late, progress_per_s: None };
        let completed_per_s = 1000.0 * (1.0 + 0.001 * noise);
        Measured { reading, rate_per_s: 1000.0, completed_per_s }
    }

    fn swept(bound_us: f64, read: impl Fn(&[f64], f64) -> Measured) -> Sweep {
        let values =
            [(Capability::Cores, vec![1.0, 2.0, 4.0]), (Capability::Frequency, vec![1.0, 2.0])];
        let space = Space::from_values(&values).unwrap();
        let mut sweep = Sweep::new(space, &Rules::new(Method::Apart, bound_us, 30), 4, 1);
        let mut rng = lull_control::Rng::seed_from_u64(2);
        while let Some((block, point)) = sweep.next_trial() {
            let outcome = Ok(read(&sweep.space.values(&point), rng.random::<f64>() - 0.5));
            sweep.tell(SweepTrial { block, point, outcome });
        }
        sweep
    }

    #[test]
    fn the_best_setting_has_least_power_among_those_that_are_shown_to_meet_the_bound() {
        let sweep = swept(400.0, |values, noise| server(values, 400.0, noise));
        let best = sweep.best().unwrap();
        assert_eq!(best.values[&Capability::Cores], 2.0, "{best:?}");
        assert!(best.evidence.trials == 4 && best.evidence.is_within(), "{best:?}");
        let all = sweep.summaries();
        let on_front = |one: &&SettingSummary| one.on_front;
        let cores = |it: &SettingSummary| it.values[&Capability::Cores];
        let front: Vec<_> = all.iter().filter(on_front).map(cores).collect();
        assert!([1.0, 2.0, 4.0].iter().all(|it| front.contains(it)), "{front:?}");
    }

    #[test]
    fn that_no_setting_meets_the_bound_has_its_evidence() {
        let sweep = swept(150.0, |values, noise| server(values, 150.0, noise));
        assert_eq!(sweep.best(), None);
        assert!(sweep.summaries().iter().all(|it| !it.meets && it.evidence.is_beyond()));
    }

    #[test]
    fn a_knob_that_accepts_its_levels_and_does_nothing_has_no_effect() {
        let sweep = swept(400.0, |values, noise| server(values, 400.0, noise));
        let effects = sweep.effects();
        let shown: Vec<_> = effects.iter().map(|it| (it.knob, it.is_shown)).collect();
        let wanted = [(Capability::Cores, true), (Capability::Frequency, false)];
        assert_eq!(shown, wanted, "{effects:?}");
        assert_eq!(effects[0].levels, [1.0, 4.0]);
        // (100 + 400 / 4) over (100 + 400 / 1).
        assert!((effects[0].log_tail.mean - 0.4f64.ln()).abs() < 0.02, "{effects:?}");
    }

    #[test]
    fn a_setting_with_more_progress_is_on_the_front_though_it_is_slower_and_costs_more() {
        let read = |progress: fn(f64) -> Option<f64>| {
            swept(1e6, move |values, noise| {
                let one = server(values, 1e6, noise);
                let tail_us = 100.0 * values[0] * (1.0 + 0.02 * noise);
                let progress_per_s = progress(values[0]).map(|it| it * (1.0 + 0.01 * noise));
                let reading = Reading { tail_us, progress_per_s, ..one.reading };
                Measured { reading, ..one }
            })
        };
        let most = |sweep: &Sweep| {
            let all = sweep.summaries();
            let of_four = all.iter().filter(|it| it.values[&Capability::Cores] == 4.0);
            of_four.clone().any(|it| it.on_front)
        };
        assert!(!most(&read(|_| None)), "it is beaten in tail and power");
        assert!(!most(&read(|_| Some(7.0))), "chance is not progress");
        let more = read(Some);
        assert!(most(&more));
        let summary = more.summaries().pop().unwrap();
        assert!((summary.progress_per_s.unwrap().mean - 4.0).abs() < 0.1, "{summary:?}");
        let effect = &more.effects()[0];
        assert!((effect.log_progress.unwrap().mean - 4f64.ln()).abs() < 0.05, "{effect:?}");
    }

    #[test]
    fn a_setting_that_answers_more_is_on_the_front_though_it_is_slower_and_costs_more() {
        let sweep = swept(1e6, |values, noise| {
            let one = server(values, 1e6, noise);
            let (cores, answered) = (values[0], one.completed_per_s);
            let tail_us = 100.0 * cores * (1.0 + 0.02 * noise);
            let reading = Reading { tail_us, ..one.reading };
            Measured { reading, completed_per_s: answered * cores, ..one }
        });
        let all = sweep.summaries();
        let cores: Vec<_> =
            all.iter().filter(|it| it.on_front).map(|it| it.values[&Capability::Cores]).collect();
        assert!(cores.contains(&4.0) && cores.contains(&1.0), "{all:?}");
    }
}
