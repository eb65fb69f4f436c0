//! A search: proposes the next candidate setting from the trials so far, and the best one.
//!
//! There are three methods. The *paper's* folds latency and energy into one penalty,
//! `R_p = energy max(latency - bound + 1, 1)` with latencies in microseconds (Dong et al.,
//! CCDS 2026, eq. 4). It tries five quasi-random candidates, then those where a Gaussian process
//! of ln R_p has the largest expected improvement, and returns the best one measured.
//!
//! *Ours* ([`super::separate`]) models latency and power separately. The next candidate is the
//! one whose reading is worth most, among those whose tail is likely below, or close to, the
//! bound. It begins at the fastest setting and moves outwards. The last trials measure the
//! likely choice again, because the best of many noisy readings is better than its true value.
//!
//! The *front* ([`super::front`]) uses the same two models, and its next candidate is the one
//! that is expected to add most to the area between the front of power and tail and the bound; if
//! each reading has the progress of best-effort apps, to the volume of the three.
//! It begins and confirms as ours does, so that its answer has evidence as well.
//!
//! With any method a setting meets the bound only on evidence ([`super::evidence`]). A
//! setting that two trials or more refute is not proposed again, and neither is one that an
//! earlier search at this load has refuted ([`Search::leave_out`]), nor one with a level that its
//! knob has refused.

mod fronts;
mod proposals;

pub use fronts::FrontSetting;

use super::evidence::{is_refuted, weigh};
use super::reading::Reading;
use super::refusal::{Refusal, has_level, refused_levels};
use super::rules::{Method, Rules};
use super::separate::{Models, View};
use super::space::{Dimension, SearchPoint, Space};
use crate::toolkit::surrogate::{GaussianProcess, Posterior, log_expected_improvement};
use lull_control::{Capability, Rng, TrialEvidence};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The candidate setting.
    #[serde(rename = "place")]
    pub point: SearchPoint,
    /// The reading, or why the point could not be set.
    pub outcome: Result<Reading, Refusal>,
}

/// The next trial that a search proposes.
#[derive(Debug, Clone, PartialEq)]
pub struct NextTrial {
    /// The candidate setting.
    pub point: SearchPoint,
    /// The share by which power is expected to fall, or the hypervolume of the front to grow, if
    /// a model chose the candidate.
    pub expected_gain: Option<f64>,
}

/// The prediction of the models for one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Predicted tail, in microseconds.
    pub tail_us: f64,
    /// Predicted power, in watts.
    pub watts: f64,
    /// Probability of meeting the bound.
    pub meets: f64,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The candidate setting.
    pub point: SearchPoint,
    /// Whether its trials show that it meets the bound. If not, those of no tried setting do,
    /// and this is the fastest one.
    pub meets: bool,
    /// The evidence of its trials.
    pub evidence: TrialEvidence,
    /// Predicted power, in watts.
    pub watts: f64,
    /// Predicted tail, in microseconds.
    pub tail_us: f64,
}

/// A search in progress. It can be rebuilt from its trials.
#[derive(Debug, Clone)]
pub struct Search {
    space: Space,
    rules: Rules,
    trials: Vec<Trial>,
    /// All candidates that may be proposed, with their coordinates.
    candidates: Vec<(SearchPoint, Vec<f64>)>,
    /// A setting that was good in an earlier search, at this load or another one.
    before: Option<SearchPoint>,
    /// Settings that an earlier search at this load has refuted.
    left_out: Vec<SearchPoint>,
    /// Proposals in a row with an expected gain below `stop_below`, for the early stop.
    low_gains: usize,
    /// Start of the quasi-random sequence.
    shift: Option<Vec<f64>>,
    /// Whether the early stop is due: only the confirmation of the choice is left.
    is_ending: bool,
}

/// The largest number of candidates that a model evaluates; larger spaces are sampled.
const CANDIDATES_MAX: usize = 20_000;
/// Proposals in a row with a low expected gain that end a search.
const LOW_GAINS_MAX: usize = 5;
/// Settings that are drawn at random until one has no refused level.
const DRAWS_MAX: usize = 100;

/// Settings that are not proposed again.
struct Closed {
    /// Refused or refuted ones, in order.
    points: Vec<SearchPoint>,
    /// Refused levels, by dimension: every setting that has one of them is closed.
    levels: BTreeSet<(usize, u16)>,
}

