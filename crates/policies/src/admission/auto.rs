//! `auto`: compares gate settings with the open gate, and closes the gate only where that
//! helps.
//!
//! REEF (Li et al., SoCC'25, sections 3.2 to 3.4) sets C by the knee of throughput, N by a
//! rule and D by a load limit, and always has a gate. A server whose queries are short and do
//! not contend is better without one: point selects lose half of their throughput to any gate
//! (docs/on-call.md). `auto` therefore measures settings on the running server, and stays
//! open unless a comparison is significant:
//!
//! ```text
//! C   open, 64, 32, 16, 8, open, 32, 16, open, ...   one window each, three to nine rounds;
//!         each window against the mean of the open windows before and after it:
//!         far worse: this and smaller C are dropped
//!         hardly better, or not among the best two: dropped
//!         significantly better over all rounds: the best one is set, else open
//! N   with that C: turns of 1, 2, 8, 1, ...          1 unless another is significantly better
//! D   if no C helps, a bound is given and workers can rest: open, 1 ms, 2, 4, ..., open;
//!         the longest that keeps bound and throughput and gives rest
//! ```
//!
//! The result holds for 60 s, 120 s, ... 16 min while it stays the same, and at once a new
//! survey begins when the load has changed. Windows are at least four mean latencies long and
//! their first quarter does not count. Trying takes at most 3 % of the time.
//!
//! *Better* depends on the goal: more throughput; a lower tail for at most a stated loss of
//! throughput; or either without harm to the other. The default follows from the objectives:
//! a bound asks for the tail, a floor for throughput, neither for gain without harm. The gate
//! counts what it admits: transactions live, queries simulated.
//!
//! C helps under contention, D at partial load, so D is searched only where no C helps. D adds
//! up to D to the latency, so it needs a bound, and it is given up if workers rest for less
//! than a twentieth of the time.
//!
//! Source: ours, on REEF's gate. Checked by its tests and `cargo xtask bench preload` (C) and
//! `batching` (D). Windows, loads and what did not work: `docs/design/auto.md`.

use super::{AdmissionKind, Site, Workers};
use crate::config::{config, positive_time, read, text, within, wrong};
use crate::entry::{ConfigSchema, Entry};
use aim::{Aim, ServerObjective};
use lull_control::PolicyError;
use lull_control::admission::{Admission, Allowance, Pace, RoundLimits, Seen};
use lull_measure::Nanos;
use lull_measure::ideal_batch::C6_BREAK_EVEN;
use serde::{Deserialize, Serialize};
use survey::{Progress, Survey, What};
use window::{Look, Window};

mod aim;
mod survey;
#[cfg(test)]
mod tests;
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

config! {
    /// What is tried, for how long, and what it is for.
    struct Config checked by check {
        /// `throughput`, `tail` (for at most `loss_percent` of throughput), `both`: either
        /// without harm to the other; or `objectives`: by what the server is promised, a
        /// bound, a floor of throughput, or nothing.
        goal: Goal = Goal::Objectives,
        /// The largest C that is tried; the next is half of it (ours).
        most_cap: u32 = 64,
        /// The smallest, and C while workers rest (ours).
        least_cap: u32 = 8,
        /// The largest N that is tried with a C that helps, after 2 (section 3.4: 8 for
        /// throughput, 2 for tails, where none larger is tried); 1: none.
        most_batch: u32 = 8,
        /// The longest D that is tried where workers can rest; each is twice the one
        /// before, from the break-even on (section 3.2: 1 ms).
        #[serde(serialize_with = "text")]
        most_pause: Nanos = Nanos::from_millis(64),
        /// Comparisons of each setting with the reference; up to three times as many where
        /// they leave a doubt (ours).
        rounds: u32 = 3,
        /// Least time that each setting is measured; more where latencies are long (ours).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_millis(500),
        /// Throughput that a lower tail may cost with `goal = "tail"`, in percent (ours).
        loss_percent: f64 = 25.0,
        /// Time to the first retry; doubled while the answer stays the same (ours).
        #[serde(serialize_with = "text")]
        retry: Nanos = Nanos::from_secs(60),
        /// Time between two looks at what was answered (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(100),
    }
}

/// What a setting is to be better at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Goal {
    Throughput,
    Tail,
    Both,
    Objectives,
}

/// What the gate does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Open,
    /// This many at a time, with this many transactions a turn.
    Flow {
        cap: u32,
        batch: u32,
    },
    /// Workers rest, and are called so long after the last round.
    Rests {
        pause: Nanos,
    },
}

