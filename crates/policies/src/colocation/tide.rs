//! `tide`: a co-location policy that gives latency-critical apps the whole machine and
//! limits best-effort work to one *level*.
//!
//! Latency-critical apps may use every core and all memory bandwidth, and run first
//! (best-effort threads are `SCHED_IDLE`). Each latency-critical app that is present has its
//! own cache ways, because priority does not protect cache. The level is a single number:
//!
//! ```text
//! top      best-effort apps may use all cores, ways and bandwidth
//!   |      ways, then bandwidth, then cores are withdrawn one unit at a time
//! bottom   one core, one way, minimum bandwidth
//! ```
//!
//! Once per period the app with the highest ratio of tail latency to bound decides:
//!
//! - ratio significantly above 1: halve the level;
//! - mean ratio above 0.95 over several periods: go half-way back to the last safe level;
//! - ratio below 0.9: raise the level by 1, 2, 4, ... steps while it stays below;
//! - entropy E_S rose significantly after a raise: undo the raise.
//!
//! "Significantly" is a 95 % interval: order statistics for a tail of n requests within
//! one period, the standard error across periods otherwise (`evidence.rs`). A level that
//! violated a bound is not retried at that load for 10 s, then 20 s, 40 s (`marks.rs`).
//! If loads are steady for 20 s, `tide` also evaluates priority without a level and the
//! unmanaged machine, and keeps whichever has the lowest E_S (`arrangements.rs`).
//!
//! The period follows the burst interval of the load (Wang et al. 2013, eqs 1 and 2).
//! Latency-critical apps are not protected from each other on cores; use `arq` for that.
//!
//! Source: ours, from Ah-Q (Liu et al. 2024), sections IV to VI and theorem 1. Checked by
//! `lull lab run ahq-load ahq-fluctuating`. What did not work: `docs/design/tide.md`.

use crate::config::read;
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind};
use crate::toolkit::period::Period;
use crate::toolkit::slack::check_apps;
use crate::toolkit::{for_present_apps, revise};
use arrangements::{Arrangement, Arrangements, Times};
use backlog::has_backlog;
use demand::Demand;
use evidence::{ENOUGH, Evidence, Pooled};
use keys::Config;
use ladder::Ladder;
use lanes::Lanes;
use loads::Loads;
use lull_control::{
    AdaptiveEpoch, AppId, AppSpec, Assessor, Capability, Direction, EpochRule, Expectation,
    Machine, Observation, Pace, Plan, Policy, PolicyError, Reason, RhythmRule, Rng, RosterChange,
    Scheduling, Setting, numbered,
};
use lull_measure::Nanos;
use lull_measure::catalogue::{ENTROPY_SYSTEM, SLACK};
use marks::{Hold, Marks};
use reading::{Bounded, Reading, entropy_of, readings};

mod arrangements;
mod backlog;
mod demand;
mod evidence;
mod keys;
mod ladder;
mod lanes;
mod loads;
mod marks;
mod reading;
#[cfg(test)]
mod tests;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "tide",
    paper: "ours, after Ah-Q (Liu et al. 2024): theorem 1, ARQ, and what its simulator shows",
    summary: "Puts latency-critical apps first everywhere and lets best-effort work reach as much \
              cache, bandwidth and cores as their tails allow.",
    kind: PolicyKind {
        needs: &[Capability::Cores, Capability::TailLatency],
        uses: &[
            Capability::Scheduling,
            Capability::CacheWays,
            Capability::MemoryBandwidth,
            Capability::Progress,
            Capability::CpuTime,
        ],
        dip: Some(crate::Dip::DIP),
        latency: LatencyDetail::EveryRequest,
        epoch: NaturalEpoch::Key("period"),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Tide::new(read(table)?, machine, apps)?)),
};

/// Periods in a row without enough slack that are not due to chance (ours).
const NEAR: u32 = 3;

/// A rise of the level whose effect is not known yet.
#[derive(Debug, Clone, Copy)]
struct Rise {
    from: usize,
    before: Bounded,
}

