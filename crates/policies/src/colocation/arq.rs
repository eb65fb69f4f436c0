//! `arq`: adaptive resource sharing and isolation for quality of service.
//!
//! Resources are in one *shared* region or in an *isolated* region of one latency-critical
//! app. A latency-critical app runs on its own region and on the shared one, a best-effort
//! app on the shared one only. Every 500 ms one unit (a core, a cache way or a step of
//! memory bandwidth) moves, by the remaining tolerance ReT of the apps:
//!
//! ```text
//! victim       the isolated region of the app with the largest ReT, if ReT > 0.1,
//!              else the shared region
//! beneficiary  the isolated region of the app with the smallest ReT, if ReT < 0.05,
//!              else the shared region
//! undo         if system entropy E_S rose since the move, reverse it and do not take from
//!              that victim for 60 s
//! ```
//!
//! If both are the shared region, nothing moves.
//!
//! Differences from the printed algorithm, each with its reason in `docs/design/arq.md`:
//!
//! 1. Only isolated regions are exempt after an undo (`ban = "all"`: every victim).
//! 2. Only moves out of isolated regions are undone (`undo = "all"`: every move).
//! 3. An isolated region has at most as many cores as its app has threads.
//! 4. Of several violating apps, the one with the largest untolerated interference Q gains;
//!    if it cannot gain more, the next one does.
//! 5. An idle app can be a victim but not a beneficiary.
//! 6. The region of an app that exits goes to the shared region.
//! 7. A move is not judged if the set of apps with readable figures changed meanwhile.
//!
//! The kinds of resources are tried in the order cores, ways, bandwidth, with one pointer per
//! victim. At the start everything is shared. In the shared region all apps are equal
//! (`priority = "equal"`), or latency-critical apps run first (`"latency-critical"`), by
//! `SCHED_IDLE` for best-effort apps or by `SCHED_RR` (`priority_by = "round-robin"`).
//!
//! Source: Ah-Q (Liu et al. 2024), section VI-B, Algorithm 1. Checked line by line in the
//! tests, and by `lull lab run ahq-load ahq-fluctuating`.

use crate::config::{config, fraction, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, NaturalEpoch, PolicyKind};
use crate::toolkit::period::Period;
use crate::toolkit::regions::{Kind, Move, Region, Regions};
use crate::toolkit::slack::check_apps;
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppId, AppSpec, Assessment, Assessor, Capability, Direction, Expectation, Machine, Observation,
    Plan, Policy, PolicyError, Reason, Rng, Scheduling, Setting, numbered, require,
};
use lull_measure::Nanos;
use lull_measure::catalogue::{ENTROPY_SYSTEM, REMAINING_TOLERANCE};
use lull_measure::entropy::RelativeImportance;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "arq",
    paper: "Ah-Q (Liu et al. 2024), section VI-B, Algorithm 1",
    summary: "Moves cores, ways and bandwidth between a shared region and isolated ones, \
              guided by remaining tolerance and system entropy.",
    kind: PolicyKind {
        needs: &[Capability::Cores, Capability::TailLatency, Capability::Progress],
        uses: &[Capability::CacheWays, Capability::MemoryBandwidth, Capability::Scheduling],
        dip: Some(crate::Dip::DIP),
        epoch: NaturalEpoch::Key("period"),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Arq::new(read(table)?, machine, apps)?)),
};

config! {
    /// The paper's numbers, and the choices it leaves open.
    struct Config checked by check {
        /// Time between adjustments (section VI-B: 500 ms); with shorter epochs, observations
        /// are merged until it has passed.
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_millis(500),
        /// Remaining tolerance above which an app's isolated region may be taken from
        /// (section VI-B: 0.1).
        victim_above: f64 = 0.1,
        /// Remaining tolerance below which an app receives resources (section VI-B: 0.05).
        beneficiary_below: f64 = 0.05,
        /// How long a victim is spared after a move that raised entropy (section VI-B: 60 s).
        #[serde(serialize_with = "text")]
        spare: Nanos = Nanos::from_secs(60),
        /// Relative importance of latency-critical apps in E_S (section V-B: 0.8).
        importance: RelativeImportance = RelativeImportance::default(),
        /// Apps that run first in the shared region: `equal` or `latency-critical` (Algorithm 1 is
        /// silent; figure 9 and section IX-A: latency-critical).
        priority: Priority = Priority::Equal,
        /// How they go first: `idle` (best-effort apps become SCHED_IDLE) or `round-robin`
        /// (latency-critical ones become SCHED_RR; section VII-A does so for LC-first).
        priority_by: PriorityBy = PriorityBy::Idle,
        /// Victims that are spared after an undo: `isolated`, or `all` as printed, which locks up.
        ban: Victims = Victims::Isolated,
        /// Victims whose moves are undone: `isolated`, or `all` as printed.
        undo: Victims = Victims::Isolated,
        /// Rise of E_S above which it counts as risen (Algorithm 1: 0).
        epsilon: f64 = 0.0,
        /// Whether a move is kept when the load of an app changed meanwhile, since the rise of
        /// E_S may be the load's doing (Algorithm 1: no).
        skip_undo_on_load_change: bool = false,
        /// Relative change of an app's offered load that counts as such (ours).
        load_change: f64 = 0.1,
    }
}

