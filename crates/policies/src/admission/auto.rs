//! `auto`: compares gate settings with the open gate, and closes the gate only where a gain is
//! shown.
//!
//! REEF (Li et al., SoCC'25, sections 3.2 to 3.4) sets C by the knee of throughput, N by a
//! rule and D by a load limit, and always has a gate. A server whose queries are short and do
//! not contend is better without one: point selects lose half of their throughput to any gate
//! (docs/on-call.md). `auto` therefore measures settings on the running server:
//!
//! ```text
//! C   scout: one open block shows how many transactions are under way (Little's law);
//!         limits from there down to half of the cores are candidates, four at most
//!     survey: blocks of the open gate and of the candidates, drawn at random; close if a
//!         gain is shown, drop what is unlikely to gain, or behind the best
//!     hold: pairs of blocks with the open gate confirm the limit, or refute it; a change of
//!         the load begins a new survey
//! N   with that C: the same with turns of 2 and 8 beside turns of 1
//! D   if no C helps, a bound is given and workers can rest: the same with 1 ms, 2, 4, ...;
//!         the longest that keeps bound and throughput and gives rest
//! ```
//!
//! A gain is *shown* by a test of blocks that a coin chose, which may be looked at after every
//! block (`evidence.rs`, [`lull_measure::statistics::SwitchTest`]). All surveys together close a
//! gate without a gain with a probability of .8 %: each has its part of that, and each figure of
//! each candidate its part of the survey's. What a gain may cost has to remain in the mean, and
//! nearly remain for certain (`aim.rs`); until all of it is shown to remain, the limit is
//! provisional (`confirmation.rs`). Trying costs at most .5 % of the throughput of any ten minutes
//! (`ledger.rs`), and 3 % of the time; behind a limit whose tail counts, a fifth of what the
//! percentile leaves.
//!
//! The result holds for 60 s, 120 s, ... 16 min while it stays the same. When the load has changed
//! (`change.rs`) the gate opens and a survey begins: for a tenth of the time at most. A block takes
//! .3 s or up to 3 mean latencies; a quarter to three quarters of it do not count (`window.rs`).
//!
//! *Better* depends on the goal: more throughput; a lower tail for at most a stated loss of
//! throughput; or either without harm to the other. The default follows from the objectives:
//! with a bound the tail, with a floor throughput, with neither gain without harm. The gate
//! counts what it admits: transactions live, queries simulated. Where arrivals set the throughput,
//! and nothing is promised, CPU time a transaction takes its place (`open_loop.rs`).
//!
//! Source: ours, on REEF's gate. Checked by its tests, by simulated surveys (`simulation.rs`) and
//! servers (`loops.rs`), and by `cargo xtask bench preload` (C) and `batching` (D). Error rates,
//! blocks, loads and what did not work: `docs/design/auto.md`.

use super::{AdmissionKind, Site, Workers};
use crate::config::{read, wrong};
use crate::entry::{ConfigSchema, Entry};
use aim::{Aim, Proof, ServerObjective};
use change::Change;
use confirmation::Confirmation;
use keys::{Config, Goal};
use ledger::Ledger;
use lull_control::admission::{Admission, Allowance, GateObservation, Pace, RoundLimits};
use lull_control::{PolicyError, Rng};
use lull_measure::Nanos;
use rand::SeedableRng;
use setting::Setting;
use survey::{Finding, Plan, Progress, Survey, SurveyKind};
use turn::Turn;
use window::{Window, WindowReading};

mod aim;
mod candidates;
mod change;
mod confirmation;
mod covariate;
mod cpu_time;
mod evidence;
mod holding;
mod keys;
mod ledger;
#[cfg(test)]
mod loops;
mod open_loop;
mod setting;
#[cfg(test)]
mod simulation;
mod survey;
mod survival;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trouble;
mod turn;
mod window;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "auto",
    paper: "ours, on the gate of REEF (Li et al., SoCC'25), sections 3.2 to 3.4",
    summary: "Tries C, N and D beside the open gate on the server at work, and closes it only \
              where that helps.",
    kind: AdmissionKind { needs: "a tail objective, where workers can do nothing but rest" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| Ok(Box::new(Auto::new(read(table)?, site)?)),
};