/// The policy.
struct Tide {
    config: Config,
    apps: Vec<AppSpec>,
    has_priority: bool,
    ladder: Ladder,
    /// The latency-critical apps that the lanes are divided between: those that are present.
    critical: Vec<AppId>,
    /// `None` where the cache cannot be divided between latency-critical apps.
    lanes: Option<Lanes>,
    level: usize,
    /// The last level that had room.
    good: Option<usize>,
    /// How many levels to go up next.
    stride: usize,
    rise: Option<Rise>,
    /// The worst tail over bound when the level last fell; it is given a period to work.
    fell_at: Option<f64>,
    /// Periods in a row without enough slack.
    near: u32,
    /// Whether a plan of this policy is in force.
    has_begun: bool,
    evidence: Evidence,
    marks: Vec<Marks>,
    demand: Demand,
    loads: Loads,
    arrangements: Arrangements,
    /// When level or arrangement last changed.
    since: Nanos,
    /// Whether the period under way begins with late requests of another level or arrangement.
    catching_up: bool,
    assessor: Assessor,
    pace: Pace,
    period: Period,
    cores: u32,
    plan: Plan,
}

impl Tide {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        check_apps(ENTRY.name, apps)?;
        let has_priority = config.priority && machine.capabilities.has(Capability::Scheduling);
        let ladder = Ladder::new(machine, has_priority);
        let rhythm = RhythmRule {
            shortest: config.period_min,
            longest: config.period,
            ..RhythmRule::default()
        };
        let pace = EpochRule::Adaptive(AdaptiveEpoch { rhythm, ..AdaptiveEpoch::default() });
        let critical = critical_apps(apps, |_| true);
        let lanes = Lanes::even(apps, &critical, ladder.ways());
        let times = Times { settled: config.settled, memory: config.memory };
        let mut tide = Self {
            arrangements: Arrangements::new(has_priority, lanes.is_some(), times),
            has_priority,
            critical,
            lanes,
            // The level starts at the bottom: it rises within a few periods, and until then it
            // harms no app.
            level: 0,
            good: None,
            stride: 1,
            rise: None,
            fell_at: None,
            near: 0,
            has_begun: false,
            evidence: Evidence::new(apps.len()),
            marks: vec![Marks::default(); apps.len()],
            demand: Demand::new(apps.len()),
            loads: Loads::default(),
            since: Nanos::ZERO,
            catching_up: false,
            assessor: Assessor::new(apps, config.importance),
            pace: Pace::new(pace),
            period: Period::new(config.period),
            cores: machine.cores.len() as u32,
            apps: apps.to_vec(),
            plan: Plan::keep(),
            ladder,
            config,
        };
        tide.write(&Reason::Start);
        Ok(tide)
    }

    /// Concludes one period.
    fn steer(&mut self, seen: &Observation) {
        let before = (self.arrangements.now(), self.level);
        self.judge(seen);
        if before != (self.arrangements.now(), self.level) {
            self.since = seen.time;
            self.evidence.clear();
        }
        self.catching_up = has_backlog(numbered(&self.apps), seen, self.since);
    }

    fn judge(&mut self, seen: &Observation) {
        let assessment = self.assessor.assess(seen);
        self.demand.note(&self.apps, seen);
        let all = readings(&self.apps, seen, &assessment, self.config.chance);
        let Some(worst) = all.iter().copied().max_by(|a, b| a.tail.value.total_cmp(&b.tail.value))
        else {
            return;
        };
        let entropy = entropy_of(&all, &assessment, self.config.importance);
        let before = self.arrangements.now();
        self.arrange(assessment.entropy.be.map(|_| entropy.value), seen);
        let now = self.arrangements.now();
        if now != before {
            self.rearrange(&all, seen);
        } else if now == Arrangement::Fenced {
            self.evidence.note(&all);
            self.fence(&all, &worst, entropy, seen);
        }
    }

    /// Chooses the arrangement whose turn it is. Where best-effort work does not show its progress,
    /// the cost of fences is unknown, and they stay.
    fn arrange(&mut self, entropy: Option<f64>, seen: &Observation) {
        let is_other = self.loads.note(seen);
        if is_other {
            self.evidence.clear();
        }
        match entropy.filter(|_| !is_other) {
            None => self.arrangements.forget(seen.time),
            Some(_) if self.catching_up => self.arrangements.choose(seen.time),
            Some(entropy) => {
                self.arrangements.note(entropy, seen.epoch, seen.time);
                self.arrangements.choose(seen.time);
            }
        }
    }

    /// Puts another arrangement in force.
    fn rearrange(&mut self, all: &[Reading], seen: &Observation) {
        (self.rise, self.stride, self.fell_at, self.near) = (None, 1, None, 0);
        self.level = self.level.min(self.limit(all, seen));
        let reason = match self.arrangements.known() {
            (trials, Some(score)) => Reason::Found { trials, score },
            (tried, None) => Reason::Trial { number: tried + 1, expected_gain: None },
        };
        self.write(&reason);
    }

    /// Returns the position of the fences.
    fn fence(&mut self, all: &[Reading], worst: &Reading, entropy: Bounded, seen: &Observation) {
        let standing_of_apps = self.evidence.values();
        if self.lanes.as_mut().is_some_and(|lanes| lanes.even_out(&standing_of_apps)) {
            self.explain(worst, self.level);
        }
        let before = self.level;
        match self.rise.take() {
            Some(rise) if entropy.low > rise.before.high => {
                self.mark(worst.app, seen);
                (self.level, self.stride) = (rise.from, 1);
                let (before, after) = (rise.before.value, entropy.value);
                self.write(&Reason::Undo { metric: ENTROPY_SYSTEM, before, after });
                return;
            }
            _ => self.move_level(worst, entropy, seen),
        }
        let limit = self.limit(all, seen);
        if self.level > limit {
            // Effects from here on are due to the mark, not to a rise.
            (self.level, self.stride, self.rise) = (limit, 1, None);
        }
        if self.level != before {
            self.explain(worst, before);
        }
    }

    /// Down if an app is in need, up if all have room.
    fn move_level(&mut self, worst: &Reading, entropy: Bounded, seen: &Observation) {
        let tail = worst.tail;
        // The effect of the level's last fall shows only now; the fall was insufficient only if the
        // tail has risen.
        let is_settling = self.fell_at.take().is_some_and(|then| tail.value < then);
        let Some(pooled) = self.evidence.worst() else { return };
        self.near = if tail.value > 1.0 - self.config.ebb_below { self.near + 1 } else { 0 };
        if tail.low > 1.0 {
            if !is_settling {
                self.mark(worst.app, seen);
                self.fall(worst, self.level / 2);
            }
        } else if self.is_short(&pooled) {
            // Half of the way back to where there was room.
            let good = self.good.filter(|good| *good < self.level);
            let below = self.level.saturating_sub(1);
            self.fall(worst, good.map_or(below, |good| (good + self.level) / 2));
        } else if self.has_room(&pooled) && self.level < self.ladder.top() {
            self.rise = Some(Rise { from: self.level, before: entropy });
            self.good = Some(self.level);
            self.level = (self.level + self.stride).min(self.ladder.top());
            self.stride *= 2;
        } else {
            self.stride = 1;
        }
    }

    /// Whether the worst app has too little slack in the mean of some periods,
    /// or chance carries it over its bound too often.
    fn is_short(&self, pooled: &Pooled) -> bool {
        let Config { ebb_below, overshoot, ease, .. } = self.config;
        let is_near = (pooled.periods >= 2 && pooled.value > 1.0 - ebb_below) || self.near >= NEAR;
        let is_odd = pooled.periods >= ENOUGH && pooled.high > 1.0 + overshoot;
        is_near || (is_odd && pooled.value > 1.0 - ease)
    }

    /// Whether the worst app has slack, and its bound is outside of the interval of its tail.
    fn has_room(&self, pooled: &Pooled) -> bool {
        let Config { flow_above, ease, .. } = self.config;
        let is_at_ease = pooled.value < 1.0 - ease;
        is_at_ease || (pooled.value < 1.0 - flow_above && pooled.high < 1.0)
    }

    /// Lowers the level to `to`.
    fn fall(&mut self, worst: &Reading, to: usize) {
        (self.stride, self.near) = (1, 0);
        self.fell_at = Some(worst.tail.value);
        self.level = to;
    }

    /// The level broke this app at its load.
    fn mark(&mut self, app: AppId, seen: &Observation) {
        let hold = Hold { first: self.config.hold, longest: self.config.hold_max };
        if let Some(load) = self.demand.load(app, &self.apps[app.index()], seen) {
            self.marks[app.index()].add_violation(load, self.level, seen.time, hold);
        }
    }

    /// The highest level that marks and first guesses allow.
    fn limit(&self, all: &[Reading], seen: &Observation) -> usize {
        let marked = all.iter().filter_map(|one| {
            let load = self.demand.load(one.app, &self.apps[one.app.index()], seen)?;
            self.marks[one.app.index()].limit(load, seen.time)
        });
        let guessed = match self.has_priority {
            true => self.ladder.top(),
            false => {
                let staff = self.demand.staff(&self.apps, seen);
                self.ladder.with_cores(self.cores.saturating_sub(staff))
            }
        };
        marked.min().unwrap_or(guessed).min(guessed)
    }

    fn explain(&mut self, worst: &Reading, before: usize) {
        let threshold =
            if self.level < before { self.config.ebb_below } else { self.config.flow_above };
        let (app, value) = (Some(worst.app), 1.0 - worst.tail.value);
        self.write(&Reason::Threshold { metric: SLACK, app, value, threshold });
        let (metric, direction) = (ENTROPY_SYSTEM, Direction::Lower);
        self.plan.expected = Some(Expectation { metric, app: None, direction, by: None });
    }

    fn write(&mut self, reason: &Reason) {
        let arrangement = self.arrangements.now();
        let is_fenced = arrangement == Arrangement::Fenced;
        let level = if is_fenced { self.level } else { self.ladder.top() };
        let mut settings = Vec::new();
        for (app, spec) in numbered(&self.apps) {
            let critical = spec.is_latency_critical();
            let mut own = self.ladder.settings(level, app, critical);
            let lanes = self.lanes.as_ref().filter(|_| is_fenced);
            if let Some(lane) = lanes.and_then(|lanes| lanes.mask(app)) {
                own.retain(|setting| !matches!(setting, Setting::CacheWays(..)));
                own.push(Setting::CacheWays(app, lane));
            }
            settings.extend(own);
            if self.has_priority && !critical {
                let class = match arrangement {
                    Arrangement::Open => Scheduling::Normal { nice: 0 },
                    Arrangement::Fenced | Arrangement::First => Scheduling::Idle,
                };
                settings.push(Setting::Scheduling(app, class));
            }
        }
        revise(&mut self.plan, settings, reason);
    }

    /// Divides the cache again when latency-critical apps have departed or arrived. Without one
    /// to protect, best-effort work has everything.
    fn settle_presence(&mut self, seen: &Observation) {
        let is_present = |app| seen.app(app).is_some_and(|now| now.alive);
        let present = critical_apps(&self.apps, is_present);
        let has_all = self.level == self.ladder.top() || !present.is_empty();
        if present == self.critical && has_all {
            return;
        }
        let is_gone = |app: &AppId| !present.contains(app);
        let gone = self.critical.iter().copied().find(is_gone);
        self.lanes = Lanes::even(&self.apps, &present, self.ladder.ways());
        if present.is_empty() {
            self.level = self.ladder.top();
        }
        self.critical = present;
        // Measurements beside other apps, and in other lanes, no longer hold.
        self.evidence.clear();
        (self.rise, self.stride, self.fell_at, self.near) = (None, 1, None, 0);
        self.since = seen.time;
        self.write(&gone.map_or(Reason::Start, |app| Reason::Exited { app }));
    }
}

/// The latency-critical apps of which this holds.
fn critical_apps(apps: &[AppSpec], holds: impl Fn(AppId) -> bool) -> Vec<AppId> {
    let each = numbered(apps).filter(|(app, spec)| spec.is_latency_critical() && holds(*app));
    each.map(|(app, _)| app).collect()
}

impl Policy for Tide {
    /// E_S, by which it decides, follows the references.
    fn references_changed(&mut self, apps: &[AppSpec]) {
        self.assessor.set_references(apps);
    }

    /// The level that was safe is the beginning for the new roster, too.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        self.plan.expected = None;
        self.settle_presence(seen);
        self.pace.note(seen);
        self.period.set_length(self.pace.epoch());
        if !std::mem::replace(&mut self.has_begun, true) {
            // Observations so far belong to other settings.
            return for_present_apps(&self.plan, seen);
        }
        if let Some(whole) = self.period.add(seen) {
            self.steer(&whole);
        }
        for_present_apps(&self.plan, seen)
    }
}