/// The apps that run first in the shared region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Priority {
    /// No region.
    Equal,
    /// Latency-critical apps.
    LatencyCritical,
}

/// How latency-critical apps go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PriorityBy {
    /// Best-effort apps become SCHED_IDLE.
    Idle,
    /// Latency-critical apps become SCHED_RR.
    RoundRobin,
}

/// A choice of victim regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Victims {
    /// Isolated ones.
    Isolated,
    /// Isolated ones and the shared one.
    All,
}

impl Victims {
    fn include(self, region: Region) -> bool {
        self == Self::All || region != Region::Shared
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    fraction("victim_above", config.victim_above)?;
    fraction("beneficiary_below", config.beneficiary_below)?;
    fraction("epsilon", config.epsilon)?;
    fraction("load_change", config.load_change)?;
    if config.beneficiary_below > config.victim_above {
        let message = "`beneficiary_below` is above `victim_above`: an app would take from itself";
        return Err(wrong("beneficiary_below", message.to_owned()));
    }
    Ok(())
}

/// The state of each region as a victim.
#[derive(Debug, Clone, Copy, Default)]
struct VictimState {
    /// Index into [`Kind::ALL`]: what to take next.
    pointer: usize,
    /// The time before which it is not a victim.
    spared_until: Nanos,
}

/// A move whose effect is not known yet.
struct Attempt {
    moved: Move,
    before: Regions,
    /// Offered load by app when it was made.
    offered: Vec<Option<f64>>,
    /// The apps that could be read when it was made.
    readings: Vec<bool>,
}

/// One latency-critical app in one period.
#[derive(Clone, Copy)]
struct View {
    app: AppId,
    remaining: f64,
    untolerated: f64,
    /// Whether requests were answered or wait, so that it may be in need now.
    active: bool,
}

/// The policy.
struct Arq {
    config: Config,
    apps: Vec<AppSpec>,
    regions: Regions,
    period: Period,
    assessor: Assessor,
    /// Indexed by app, with the shared region's last.
    victims: Vec<VictimState>,
    /// E_S of the last period.
    entropy: f64,
    /// `isAdjust` of Algorithm 1 and its data.
    attempt: Option<Attempt>,
    plan: Plan,
}

impl Arq {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        if config.priority == Priority::LatencyCritical {
            require(ENTRY.name, &[Capability::Scheduling], machine)?;
        }
        check_apps(ENTRY.name, apps)?;
        let regions = Regions::shared(machine, apps.len(), &Kind::ALL);
        let mut plan = Plan::keep();
        revise(&mut plan, priorities(&config, apps), &Reason::Fixed);
        revise(&mut plan, regions.settings(), &Reason::Start);
        Ok(Self {
            period: Period::new(config.period),
            assessor: Assessor::new(apps, config.importance),
            victims: vec![VictimState::default(); apps.len() + 1],
            // Algorithm 1, line 2: as if all had been lost, so that no first move is undone.
            entropy: 1.0,
            attempt: None,
            apps: apps.to_vec(),
            config,
            regions,
            plan,
        })
    }

    /// Runs one pass of Algorithm 1's loop.
    fn adjust(&mut self, seen: &Observation) {
        let assessment = self.assessor.assess(seen);
        self.settle_exits_and_caps(seen);
        if assessment.entropy.lc.is_none() {
            return;
        }
        let before = std::mem::replace(&mut self.entropy, assessment.entropy.system);
        match self.attempt.take() {
            Some(attempt)
                if self.has_risen(before) && self.is_only_cause(&attempt, seen, &assessment) =>
            {
                self.regret(attempt, before, seen, &assessment);
            }
            _ => self.take_next_step(seen, &assessment),
        }
    }

