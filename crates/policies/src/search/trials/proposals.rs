//! The proposals and the choice of our method.
//!
//! ```text
//! begin       the fastest setting, one that was good before, one step along each dimension
//! explore     the candidate whose reading is worth most
//! confirm     the likely choice again, until its evidence is enough: in the last trials, and
//!             before if no candidate is worth a trial
//! ```
//!
//! The likely choice is the setting whose confirmation is worth most: the probability that its
//! trials show that it meets the bound, times the power that it saves over the setting that is
//! shown already, or else over the fastest one, which stays if none is shown. It is chosen again
//! after each trial. Once a setting is confirmed, the trials beyond
//! those that another confirmation takes continue exploring.
//!
//! A safe search learns from steps along each dimension what a change does. If every step is
//! refused, nothing predicts the tail of another setting: the search then measures the fastest
//! setting until its evidence is enough, and ends.

use super::super::evidence::can_be_shown;
use super::super::rules::Method;
use super::super::separate::{Models, View};
use super::super::space::SearchPoint;
use super::{Choice, NextTrial, Search};
use lull_control::Rng;

/// The probability of meeting the bound that a candidate needs once `harm_max` is reached.
pub(super) const SURE: f64 = 0.995;
/// Expected gain, as a share of power, below which a trial is not worthwhile (ours).
const MIN_GAIN: f64 = 0.002;
/// The floor for candidates if those above the usual floor are not worthwhile (ours).
const LOW_FLOOR: f64 = 0.5;

/// The purpose of the next trial.
enum Step {
    /// Learn about a candidate.
    Explore,
    /// Measure this setting again.
    Confirm(SearchPoint),
    /// No trial is left to do.
    End,
}

/// A setting that was tried and that the trials do not refute.
struct Contender {
    point: SearchPoint,
    view: View,
    is_shown: bool,
    /// The probability that the trials that are left show that it meets the bound.
    chance: f64,
}

impl Search {
    pub(super) fn ask_apart(&mut self, rng: &mut Rng) -> Option<NextTrial> {
        if self.is_confined() {
            return self.stay();
        }
        let (begun, closed) = (self.beginning(), self.closed());
        let is_new = |point: &SearchPoint| {
            !self.has_tried(point) && !closed.contains(point) && self.may_begin_at(point)
        };
        if let Some(point) = begun.into_iter().find(is_new) {
            return Some(NextTrial { point, expected_gain: None });
        }
        let again = |point| Some(NextTrial { point, expected_gain: None });
        // A safe search that may try nothing else measures the fastest setting again.
        let fastest = self.space.fastest();
        let may_repeat = self.rules.safe && !closed.contains(&fastest);
        let Some(models) = self.models() else {
            return match self.rules.safe {
                true => may_repeat.then_some(fastest).and_then(again),
                false => Some(self.random_candidate(rng)),
            };
        };
        match self.step(&models) {
            Step::End => return None,
            Step::Confirm(point) => return again(point),
            Step::Explore => {}
        }
        let next = match self.rules.method {
            Method::Front => self.explore_front(&models),
            _ => self.explore(&models),
        };
        if next.is_some() {
            return next;
        }
        // The early stop is due, or every candidate is refuted or refused.
        self.is_ending = true;
        match self.step(&models) {
            Step::Confirm(point) => again(point),
            Step::Explore if may_repeat => again(fastest),
            Step::Explore | Step::End => None,
        }
    }

    /// Returns why a safe search has tried nothing but the fastest setting, if every step from it
    /// was refused.
    pub fn confinement(&self) -> Option<String> {
        let refusal = self.trials.iter().find_map(|trial| trial.outcome.as_ref().err());
        let why = refusal.map_or("an earlier search has refuted them", |it| it.why.as_str());
        self.is_confined().then(|| {
            format!(
                "every step from the fastest setting was refused ({why}): the safe search stayed \
                 there, because nothing predicts the tail of another setting"
            )
        })
    }

    /// Whether every step from the fastest setting was refused, or refuted by an earlier search,
    /// and all readings of a safe search are of the fastest setting.
    fn is_confined(&self) -> bool {
        let fastest = self.space.fastest();
        let has_begun = self.readings().next().is_some();
        if !self.rules.safe || !has_begun || self.readings().any(|(point, _)| *point != fastest) {
            return false;
        }
        let closed = self.closed();
        self.steps_from(&fastest).iter().all(|step| closed.contains(step))
    }

    /// The fastest setting, until its evidence is enough or refutes it.
    fn stay(&self) -> Option<NextTrial> {
        let point = self.space.fastest();
        let is_shown = || self.models().is_some_and(|models| self.is_shown(&models, &point));
        let is_over = self.closed().contains(&point) || is_shown();
        (!is_over).then_some(NextTrial { point, expected_gain: None })
    }

