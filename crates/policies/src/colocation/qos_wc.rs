//! QoS-WC: cores for those who are promised most, as long as nobody misses.
//!
//! Li and others, REEF, SoCC'25 (seed 000), sections 3.5, 4 (Algorithm 1) and
//! 5.4: "QoS-centric workload consolidation". What apps are promised is brought
//! to one currency, their mean latency; apps with like targets share an *area*
//! of cores; and cores go from lax areas to strict ones, when a promise is
//! missed and, carefully, before one is.
//!
//! 1. *Targets.* By Little's law, an app with n queries at a time that is
//!    promised a throughput x has w = n/x to answer; one that is promised a
//!    percentile has its bound over the measured ratio of that percentile to
//!    the mean; nothing promised is no target. The throughput that a target
//!    needs is the app's budget, n/w ([`targets`]).
//! 2. *Areas.* k-means on the targets, strictest area first (R = 2: hot, warm).
//! 3. *Profile.* TP(c), the throughput of all apps on c cores. Lax areas begin
//!    with the fewest cores whose TP reaches their budget, the strictest with
//!    the rest ([`profile`]).
//! 4. *Algorithm 1*, every 100 ms: an area in which a promise is missed gets a
//!    core of the laxest area that can spare one. If none is missed for a
//!    second, a core goes to the strictest all the same. An area can spare a
//!    core if its promises are kept and `TP(c - 1) > alpha B`, alpha being
//!    TP(c) over what it really does.
//!
//! Cores are all it sets. Frequencies are the governor's, and how many queries
//! run at a time is the admission controller's at the gate, if there is one: the two
//! neither know nor need each other.
//!
//! # What the print lacks
//!
//! Read literally, Algorithm 1 does not run. It shrinks C while C bounds the
//! loop; leaves `Cores[r]` undefined where no c reaches the budget; may leave
//! the strictest area no core, or less; divides by the throughput of an area
//! that may be idle; breaks out of one of two loops when a promise is missed and
//! of none otherwise, so that one call can move all cores; and looks every
//! 100 ms in the text and every second in the listing. Here:
//!
//! 1. every area keeps a core, and gets what is left where its budget cannot be
//!    reached;
//! 2. an area's throughput counts as 5 % of its profile at least (`guard`);
//! 3. an area takes part in one move a look, and before its time one core moves
//!    at most, after ten quiet looks (`calm`);
//! 4. promises are judged by the share of late answers over a second and 200
//!    answers, or as many as two late ones need ([`crate::toolkit::kept`]);
//! 5. *back*: the print has no way back to a lax area, and a core that went too
//!    far would be gone for good. A missed area that nobody laxer can help is
//!    helped by a stricter one that keeps its own, and gives nothing before its time for `rest`.
//!    An app's demand may also be above its budget, which only then shows.
//!
//! The k-means is exact ([`crate::toolkit::clusters`]), on the logarithms of the
//! targets. An app with nothing promised counts as a thousand times laxer than
//! the laxest promise. An app that exits: areas are drawn anew without it.
//!
//! Checked against: Algorithm 1 by hand, and `lull lab run reef-qoswc` (Figs. 18
//! to 20): its areas stay when promises are tightened, no promise is missed, best
//! effort has its floor and more than under Demeter. Beside PSLO without rounds it
//! has less, where the paper has more.

use crate::config::{at_least_one, config, fraction, read, some_time, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, PolicyKind, SettingSearch};
use crate::toolkit::clusters::clusters;
use crate::toolkit::kept::Kept;
use crate::toolkit::period::Period;
use crate::toolkit::{for_the_living, revise};
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
    paper: "REEF, SoCC'25 (seed 000), sections 3.5, 4 (Algorithm 1, corrected) and 5.4",
    summary: "Groups apps into areas of cores by the mean latency that their promises come to, \
              and moves cores to the strict areas as long as the lax ones keep theirs.",
    kind: PolicyKind {
        family: Family::Colocation,
        needs: &[Capability::Cores],
        uses: &[Capability::TailLatency, Capability::Progress],
        dip: Some(crate::Dip::DI),
        latency: LatencyDetail::EveryRequest,
        search: SettingSearch::None,
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(QosWc::new(read(table)?, machine, apps))),
};