    fn has_risen(&self, before: f64) -> bool {
        self.entropy > before + self.config.epsilon
    }

    /// Whether nothing else that is known can have raised entropy.
    fn is_only_cause(
        &self,
        attempt: &Attempt,
        seen: &Observation,
        assessment: &Assessment,
    ) -> bool {
        let changed = |(then, now): (&Option<f64>, Option<f64>)| match (then, now) {
            (Some(then), Some(now)) => (now - then).abs() > self.config.load_change * then.abs(),
            _ => false,
        };
        let excused = self.config.skip_undo_on_load_change
            && attempt.offered.iter().zip(offered(seen)).any(changed);
        attempt.readings == readings(assessment) && !excused
    }

    /// An app that has exited needs no region; one with fewer threads than
    /// cores of its own gets no more.
    fn settle_exits_and_caps(&mut self, seen: &Observation) {
        for (app, spec) in numbered(&self.apps) {
            let Some(now) = seen.app(app) else { continue };
            let threads = spec.threads.or_else(|| now.threads.as_ref().ok().copied());
            self.regions.cap_cores(app, threads);
            if !now.alive && self.regions.release(app) {
                self.attempt = None;
                revise(&mut self.plan, self.regions.settings(), &Reason::Exited { app });
            }
        }
    }

    /// The last move raised entropy.
    fn regret(
        &mut self,
        attempt: Attempt,
        before: f64,
        seen: &Observation,
        assessment: &Assessment,
    ) {
        let victim = attempt.moved.from;
        // In both cases the victim's next unit is of another kind (PARTIES' wheel).
        let pointer = &mut self.victims[slot(victim, &self.apps)].pointer;
        *pointer = (attempt.moved.kind as usize + 1) % Kind::ALL.len();
        if !self.config.undo.include(victim) {
            return self.take_next_step(seen, assessment);
        }
        self.regions = attempt.before;
        if self.config.ban.include(victim) {
            let until = seen.time.saturating_add(self.config.spare);
            self.victims[slot(victim, &self.apps)].spared_until = until;
        }
        let metric = ENTROPY_SYSTEM;
        self.write(&Reason::Undo { metric, before, after: self.entropy });
    }

    /// `AdjustResource`: one unit from a victim to a beneficiary, if there are both.
    fn take_next_step(&mut self, seen: &Observation, assessment: &Assessment) {
        let views = self.views(seen, assessment);
        let Some(to_move) = self.next_move(&views, seen.time) else { return };
        let before = self.regions.clone();
        if !self.regions.shift(to_move) {
            return;
        }
        self.advance_pointer(to_move, &before);
        let (offered, readings) = (offered(seen).collect(), readings(assessment));
        self.attempt = Some(Attempt { moved: to_move, before, offered, readings });
        self.write(&self.reason(to_move, &views));
    }

    /// The latency-critical apps that live and have a tail.
    fn views(&self, seen: &Observation, assessment: &Assessment) -> Vec<View> {
        let view = |((app, _), stand): ((AppId, &AppSpec), &lull_control::AppAssessment)| {
            let (reading, tail) = (stand.lc?, stand.tail?);
            let now = seen.app(app).filter(|now| now.alive)?;
            let waiting = now.latency.as_ref().is_ok_and(|latency| latency.outstanding > 0);
            Some(View {
                app,
                remaining: reading.remaining_tolerance(),
                untolerated: reading.untolerated(),
                active: !tail.stale || waiting,
            })
        };
        numbered(&self.apps).zip(&assessment.apps).filter_map(view).collect()
    }

    /// The first possible move in the order of need of beneficiaries, then of
    /// wealth of victims; `None` in equilibrium.
    fn next_move(&self, views: &[View], now: Nanos) -> Option<Move> {
        let victims = self.victims(views, now);
        self.beneficiaries(views).into_iter().find_map(|to| {
            victims.iter().filter(|from| **from != to).find_map(|from| self.pick(*from, to))
        })
    }

    /// `findVictimRegion`, as the list of all that would do, best first.
    fn victims(&self, views: &[View], now: Nanos) -> Vec<Region> {
        let mut rich: Vec<_> =
            views.iter().filter(|view| view.remaining > self.config.victim_above).collect();
        rich.sort_by(|a, b| b.remaining.total_cmp(&a.remaining));
        let isolated = rich.into_iter().map(|view| Region::Isolated(view.app));
        let spared = |region| now < self.victims[slot(region, &self.apps)].spared_until;
        isolated.chain([Region::Shared]).filter(|region| !spared(*region)).collect()
    }

