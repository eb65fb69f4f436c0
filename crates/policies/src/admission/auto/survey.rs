//! A switchback: blocks of candidates and of a reference, drawn at random.
//!
//! With several candidates a round is one block of the reference and one of each candidate, in an
//! order that is drawn. Candidates are dropped when they are unlikely to be worth it, or behind
//! the best. The last candidate and the reference have rounds of one block, by the toss of a coin:
//! each of those may double the evidence, where an order of two may do so once.

use super::aim::{Aim, Alpha, Drawn, Evidence, Proof, TriedBlock};
use super::evidence::is_behind;
use super::window::WindowReading;
use super::{MOVES, OTHER_UNDER_WAY, Setting, is_beyond};
use lull_control::Rng;
use lull_measure::statistics::alpha_of_test;
use rand::RngExt;

/// After this many rounds at most this many candidates, the best ones, continue. With equal
/// candidates the best of many costs more blocks than it gains.
const FINALISTS: &[(usize, usize)] = &[(2, 2), (3, 1)];
/// The same of a survey that begins with few candidates, because its blocks are long.
const FINALISTS_OF_FEW: &[(usize, usize)] = &[(2, 1)];
const FEW: usize = 2;
/// Error probability of all surveys together, of a single one that closes the gate wrongly. It is
/// spent once more by surveys that begin again.
const ALPHA: f64 = 0.004;
/// The same for the other figure: the probability that a shown gain costs more than it may.
const ALPHA_KEPT: f64 = 0.02;
/// Change of throughput against the usual, either way, that is another load if it lasts for this
/// many blocks of the reference. One alone may be a checkpoint.
const TORN: f64 = 2.0;
const TORN_BLOCKS: u32 = 2;
/// Weight of the last block in the usual value.
const NEW: f64 = 0.25;
/// How often a survey begins at most. Without this limit a survey would never end where the load
/// never settles.
const BEGINNINGS_MAX: u32 = 4;

/// The setting of a block, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SurveyKind {
    /// C, beside the open gate.
    Caps,
    /// C, beside a limit that is less or more by half.
    Neighbours,
    /// N, beside one transaction a turn.
    Batches,
    /// D, beside the open gate.
    Rests,
}

/// The settings that a survey compares.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) what: SurveyKind,
    pub(super) reference: Setting,
    /// The candidates from the mildest to the harshest.
    pub(super) candidates: Vec<Setting>,
    /// The last block of the reference, if there was one.
    pub(super) last_reference: Option<WindowReading>,
    /// The reference's throughput, as far as it is known.
    pub(super) expected_per_s: f64,
    /// Pairs of blocks at most, of a candidate and the reference.
    pub(super) pairs: usize,
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
    pub(super) what: SurveyKind,
    reference: Setting,
    candidates: Vec<Candidate>,
    /// Error probabilities of one candidate.
    alpha: Alpha,
    rounds: usize,
    /// How many candidates there are after how many rounds.
    finalists: &'static [(usize, usize)],
    /// Blocks of the reference and of one candidate so far in the mean, and at most.
    blocks: usize,
    blocks_max: usize,
    /// Blocks of this round that are still to come, the present one last; `None` is the
    /// reference.
    to_come: Vec<Option<usize>>,
    /// Whether this round is one block.
    is_single: bool,
    /// Whether the last block was one of the reference.
    follows_reference: bool,
    /// The last block of the reference, from whatever round.
    last_reference: Option<WindowReading>,
    /// The usual window under this load, and the number of consecutive blocks of another.
    usual: Option<WindowReading>,
    odd: u32,
    /// The reference's throughput before there is a block of it.
    expected_per_s: f64,
    restarts: u32,
    /// The mildest candidate with a hopeless block.
    hopeless_at: Option<usize>,
}

/// The progress of a survey after a block.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    GoesOn,
    Found(Finding),
    /// The load did not stay the same for long enough.
    Torn,
}