/// Turns that are tried after those of one.
const SMALL_BATCH: u32 = 2;
/// Pairs of blocks of a limit and its neighbours, and how often a limit moves to one in a row.
const NEIGHBOUR_PAIRS: u32 = 8;
const MOVES: u32 = 3;
/// Time without trying after a survey, at least, over what the survey took.
const REST: u64 = 32;
/// Longest time between retries, in first ones, where surveys are short.
const RETRIES_MAX: u64 = 16;
/// Change of how many are under way at a time that is another load, in a survey. It follows
/// latency, too, and so goes up and down more where clients do not wait for their answers.
const OTHER_UNDER_WAY: f64 = 3.0;
/// The longest time for which a rest may break the bound.
const LATE_FOR: Nanos = Nanos::from_secs(4);
/// Length that the block was to have that shows how many are under way, over that of the blocks
/// that follow from it, at least: a shorter one may be of a server to which clients connect.
const SCOUTED: f64 = 0.8;
/// Mean latency from which a survey begins with fewer candidates, because blocks are long.
const LONG_S: f64 = 0.2;

#[derive(Debug)]
enum Stage {
    /// The gate is open, and one block shows how many transactions are under way. It stays so
    /// while there is nothing to try, which is reported once.
    Scouting {
        is_reported: bool,
    },
    Surveying {
        survey: Box<Survey>,
        /// When the first survey began of those that led to this one.
        begun: Nanos,
    },
    Holding(Box<Hold>),
}

/// A setting in force.
#[derive(Debug)]
struct Hold {
    until: Nanos,
    /// Throughput when the setting was chosen; `None` if it is not known.
    usual_per_s: Option<f64>,
    change: Change,
    /// When the first of the windows in a row ended in which a rest broke the bound.
    late_since: Option<Nanos>,
}

/// A search that begins.
const SCOUTING: Stage = Stage::Scouting { is_reported: false };

struct Auto {
    config: Config,
    workers: Workers,
    cores: u32,
    aim: Aim,
    /// Connections of the server; 0 while they are not known.
    connections: u32,
    window: Window,
    stage: Stage,
    ledger: Ledger,
    /// Whether a change of the load began the present search, and the earliest time of the next.
    is_after_change: bool,
    earliest: Nanos,
    /// The setting outside of surveys.
    setting: Setting,
    /// The evidence on the limit beside the open gate, if there is a limit.
    confirmation: Option<Confirmation>,
    /// Retries of the same answer: the next is this many first ones away.
    patience: u64,
    /// Surveys so far.
    surveys: u64,
    /// Neighbours of a limit that may still be tried before it is held.
    moves: u32,
    /// The last decision as text, until it is taken.
    decision: Option<String>,
    turn: Turn,
    rng: Rng,
}

impl Auto {
    fn new(config: Config, site: &Site<'_>) -> Result<Self, PolicyError> {
        let objective = ServerObjective::from_list(site.server_objectives);
        let aim = Aim::new(&config, objective);
        let bound = objective.bound_s.map(Nanos::from_secs_f64);
        if !site.workers.may_wait() && candidates::pauses(&config, &aim, site.workers).is_empty() {
            let message = "`auto` lets workers rest for as long as a promise allows: state a tail \
                           objective of more than 1.25 ms, or let workers wait instead";
            return Err(wrong("name", message.to_owned()));
        }
        Ok(Self {
            window: Window::new(config.window, config.look, objective.at, bound),
            stage: SCOUTING,
            workers: site.workers,
            cores: site.cores,
            aim,
            connections: 0,
            config,
            ledger: Ledger::default(),
            is_after_change: false,
            earliest: Nanos::ZERO,
            setting: Setting::Open,
            confirmation: None,
            patience: 1,
            surveys: 0,
            moves: 0,
            decision: None,
            turn: Turn::default(),
            rng: Rng::seed_from_u64(site.seed),
        })
    }

    /// The setting of the present window.
    fn present(&self) -> Setting {
        match &self.stage {
            Stage::Scouting { .. } => Setting::Open,
            Stage::Surveying { survey, .. } if self.turn.is_allowed => survey.setting(),
            Stage::Surveying { survey, .. } => survey.reference(),
            Stage::Holding(_) if self.is_checked_open() => Setting::Open,
            Stage::Holding(_) => self.setting,
        }
    }