    /// Returns the candidate whose reading has the highest expected value.
    fn explore(&mut self, models: &Models) -> Option<NextTrial> {
        let views = models.views_at(&self.space, &self.candidates);
        let is_harmed = self.harm() > self.rules.harm_max;
        let floor = if is_harmed { SURE } else { self.rules.floor };
        let within = |view: &View| if is_harmed { view.meets() } else { view.is_near() };
        if !views.iter().any(|view| view.meets() >= floor) {
            // No candidate reaches the floor yet: go to the one likeliest to meet the bound.
            let score = |view: &View| match self.is_allowed(view) {
                true => view.meets().max(1e-300).ln(),
                false => f64::NEG_INFINITY,
            };
            let scores: Vec<f64> = views.iter().map(score).collect();
            return self.propose(scores.into_iter());
        }
        let best = self.best_power(models);
        let low_floor = if is_harmed { floor } else { LOW_FLOOR.min(floor) };
        let mut scores = Vec::new();
        // If the model finds no candidate worthwhile, widen its uncertainty step by step before
        // trials are spent on repeats: first of power at untried candidates, then the floor.
        for (doubt, floor) in
            [(1.0, floor), (3.0, floor), (1.0, low_floor), (9.0, floor), (27.0, low_floor)]
        {
            let score = |(view, (point, _)): (&View, &(SearchPoint, Vec<f64>))| {
                let is_excluded = within(view) < floor || !self.is_allowed(view);
                if is_excluded || (doubt > 1.0 && self.has_tried(point)) {
                    return f64::NEG_INFINITY;
                }
                models.may_be_accepted(view).ln() + view.log_gain(best, doubt)
            };
            scores = views.iter().zip(&self.candidates).map(score).collect::<Vec<f64>>();
            if scores.iter().any(|score| *score >= MIN_GAIN.ln()) {
                break;
            }
            // Exploiting the model is worth more than reducing its uncertainty.
            let left = self.rules.trials - self.trials.len();
            if let Some(likely) = best_expected(&self.contenders(models, left), MIN_GAIN) {
                return Some(NextTrial { point: likely.point.clone(), expected_gain: None });
            }
        }
        self.propose(scores.into_iter())
    }

    /// Decides between exploring and confirming.
    fn step(&self, models: &Models) -> Step {
        let left = self.rules.trials - self.trials.len();
        let needed = self.rules.confirmations();
        if left > 2 * needed && !self.is_ending {
            return Step::Explore;
        }
        let contenders = self.contenders(models, left);
        let shown = cheapest(contenders.iter().filter(|it| it.is_shown));
        // Trials that are too few for another confirmation have no better use.
        let likely = best_expected(&contenders, if left > needed { MIN_GAIN } else { 0.0 });
        // A setting that hardly meets the bound is measured again only if no time is left to find
        // a better one: its evidence is then the answer.
        let is_worth = |it: &&Contender| left <= needed || it.view.meets() >= LOW_FLOOR;
        let decent = contenders.iter().filter(is_worth);
        let likeliest = || decent.max_by(|a, b| a.view.meets().total_cmp(&b.view.meets()));
        match (shown, likely) {
            (_, Some(likely)) => Step::Confirm(likely.point.clone()),
            (Some(_), None) if self.is_ending => Step::End,
            (Some(shown), None) if left <= needed => Step::Confirm(shown.point.clone()),
            (Some(_), None) => Step::Explore,
            (None, None) => likeliest().map_or(Step::Explore, |it| Step::Confirm(it.point.clone())),
        }
    }

    /// Settings that were tried and are not refuted.
    fn contenders(&self, models: &Models, left: usize) -> Vec<Contender> {
        let mut points: Vec<_> = self.readings().map(|(point, _)| point).collect();
        points.sort_unstable();
        points.dedup();
        let needed = self.rules.confirmations();
        let contender = |point: &SearchPoint| {
            let readings = self.readings_at(point);
            let missing = (needed + 1).saturating_sub(readings.len());
            let view = models.at(&self.space, point);
            let can_be_shown = missing <= left && can_be_shown(&readings, &self.rules, left);
            Contender {
                point: point.clone(),
                is_shown: self.is_shown(models, point),
                chance: if can_be_shown { models.may_be_shown(&view) } else { 0.0 },
                view,
            }
        };
        points.into_iter().filter(|point| !self.is_refuted(point)).map(contender).collect()
    }