impl Closed {
    fn contains(&self, point: &SearchPoint) -> bool {
        self.points.binary_search(point).is_ok() || has_level(point, &self.levels)
    }
}

impl Search {
    /// Creates a search without trials.
    pub fn new(space: Space, rules: Rules) -> Self {
        let all = space.size();
        // Large spaces are sampled at a stride. One with a divisor in common with the number of
        // settings reaches only a few levels of the last dimension.
        let stride = all.div_ceil(CANDIDATES_MAX);
        let mut stride = if stride > 1 { stride * 2 + 1 } else { 1 };
        while greatest_common_divisor(stride, all) > 1 {
            stride += 2;
        }
        let candidates = (0..all).step_by(stride).map(|number| space.point(number));
        let located = |point: SearchPoint| (point.clone(), space.coordinates(&point));
        let candidates = candidates.map(located).collect();
        Self {
            candidates,
            space,
            rules,
            trials: Vec::new(),
            before: None,
            left_out: Vec::new(),
            low_gains: 0,
            shift: None,
            is_ending: false,
        }
    }

    /// Returns the space that is searched.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns all trials, in order.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Returns the next candidate; `None` when the search is over.
    pub fn ask(&mut self, rng: &mut Rng) -> Option<NextTrial> {
        if self.trials.len() >= self.rules.trials {
            return None;
        }
        match self.rules.method {
            Method::Random => Some(self.random_candidate(rng)),
            Method::Penalty => self.ask_penalty(rng),
            Method::Apart | Method::Front => self.ask_apart(rng),
        }
    }

    /// Returns the next candidate while those of `open` are measured: they count as trials, and
    /// are not explored again. `None` may mean that one of them must have its reading first.
    pub fn ask_beside(&mut self, open: &[SearchPoint], rng: &mut Rng) -> Option<NextTrial> {
        let (count, was_ending) = (self.trials.len(), self.is_ending);
        let unread = |point: &SearchPoint| {
            let why = "it has no reading yet".to_owned();
            Trial { point: point.clone(), outcome: Err(why.into()) }
        };
        self.trials.extend(open.iter().map(unread));
        let next = self.ask(rng);
        self.trials.truncate(count);
        // If no other candidate is left to explore, the open trials may be the reason.
        if !open.is_empty() {
            self.is_ending = was_ending;
        }
        next
    }

    /// Records the result of trying a point.
    pub fn tell(&mut self, point: SearchPoint, outcome: Result<Reading, Refusal>) {
        let sound = outcome.and_then(|reading| {
            let numbers = [reading.tail_us, reading.watts];
            let is_sound = numbers.iter().all(|value| value.is_finite() && *value > 0.0);
            let progress = reading.progress_per_s.unwrap_or_default();
            match is_sound && progress.is_finite() && progress >= 0.0 {
                true => Ok(reading),
                false => Err(format!("no sound reading: {reading:?}").into()),
            }
        });
        self.trials.push(Trial { point, outcome: sound });
    }

    /// Returns a knob that cannot be searched: all of its levels but one were refused, or it was
    /// refused at two levels or more and was never set, or at three or more and was set at one
    /// level only, which may be the one in force.
    pub fn useless_knob(&self) -> Option<Capability> {
        let refused = self.refused_levels();
        let is_useless = |(axis, dimension): &(usize, &Dimension)| {
            let refused = refused.iter().filter(|(of, _)| of == axis).count();
            let set: BTreeSet<u16> = self.readings().map(|(point, _)| point.0[*axis]).collect();
            let is_fixed = refused > 0 && refused + 1 >= dimension.levels.len();
            is_fixed || (set.len() < 2 && refused > set.len() + 1)
        };
        let mut dimensions = self.space.dimensions().iter().enumerate();
        dimensions.find(is_useless).map(|(_, dimension)| dimension.knob)
    }

    /// Returns the share of all requests so far that were over the bound.
    pub fn harm(&self) -> f64 {
        let (late, all) = self
            .readings()
            .fold((0, 0), |(late, all), (_, it)| (late + it.late, all + it.requests));
        late as f64 / (all as f64).max(1.0)
    }