    fn judge(&mut self, now: Nanos, look: WindowReading) {
        match &mut self.stage {
            Stage::Scouting { is_reported } => {
                let is_reported = *is_reported;
                self.begin(now, look, is_reported);
            }
            Stage::Surveying { survey, .. } => {
                if let Some(expected_per_s) = survey.expected_per_s(&self.aim) {
                    let loss_s = (1.0 - look.per_s / expected_per_s) * look.span.as_secs_f64();
                    self.ledger.note(now, survey.setting(), loss_s);
                }
                let progress = survey.takes(look, &self.aim, &mut self.rng);
                self.goes_on(now, progress);
                self.check_ledger(now);
            }
            Stage::Holding(_) => self.judge_held(now, look),
        }
    }

    /// Begins the first survey that there is something to try in.
    fn begin(&mut self, now: Nanos, scouted: WindowReading, is_reported: bool) {
        self.window.extend_to_under_way();
        if scouted.span.max(self.window.last_length()) < self.window.length().scale(SCOUTED) {
            return;
        }
        if self.chooses_outcome(scouted) {
            return;
        }
        self.turn.has_candidates = self.has_candidates(scouted.under_way_mean);
        let must_wait = self.turn.has_candidates && !self.turn.is_allowed;
        if !self.may_survey(now) || must_wait {
            return;
        }
        let per_s = scouted.per_s;
        let survey =
            self.survey_of_caps(scouted).or_else(|| self.survey_of_rests(Some(scouted), per_s));
        if let Some(survey) = survey {
            self.stage = Stage::Surveying { survey: Box::new(survey), begun: now };
            return;
        }
        if !is_reported {
            let (count, cores, least) = (scouted.under_way_mean, self.cores, self.config.least_cap);
            let why =
                format!("{count:.0} under way on {cores} cores: no limit from {least} on can bind");
            self.decide_on(Setting::Open, &why);
            self.stage = Stage::Scouting { is_reported: true };
        }
    }

    /// Limits to try beside the open gate.
    fn survey_of_caps(&mut self, scouted: WindowReading) -> Option<Survey> {
        let allowed = self.config.least_cap..=self.config.most_cap;
        let may_wait = self.workers.may_wait();
        let caps = candidates::caps(self.cores, scouted.under_way_mean, &allowed);
        let is_long = scouted.under_way_mean > LONG_S * scouted.per_s;
        let caps =
            if is_long { candidates::first(self.cores, caps, self.patience > 1) } else { caps };
        let mut caps: Vec<u32> = caps.into_iter().filter(|_| may_wait).collect();
        // The limit in force is compared, too, so that it can stay.
        if let Setting::Flow { cap, .. } = self.setting
            && caps.iter().any(|other| *other >= cap)
            && !caps.contains(&cap)
        {
            caps.push(cap);
            caps.sort_unstable_by(|one, other| other.cmp(one));
        }
        let tried = caps.into_iter().map(|cap| Setting::Flow { cap, batch: 1 }).collect();
        self.survey(SurveyKind::Caps, Setting::Open, tried, Some(scouted), scouted.per_s)
    }

    /// Turns to try with a limit that helps.
    fn survey_of_batches(&mut self, best: Setting, per_s: f64) -> Option<Survey> {
        let Setting::Flow { cap, .. } = best else { return None };
        let most = if self.aim.is_tail() { SMALL_BATCH } else { u32::MAX };
        let mut batches = vec![SMALL_BATCH, self.config.most_batch];
        batches.retain(|batch| *batch > 1 && *batch <= self.config.most_batch.min(most));
        batches.dedup();
        let tried = batches.into_iter().map(|batch| Setting::Flow { cap, batch }).collect();
        self.survey(SurveyKind::Batches, best, tried, None, per_s)
    }

    /// Neighbours of a limit that helps to try.
    fn survey_of_neighbours(&mut self, best: Setting, per_s: f64) -> Option<Survey> {
        let Setting::Flow { cap, batch: 1 } = best else { return None };
        self.moves = self.moves.checked_sub(1)?;
        let caps = candidates::neighbours(cap, &(self.config.least_cap..=self.config.most_cap));
        let tried = caps.into_iter().map(|cap| Setting::Flow { cap, batch: 1 }).collect();
        self.survey(SurveyKind::Neighbours, best, tried, None, per_s)
    }