/// Turns that are tried after those of one.
const SMALL_BATCH: u32 = 2;
/// Times the rounds that are made where none is surely better, or surely not.
const DOUBTS: usize = 3;
/// A rest costs up to D in latency: no longer one is tried than this share of the bound.
const SHARE_OF_BOUND: f64 = 0.8;
/// Time without trying after a survey, at least, over what the survey took.
const REST: u64 = 32;
/// Longest time between retries, in first ones, where surveys are short.
const RETRIES_MAX: u64 = 16;
/// Change of throughput, either way, that is another load if two windows and
/// all of this time show it: clients that connect take two seconds or three. So
/// long a rest may break the bound.
const OTHER_LOAD: f64 = 1.5;
/// The same of how many are under way at a time, which follows latency, too, and so
/// goes up and down more where clients do not wait for their answers.
const OTHER_CROWD: f64 = 3.0;
const OTHER_LOAD_FOR: Nanos = Nanos::from_secs(4);

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("window", config.window)?;
    positive_time("look", config.look)?;
    positive_time("retry", config.retry)?;
    within("most_cap", f64::from(config.most_cap), 1.0..=256.0)?;
    within("least_cap", f64::from(config.least_cap), 1.0..=256.0)?;
    within("most_batch", f64::from(config.most_batch), 1.0..=1024.0)?;
    within("rounds", f64::from(config.rounds), 1.0..=100.0)?;
    within("loss_percent", config.loss_percent, 0.0..=90.0)?;
    if config.least_cap > config.most_cap {
        return Err(wrong("least_cap", "`least_cap` is above `most_cap`".to_owned()));
    }
    if !(C6_BREAK_EVEN..=Nanos::from_millis(100)).contains(&config.most_pause) {
        return Err(wrong("most_pause", "`most_pause` is not within 1ms and 100ms".to_owned()));
    }
    Ok(())
}

#[derive(Debug)]
enum Stage {
    Surveying(Survey),
    Holding {
        until: Nanos,
        /// Throughput when the setting was chosen; `None` if it is not known.
        usual_per_s: Option<f64>,
        /// How many were under way at a time in the first window of it.
        usual_crowd: Option<f64>,
        /// When the first of the windows in a row ended that were of another load, or
        /// in which a rest broke the bound.
        odd_since: Option<Nanos>,
    },
}

/// Why the best setting is searched for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It was long ago.
    Time,
    /// The load is another.
    Load,
    /// A rest breaks the bound.
    Late,
}

struct Auto {
    config: Config,
    workers: Workers,
    aim: Aim,
    window: Window,
    stage: Stage,
    /// What holds outside of surveys.
    setting: Setting,
    /// Retries of the same answer: the next is this many first ones away.
    patience: u64,
}

impl Auto {
    fn new(config: Config, site: &Site<'_>) -> Result<Self, PolicyError> {
        let asked = ServerObjective::from_list(site.asked);
        let aim = Aim::new(&config, asked);
        if !site.workers.may_wait() && rests(&config, &aim, site.workers).is_none() {
            let message = "`auto` lets workers rest for as long as a promise allows: state a tail \
                           objective of more than 1.25 ms, or let workers wait instead";
            return Err(wrong("name", message.to_owned()));
        }
        Ok(Self {
            window: Window::new(config.window, asked.at),
            stage: Stage::Surveying(first_survey(&config, &aim, site.workers)),
            workers: site.workers,
            aim,
            config,
            setting: Setting::Open,
            patience: 1,
        })
    }

    /// The setting of the present window.
    fn present(&self) -> Setting {
        match &self.stage {
            Stage::Surveying(survey) => survey.setting(),
            Stage::Holding { .. } => self.setting,
        }
    }

    fn judge(&mut self, now: Nanos, look: Look) {
        if let Stage::Surveying(survey) = &mut self.stage {
            survey.begun.get_or_insert(now);
            let progress = survey.takes(look, &self.aim);
            self.goes_on(now, progress);
            return;
        }
        match (self.cause_to_search(now, look), self.setting) {
            (None, _) => {}
            (Some(Cause::Late), Setting::Rests { pause }) => {
                self.settle((now, now), shorter(pause), None);
            }
            (Some(Cause::Time | Cause::Load | Cause::Late), _) => self.survey_anew(),
        }
    }

    fn survey_anew(&mut self) {
        self.stage = Stage::Surveying(first_survey(&self.config, &self.aim, self.workers));
    }

    /// What comes after a look of a survey.
    fn goes_on(&mut self, now: Nanos, progress: Progress) {
        let Stage::Surveying(survey) = &self.stage else { return };
        let (what, reference) = (survey.what, survey.reference());
        let begun = survey.begun.unwrap_or(now);
        let next = match (what, progress) {
            (_, Progress::GoesOn) => return,
            // A cap was found, and the load is another by now.
            (What::Batches, Progress::Torn) => return self.survey_anew(),
            (_, Progress::Torn) => return self.settle((begun, now), self.setting, None),
            (What::Caps, Progress::Found(Some(best), _)) => batches(&self.config, &self.aim, best),
            (What::Caps, Progress::Found(None, _)) => rests(&self.config, &self.aim, self.workers),
            (What::Batches | What::Rests, Progress::Found(..)) => None,
        };
        let Progress::Found(best, per_s) = progress else { return };
        match next {
            Some(mut next) => {
                next.begun = Some(begun);
                self.stage = Stage::Surveying(next);
            }
            None => self.settle((begun, now), best.unwrap_or(reference), Some(per_s)),
        }
    }

