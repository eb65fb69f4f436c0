//! A search: proposes the next candidate setting from the trials so far, and the best one.
//!
//! There are two methods. The *paper's* folds latency and energy into one penalty,
//! `R_p = energy max(latency - bound + 1, 1)` with latencies in microseconds (Dong et al.,
//! CCDS 2026, eq. 4). It tries five quasi-random candidates, then those where a Gaussian process
//! of ln R_p has the largest expected improvement, and returns the best one measured.
//!
//! *Ours* ([`super::separate`]) models latency and power separately. The next candidate is the
//! one whose reading is worth most, among those whose tail is likely below, or close to, the
//! bound. It begins at the fastest setting and moves outwards. The last trials measure the
//! incumbent again, because the best of many noisy readings is better than its true value.

use super::reading::Reading;
use super::rules::{Method, Rules};
use super::separate::{Models, View};
use super::space::{Place, Space};
use crate::toolkit::surrogate::{GaussianProcess, Posterior, log_expected_improvement};
use lull_control::Rng;
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The candidate setting.
    pub place: Place,
    /// The reading, or why the place could not be set.
    pub came: Result<Reading, String>,
}

/// The next candidate to try.
#[derive(Debug, Clone, PartialEq)]
pub struct Next {
    /// The candidate setting.
    pub place: Place,
    /// The share by which power is expected to fall, if a model chose the candidate.
    pub expected_gain: Option<f64>,
}

/// The prediction of the models for one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Believed {
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
    pub place: Place,
    /// Whether the model predicts that it meets the bound. If not, no tried setting does, and
    /// this is the fastest one.
    pub meets: bool,
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
    candidates: Vec<(Place, Vec<f64>)>,
    /// A setting that was good in an earlier search.
    before: Option<Place>,
    /// Proposals in a row with an expected gain below `stop_below`, for the early stop.
    low_gains: usize,
    /// Start of the quasi-random sequence.
    shift: Option<Vec<f64>>,
}

/// The largest number of candidates that a model evaluates; larger spaces are sampled.
const CANDIDATES_MAX: usize = 20_000;
/// Proposals in a row with a low expected gain that end a search.
const LOW_GAINS_MAX: usize = 5;
/// The probability of meeting the bound that a candidate needs once `harm_max` is reached.
const SURE: f64 = 0.995;
/// Expected gain, as a share of power, below which a trial is not worthwhile (ours).
const MIN_GAIN: f64 = 0.002;
/// The floor for candidates if those above the usual floor are not worthwhile (ours).
const LOW_FLOOR: f64 = 0.5;

