//! A switchback: blocks of candidates and of a reference in random order.
//!
//! A round is one block of the reference and one of each candidate that is still tried, in an
//! order that is drawn. Each candidate's block makes a pair with the reference's block of its
//! round. Candidates are dropped when they are unlikely to be worth it, or behind the best.

use super::aim::{Aim, Evidence};
use super::candidates::between;
use super::evidence::{Pair, is_behind};
use super::window::Look;
use super::{OTHER_CROWD, Setting, is_beyond};
use lull_control::Rng;
use lull_measure::statistics::AlphaSchedule;
use rand::RngExt;

/// After so many rounds at most so many candidates are tried on, the best ones. With equal
/// candidates the best of many costs more blocks than it gains.
const FINALISTS: [(usize, usize); 2] = [(3, 2), (9, 1)];
/// Rounds after which a limit between the best two is tried.
const REFINES_AT: usize = 2;
/// Error probability of all surveys together, of a single one that closes the gate wrongly.
const ALPHA: f64 = 0.01;
/// Change of throughput against the usual, either way, that is another load if it lasts for so
/// many blocks of the reference. One alone may be a checkpoint.
const TORN: f64 = 2.0;
const TORN_BLOCKS: u32 = 2;
/// Weight of the last block in what is usual.
const NEW: f64 = 0.25;
/// How often a survey begins at most. Without this limit a survey would never end where the load
/// never settles.
const BEGINNINGS_MAX: u32 = 4;

/// What is tried, for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// C, beside the open gate.
    Caps,
    /// N, beside one transaction a turn.
    Batches,
    /// D, beside the open gate.
    Rests,
}

/// What a survey is about.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) what: What,
    pub(super) reference: Setting,
    /// From the mildest to the harshest.
    pub(super) candidates: Vec<Setting>,
    /// The reference's throughput, as far as it is known.
    pub(super) expected_per_s: f64,
    /// Rounds at most.
    pub(super) rounds: usize,
    /// How many surveys there have been, with this one.
    pub(super) number: u64,
}

#[derive(Debug)]
struct Candidate {
    setting: Setting,
    evidence: Evidence,
    is_alive: bool,
}

/// The comparison under way.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) what: What,
    reference: Setting,
    candidates: Vec<Candidate>,
    /// Error probability for one figure of one candidate.
    alpha: f64,
    rounds: usize,
    rounds_max: usize,
    /// Blocks of this round that are still to come, the present one last; `None` is the
    /// reference.
    to_come: Vec<Option<usize>>,
    /// Blocks of this round.
    of_reference: Option<Look>,
    tried: Vec<(usize, Look)>,
    /// The last block of the reference, from whatever round.
    last_reference: Option<Look>,
    /// What is usual under this load, and how many blocks in a row were of another.
    usual: Option<Look>,
    odd: u32,
    /// The reference's throughput before there is a block of it.
    expected_per_s: f64,
    restarts: u32,
}

/// The progress of a survey after a block.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    GoesOn,
    Found(Finding),
    /// The load did not stand still for long enough.
    Torn,
}

/// What a survey has come to.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    /// The best candidate, if one is shown to be better than the reference.
    pub(super) best: Option<Setting>,
    /// Candidates that are better in the mean, though not shown to be.
    pub(super) undecided: Vec<Setting>,
    /// The throughput that is usual with what is best.
    pub(super) usual_per_s: f64,
    /// The evidence, in words.
    pub(super) why: String,
}

impl Survey {
    pub(super) fn new(plan: Plan, aim: &Aim, rng: &mut Rng) -> Self {
        // One more than the candidates, for the one that is found between them.
        let figures = (plan.candidates.len() + 1) * aim.endpoints();
        let alpha = AlphaSchedule::Logarithmic.alpha(ALPHA, plan.number) / figures as f64;
        let candidate = |setting| Candidate { setting, evidence: Evidence::new(), is_alive: true };
        let mut survey = Self {
            what: plan.what,
            reference: plan.reference,
            candidates: plan.candidates.into_iter().map(candidate).collect(),
            alpha,
            rounds: 0,
            rounds_max: plan.rounds,
            to_come: Vec::new(),
            of_reference: None,
            tried: Vec::new(),
            last_reference: None,
            usual: None,
            odd: 0,
            expected_per_s: plan.expected_per_s,
            restarts: 0,
        };
        survey.begin_round(rng);
        survey
    }

    /// What all others are compared with.
    pub(super) const fn reference(&self) -> Setting {
        self.reference
    }

    /// The setting of the present block.
    pub(super) fn setting(&self) -> Setting {
        match self.to_come.last() {
            Some(Some(at)) => self.candidates[*at].setting,
            Some(None) | None => self.reference,
        }
    }

