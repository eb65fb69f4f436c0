//! `qos-wc`: groups apps into areas of cores by their objectives, and moves cores to strict
//! areas as long as lax areas keep theirs.
//!
//! All objectives are converted to a mean latency; apps with similar targets share an *area*
//! of cores. A core moves from a lax area to a strict one when an objective is missed and,
//! carefully, before one is.
//!
//! 1. *Targets.* By Little's law, an app with n queries at a time and a throughput objective x
//!    has w = n/x for one query; a percentile objective is its bound over the measured ratio
//!    of that percentile to the mean; an app without an objective has no target. The
//!    throughput that a target needs is the app's budget, n/w ([`targets`]).
//! 2. *Areas.* Exact k-means on the logarithms of the targets ([`crate::toolkit::clusters`]),
//!    strictest area first (R = 2: hot, warm). An app without an objective counts as a
//!    thousand times laxer than the laxest one.
//! 3. *Profile.* TP(c) is the throughput of all apps on c cores. Lax areas begin with the
//!    fewest cores whose TP reaches their budget, the strictest with the rest ([`profile`]).
//! 4. *Algorithm 1*, every 100 ms: an area that misses an objective gets a core of the laxest
//!    area that can spare one. If no objective is missed for a second, one core goes to the
//!    strictest area. An area can spare a core if its objectives are met and
//!    `TP(c - 1) > alpha B`, where alpha is TP(c) over its measured throughput.
//!
//! The policy sets only cores. Frequencies belong to the governor, and concurrency to an
//! admission controller; neither depends on this policy.
//!
//! Read literally, Algorithm 1 does not terminate, may leave an area without cores and never
//! returns a core to a lax area. `docs/design/qos-wc.md` lists the corrections: a minimum of
//! one core, a floor of 5 % of the profile (`guard`), one move for each decision, objectives
//! judged by the share of late requests ([`crate::toolkit::compliance`]), and a way back.
//! Areas are formed again when an app exits.
//!
//! Source: REEF (Li et al., SoCC'25), sections 3.5, 4 (Algorithm 1) and 5.4. Checked against
//! Algorithm 1 by hand, and by `lull lab run reef-qoswc` (Figs. 18 to 20).

use crate::config::{at_least_one, config, fraction, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind};
use crate::toolkit::clusters::clusters;
use crate::toolkit::compliance::ComplianceMonitor;
use crate::toolkit::period::Period;
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppId, AppSpec, Capability, CoreId, CoreSet, Machine, Objective, Observation, Plan, Policy,
    PolicyError, Reason, Rng, Setting,
};
use lull_measure::Nanos;
use lull_measure::catalogue::{COMPLETED, PROGRESS, TAIL_LATENCY};
use profile::Profile;
use targets::Shapes;

mod profile;
mod targets;
#[cfg(test)]
mod tests;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "qos-wc",
    paper: "REEF (Li et al., SoCC'25), sections 3.5, 4 (Algorithm 1, corrected) and 5.4",
    summary: "Groups apps into areas of cores by the mean latency that their promises come to, \
              and moves cores to the strict areas as long as the lax ones keep theirs.",
    kind: PolicyKind {
        needs: &[Capability::Cores],
        uses: &[Capability::TailLatency, Capability::Progress],
        dip: Some(crate::Dip::DI),
        latency: LatencyDetail::EveryRequest,
        epoch: NaturalEpoch::Key("period"),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(QosWc::new(read(table)?, machine, apps))),
};