    /// Returns the incumbent; `None` before the first reading.
    pub fn choice(&self) -> Option<Choice> {
        let models = self.models();
        match (self.rules.method, &models) {
            (Method::Apart | Method::Front, Some(models)) => self.choose_shown(models),
            _ => self.choose_measured(models.as_ref()),
        }
    }

    /// Returns the evidence of a setting's trials; `None` before the first reading of it.
    pub fn evidence(&self, point: &SearchPoint) -> Option<TrialEvidence> {
        self.weighed(self.models().as_ref(), point)
    }

    /// Returns the settings that the trials refute, and those that an earlier search has
    /// refuted.
    pub fn refuted(&self) -> Vec<SearchPoint> {
        let tried: BTreeSet<_> = self.readings().map(|(point, _)| point).collect();
        let refuted = tried.into_iter().filter(|point| self.is_refuted(point));
        let mut all: Vec<_> = refuted.cloned().collect();
        all.extend(self.left_out.iter().filter(|point| self.is_left_out(point)).cloned());
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Sets a setting that was good in an earlier search. It is tried right after the fastest
    /// one (`Apart` only; the other methods choose their own first candidates).
    pub fn begin_with(&mut self, point: SearchPoint) {
        self.before = Some(point);
    }

    /// Leaves out settings that an earlier search at this load has refuted. They are candidates
    /// again if the fastest setting was among them and has met the bound since: then the server
    /// is not the one that was searched.
    pub fn leave_out(&mut self, points: impl IntoIterator<Item = SearchPoint>) {
        self.left_out.extend(points);
    }

    /// Returns the predictions for some settings; `None` before the second reading.
    pub fn predict(&self, points: &[SearchPoint]) -> Option<Vec<Prediction>> {
        let models = self.models()?;
        let believed = |point: &SearchPoint| {
            let view = models.at(&self.space, point);
            Prediction {
                tail_us: view.tail_us(self.rules.bound_us),
                watts: view.watts.mean.exp(),
                meets: view.meets(),
            }
        };
        Some(points.iter().map(believed).collect())
    }

    fn readings(&self) -> impl Iterator<Item = (&SearchPoint, &Reading)> {
        self.trials.iter().filter_map(|trial| Some((&trial.point, trial.outcome.as_ref().ok()?)))
    }

    fn readings_at(&self, point: &SearchPoint) -> Vec<Reading> {
        self.readings().filter(|(one, _)| *one == point).map(|(_, it)| *it).collect()
    }

    fn weighed(&self, models: Option<&Models>, point: &SearchPoint) -> Option<TrialEvidence> {
        let readings = self.readings_at(point);
        let predicted = models.map_or(0.0, |models| models.at(&self.space, point).meets());
        (!readings.is_empty()).then(|| weigh(&readings, &self.rules, predicted))
    }

    fn is_refuted(&self, point: &SearchPoint) -> bool {
        is_refuted(&self.readings_at(point), &self.rules)
    }

    fn is_left_out(&self, point: &SearchPoint) -> bool {
        let fastest = self.space.fastest();
        let has_changed = || {
            let meets = |it: &Reading| it.tail_us <= self.rules.bound_us;
            self.left_out.contains(&fastest) && self.readings_at(&fastest).iter().any(meets)
        };
        *point != fastest && self.left_out.contains(point) && !has_changed()
    }

    /// Whether a search that is to be safe may try a setting.
    fn is_allowed(&self, view: &View) -> bool {
        !self.rules.safe || view.is_safe()
    }

    fn random_candidate(&self, rng: &mut Rng) -> NextTrial {
        let refused = self.refused_levels();
        let draw = || self.space.point(rng.random_range(0..self.space.size()));
        let mut drawn = std::iter::repeat_with(draw).take(DRAWS_MAX);
        let point = drawn.find(|point| !has_level(point, &refused));
        NextTrial { point: point.unwrap_or_else(|| self.space.fastest()), expected_gain: None }
    }

    /// An additive recurrence by powers of the generalised golden ratio, from a
    /// random start (Roberts, "The unreasonable effectiveness of quasirandom
    /// sequences", 2018); used instead of the paper's Sobol points.
    fn quasi_random(&mut self, rng: &mut Rng) -> NextTrial {
        let count = self.space.dimensions().len();
        let shift = self.shift.get_or_insert_with(|| (0..count).map(|_| rng.random()).collect());
        let mut ratio = 2f64;
        for _ in 0..32 {
            ratio = (1.0 + ratio).powf(1.0 / (count as f64 + 1.0));
        }
        let turn = self.trials.len() as f64 + 1.0;
        let coordinate =
            |(axis, shift): (usize, &f64)| (shift + turn / ratio.powi(axis as i32 + 1)).fract();
        let at: Vec<f64> = shift.iter().enumerate().map(coordinate).collect();
        NextTrial { point: self.space.at(&at), expected_gain: None }
    }

    fn ask_penalty(&mut self, rng: &mut Rng) -> Option<NextTrial> {
        if self.trials.len() < self.rules.begin {
            return Some(self.quasi_random(rng));
        }
        let inputs: Vec<_> =
            self.readings().map(|(point, _)| self.space.coordinates(point)).collect();
        let outputs: Vec<_> =
            self.readings().map(|(_, it)| penalty(it, self.rules.bound_us).ln()).collect();
        let Some(model) = GaussianProcess::fit_each(&inputs, &outputs) else {
            return Some(self.quasi_random(rng));
        };
        let best = outputs.iter().copied().fold(f64::INFINITY, f64::min);
        let posteriors = model.posteriors(self.candidates.iter().map(|(_, at)| at.as_slice()));
        let score = |one: &Posterior| log_expected_improvement(*one, best);
        self.propose(posteriors.iter().map(score))
    }

    /// The candidate with the best score; `None` if the early stop is due.
    fn propose(&mut self, scores: impl Iterator<Item = f64>) -> Option<NextTrial> {
        // A safe search ends rather than try excluded settings.
        let is_open = |score: f64| !score.is_nan() && (!self.rules.safe || score > f64::MIN);
        let pairs = scores.zip(&self.candidates).filter(|(score, _)| is_open(*score));
        let closed = self.closed();
        let open = pairs.filter(|(_, (point, _))| !closed.contains(point));
        let (score, (point, _)) = open.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let point = point.clone();
        // Outputs are logarithms, so a decrease is a share.
        let gain = score.exp();
        self.low_gains = if gain < self.rules.stop_below { self.low_gains + 1 } else { 0 };
        if self.low_gains >= LOW_GAINS_MAX {
            return None;
        }
        Some(NextTrial { point, expected_gain: Some(gain) })
    }

    fn closed(&self) -> Closed {
        let mut points = self.refuted();
        let refused = self.trials.iter().filter(|trial| trial.outcome.is_err());
        points.extend(refused.map(|trial| trial.point.clone()));
        points.sort_unstable();
        Closed { points, levels: self.refused_levels() }
    }

    fn refused_levels(&self) -> BTreeSet<(usize, u16)> {
        let trials = self.trials.iter().map(|it| (&it.point, it.outcome.as_ref().err()));
        refused_levels(&self.space, &trials)
    }

    fn models(&self) -> Option<Models> {
        let readings: Vec<_> = self.readings().collect();
        Models::fit(&self.space, &self.rules, &readings)
    }

    /// The least measured power among settings whose measured tail met the bound.
    fn choose_measured(&self, models: Option<&Models>) -> Option<Choice> {
        let met = self.readings().filter(|(_, it)| it.tail_us <= self.rules.bound_us);
        let good = met.min_by(|a, b| a.1.watts.total_cmp(&b.1.watts));
        let fastest = || self.readings().min_by(|a, b| a.1.tail_us.total_cmp(&b.1.tail_us));
        let (point, reading) = good.or_else(fastest)?;
        let evidence = self.weighed(models, point)?;
        Some(Choice {
            point: point.clone(),
            meets: good.is_some() && self.rules.is_enough(&evidence),
            evidence,
            watts: reading.watts,
            tail_us: reading.tail_us,
        })
    }
}

/// Returns the paper's penalty (eq. 4), with power for the energy of equally long trials.
pub fn penalty(reading: &Reading, bound_us: f64) -> f64 {
    reading.watts * (reading.tail_us - bound_us + 1.0).max(1.0)
}

const fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests;