    /// Holds what surveys from `begun` to `now` found.
    fn settle(&mut self, (begun, now): (Nanos, Nanos), best: Setting, usual_per_s: Option<f64>) {
        let is_same = best == self.setting;
        self.patience = if is_same { (self.patience * 2).min(RETRIES_MAX) } else { 1 };
        self.setting = best;
        let retry = Nanos(self.config.retry.0.saturating_mul(self.patience));
        let rest = Nanos((now - begun).0.saturating_mul(REST));
        let until = now + retry.max(rest);
        self.stage = Stage::Holding { until, usual_per_s, usual_crowd: None, odd_since: None };
    }

    /// Returns why the best setting must be searched for again, if it must.
    fn cause_to_search(&mut self, now: Nanos, look: Look) -> Option<Cause> {
        let rests = matches!(self.setting, Setting::Rests { .. });
        let bound_s = self.aim.objective().bound_s.filter(|_| rests);
        let Stage::Holding { until, usual_per_s, usual_crowd, odd_since } = &mut self.stage else {
            return None;
        };
        let is_late = bound_s.is_some_and(|bound_s| look.tail_s > bound_s);
        let is_odd = is_late
            || is_beyond(OTHER_LOAD, look.per_s, *usual_per_s.get_or_insert(look.per_s))
            || is_beyond(OTHER_CROWD, look.crowd, *usual_crowd.get_or_insert(look.crowd));
        let first = odd_since.filter(|_| is_odd);
        *odd_since = is_odd.then(|| first.unwrap_or(now));
        let lasts = first.is_some_and(|since| now - since >= OTHER_LOAD_FOR);
        if lasts {
            self.patience = 1;
        }
        let cause = if is_late { Cause::Late } else { Cause::Load };
        lasts.then_some(cause).or((now >= *until).then_some(Cause::Time))
    }
}

/// Whether one number is more than so many times another, or less than that part of it.
fn is_beyond(times: f64, one: f64, other: f64) -> bool {
    !(1.0 / times..=times).contains(&(one / other))
}

/// Half a rest, if that pays.
fn shorter(pause: Nanos) -> Setting {
    let half = Nanos(pause.0 / 2);
    if half < C6_BREAK_EVEN { Setting::Open } else { Setting::Rests { pause: half } }
}

/// What a search begins with.
fn first_survey(config: &Config, aim: &Aim, workers: Workers) -> Survey {
    let halves = std::iter::successors(Some(config.most_cap), |cap| Some(cap / 2));
    let caps = halves.take_while(|cap| *cap >= config.least_cap);
    let caps: Vec<_> = caps.map(|cap| Setting::Flow { cap, batch: 1 }).collect();
    let rounds = config.rounds as usize;
    let survey = |caps| Survey::new(What::Caps, Setting::Open, caps, (rounds, DOUBTS * rounds));
    if workers.may_wait() {
        return survey(caps);
    }
    // There is a rest to try, or it was refused: with nothing to try it stays open.
    rests(config, aim, workers).unwrap_or_else(|| survey(Vec::new()))
}

/// Turns to try with a cap that helps, if there are any.
fn batches(config: &Config, aim: &Aim, best: Setting) -> Option<Survey> {
    let Setting::Flow { cap, .. } = best else { return None };
    let most = if aim.is_tail() { SMALL_BATCH } else { u32::MAX };
    let mut batches = vec![SMALL_BATCH, config.most_batch];
    batches.retain(|batch| *batch > 1 && *batch <= config.most_batch.min(most));
    batches.dedup();
    let tried: Vec<_> = batches.into_iter().map(|batch| Setting::Flow { cap, batch }).collect();
    let rounds = config.rounds as usize;
    let rounds = (rounds, DOUBTS * rounds);
    (!tried.is_empty()).then(|| Survey::new(What::Batches, best, tried, rounds))
}

/// Rests to try, if workers can rest and a bound says for how long.
fn rests(config: &Config, aim: &Aim, workers: Workers) -> Option<Survey> {
    let bound = Nanos::from_secs_f64(aim.objective().bound_s.filter(|_| workers.may_rest())?);
    let most = config.most_pause.min(bound.scale(SHARE_OF_BOUND));
    let twice = std::iter::successors(Some(C6_BREAK_EVEN), |pause| Some(*pause * 2));
    let pauses = twice.take_while(|pause| *pause <= most);
    let tried: Vec<_> = pauses.map(|pause| Setting::Rests { pause }).collect();
    let rounds = config.rounds as usize;
    (!tried.is_empty()).then(|| Survey::new(What::Rests, Setting::Open, tried, (rounds, rounds)))
}

impl Admission for Auto {
    fn decide(&mut self, seen: &Seen<'_>, admission: &mut RoundLimits) {
        if let Some(look) = self.window.note(seen) {
            self.judge(seen.now, look);
        }
        let again = self.config.look;
        let (cap, batch, pace) = match self.present() {
            Setting::Open => (u32::MAX, 1, Pace::Open { again }),
            Setting::Flow { cap, batch } => (cap, batch, Pace::Flow { again }),
            Setting::Rests { pause } => (self.config.least_cap, 1, Pace::Rests { pause, again }),
        };
        admission.allow.fill(Allowance::turns_of(batch));
        (admission.cap, admission.pace) = (cap, pace);
    }
}