config! {
    /// Algorithm 1 and the parts that it leaves open.
    struct Config checked by check {
        /// R, areas of cores at most (section 5.4: hot and warm).
        areas: usize = 2,
        /// Time between two looks (section 4: 100 ms).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_millis(100),
        /// Least time over which promises are judged (ours).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_secs(1),
        /// Fewest answers over which they are (ours).
        answers: u64 = 200,
        /// Looks without a missed promise before a core moves all the same (ours).
        calm: u32 = 10,
        /// Whether cores move before a promise is missed (section 4).
        proactive: bool = true,
        /// Least throughput of an area, as a share of its profile (ours).
        guard: f64 = 0.05,
        /// How long an area that had to be given a core back gives none before its time (ours).
        #[serde(serialize_with = "text")]
        rest: Nanos = Nanos::from_secs(60),
        /// TP: throughput per second of all apps on 1, 2, ... cores; empty: measured at the start.
        profile: Vec<f64> = Vec::new(),
        /// How long each number of cores is measured for it; the first half is forgotten (ours).
        #[serde(serialize_with = "text")]
        trial: Nanos = Nanos::from_secs(1),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    positive_time("window", config.window)?;
    positive_time("trial", config.trial)?;
    fraction("guard", config.guard)?;
    at_least_one(&[("areas", config.areas), ("calm", config.calm as usize)])?;
    if config.guard == 0.0 {
        let message = "`guard` is 0: an idle area would divide by nothing; write 0.05";
        return Err(wrong("guard", message.to_owned()));
    }
    match config.profile.iter().find(|per_s| !(per_s.is_finite() && **per_s >= 0.0)) {
        Some(per_s) => Err(wrong("profile", format!("`profile` has {per_s}: write 0 or more"))),
        None => Ok(()),
    }
}

/// Throughput with one core more, over that without it, from which on the core is of use.
const GAIN: f64 = 1.02;

/// Why a core moves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cause {
    /// A promise is missed in an area.
    Missed { area: usize },
    /// No promise is missed, and a core can be spared.
    Spare { area: usize },
}

/// The areas, strictest first.
#[derive(Debug, Clone, Default, PartialEq)]
struct Areas {
    /// The area of each app; `None` for one that has exited.
    of: Vec<Option<usize>>,
    /// How many cores each has.
    cores: Vec<usize>,
    /// B: throughput that each needs.
    budgets: Vec<f64>,
    /// The time until which each area gives no core.
    rests_until: Vec<Nanos>,
}

/// The policy.
struct QosWc {
    config: Config,
    cores: Vec<CoreId>,
    apps: Vec<AppSpec>,
    alive: Vec<bool>,
    monitor: ComplianceMonitor,
    shapes: Shapes,
    profile: Profile,
    /// `None` while the profile is measured.
    areas: Option<Areas>,
    period: Period,
    calm: u32,
    plan: Plan,
}

impl QosWc {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Self {
        let cores: Vec<_> = machine.cores.iter().map(|core| core.id).collect();
        Self {
            monitor: ComplianceMonitor::new(apps, config.window, config.answers),
            shapes: Shapes::new(apps.len()),
            profile: Profile::new(&config.profile, cores.len(), config.trial),
            period: Period::new(config.period),
            alive: vec![true; apps.len()],
            apps: apps.to_vec(),
            areas: None,
            calm: 0,
            plan: Plan::keep(),
            cores,
            config,
        }
    }

    fn look(&mut self, seen: &Observation) {
        match &self.areas {
            None => self.learn(seen),
            Some(_) => self.monitor(seen.time),
        }
    }

    /// Continues with the profile, and draws the areas once it is complete.
    fn learn(&mut self, seen: &Observation) {
        let per_s = |seen: &lull_control::AppObservation| match (&seen.latency, &seen.progress) {
            (Ok(latency), _) => latency.completed_per_s,
            (_, Ok(progress)) => progress.per_s,
            _ => 0.0,
        };
        let counts = |spec: &AppSpec| !spec.objectives.is_empty();
        let all = self.apps.iter().zip(&seen.apps).filter(|(spec, _)| counts(spec));
        let sum: f64 = all.map(|(_, app)| per_s(app)).filter(|per_s| per_s.is_finite()).sum();
        self.profile.note(sum, seen.epoch);
        match self.profile.trial() {
            Some((number, cores)) => {
                let reason = Reason::Trial { number, expected_gain: None };
                let first: CoreSet = self.cores.iter().copied().take(cores).collect();
                let all = self.living().map(|app| Setting::Cores(app, first.clone()));
                let all = all.collect();
                revise(&mut self.plan, all, &reason);
            }
            None => self.draw(&Reason::Start),
        }
    }