config! {
    /// Algorithm 1 and what it lacks.
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
    some_time("period", config.period)?;
    some_time("window", config.window)?;
    some_time("trial", config.trial)?;
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

/// Why a core moves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cause {
    /// A promise is missed in an area.
    Missed { area: usize },
    /// None is, and there is one to spare.
    Spare { area: usize },
}

/// The areas, strictest first.
#[derive(Debug, Clone, Default, PartialEq)]
struct Areas {
    /// Of each app; `None` for one that has exited.
    of: Vec<Option<usize>>,
    /// How many cores each has.
    cores: Vec<usize>,
    /// B: throughput that each needs.
    budgets: Vec<f64>,
    /// Until when each gives nothing before its time.
    rests_until: Vec<Nanos>,
}

/// The policy.
struct QosWc {
    config: Config,
    cores: Vec<CoreId>,
    apps: Vec<AppSpec>,
    alive: Vec<bool>,
    kept: Kept,
    shapes: Shapes,
    profile: Profile,
    /// None while the profile is measured.
    areas: Option<Areas>,
    period: Period,
    calm: u32,
    plan: Plan,
}

impl QosWc {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Self {
        let cores: Vec<_> = machine.cores.iter().map(|core| core.id).collect();
        Self {
            kept: Kept::new(apps, config.window, config.answers),
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

    /// Goes on with the profile, and draws the areas once it is there.
    fn learn(&mut self, seen: &Observation) {
        let per_s = |seen: &lull_control::AppSeen| match (&seen.latency, &seen.progress) {
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

    /// Which area each app is in, and what each area needs.
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
        let mut moves = self.cure(&mut areas, &missed, now);
        // Where nobody answers, that no promise is missed says nothing.
        let answers =
            self.living().any(|app| self.kept.per_s(app).is_some_and(|per_s| per_s > 0.0));
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
    fn cure(&self, areas: &mut Areas, missed: &[bool], now: Nanos) -> Vec<Reason> {
        let count = areas.cores.len();
        let mut took_part = vec![false; count];
        let mut reasons = Vec::new();
        for area in (0..count).filter(|area| missed[*area]) {
            let keeps = |from: &usize| !took_part[*from] && !missed[*from];
            let can = |from: &usize| keeps(from) && self.can_spare(areas, *from);
            let laxer = (area + 1..count).rev().find(can);
            // What is kept now says more than a profile that was measured once.
            let stricter = || (0..area).find(|from| keeps(from) && areas.cores[*from] > 1);
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
        self.members(areas, area).any(|app| self.kept.is_missed(app))
    }

    /// `TP(c - 1) > alpha B`, and both sides.
    fn margin(&self, areas: &Areas, area: usize) -> (f64, f64) {
        let has = areas.cores[area];
        let profiled = self.profile.at(has);
        let counts = |app: &AppId| !self.apps[app.index()].objectives.is_empty();
        let all = self.members(areas, area).filter(counts);
        let really: f64 = all.filter_map(|app| self.kept.per_s(app)).sum();
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
                let missed = members.find(|app| self.kept.is_missed(*app));
                missed.map_or(Reason::Fixed, |app| self.missed(app))
            }
        }
    }

    /// Which of an app's promises is missed.
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
            (None, Some(floor)) => (PROGRESS, self.kept.per_s(app).unwrap_or(0.0), floor),
            (None, None) => (PROGRESS, 0.0, 0.0),
        };
        Reason::Threshold { metric, app: Some(app), value, threshold }
    }

    /// Draws the areas anew if an app has exited.
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
    /// One core goes from one area to another.
    fn shift(&mut self, from: usize, to: usize) {
        self.cores[from] -= 1;
        self.cores[to] += 1;
    }
}

impl Policy for QosWc {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        self.settle_exits(seen);
        self.kept.note(seen);
        self.shapes.note(seen);
        if let Some(whole) = self.period.add(seen) {
            self.look(&whole);
        }
        for_the_living(&self.plan, seen)
    }

    /// Budgets follow the new promises; cores stay where they are for Algorithm 1
    /// to move, unless there is another number of areas now.
    fn retarget(&mut self, apps: &[AppSpec]) -> bool {
        self.apps = apps.to_vec();
        self.kept.retarget(apps);
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
