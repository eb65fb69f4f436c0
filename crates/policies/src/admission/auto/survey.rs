//! Settings of the gate, tried in turn beside a reference.

use super::aim::{Aim, Ratio};
use super::window::Look;
use super::{OTHER_CROWD, Setting, is_beyond};
use lull_measure::Nanos;

/// Candidates that go on after the first round.
const FINALISTS: usize = 2;
/// Change from one look at the reference to the next, with candidates in between,
/// that is another load; a contended server's own scatter is 1.5.
const TORN: f64 = 2.0;
/// How often a survey begins at most. Without this limit a survey would never end
/// where the load never settles.
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

/// The comparison under way.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) what: What,
    reference: Setting,
    /// From the mildest to the harshest.
    candidates: Vec<Setting>,
    /// Rounds that are made, and at the most where none is surely better or surely not.
    rounds: (usize, usize),
    /// When the first window of it, or of the survey that led to it, was over.
    pub(super) begun: Option<Nanos>,
    /// 0: the reference; n: the n-th of those that are tried still.
    at: usize,
    /// Candidates that are tried still, in order.
    alive: Vec<usize>,
    before: Option<Look>,
    tried: Vec<Look>,
    /// By candidate.
    ratios: Vec<Vec<Ratio>>,
    /// How often the survey was restarted.
    restarts: u32,
}

/// The progress of a survey after a look.
#[derive(Debug, Clone, Copy)]
pub(super) enum Progress {
    GoesOn,
    /// The best candidate, if one is better than the reference, and the throughput
    /// that is usual with what is best.
    Found(Option<Setting>, f64),
    /// The load did not stand still for long enough.
    Torn,
}

impl Survey {
    pub(super) fn new(
        what: What,
        reference: Setting,
        candidates: Vec<Setting>,
        rounds: (usize, usize),
    ) -> Self {
        Self {
            what,
            reference,
            rounds,
            begun: None,
            at: 0,
            alive: (0..candidates.len()).collect(),
            before: None,
            tried: Vec::new(),
            ratios: vec![Vec::new(); candidates.len()],
            candidates,
            restarts: 0,
        }
    }

    /// What all others are compared with.
    pub(super) const fn reference(&self) -> Setting {
        self.reference
    }

    /// What is looked at now.
    pub(super) fn setting(&self) -> Setting {
        self.candidate().map_or(self.reference, |at| self.candidates[at])
    }

    fn candidate(&self) -> Option<usize> {
        self.alive.get(self.at.checked_sub(1)?).copied()
    }

    /// Takes the look at the present setting and goes on to the next.
    pub(super) fn takes(&mut self, look: Look, aim: &Aim) -> Progress {
        if self.at == 0 {
            return self.takes_reference(look, aim);
        }
        let reference = self.before.unwrap_or(look);
        if self.what == What::Batches && is_torn(look, reference) {
            // No length of a turn changes that much.
            return Progress::Torn;
        }
        if aim.is_hopeless(self.setting(), look, reference) {
            self.alive.truncate(self.at - 1);
        } else {
            self.tried.push(look);
        }
        self.at = if self.at < self.alive.len() { self.at + 1 } else { 0 };
        Progress::GoesOn
    }

    /// The same for a look at the reference, which ends a round.
    fn takes_reference(&mut self, look: Look, aim: &Aim) -> Progress {
        let before = self.before.replace(look);
        self.at = 1;
        let Some(before) = before else { return Progress::GoesOn };
        if is_torn(look, before) || is_beyond(OTHER_CROWD, look.crowd, before.crowd) {
            return self.begins_anew();
        }
        for (candidate, tried) in self.alive.iter().zip(self.tried.drain(..)) {
            self.ratios[*candidate].push(tried.over(before, look));
        }
        self.narrow(aim);
        if self.is_over(aim) { self.best(look.per_s, aim) } else { Progress::GoesOn }
    }

    fn is_over(&self, aim: &Aim) -> bool {
        let (few, many) = self.rounds;
        let rounds = if self.worths(aim, true).is_empty() { many } else { few };
        self.alive.first().is_none_or(|one| self.ratios[*one].len() >= rounds)
    }

    /// Forgets all but the last look at the reference, which is the first now.
    fn begins_anew(&mut self) -> Progress {
        self.restarts += 1;
        self.alive = (0..self.candidates.len()).collect();
        self.tried.clear();
        self.ratios.iter_mut().for_each(Vec::clear);
        if self.restarts < BEGINNINGS_MAX { Progress::GoesOn } else { Progress::Torn }
    }

    /// Those that are better, surely or perhaps, and how good they are.
    fn worths(&self, aim: &Aim, surely: bool) -> Vec<(usize, f64)> {
        let worth =
            |at: &usize| Some((*at, aim.worth(self.candidates[*at], &self.ratios[*at], surely)?));
        self.alive.iter().filter_map(worth).collect()
    }

    /// Leaves the best two of those that may still be better.
    fn narrow(&mut self, aim: &Aim) {
        let mut worths = self.worths(aim, false);
        worths.sort_by(|one, other| other.1.total_cmp(&one.1));
        self.alive = worths.into_iter().take(FINALISTS).map(|(at, _)| at).collect();
        self.alive.sort_unstable();
    }

    /// The best of those that are better, over the reference that lets through so much.
    fn best(&self, reference_per_s: f64, aim: &Aim) -> Progress {
        let worths = self.worths(aim, true).into_iter();
        let best = worths.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(at, _)| at);
        let gain = best.and_then(|at| self.ratios[at].last()).map_or(1.0, |last| last.throughput);
        Progress::Found(best.map(|at| self.candidates[at]), reference_per_s * gain)
    }
}

/// Whether the load has changed between two looks.
fn is_torn(look: Look, before: Look) -> bool {
    is_beyond(TORN, look.per_s, before.per_s)
}