    /// Rests to try, if workers can rest and a bound says for how long.
    fn survey_of_rests(&mut self, open: Option<WindowReading>, per_s: f64) -> Option<Survey> {
        let pauses = candidates::pauses(&self.config, &self.aim, self.workers);
        let tried = pauses.into_iter().map(|pause| Setting::Rests { pause }).collect();
        self.survey(SurveyKind::Rests, Setting::Open, tried, open, per_s)
    }

    fn survey(
        &mut self,
        what: SurveyKind,
        reference: Setting,
        candidates: Vec<Setting>,
        last_reference: Option<WindowReading>,
        expected_per_s: f64,
    ) -> Option<Survey> {
        if candidates.is_empty() {
            return None;
        }
        // The choice of a neighbour does not close the gate.
        let is_neighbours = what == SurveyKind::Neighbours;
        self.surveys += u64::from(!is_neighbours);
        let pairs = if is_neighbours { NEIGHBOUR_PAIRS } else { self.config.pairs };
        let (pairs, number) = (pairs as usize, self.surveys);
        let plan =
            Plan { what, reference, candidates, last_reference, expected_per_s, pairs, number };
        Some(Survey::new(plan, &self.aim, &mut self.rng))
    }

    /// Decides on the step after a block of a survey.
    fn goes_on(&mut self, now: Nanos, progress: Progress) {
        let Stage::Surveying { survey, begun } = &self.stage else { return };
        let (what, reference, begun) = (survey.what, survey.reference(), *begun);
        let found = match (what, progress) {
            (_, Progress::GoesOn) => return,
            // A cap was found, and the load is another by now.
            (SurveyKind::Batches | SurveyKind::Neighbours, Progress::Torn) => {
                self.end_search(begun, now);
                return self.search_again(now, "the load");
            }
            (_, Progress::Torn) => {
                self.decide_on(self.setting, "the load did not stand still");
                return self.hold(begun, now, None);
            }
            (_, Progress::Found(found)) => found,
        };
        let per_s = found.usual_per_s;
        let best = self.settle(now, what, reference, &found);
        if what == SurveyKind::Caps {
            self.moves = MOVES;
        }
        let has_moved = found.best.is_some();
        let next = match what {
            SurveyKind::Caps if best == Setting::Open => self.survey_of_rests(None, per_s),
            SurveyKind::Caps => self.survey_of_neighbours(best, per_s),
            SurveyKind::Neighbours if has_moved => self.survey_of_neighbours(best, per_s),
            SurveyKind::Neighbours | SurveyKind::Batches | SurveyKind::Rests => None,
        };
        let is_cap = matches!(what, SurveyKind::Caps | SurveyKind::Neighbours);
        let next = match next {
            None if is_cap => self.survey_of_batches(best, per_s),
            next => next,
        };
        match next {
            Some(survey) => self.stage = Stage::Surveying { survey: Box::new(survey), begun },
            None => self.hold(begun, now, Some(per_s)),
        }
    }

    /// Decides on what a survey found. Without a result, a setting that is in force and was not
    /// ruled out stays.
    fn settle(&mut self, now: Nanos, what: SurveyKind, start: Setting, found: &Finding) -> Setting {
        let is_in_force = |setting: &Setting| match (setting, self.setting) {
            (Setting::Flow { cap, .. }, Setting::Flow { cap: in_force, .. }) => *cap == in_force,
            _ => false,
        };
        let stays = what == SurveyKind::Caps && found.undecided.iter().any(is_in_force);
        let best = match found.best {
            Some(best) => best,
            None if stays => self.setting,
            None => start,
        };
        if let (Some(Setting::Flow { .. }), Some(proof)) = (found.best, found.proof) {
            // Turns are compared with the limit, which says nothing of the open gate.
            let is_of_open = what == SurveyKind::Caps;
            let log_capital = if is_of_open { proof.log_capital } else { 0.0 };
            let wait = self.window.length().scale(1.0 / self.open_share());
            let proof = Proof { log_capital, ..proof };
            self.confirmation = Some(Confirmation::new(proof, now, wait));
        }
        self.decide_on(best, &found.why);
        best
    }

