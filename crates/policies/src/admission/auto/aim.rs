//! When one setting of the gate is better than another.

use super::window::Look;
use super::{Config, Goal, Setting};
use crate::toolkit::gain::Gain;
use lull_control::Objective;
use lull_measure::Percentile;

/// A gain in throughput, and a tail over that of the reference, that are wanted.
const GAIN: f64 = 1.03;
const LOWER: f64 = 0.9;
/// Share of throughput that must remain where only the tail is better and no objective
/// permits a loss.
const HARMLESS: f64 = 0.97;
/// A setting that keeps less than this of what may be kept is not tried on.
const HOPELESS: f64 = 0.8;
/// A bound is kept with certainty by a tail below this share of it.
const MET: f64 = 0.9;
/// Share of the time in which workers must rest for resting to be of use.
const RESTS: f64 = 0.05;

/// The objectives of the server as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerObjective {
    pub(super) at: Percentile,
    pub(super) bound_s: Option<f64>,
    floor_per_s: Option<f64>,
}

impl ServerObjective {
    /// Takes the first bound of a tail and the first floor of throughput.
    pub(super) fn from_list(objectives: &[Objective]) -> Self {
        let tail = objectives.iter().find_map(|one| match one {
            Objective::Tail { percentile, bound } => Some((*percentile, bound.as_secs_f64())),
            _ => None,
        });
        let floor_per_s = objectives.iter().find_map(|one| match one {
            Objective::Throughput { floor_per_s } => Some(*floor_per_s),
            _ => None,
        });
        let at = tail.map_or(Percentile::P99, |(at, _)| at);
        Self { at, bound_s: tail.map(|(_, bound_s)| bound_s), floor_per_s }
    }

    fn goal(self) -> Goal {
        match (self.bound_s, self.floor_per_s) {
            (Some(_), _) => Goal::Tail,
            (None, Some(_)) => Goal::Throughput,
            (None, None) => Goal::Both,
        }
    }

    /// Whether so long a tail is within the bound, if there is one, for certain.
    fn is_met(self, tail_s: f64) -> bool {
        self.bound_s.is_some_and(|bound_s| tail_s <= MET * bound_s)
    }
}

/// One setting's look beside those of the reference before and after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ratio {
    pub(super) throughput: f64,
    tail: f64,
    /// The setting's own tail, and the reference's.
    tails_s: (f64, f64),
    /// The reference's throughput.
    reference_per_s: f64,
    rested: Option<f64>,
}

impl Look {
    /// Over the geometric mean of those of the reference before and after.
    pub(super) fn over(self, before: Self, after: Self) -> Ratio {
        let mean = |of: fn(&Self) -> f64| (of(&before) * of(&after)).sqrt();
        let reference_per_s = mean(|one| one.per_s);
        let reference_s = mean(|one| one.tail_s);
        Ratio {
            throughput: self.per_s / reference_per_s,
            tail: self.tail_s / reference_s,
            tails_s: (self.tail_s, reference_s),
            reference_per_s,
            rested: self.rested,
        }
    }
}

/// What settings are judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aim {
    goal: Goal,
    asked: ServerObjective,
    /// Share of throughput that a lower tail may cost.
    loss: f64,
}

impl Aim {
    pub(super) fn new(config: &Config, asked: ServerObjective) -> Self {
        let goal = if config.goal == Goal::Objectives { asked.goal() } else { config.goal };
        Self { goal, asked, loss: config.loss_percent / 100.0 }
    }

    pub(super) const fn objective(&self) -> ServerObjective {
        self.asked
    }

    pub(super) const fn is_tail(&self) -> bool {
        matches!(self.goal, Goal::Tail)
    }

    /// Returns the least throughput of a setting with a better tail, over the reference's.
    fn least_throughput(&self, reference_s: f64, reference_per_s: f64) -> f64 {
        let least = match self.goal {
            Goal::Throughput => 1.0,
            // The bound is met already, so a better tail may cost no throughput.
            Goal::Tail if self.asked.is_met(reference_s) => HARMLESS,
            Goal::Tail => 1.0 - self.loss,
            Goal::Both | Goal::Objectives => HARMLESS,
        };
        let floor = self.asked.floor_per_s.map_or(0.0, |floor| floor / reference_per_s);
        least.max(floor.min(1.0))
    }

    /// Whether a first look is so bad that neither the setting nor a harsher one is
    /// worth another.
    pub(super) fn is_hopeless(&self, setting: Setting, look: Look, reference: Look) -> bool {
        let is_late = || self.asked.bound_s.is_some_and(|bound_s| look.tail_s > bound_s);
        let (kept, is_late) = match setting {
            Setting::Rests { .. } => (HARMLESS, is_late()),
            _ => (self.least_throughput(reference.tail_s, reference.per_s), false),
        };
        is_late || look.per_s < HOPELESS * kept * reference.per_s
    }

    /// How good a setting is; `None` if it is not better than the reference: `surely`,
    /// or not even perhaps.
    pub(super) fn worth(&self, setting: Setting, ratios: &[Ratio], surely: bool) -> Option<f64> {
        match setting {
            Setting::Rests { pause } => {
                self.may_rest(ratios, surely).then_some(pause.as_secs_f64())
            }
            Setting::Open | Setting::Flow { .. } => self.is_better(ratios, surely),
        }
    }

    /// A rest is good if it is one, harms no objective, and the bound is kept all the same: in
    /// the mean, for clients that connect make a tail of their own.
    fn may_rest(&self, ratios: &[Ratio], surely: bool) -> bool {
        let is_met = |of: fn(&Ratio) -> f64| {
            self.asked.is_met(Gain::from_ratios(ratios.iter().map(of)).ratio())
        };
        let is_kept = is_met(|one| one.tails_s.0) && is_met(|one| one.tails_s.1);
        let rests = |one: &Ratio| one.rested.is_none_or(|share| share >= RESTS);
        let more = Gain::from_ratios(ratios.iter().map(|one| one.throughput));
        more.is(HARMLESS, surely) && is_kept && ratios.iter().all(rests)
    }

    fn is_better(&self, ratios: &[Ratio], surely: bool) -> Option<f64> {
        let more = Gain::from_ratios(ratios.iter().map(|one| one.throughput));
        let shorter = Gain::from_ratios(ratios.iter().map(|one| 1.0 / one.tail));
        let kept =
            ratios.iter().map(|one| self.least_throughput(one.tails_s.1, one.reference_per_s));
        let is_cheap = more.is(kept.fold(0.0, f64::max), surely);
        let gains = more.is(GAIN, surely) && (more.is_sure() || !surely);
        let lowers = shorter.is(1.0 / LOWER, surely) && (shorter.is_sure() || !surely);
        let harms_nobody = shorter.is(1.0, surely);
        let (is_better, worth) = match self.goal {
            Goal::Throughput => (gains, more.ratio()),
            Goal::Tail => (lowers && is_cheap, shorter.ratio()),
            Goal::Both | Goal::Objectives => {
                let is_better = (gains && harms_nobody) || (lowers && is_cheap);
                (is_better, more.ratio() * shorter.ratio())
            }
        };
        is_better.then_some(worth)
    }
}