/// The result of a survey.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    /// The best candidate, if one is shown to be better than the reference.
    pub(super) best: Option<Setting>,
    /// Candidates that are better in the mean, though not shown to be.
    pub(super) undecided: Vec<Setting>,
    /// The usual throughput with the best setting.
    pub(super) usual_per_s: f64,
    /// The evidence on the best setting's throughput.
    pub(super) proof: Option<Proof>,
    /// The evidence as text.
    pub(super) why: String,
}

impl Survey {
    pub(super) fn new(plan: Plan, aim: &Aim, rng: &mut Rng) -> Self {
        let is_few = plan.candidates.len() <= FEW;
        let candidates = plan.candidates.len() as f64;
        let each = |alpha| alpha_of_test(alpha, plan.number) / candidates;
        let gain = each(ALPHA) / aim.endpoints() as f64;
        // Each neighbour that a limit moves to is confirmed again, at the number of this survey.
        let confirmations =
            if plan.what == SurveyKind::Neighbours { f64::from(MOVES + 1) } else { 1.0 };
        let alpha = Alpha { gain, kept: each(ALPHA_KEPT) / confirmations };
        let candidate = |setting| Candidate { setting, evidence: Evidence::new(), is_alive: true };
        let mut survey = Self {
            what: plan.what,
            reference: plan.reference,
            candidates: plan.candidates.into_iter().map(candidate).collect(),
            alpha,
            rounds: 0,
            finalists: if is_few { FINALISTS_OF_FEW } else { FINALISTS },
            blocks: 0,
            blocks_max: 2 * plan.pairs,
            to_come: Vec::new(),
            is_single: false,
            follows_reference: true,
            last_reference: plan.last_reference,
            usual: None,
            odd: 0,
            expected_per_s: plan.expected_per_s,
            restarts: 0,
            hopeless_at: None,
        };
        survey.recall_reference(aim);
        survey.begin_round(rng);
        survey
    }

    /// Returns the setting that all others are compared with.
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

    /// Returns the throughput below which the present block has a cost, if it is of a candidate.
    pub(super) fn expected_per_s(&self, aim: &Aim) -> Option<f64> {
        self.to_come.last().copied().flatten()?;
        let expected = |look: WindowReading| look.per_s * aim.charged_below(look);
        Some(self.last_reference.map_or(self.expected_per_s, expected))
    }

    /// Draws the next round: an order (Fisher and Yates), or one of two blocks.
    fn begin_round(&mut self, rng: &mut Rng) {
        let alive = (0..self.candidates.len()).filter(|at| self.candidates[*at].is_alive);
        self.to_come = std::iter::once(None).chain(alive.map(Some)).collect();
        self.is_single = self.to_come.len() == 2;
        if self.is_single {
            self.to_come.swap_remove(rng.random_range(0..2));
            return;
        }
        for last in (1..self.to_come.len()).rev() {
            self.to_come.swap(last, rng.random_range(0..=last));
        }
    }

    /// Takes the present block and continues with the next.
    pub(super) fn takes(&mut self, look: WindowReading, aim: &Aim, rng: &mut Rng) -> Progress {
        let at = self.to_come.pop().flatten();
        // No length of a turn, and no other limit, changes as much as another load does.
        let is_closed = matches!(self.what, SurveyKind::Batches | SurveyKind::Neighbours);
        let tells_load = at.is_none() || is_closed;
        if tells_load && self.is_other_load(look) {
            self.follows_reference = at.is_none();
            return self.ends_disturbed(aim, rng);
        }
        match at {
            Some(at) => self.takes_candidate(at, look, aim),
            None => self.takes_reference(look, aim),
        }
        self.follows_reference = at.is_none();
        if self.to_come.is_empty() { self.end_round(aim, rng) } else { Progress::GoesOn }
    }