    /// Sets what holds, and reports it with its evidence.
    fn decide_on(&mut self, best: Setting, why: &str) {
        let is_same = best == self.setting;
        self.patience = if is_same { (self.patience * 2).min(RETRIES_MAX) } else { 1 };
        self.setting = best;
        if !matches!(best, Setting::Flow { .. }) {
            self.confirmation = None;
        }
        let state = match &self.confirmation {
            Some(one) if one.is_confirmed() => "; confirmed",
            Some(_) => "; provisional",
            None => "",
        };
        self.decision = Some(format!("{}: {why}{state}", best.describe()));
    }

    /// Ends a survey when it has used up its allowed loss.
    fn check_ledger(&mut self, now: Nanos) {
        let Stage::Surveying { survey, begun } = &self.stage else { return };
        if self.ledger.left_s(now) > 0.0 {
            return;
        }
        let (reference, begun) = (survey.reference(), *begun);
        self.decide_on(reference, "trying has cost 0.5 % of ten minutes");
        self.hold(begun, now, None);
    }

    /// Ends the block of a candidate that has used up its allowed loss, or has no result for too
    /// long while clients are present.
    fn check_block(&mut self, now: Nanos) {
        if matches!(self.stage, Stage::Holding(_)) {
            return self.check_pair(now);
        }
        let Stage::Surveying { survey, .. } = &mut self.stage else { return };
        let Some(expected_per_s) = survey.expected_per_s(&self.aim) else { return };
        let lost_s = self.window.lacking_s(expected_per_s);
        let has_lost = lost_s >= self.ledger.left_s(now);
        let is_late = self.window.is_overdue(now) && !self.window.is_deserted();
        if !has_lost && !is_late {
            return;
        }
        self.ledger.note(now, survey.setting(), lost_s);
        self.window.restart(now);
        let progress = if has_lost {
            survey.abandons(&self.aim, &mut self.rng)
        } else {
            survey.gives_up(&self.aim, &mut self.rng)
        };
        self.goes_on(now, progress);
        self.check_ledger(now);
    }
}

/// Whether one number is more than this many times another, or less than that part of it.
fn is_beyond(times: f64, one: f64, other: f64) -> bool {
    !(1.0 / times..=times).contains(&(one / other))
}

impl Admission for Auto {
    fn decide(&mut self, seen: &GateObservation<'_>, admission: &mut RoundLimits) {
        self.connections = *seen.connections.as_ref().unwrap_or(&0);
        self.note_times(seen);
        if self.window.is_gap(seen.now) && self.is_paired() {
            self.end_pair(seen.now, Nanos::ZERO, false);
        }
        self.drop_disturbed(seen.now);
        let has_no_turn = !self.turn.is_allowed && matches!(self.stage, Stage::Surveying { .. });
        match self.window.note(seen) {
            // The reference is in force until the survey continues.
            _ if has_no_turn => {}
            Some(look) => {
                self.turn.dropped = 0;
                self.judge(seen.now, look);
            }
            None => self.check_block(seen.now),
        }
        self.turn.is_wanted = self.needs_turn(seen.now);
        let again = self.config.look;
        let (cap, batch, pace) = match self.present() {
            Setting::Open => (u32::MAX, 1, Pace::Open { again }),
            Setting::Flow { cap, batch } => (cap, batch, Pace::Flow { again }),
            Setting::Rests { pause } => (self.config.least_cap, 1, Pace::Rests { pause, again }),
        };
        admission.allow.fill(Allowance::turns_of(batch));
        (admission.cap, admission.pace) = (cap, pace);
    }

    fn take_decision(&mut self) -> Option<String> {
        self.decision.take()
    }

    fn wants_survey(&self) -> bool {
        self.turn.is_wanted
    }

    fn allow_survey(&mut self, is_allowed: bool) {
        // A block that began under another setting is none.
        self.turn.is_disturbed |= is_allowed != self.turn.is_allowed && self.is_surveying();
        self.turn.is_allowed = is_allowed;
    }

    fn machine_changed(&mut self) {
        self.turn.is_disturbed = true;
    }
}