    /// `findBeneficiaryRegion`, as the list of all in need, neediest first.
    fn beneficiaries(&self, views: &[View]) -> Vec<Region> {
        let below = self.config.beneficiary_below;
        let mut poor: Vec<_> =
            views.iter().filter(|view| view.active && view.remaining < below).collect();
        poor.sort_by(|a, b| {
            let most_hurt = b.untolerated.total_cmp(&a.untolerated);
            a.remaining.total_cmp(&b.remaining).then(most_hurt)
        });
        match poor.as_slice() {
            [] => vec![Region::Shared],
            poor => poor.iter().map(|view| Region::Isolated(view.app)).collect(),
        }
    }

    /// `findVictimResource`: the first kind from the victim's pointer on that can move.
    fn pick(&self, from: Region, to: Region) -> Option<Move> {
        let start = self.victims[slot(from, &self.apps)].pointer;
        let kinds = Kind::ALL.iter().cycle().skip(start).take(Kind::ALL.len());
        let moves = kinds.map(|kind| Move { kind: *kind, from, to });
        moves.into_iter().find(|to_move| self.regions.can_move(*to_move))
    }

    /// The pointer passes kinds that the victim had none left of; it waits at
    /// those that only this beneficiary could not take.
    fn advance_pointer(&mut self, moved: Move, before: &Regions) {
        let pointer = &mut self.victims[slot(moved.from, &self.apps)].pointer;
        for _ in 0..Kind::ALL.len() {
            if before.can_give(Kind::ALL[*pointer], moved.from) {
                return;
            }
            *pointer = (*pointer + 1) % Kind::ALL.len();
        }
    }

    fn reason(&self, moved: Move, views: &[View]) -> Reason {
        let (app, threshold) = match (moved.to, moved.from) {
            (Region::Isolated(app), _) => (app, self.config.beneficiary_below),
            (Region::Shared, Region::Isolated(app)) => (app, self.config.victim_above),
            (Region::Shared, Region::Shared) => return Reason::Fixed,
        };
        let value = views.iter().find(|view| view.app == app).map_or(0.0, |view| view.remaining);
        Reason::Threshold { metric: REMAINING_TOLERANCE, app: Some(app), value, threshold }
    }

    /// Brings the plan to the regions.
    fn write(&mut self, reason: &Reason) {
        revise(&mut self.plan, self.regions.settings(), reason);
        let (metric, direction) = (ENTROPY_SYSTEM, Direction::Lower);
        self.plan.expected = Some(Expectation { metric, app: None, direction, by: None });
    }
}

impl Policy for Arq {
    /// E_S, by which it decides, follows the references.
    fn references_changed(&mut self, apps: &[AppSpec]) {
        self.assessor.set_references(apps);
    }

    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        self.plan.expected = None;
        if let Some(whole) = self.period.add(seen) {
            self.adjust(&whole);
        }
        for_present_apps(&self.plan, seen)
    }
}

/// Where a region's [`VictimState`] is.
fn slot(region: Region, apps: &[AppSpec]) -> usize {
    match region {
        Region::Isolated(app) => app.index(),
        Region::Shared => apps.len(),
    }
}

fn offered(seen: &Observation) -> impl Iterator<Item = Option<f64>> + '_ {
    seen.apps.iter().map(|app| app.latency.as_ref().ok().map(|latency| latency.offered_per_s))
}

/// Returns the apps that are part of entropy.
fn readings(assessment: &Assessment) -> Vec<bool> {
    assessment.apps.iter().map(|app| app.lc.is_some() || app.be.is_some()).collect()
}

/// Returns the scheduling classes that put latency-critical apps first, if configured.
fn priorities(config: &Config, apps: &[AppSpec]) -> Vec<Setting> {
    let class = |spec: &AppSpec| match (config.priority, config.priority_by) {
        (Priority::Equal, _) => None,
        (_, PriorityBy::Idle) => (!spec.is_latency_critical()).then_some(Scheduling::Idle),
        (_, PriorityBy::RoundRobin) => {
            spec.is_latency_critical().then_some(Scheduling::RoundRobin { priority: 1 })
        }
    };
    let setting = |(app, spec)| class(spec).map(|class| Setting::Scheduling(app, class));
    numbered(apps).filter_map(setting).collect()
}