    /// The throughput below which the present block costs something, if it is of a candidate.
    pub(super) fn expected_per_s(&self, aim: &Aim) -> Option<f64> {
        self.to_come.last().copied().flatten()?;
        let expected = |look: Look| look.per_s * aim.charged_below(look);
        Some(self.last_reference.map_or(self.expected_per_s, expected))
    }

    /// Draws the order of the next round (Fisher and Yates).
    fn begin_round(&mut self, rng: &mut Rng) {
        let alive = (0..self.candidates.len()).filter(|at| self.candidates[*at].is_alive);
        self.to_come = std::iter::once(None).chain(alive.map(Some)).collect();
        for last in (1..self.to_come.len()).rev() {
            self.to_come.swap(last, rng.random_range(0..=last));
        }
        self.of_reference = None;
        self.tried.clear();
    }

    /// Takes the present block and goes on to the next.
    pub(super) fn takes(&mut self, look: Look, aim: &Aim, rng: &mut Rng) -> Progress {
        let at = self.to_come.pop().flatten();
        // No length of a turn changes so much as another load does.
        let tells_load = at.is_none() || self.what == What::Batches;
        if tells_load && self.is_other_load(look) {
            return match self.what {
                What::Batches => Progress::Torn,
                What::Caps | What::Rests => self.begins_anew(rng),
            };
        }
        match at {
            Some(at) => self.takes_candidate(at, look, aim),
            None => {
                self.last_reference = Some(look);
                self.of_reference = Some(look);
            }
        }
        if self.to_come.is_empty() { self.end_round(aim, rng) } else { Progress::GoesOn }
    }

    /// Returns whether the last blocks were of another load, which then is the usual one.
    fn is_other_load(&mut self, look: Look) -> bool {
        let usual = *self.usual.get_or_insert(look);
        let is_odd = is_beyond(TORN, look.per_s, usual.per_s)
            || is_beyond(OTHER_CROWD, look.crowd, usual.crowd);
        self.odd = if is_odd { self.odd + 1 } else { 0 };
        let is_other = self.odd >= TORN_BLOCKS;
        if is_other {
            (self.usual, self.last_reference, self.odd) = (Some(look), Some(look), 0);
        } else if !is_odd {
            let towards = |usual: f64, now: f64| usual.powf(1.0 - NEW) * now.powf(NEW);
            let per_s = towards(usual.per_s, look.per_s);
            let crowd = towards(usual.crowd, look.crowd);
            self.usual = Some(Look { per_s, crowd, ..look });
        }
        is_other
    }

    fn takes_candidate(&mut self, at: usize, look: Look, aim: &Aim) {
        let setting = self.candidates[at].setting;
        self.tried.push((at, look));
        if self.last_reference.is_some_and(|reference| aim.is_hopeless(setting, look, reference)) {
            self.drop_from(at);
        }
    }

    /// Drops a candidate and those that are harsher.
    fn drop_from(&mut self, at: usize) {
        self.candidates[at..].iter_mut().for_each(|one| one.is_alive = false);
        self.to_come.retain(|block| block.is_none_or(|block| block < at));
    }

    /// Ends the block of a candidate whose loss is as large as it may be.
    pub(super) fn abandons(&mut self, aim: &Aim, rng: &mut Rng) -> Progress {
        if let Some(at) = self.to_come.pop().flatten() {
            self.drop_from(at);
        }
        if self.to_come.is_empty() { self.end_round(aim, rng) } else { Progress::GoesOn }
    }

    /// Forgets all but the last block of the reference.
    fn begins_anew(&mut self, rng: &mut Rng) -> Progress {
        self.restarts += 1;
        self.rounds = 0;
        for one in &mut self.candidates {
            (one.evidence, one.is_alive) = (Evidence::new(), true);
        }
        self.begin_round(rng);
        if self.restarts < BEGINNINGS_MAX { Progress::GoesOn } else { Progress::Torn }
    }

    fn end_round(&mut self, aim: &Aim, rng: &mut Rng) -> Progress {
        self.rounds += 1;
        if let Some(reference) = self.of_reference {
            for (at, tried) in self.tried.drain(..) {
                let one = &mut self.candidates[at];
                aim.add(&mut one.evidence, one.setting, Pair { tried, reference });
            }
        }
        if let Some(found) = self.shown(aim) {
            return Progress::Found(found);
        }
        self.narrow(aim);
        if self.alive().next().is_none() || self.rounds >= self.rounds_max {
            return Progress::Found(self.nothing_shown(aim));
        }
        self.begin_round(rng);
        Progress::GoesOn
    }

    fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.candidates.len()).filter(|at| self.candidates[*at].is_alive)
    }

    /// The mean worth of a candidate.
    fn worth(&self, at: usize, aim: &Aim) -> f64 {
        let one = &self.candidates[at];
        let logs = aim.worth(one.setting, &one.evidence);
        logs.iter().sum::<f64>() / logs.len().max(1) as f64
    }

    /// The best of these by their means.
    fn best(&self, of: impl Iterator<Item = usize>, aim: &Aim) -> Option<usize> {
        of.max_by(|one, other| self.worth(*one, aim).total_cmp(&self.worth(*other, aim)))
    }

    /// The best candidate that is shown to be better than the reference.
    fn shown(&self, aim: &Aim) -> Option<Finding> {
        let is_shown = |at: &usize| {
            let one = &self.candidates[*at];
            aim.is_shown(one.setting, &one.evidence, self.alpha)
        };
        let best = self.best(self.alive().filter(is_shown), aim)?;
        let one = &self.candidates[best];
        let gain = aim.throughput(&one.evidence);
        Some(Finding {
            best: Some(one.setting),
            undecided: Vec::new(),
            usual_per_s: self.reference_per_s() * gain,
            why: aim.describe(&one.evidence, self.alpha),
        })
    }

    fn reference_per_s(&self) -> f64 {
        self.last_reference.map_or(0.0, |look| look.per_s)
    }

    /// What is left when no candidate was shown to be better.
    fn nothing_shown(&self, aim: &Aim) -> Finding {
        let with_pairs =
            (0..self.candidates.len()).filter(|at| self.candidates[*at].evidence.pairs() > 0);
        let best = self.best(with_pairs, aim).map(|at| &self.candidates[at]);
        let evidence = best.map(|one| {
            format!(
                "; the best, {}: {}",
                one.setting.describe(),
                aim.describe(&one.evidence, self.alpha)
            )
        });
        let is_futile = |one: &Candidate| aim.is_futile(one.setting, &one.evidence, self.alpha);
        let verdict = match best {
            Some(best) if is_futile(best) => "no gain that is worth it",
            _ if self.alive().next().is_none() => "a gain is unlikely",
            _ => "no gain is shown",
        };
        let is_estimated = |at: &usize| {
            let one = &self.candidates[*at];
            aim.is_estimated(one.setting, &one.evidence)
        };
        let undecided = self.alive().filter(is_estimated);
        Finding {
            best: None,
            undecided: undecided.map(|at| self.candidates[at].setting).collect(),
            usual_per_s: self.reference_per_s(),
            why: format!("{verdict}{}", evidence.unwrap_or_default()),
        }
    }

    /// Drops those that are not worth another block.
    fn narrow(&mut self, aim: &Aim) {
        let alpha = self.alpha;
        for one in self.candidates.iter_mut().filter(|one| one.is_alive) {
            one.is_alive = !aim.is_unlikely(one.setting, &one.evidence)
                && !aim.is_futile(one.setting, &one.evidence, alpha);
        }
        let Some(best) = self.best(self.alive(), aim) else { return };
        // A shorter rest is always worth less, and is needed if the longest fails.
        if self.what != What::Rests {
            let best = &self.candidates[best];
            let best_worth = aim.worth(best.setting, &best.evidence);
            for one in self.candidates.iter_mut().filter(|one| one.is_alive) {
                one.is_alive = !is_behind(&aim.worth(one.setting, &one.evidence), &best_worth);
            }
        }
        let most = FINALISTS.iter().rev().find(|(rounds, _)| self.rounds >= *rounds);
        self.keep_best(most.map_or(usize::MAX, |(_, most)| *most), aim);
        if self.what == What::Caps && self.rounds == REFINES_AT {
            self.refine(aim);
        }
    }

    fn keep_best(&mut self, most: usize, aim: &Aim) {
        let mut order: Vec<usize> = self.alive().collect();
        order.sort_by(|one, other| self.worth(*other, aim).total_cmp(&self.worth(*one, aim)));
        for at in order.into_iter().skip(most) {
            self.candidates[at].is_alive = false;
        }
    }

    /// Adds the limit between the best and the next best, if they are neighbours.
    fn refine(&mut self, aim: &Aim) {
        let Some(best) = self.best(self.alive(), aim) else { return };
        let others = (0..self.candidates.len()).filter(|at| at.abs_diff(best) == 1);
        let Some(other) = self.best(others, aim) else { return };
        let cap = |at: usize| match self.candidates[at].setting {
            Setting::Flow { cap, .. } => cap,
            Setting::Open | Setting::Rests { .. } => 0,
        };
        let Some(cap) = between(cap(best), cap(other)) else { return };
        let setting = Setting::Flow { cap, batch: 1 };
        self.candidates.push(Candidate { setting, evidence: Evidence::new(), is_alive: true });
    }
}