    /// Returns whether the last blocks had another load, which is then the usual one.
    fn is_other_load(&mut self, look: WindowReading) -> bool {
        let usual = *self.usual.get_or_insert(look);
        let is_odd = is_beyond(TORN, look.per_s, usual.per_s)
            || is_beyond(OTHER_UNDER_WAY, look.under_way_mean, usual.under_way_mean);
        self.odd = if is_odd { self.odd + 1 } else { 0 };
        let is_other = self.odd >= TORN_BLOCKS;
        if is_other {
            (self.usual, self.last_reference, self.odd) = (Some(look), Some(look), 0);
        } else if !is_odd {
            let towards = |usual: f64, now: f64| usual.powf(1.0 - NEW) * now.powf(NEW);
            let per_s = towards(usual.per_s, look.per_s);
            let under_way_mean = towards(usual.under_way_mean, look.under_way_mean);
            self.usual = Some(WindowReading { per_s, under_way_mean, ..look });
        }
        is_other
    }

    /// Takes the last block of the reference, if there is one, as the level to begin with.
    fn recall_reference(&mut self, aim: &Aim) {
        let Some(look) = self.last_reference else { return };
        let drawn = Drawn { is_drawn: false, follows_reference: true };
        for one in &mut self.candidates {
            aim.add_reference(&mut one.evidence, look, drawn);
        }
    }

    fn takes_candidate(&mut self, at: usize, look: WindowReading, aim: &Aim) {
        // In an order of two, the second follows from the first.
        let is_drawn = self.is_single || self.to_come.contains(&None);
        let drawn = Drawn { is_drawn, follows_reference: self.follows_reference };
        let one = &mut self.candidates[at];
        let (setting, reference) = (one.setting, self.last_reference.unwrap_or(look));
        aim.add_tried(&mut one.evidence, setting, TriedBlock { look, drawn, reference });
        if self.last_reference.is_some() && aim.is_ruled_out(setting, look, reference) {
            self.note_hopeless(at);
        }
    }

    /// Drops a candidate and those that are harsher if two blocks of such limits were hopeless. One
    /// may be a convoy.
    fn note_hopeless(&mut self, at: usize) {
        if let Some(other) = self.hopeless_at {
            self.drop_from(at.max(other));
        }
        self.hopeless_at = Some(self.hopeless_at.map_or(at, |other| other.min(at)));
    }

    fn takes_reference(&mut self, look: WindowReading, aim: &Aim) {
        for (at, one) in self.candidates.iter_mut().enumerate().filter(|(_, one)| one.is_alive) {
            let is_drawn = self.is_single || self.to_come.contains(&Some(at));
            let drawn = Drawn { is_drawn, follows_reference: self.follows_reference };
            aim.add_reference(&mut one.evidence, look, drawn);
        }
        self.last_reference = Some(look);
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
        self.follows_reference = false;
        if self.to_come.is_empty() { self.end_round(aim, rng) } else { Progress::GoesOn }
    }

    /// Ends the block of a candidate that has lasted for too long without a result.
    pub(super) fn gives_up(&mut self, aim: &Aim, rng: &mut Rng) -> Progress {
        self.follows_reference = false;
        self.ends_disturbed(aim, rng)
    }

    /// Begins again, or ends, because the load is another or changes.
    fn ends_disturbed(&mut self, aim: &Aim, rng: &mut Rng) -> Progress {
        match self.what {
            SurveyKind::Batches | SurveyKind::Neighbours => Progress::Torn,
            SurveyKind::Caps | SurveyKind::Rests => self.restart(aim, rng),
        }
    }

    /// Forgets all but the last block of the reference.
    fn restart(&mut self, aim: &Aim, rng: &mut Rng) -> Progress {
        self.restarts += 1;
        (self.rounds, self.blocks, self.hopeless_at) = (0, 0, None);
        let Alpha { gain, kept } = self.alpha;
        self.alpha = Alpha { gain: 0.5 * gain, kept: 0.5 * kept };
        for one in &mut self.candidates {
            (one.evidence, one.is_alive) = (Evidence::new(), true);
        }
        self.recall_reference(aim);
        self.begin_round(rng);
        if self.restarts < BEGINNINGS_MAX { Progress::GoesOn } else { Progress::Torn }
    }