    /// Whether a setting was measured often enough, and its evidence is enough.
    fn is_shown(&self, models: &Models, point: &SearchPoint) -> bool {
        let evidence = self.weighed(Some(models), point);
        let often = self.rules.confirmations() + 1;
        evidence.is_some_and(|it| it.trials as usize >= often && self.rules.is_enough(&it))
    }

    /// The first candidates: the fastest setting, one that was good before, one step from the
    /// fastest along each dimension, and the fastest in each other mode.
    fn beginning(&self) -> Vec<SearchPoint> {
        let fastest = self.space.fastest();
        let mut all = vec![fastest.clone()];
        all.extend(self.before.clone());
        all.extend(self.steps_from(&fastest));
        all.extend(self.space.in_other_modes(&fastest));
        all
    }

    /// Returns the settings one step from the fastest along each dimension.
    fn steps_from(&self, fastest: &SearchPoint) -> Vec<SearchPoint> {
        let step = |axis: usize| {
            let mut at = self.space.coordinates(fastest);
            let is_high = at[axis] > 0.5;
            at[axis] += if is_high { -0.25 } else { 0.2 };
            let mut point = self.space.at(&at);
            // Where levels are few the step is one level.
            if point == *fastest {
                let level = &mut point.0[axis];
                *level = if is_high { level.saturating_sub(1) } else { *level + 1 };
            }
            point
        };
        (0..self.space.dimensions().len()).map(step).collect()
    }

    /// Whether one of the first candidates may be tried: a safe search skips those that its first
    /// readings warn of, and before it can predict it tries the fastest setting and steps from it
    /// only.
    fn may_begin_at(&self, point: &SearchPoint) -> bool {
        let fastest = self.space.fastest();
        let is_near = || *point == fastest || self.steps_from(&fastest).contains(point);
        let is_allowed = |models: Models| self.is_allowed(&models.at(&self.space, point));
        !self.rules.safe || self.models().map_or_else(is_near, is_allowed)
    }

    fn has_tried(&self, point: &SearchPoint) -> bool {
        self.trials.iter().any(|trial| trial.point == *point)
    }

    /// The logarithm of the least predicted power of a tried setting that is likely to meet the
    /// bound; if there is none, that of the largest power measured.
    fn best_power(&self, models: &Models) -> f64 {
        let tried = self.readings().filter(|(point, _)| !self.is_refuted(point));
        let views = tried.map(|(point, _)| models.at(&self.space, point));
        let good = views.filter(|view| view.meets() >= self.rules.final_floor);
        let best = good.map(|view| view.watts.mean).reduce(f64::min);
        let any = || self.readings().map(|(_, it)| it.watts.ln()).fold(f64::MIN, f64::max);
        best.unwrap_or_else(any)
    }

    /// The least predicted power among settings that are shown to meet the bound; without one,
    /// the fastest.
    pub(super) fn choose_shown(&self, models: &Models) -> Option<Choice> {
        let all = self.contenders(models, 0);
        let shown = cheapest(all.iter().filter(|it| it.is_shown));
        let fastest = || {
            let tried = self.readings().map(|(point, _)| (point, models.at(&self.space, point)));
            tried.min_by(|a, b| a.1.tail.mean.total_cmp(&b.1.tail.mean))
        };
        let shown_view = shown.map(|it| (&it.point, it.view));
        let (point, view) = shown_view.or_else(fastest)?;
        Some(Choice {
            point: point.clone(),
            meets: shown.is_some(),
            evidence: self.weighed(Some(models), point)?,
            watts: view.watts.mean.exp(),
            tail_us: view.tail_us(self.rules.bound_us),
        })
    }
}

/// The contender whose confirmation is worth most: the probability that its trials show that it
/// meets the bound, times the share of power that it saves over the cheapest setting that is shown,
/// or else over the fastest one, which stays if none is shown. Returns `None` if that is not more
/// than `least`.
fn best_expected(contenders: &[Contender], least: f64) -> Option<&Contender> {
    let shown = cheapest(contenders.iter().filter(|it| it.is_shown));
    let fastest = contenders.iter().min_by(|a, b| a.view.tail.mean.total_cmp(&b.view.tail.mean));
    let reference = shown.or(fastest)?.view.watts.mean;
    let worth = |it: &Contender| it.chance * (reference - it.view.watts.mean);
    let open = contenders.iter().filter(|it| !it.is_shown && worth(it) > least);
    open.max_by(|a, b| worth(a).total_cmp(&worth(b)))
}

/// The contender with the least predicted power.
fn cheapest<'a>(all: impl Iterator<Item = &'a Contender>) -> Option<&'a Contender> {
    all.min_by(|a, b| a.view.watts.mean.total_cmp(&b.view.watts.mean))
}