    fn living(&self) -> impl Iterator<Item = AppId> + use<'_> {
        let alive = self.alive.iter().enumerate().filter(|(_, alive)| **alive);
        alive.map(|(index, _)| AppId(index as u16))
    }

    /// Returns the area of each app, and the need of each area.
    fn group(&self) -> (Vec<Option<usize>>, Vec<f64>) {
        let living: Vec<_> = self.living().collect();
        let target = |app: &AppId| self.shapes.target_s(*app, &self.apps[app.index()]);
        let targets: Vec<f64> = living.iter().map(target).collect();
        let most = self.config.areas.min(self.cores.len());
        let of_living = clusters(&targets::to_cluster(&targets), most);
        let mut of = vec![None; self.apps.len()];
        let mut budgets = vec![0.0; of_living.iter().max().map_or(0, |last| last + 1)];
        for ((app, area), target_s) in living.iter().zip(of_living).zip(targets) {
            of[app.index()] = Some(area);
            budgets[area] += targets::queries(&self.apps[app.index()]) / target_s;
        }
        (of, budgets)
    }

    /// Draws the areas and gives them their first cores (Algorithm 1, lines 1 to 13).
    fn draw(&mut self, reason: &Reason) {
        let (of, budgets) = self.group();
        let count = budgets.len();
        let mut cores = vec![0; count];
        let mut left = self.cores.len();
        for area in (1..count).rev() {
            // A core is left for each stricter area.
            let most = left - area;
            let reaches = |cores: &usize| self.profile.at(*cores) >= budgets[area];
            cores[area] = (1..=most).find(reaches).unwrap_or(most);
            left -= cores[area];
        }
        if let Some(strictest) = cores.first_mut() {
            *strictest = left;
        }
        let rests_until = vec![Nanos::ZERO; count];
        self.areas = Some(Areas { of, cores, budgets, rests_until });
        self.calm = 0;
        self.place(reason);
    }

    /// Sets the cores of all apps: the first cores are the strictest area's.
    fn place(&mut self, reason: &Reason) {
        let Some(areas) = &self.areas else { return };
        let mut first = 0;
        let set = |count: &usize| {
            let set: CoreSet = self.cores[first..first + count].iter().copied().collect();
            first += count;
            set
        };
        let sets: Vec<CoreSet> = areas.cores.iter().map(set).collect();
        let settings = self.living().filter_map(|app| {
            let area = areas.of[app.index()]?;
            Some(Setting::Cores(app, sets[area].clone()))
        });
        let settings = settings.collect();
        revise(&mut self.plan, settings, reason);
    }

    /// Algorithm 1, lines 14 on.
    fn monitor(&mut self, now: Nanos) {
        let Some(mut areas) = self.areas.take() else { return };
        let missed: Vec<bool> =
            (0..areas.cores.len()).map(|area| self.misses(&areas, area)).collect();
        let mut moves = self.reassign_cores(&mut areas, &missed, now);
        // Without completed requests a met objective is not evidence.
        let answers =
            self.living().any(|app| self.monitor.per_s(app).is_some_and(|per_s| per_s > 0.0));
        let quiet = answers && !missed.contains(&true);
        self.calm = if quiet { self.calm + 1 } else { 0 };
        if quiet && self.config.proactive && self.calm >= self.config.calm {
            let found = self.spare(&areas, now);
            if let Some((from, to)) = found {
                let reason = self.reason(&areas, Cause::Spare { area: from });
                areas.shift(from, to);
                moves.push(reason);
                self.calm = 0;
            }
        }
        self.areas = Some(areas);
        for reason in moves {
            self.place(&reason);
        }
    }

    /// Gives each area that misses a promise a core of another; why.
    fn reassign_cores(&self, areas: &mut Areas, missed: &[bool], now: Nanos) -> Vec<Reason> {
        let count = areas.cores.len();
        let mut took_part = vec![false; count];
        let mut reasons = Vec::new();
        for area in (0..count).filter(|area| missed[*area]) {
            let keeps = |from: &usize| !took_part[*from] && !missed[*from];
            let can = |from: &usize| keeps(from) && self.can_spare(areas, *from);
            let laxer = (area + 1..count).rev().find(can);
            // An area that keeps its objective now is better evidence than a profile measured once.
            let stricter = || {
                let gives = |from: &usize| keeps(from) && areas.cores[*from] > 1;
                (0..area).find(gives).filter(|_| self.gains(areas, area))
            };
            let Some(from) = laxer.or_else(stricter) else { continue };
            if laxer.is_none() {
                areas.rests_until[area] = now + self.config.rest;
            }
            reasons.push(self.reason(areas, Cause::Missed { area }));
            areas.shift(from, area);
            (took_part[from], took_part[area]) = (true, true);
        }
        reasons
    }

    /// Whether an area serves more with another core, by the profile. Where it does not, what
    /// misses the objective is no lack of cores, such as an admission controller's limit.
    fn gains(&self, areas: &Areas, area: usize) -> bool {
        let has = areas.cores[area];
        self.profile.at(has + 1) > GAIN * self.profile.at(has)
    }

    /// A core to spare for a stricter area, and for which.
    fn spare(&self, areas: &Areas, now: Nanos) -> Option<(usize, usize)> {
        let count = areas.cores.len();
        (0..count).find_map(|to| {
            let can =
                |from: &usize| now >= areas.rests_until[*from] && self.can_spare(areas, *from);
            (to + 1..count).rev().find(can).map(|from| (from, to))
        })
    }

    fn members<'a>(&'a self, areas: &'a Areas, area: usize) -> impl Iterator<Item = AppId> + 'a {
        self.living().filter(move |app| areas.of[app.index()] == Some(area))
    }

    fn misses(&self, areas: &Areas, area: usize) -> bool {
        self.members(areas, area).any(|app| self.monitor.is_missed(app))
    }

    /// `TP(c - 1) > alpha B`, and both sides.
    fn margin(&self, areas: &Areas, area: usize) -> (f64, f64) {
        let has = areas.cores[area];
        let profiled = self.profile.at(has);
        let counts = |app: &AppId| !self.apps[app.index()].objectives.is_empty();
        let all = self.members(areas, area).filter(counts);
        let really: f64 = all.filter_map(|app| self.monitor.per_s(app)).sum();
        let least = (self.config.guard * profiled).max(f64::MIN_POSITIVE);
        let alpha = profiled / really.max(least);
        (self.profile.at(has - 1), alpha * areas.budgets[area])
    }

    fn can_spare(&self, areas: &Areas, area: usize) -> bool {
        if areas.cores[area] < 2 || self.misses(areas, area) {
            return false;
        }
        let (without, needs) = self.margin(areas, area);
        without > needs
    }

    fn reason(&self, areas: &Areas, cause: Cause) -> Reason {
        match cause {
            Cause::Spare { area } => {
                let (value, threshold) = self.margin(areas, area);
                Reason::Threshold { metric: COMPLETED, app: None, value, threshold }
            }
            Cause::Missed { area } => {
                let mut members = self.members(areas, area);
                let missed = members.find(|app| self.monitor.is_missed(*app));
                missed.map_or(Reason::Fixed, |app| self.missed(app))
            }
        }
    }

    /// Returns the app's promise that is missed.
    fn missed(&self, app: AppId) -> Reason {
        let spec = &self.apps[app.index()];
        let floor = spec.objectives.iter().find_map(|objective| match objective {
            Objective::Throughput { floor_per_s } => Some(*floor_per_s),
            Objective::Tail { .. } | Objective::Disengagement { .. } => None,
        });
        let (metric, value, threshold) = match (spec.tail(), floor) {
            (Some((at, bound)), _) => {
                let tail_s = self.shapes.tail_s(app, at).unwrap_or(f64::INFINITY);
                (TAIL_LATENCY, tail_s, bound.as_secs_f64())
            }
            (None, Some(floor)) => (PROGRESS, self.monitor.per_s(app).unwrap_or(0.0), floor),
            (None, None) => (PROGRESS, 0.0, 0.0),
        };
        Reason::Threshold { metric, app: Some(app), value, threshold }
    }

    /// Forms the areas again if an app has exited.
    fn settle_exits(&mut self, seen: &Observation) {
        let lives = |index: usize| seen.apps.get(index).is_some_and(|app| app.alive);
        let gone = (0..self.apps.len()).find(|index| self.alive[*index] && !lives(*index));
        let Some(gone) = gone else { return };
        for index in 0..self.apps.len() {
            self.alive[index] &= lives(index);
        }
        if self.areas.is_some() {
            self.draw(&Reason::Exited { app: AppId(gone as u16) });
        }
    }
}

impl Areas {
    /// Moves one core from one area to another.
    fn shift(&mut self, from: usize, to: usize) {
        self.cores[from] -= 1;
        self.cores[to] += 1;
    }
}

impl Policy for QosWc {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        self.settle_exits(seen);
        self.monitor.note(seen);
        self.shapes.note(seen);
        if let Some(whole) = self.period.add(seen) {
            self.look(&whole);
        }
        for_present_apps(&self.plan, seen)
    }

    /// Budgets follow the new promises; cores stay where they are for Algorithm 1
    /// to move, unless there is another number of areas now.
    fn retarget(&mut self, apps: &[AppSpec]) -> bool {
        self.apps = apps.to_vec();
        self.monitor.retarget(apps);
        let (of, budgets) = self.group();
        match &mut self.areas {
            Some(areas) if areas.budgets.len() == budgets.len() => {
                (areas.of, areas.budgets) = (of, budgets);
                self.place(&Reason::Start);
            }
            Some(_) => self.draw(&Reason::Start),
            None => {}
        }
        true
    }
}