impl Search {
    /// Creates a search without trials.
    pub fn new(space: Space, rules: Rules) -> Self {
        let all = space.size();
        // Large spaces are sampled at a stride; an odd one does not repeat the same levels.
        let stride = all.div_ceil(CANDIDATES_MAX);
        let stride = if stride > 1 { stride * 2 + 1 } else { 1 };
        let candidates = (0..all).step_by(stride).map(|number| space.place(number));
        let located = |place: Place| (place.clone(), space.coordinates(&place));
        let candidates = candidates.map(located).collect();
        let (trials, before, shift) = (Vec::new(), None, None);
        Self { candidates, space, rules, trials, before, low_gains: 0, shift }
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
    pub fn ask(&mut self, rng: &mut Rng) -> Option<Next> {
        if self.trials.len() >= self.rules.trials {
            return None;
        }
        match self.rules.method {
            Method::Random => Some(self.anywhere(rng)),
            Method::Penalty => self.ask_penalty(rng),
            Method::Apart => self.ask_apart(rng),
        }
    }

    /// Records the result of trying a place.
    pub fn tell(&mut self, place: Place, came: Result<Reading, String>) {
        let sound = came.and_then(|reading| {
            let numbers = [reading.tail_us, reading.watts];
            match numbers.iter().all(|value| value.is_finite() && *value > 0.0) {
                true => Ok(reading),
                false => Err(format!("no sound reading: {reading:?}")),
            }
        });
        self.trials.push(Trial { place, came: sound });
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
        match self.rules.method {
            Method::Apart => match self.models() {
                Some(models) => self.choose_predicted(&models),
                None => self.choose_measured(),
            },
            Method::Penalty | Method::Random => self.choose_measured(),
        }
    }

    /// Sets a setting that was good in an earlier search. It is tried right after the fastest
    /// one (`Apart` only; the other methods choose their own first candidates).
    pub fn begin_with(&mut self, place: Place) {
        self.before = Some(place);
    }

    /// Returns the predictions for some settings; `None` before the second reading.
    pub fn believe(&self, places: &[Place]) -> Option<Vec<Believed>> {
        let models = self.models()?;
        let believed = |place: &Place| {
            let view = models.at(&self.space, place);
            Believed {
                tail_us: view.tail_us(self.rules.bound_us),
                watts: view.watts.mean.exp(),
                meets: view.meets(),
            }
        };
        Some(places.iter().map(believed).collect())
    }

    fn readings(&self) -> impl Iterator<Item = (&Place, &Reading)> {
        self.trials.iter().filter_map(|trial| Some((&trial.place, trial.came.as_ref().ok()?)))
    }

    fn is_refused(&self, place: &Place) -> bool {
        self.trials.iter().any(|trial| trial.place == *place && trial.came.is_err())
    }

    fn anywhere(&self, rng: &mut Rng) -> Next {
        let number = rng.random_range(0..self.space.size());
        Next { place: self.space.place(number), expected_gain: None }
    }

    /// An additive recurrence by powers of the generalised golden ratio, from a
    /// random start (Roberts, "The unreasonable effectiveness of quasirandom
    /// sequences", 2018); used instead of the paper's Sobol points.
    fn quasi_random(&mut self, rng: &mut Rng) -> Next {
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
        Next { place: self.space.at(&at), expected_gain: None }
    }

    fn ask_penalty(&mut self, rng: &mut Rng) -> Option<Next> {
        if self.trials.len() < self.rules.begin {
            return Some(self.quasi_random(rng));
        }
        let inputs: Vec<_> =
            self.readings().map(|(place, _)| self.space.coordinates(place)).collect();
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

    fn ask_apart(&mut self, rng: &mut Rng) -> Option<Next> {
        let begun = self.beginning();
        if let Some(place) = begun.into_iter().find(|place| !self.has_tried(place)) {
            return Some(Next { place, expected_gain: None });
        }
        let Some(models) = self.models() else { return Some(self.anywhere(rng)) };
        if let Some(place) = self.unconfirmed(&models) {
            return Some(Next { place, expected_gain: None });
        }
        let views = models.at_all(&self.space, &self.candidates);
        let is_harmed = self.harm() > self.rules.harm_max;
        let floor = if is_harmed { SURE } else { self.rules.floor };
        let within = |view: &View| if is_harmed { view.meets() } else { view.is_near() };
        if !views.iter().any(|view| view.meets() >= floor) {
            // No candidate reaches the floor yet: go to the one likeliest to meet the bound.
            return self.propose(views.iter().map(|view| view.meets().max(1e-300).ln()));
        }
        let best = self.best_power(&models);
        let low_floor = if is_harmed { floor } else { LOW_FLOOR.min(floor) };
        let mut scores = Vec::new();
        // If the model finds no candidate worthwhile, widen its uncertainty step by step before
        // trials are spent on repeats: first of power at untried candidates, then the floor.
        for (doubt, floor) in
            [(1.0, floor), (3.0, floor), (1.0, low_floor), (9.0, floor), (27.0, low_floor)]
        {
            let score = |(view, (place, _)): (&View, &(Place, Vec<f64>))| {
                if within(view) < floor || (doubt > 1.0 && self.has_tried(place)) {
                    return f64::NEG_INFINITY;
                }
                models.may_be_accepted(view.tail).ln() + view.log_gain(best, doubt)
            };
            scores = views.iter().zip(&self.candidates).map(score).collect::<Vec<f64>>();
            if scores.iter().any(|score| *score >= MIN_GAIN.ln()) {
                break;
            }
        }
        self.propose(scores.into_iter())
    }

    /// The incumbent, as long as the last trials have to measure it again.
    fn unconfirmed(&self, models: &Models) -> Option<Place> {
        let left = self.rules.trials - self.trials.len();
        if left > self.rules.confirm {
            return None;
        }
        let choice = self.choose_predicted(models)?;
        let times = self.readings().filter(|(place, _)| **place == choice.place).count();
        (times <= self.rules.confirm).then_some(choice.place)
    }

    /// The first candidates: the fastest setting, one that was good before, and one step from
    /// the fastest along each dimension.
    fn beginning(&self) -> Vec<Place> {
        let fastest = self.space.fastest();
        let mut all = vec![fastest.clone()];
        all.extend(self.before.clone());
        for axis in 0..self.space.dimensions().len() {
            let mut at = self.space.coordinates(&fastest);
            let is_high = at[axis] > 0.5;
            at[axis] += if is_high { -0.25 } else { 0.2 };
            let mut place = self.space.at(&at);
            // Where levels are few the step is one level.
            if place == fastest {
                let level = &mut place.0[axis];
                *level = if is_high { level.saturating_sub(1) } else { *level + 1 };
            }
            all.push(place);
        }
        all
    }

    fn has_tried(&self, place: &Place) -> bool {
        self.trials.iter().any(|trial| trial.place == *place)
    }

    /// The candidate with the best score; `None` if the early stop is due.
    fn propose(&mut self, scores: impl Iterator<Item = f64>) -> Option<Next> {
        let pairs = scores.zip(&self.candidates).filter(|(score, _)| !score.is_nan());
        let open = pairs.filter(|(_, (place, _))| !self.is_refused(place));
        let (score, (place, _)) = open.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let place = place.clone();
        // Outputs are logarithms, so a decrease is a share.
        let gain = score.exp();
        self.low_gains = if gain < self.rules.stop_below { self.low_gains + 1 } else { 0 };
        if self.low_gains >= LOW_GAINS_MAX {
            return None;
        }
        Some(Next { place, expected_gain: Some(gain) })
    }

    fn models(&self) -> Option<Models> {
        let readings: Vec<_> = self.readings().collect();
        Models::fit(&self.space, &self.rules, &readings)
    }

    /// The logarithm of the least predicted power of a tried setting that meets the bound; if
    /// there is none, that of the largest power measured.
    fn best_power(&self, models: &Models) -> f64 {
        let views = self.readings().map(|(place, _)| models.at(&self.space, place));
        let good = views.filter(|view| view.meets() >= self.rules.final_floor);
        let best = good.map(|view| view.watts.mean).reduce(f64::min);
        let any = || self.readings().map(|(_, it)| it.watts.ln()).fold(f64::MIN, f64::max);
        best.unwrap_or_else(any)
    }

    /// The least predicted power among tried settings that are predicted to meet the bound.
    fn choose_predicted(&self, models: &Models) -> Option<Choice> {
        let believed = self.readings().map(|(place, _)| (place, models.at(&self.space, place)));
        let all: Vec<_> = believed.collect();
        let good = all
            .iter()
            .filter(|(_, view)| view.meets() >= self.rules.final_floor)
            .min_by(|a, b| a.1.watts.mean.total_cmp(&b.1.watts.mean));
        let fastest = || all.iter().min_by(|a, b| a.1.tail.mean.total_cmp(&b.1.tail.mean));
        let (place, view) = good.or_else(fastest)?;
        Some(Choice {
            place: (*place).clone(),
            meets: good.is_some(),
            watts: view.watts.mean.exp(),
            tail_us: view.tail_us(self.rules.bound_us),
        })
    }

    /// The least measured power among settings whose measured tail met the bound.
    fn choose_measured(&self) -> Option<Choice> {
        let met = self.readings().filter(|(_, it)| it.tail_us <= self.rules.bound_us);
        let good = met.min_by(|a, b| a.1.watts.total_cmp(&b.1.watts));
        let fastest = || self.readings().min_by(|a, b| a.1.tail_us.total_cmp(&b.1.tail_us));
        let (place, reading) = good.or_else(fastest)?;
        Some(Choice {
            place: place.clone(),
            meets: good.is_some(),
            watts: reading.watts,
            tail_us: reading.tail_us,
        })
    }
}

/// Returns the paper's penalty (eq. 4), with power for the energy of equally long trials.
pub fn penalty(reading: &Reading, bound_us: f64) -> f64 {
    reading.watts * (reading.tail_us - bound_us + 1.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lc_spec, machine};
    use lull_control::Capability;
    use rand::SeedableRng;

    const BOUND_US: f64 = 500.0;

    fn reading(tail_us: f64, watts: f64) -> Reading {
        Reading { tail_us, watts, requests: 1000, late: if tail_us > BOUND_US { 50 } else { 5 } }
    }

    fn space() -> Space {
        let knobs = [Capability::Coalescing, Capability::Cores];
        Space::from_machine(&machine(18), &[lc_spec("a")], &knobs).unwrap()
    }

    /// Delay in us and cores: fewer cores cost less and are slower, delays save and wait.
    fn server(values: &[f64]) -> Reading {
        let (delay, cores) = (values[0], values[1]);
        let load = 5.0 + 60.0 / (delay + 15.0);
        let queueing = if cores > load { cores / (cores - load) } else { 50.0 };
        reading(0.6 * delay + 90.0 * queueing, 20.0 + 3.0 * cores + 500.0 / (delay + 30.0))
    }

    /// The least power with 3 % to spare: closer to the bound nothing can be
    /// distinguished under a noise of 1 %.
    fn oracle(space: &Space) -> f64 {
        let all = space.places().map(|place| server(&space.values(&place)));
        all.filter(|it| it.tail_us <= 0.97 * BOUND_US)
            .map(|it| it.watts)
            .fold(f64::INFINITY, f64::min)
    }

    fn search(method: Method, seed: u64) -> (Search, Choice) {
        let mut search = Search::new(space(), Rules::new(method, BOUND_US, 30));
        let mut rng = Rng::seed_from_u64(seed);
        while let Some(next) = search.ask(&mut rng) {
            let exact = server(&search.space().values(&next.place));
            let noise = 1.0 + 0.02 * (rng.random::<f64>() - 0.5);
            let noisy = Reading { tail_us: exact.tail_us * noise, ..exact };
            search.tell(next.place, Ok(noisy));
        }
        let choice = search.choice().unwrap();
        (search, choice)
    }

    #[test]
    fn the_penalty_has_the_papers_vectors() {
        // Section 5.1.1: 600 us against 500 is x101 (the text's 100 is a slip).
        for (tail_us, factor) in
            [(499.0, 1.0), (500.0, 1.0), (500.5, 1.5), (501.0, 2.0), (600.0, 101.0)]
        {
            assert_eq!(penalty(&reading(tail_us, 2.0), BOUND_US), 2.0 * factor);
        }
    }

    /// True powers above the best of six searches, ascending; none misses the bound.
    fn gaps(method: Method) -> (Vec<f64>, usize) {
        let best = oracle(&space());
        let ends = (0..6).map(|seed| {
            let (search, choice) = search(method, seed);
            assert_eq!(search.trials().len(), 30);
            server(&search.space().values(&choice.place))
        });
        let ends: Vec<_> = ends.collect();
        let mut gaps: Vec<_> = ends.iter().map(|it| it.watts / best - 1.0).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        (gaps, ends.iter().filter(|it| it.tail_us > BOUND_US).count())
    }

    #[test]
    fn modelled_apart_thirty_trials_come_nearer_than_chance_and_keep_the_bound() {
        let ((ours, missed), (chance, _)) = (gaps(Method::Apart), gaps(Method::Random));
        assert_eq!(missed, 0, "{ours:?}");
        // One core, the smallest step, is 6 % of the power here.
        assert!(ours[5] < 0.10, "{ours:?}");
        assert!(ours[3] < 0.5 * chance[3], "{ours:?} {chance:?}");
    }

    #[test]
    fn the_papers_way_begins_with_its_five_points_and_is_finite() {
        let (search, choice) = search(Method::Penalty, 3);
        assert_eq!(search.trials().len(), 30);
        assert!(choice.watts.is_finite());
        let first: Vec<_> = search.trials()[..5].iter().map(|trial| &trial.place).collect();
        assert!((1..5).all(|at| !first[..at].contains(&first[at])), "{first:?}");
    }

    #[test]
    fn it_begins_where_latency_is_best() {
        let mut search = Search::new(space(), Rules::new(Method::Apart, BOUND_US, 30));
        let first = search.ask(&mut Rng::seed_from_u64(1)).unwrap();
        assert_eq!(first.place, search.space().fastest());
    }

    #[test]
    fn a_bound_that_nothing_meets_leaves_the_fastest_place_and_says_so() {
        for method in [Method::Apart, Method::Penalty, Method::Random] {
            let mut search = Search::new(space(), Rules::new(method, 10.0, 12));
            let mut rng = Rng::seed_from_u64(1);
            while let Some(next) = search.ask(&mut rng) {
                let came = server(&search.space().values(&next.place));
                search.tell(next.place, Ok(came));
            }
            let choice = search.choice().unwrap();
            let readings = search.readings().map(|(_, it)| it.tail_us);
            let fastest = readings.fold(f64::INFINITY, f64::min);
            assert!(!choice.meets, "{method:?}");
            let exact = server(&search.space().values(&choice.place)).tail_us;
            assert!(exact <= 1.05 * fastest, "{method:?}: {exact} {fastest}");
        }
    }

    #[test]
    fn a_refused_place_is_not_proposed_again_and_nonsense_is_no_reading() {
        let mut search = Search::new(space(), Rules::new(Method::Apart, BOUND_US, 30));
        let mut rng = Rng::seed_from_u64(1);
        for _ in 0..10 {
            let next = search.ask(&mut rng).unwrap();
            let came = server(&search.space().values(&next.place));
            let came = if came.tail_us > 150.0 { Err("no".to_owned()) } else { Ok(came) };
            search.tell(next.place, came);
        }
        let refused = search.trials().iter().filter(|trial| trial.came.is_err());
        for trial in refused {
            let same = search.trials().iter().filter(|it| it.place == trial.place).count();
            assert_eq!(same, 1);
        }
        search.tell(search.space().fastest(), Ok(reading(f64::NAN, 1.0)));
        assert!(search.trials().last().unwrap().came.is_err());
    }

    #[test]
    fn a_search_that_has_done_enough_harm_tries_what_is_nearly_sure() {
        let rules = Rules { harm_max: 0.0, ..Rules::new(Method::Apart, BOUND_US, 20) };
        let mut careful = Search::new(space(), rules);
        let mut rng = Rng::seed_from_u64(5);
        while let Some(next) = careful.ask(&mut rng) {
            let came = server(&careful.space().values(&next.place));
            careful.tell(next.place, Ok(came));
        }
        let over = careful.readings().filter(|(_, it)| it.tail_us > BOUND_US).count();
        assert!(over <= 1, "{over}");
        assert!(careful.harm() < 0.02);
    }

    #[test]
    fn a_search_may_end_early_when_there_is_nothing_to_gain() {
        let rules = Rules { stop_below: 0.005, ..Rules::new(Method::Apart, BOUND_US, 100) };
        let mut search = Search::new(space(), rules);
        let mut rng = Rng::seed_from_u64(2);
        while let Some(next) = search.ask(&mut rng) {
            let came = server(&search.space().values(&next.place));
            search.tell(next.place, Ok(came));
        }
        assert!(search.trials().len() < 90, "{}", search.trials().len());
    }
}