    fn end_round(&mut self, aim: &Aim, rng: &mut Rng) -> Progress {
        self.rounds += 1;
        self.blocks += if self.is_single { 1 } else { 2 };
        let is_shown = self.what != SurveyKind::Neighbours;
        if let Some(found) = self.shown(aim).filter(|_| is_shown) {
            return Progress::Found(found);
        }
        self.narrow(aim);
        if self.alive().next().is_none() || self.blocks >= self.blocks_max {
            let better = self.better_neighbour(aim).filter(|_| !is_shown);
            return Progress::Found(better.unwrap_or_else(|| self.nothing_shown(aim)));
        }
        self.begin_round(rng);
        Progress::GoesOn
    }

    fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.candidates.len()).filter(|at| self.candidates[*at].is_alive)
    }

    /// Returns the mean value of a candidate.
    fn mean_value(&self, at: usize, aim: &Aim) -> f64 {
        let one = &self.candidates[at];
        let logs = aim.values(one.setting, &one.evidence);
        logs.iter().sum::<f64>() / logs.len().max(1) as f64
    }

    /// The best of these by their means.
    fn best(&self, of: impl Iterator<Item = usize>, aim: &Aim) -> Option<usize> {
        of.max_by(|one, other| self.mean_value(*one, aim).total_cmp(&self.mean_value(*other, aim)))
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
            proof: Some(aim.proof(&one.evidence, self.alpha.kept)),
            why: aim.describe(&one.evidence, self.alpha.gain),
        })
    }

    /// A neighbour that is probably better than the limit. Both are limits that help, so that a
    /// wrong choice costs little.
    fn better_neighbour(&self, aim: &Aim) -> Option<Finding> {
        let best = self.best(self.alive(), aim)?;
        let one = &self.candidates[best];
        let values = aim.values(one.setting, &one.evidence);
        if !is_behind(&vec![0.0; values.len()], &values) || !aim.is_harmless(&one.evidence) {
            return None;
        }
        Some(Finding {
            best: Some(one.setting),
            undecided: Vec::new(),
            usual_per_s: self.reference_per_s() * aim.throughput(&one.evidence),
            proof: Some(Proof { alpha: self.alpha.kept, log_capital: 0.0 }),
            why: format!(
                "beside {}: {}",
                self.reference.describe(),
                aim.describe(&one.evidence, self.alpha.gain)
            ),
        })
    }

    fn reference_per_s(&self) -> f64 {
        self.last_reference.map_or(self.expected_per_s, |look| look.per_s)
    }

    /// Returns the result when no candidate was shown to be better.
    fn nothing_shown(&self, aim: &Aim) -> Finding {
        let with_blocks =
            (0..self.candidates.len()).filter(|at| self.candidates[*at].evidence.tried() > 0);
        let best = self.best(with_blocks, aim).map(|at| &self.candidates[at]);
        let evidence = best.map(|one| {
            format!(
                "; the best, {}: {}",
                one.setting.describe(),
                aim.describe(&one.evidence, self.alpha.gain)
            )
        });
        let is_futile =
            |one: &Candidate| aim.is_futile(one.setting, &one.evidence, self.alpha.gain);
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
            proof: None,
            why: format!("{verdict}{}", evidence.unwrap_or_default()),
        }
    }

    /// Drops candidates that need no further block.
    fn narrow(&mut self, aim: &Aim) {
        let alpha = self.alpha.gain;
        for one in self.candidates.iter_mut().filter(|one| one.is_alive) {
            one.is_alive = !aim.is_unlikely(one.setting, &one.evidence)
                && !aim.is_futile(one.setting, &one.evidence, alpha);
        }
        let Some(best) = self.best(self.alive(), aim) else { return };
        // A shorter rest always has a lower value, and is needed if the longest fails.
        if self.what != SurveyKind::Rests {
            let best = &self.candidates[best];
            let best_values = aim.values(best.setting, &best.evidence);
            for one in self.candidates.iter_mut().filter(|one| one.is_alive) {
                one.is_alive = !is_behind(&aim.values(one.setting, &one.evidence), &best_values);
            }
        }
        let most = self.finalists.iter().rev().find(|(rounds, _)| self.rounds >= *rounds);
        self.keep_best(most.map_or(usize::MAX, |(_, most)| *most), aim);
    }

    fn keep_best(&mut self, most: usize, aim: &Aim) {
        let mut order: Vec<usize> = self.alive().collect();
        order.sort_by(|one, other| {
            self.mean_value(*other, aim).total_cmp(&self.mean_value(*one, aim))
        });
        for at in order.into_iter().skip(most) {
            self.candidates[at].is_alive = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::aim::ServerObjective;
    use super::*;
    use rand::SeedableRng;

    const fn cap(cap: u32) -> Setting {
        Setting::Flow { cap, batch: 1 }
    }

    fn aim() -> Aim {
        Aim::new(&Config::default(), ServerObjective::from_list(&[]))
    }

    /// A survey of these limits without a block of the reference.
    fn survey(what: SurveyKind, caps: &[u32], seed: u64) -> Survey {
        let plan = Plan {
            what,
            reference: Setting::Open,
            candidates: caps.iter().copied().map(cap).collect(),
            last_reference: None,
            expected_per_s: 1000.0,
            pairs: 60,
            number: 1,
        };
        Survey::new(plan, &aim(), &mut Rng::seed_from_u64(seed))
    }

    #[test]
    fn throughput_is_as_expected_until_a_block_of_the_reference_shows_it() {
        let mut surveys = (0..64).map(|seed| survey(SurveyKind::Caps, &[8], seed));
        let mut survey = surveys.find(|one| one.setting() == cap(8)).unwrap();
        let progress = survey.abandons(&aim(), &mut Rng::seed_from_u64(1));
        let Progress::Found(found) = progress else { panic!("{progress:?}") };
        assert_eq!((found.best, found.usual_per_s), (None, 1000.0));
    }

    #[test]
    fn a_survey_that_restarts_has_the_candidates_it_was_planned_with() {
        let mut survey = survey(SurveyKind::Caps, &[51, 28, 15, 8], 1);
        survey.drop_from(1);
        let mut rng = Rng::seed_from_u64(2);
        assert!(matches!(survey.restart(&aim(), &mut rng), Progress::GoesOn));
        let settings: Vec<Setting> = survey.candidates.iter().map(|one| one.setting).collect();
        assert_eq!(settings, [51, 28, 15, 8].map(cap));
        assert!(survey.candidates.iter().all(|one| one.is_alive));
    }

    #[test]
    fn the_next_block_knows_whether_it_follows_one_of_the_reference() {
        let (aim, mut rng) = (aim(), Rng::seed_from_u64(3));
        let mut one = survey(SurveyKind::Caps, &[51, 28, 15, 8], 1);
        while one.setting() == Setting::Open {
            one.takes(WindowReading::of_rate(1000.0), &aim, &mut rng);
        }
        one.follows_reference = true;
        one.abandons(&aim, &mut rng);
        assert!(!one.follows_reference, "a block of a candidate was abandoned");
        // Two blocks of the reference with thrice the throughput are another load.
        let mut one = survey(SurveyKind::Caps, &[51, 28, 15, 8], 1);
        let mut fast = 0;
        while one.restarts == 0 {
            let is_reference = one.setting() == Setting::Open;
            fast += u32::from(is_reference);
            let per_s = if fast > 1 { 3000.0 } else { 1000.0 };
            one.takes(WindowReading::of_rate(per_s), &aim, &mut rng);
        }
        assert!(one.follows_reference, "the load was shown by a block of the reference");
    }

    #[test]
    fn limits_that_a_search_moves_to_share_one_error_probability() {
        let kept = |what| survey(what, &[45, 20], 1).alpha.kept;
        let ratio = kept(SurveyKind::Caps) / kept(SurveyKind::Neighbours);
        assert!((ratio - f64::from(MOVES + 1)).abs() < 1e-9, "{ratio}");
    }
}
