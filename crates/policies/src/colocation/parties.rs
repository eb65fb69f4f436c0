//! `parties`: partitions all resources and moves one unit at a time, one kind after another.
//!
//! Every app has its own cores, cache ways and bandwidth; nothing is shared. Every 500 ms one
//! unit moves:
//!
//! ```text
//! slack = (bound - tail)/bound
//! some slack < 0.05   upsize the app with the least slack: one unit from the idle pool, from
//!                     best-effort work, or else from the app with the most slack
//! all above, and the  downsize that app: one unit to best-effort work, or else to the idle
//! largest > 0.20      pool; undone, and not retried for 30 s, if its slack falls below 0.05
//! ```
//!
//! Each app has a wheel of the kinds (cores, cache, memory bandwidth). It starts at a random
//! kind whenever the direction changes, stays at a kind that helped, and turns after one that
//! did not. An upsizing that did not help is kept: together with the next one it may help.
//!
//! `mode = "paper"` is the paper's loop. `mode = "script"` is the released script: it samples
//! every 100 ms; an app is needy if its last slack and its mean slack of one second are below
//! 0.05, and a donor if both are above 0.2; five samples vote on an action; *any* app below
//! 0.05 votes a downsizing down; it rests for 10 s, not 30; after an undo it settles for five
//! samples, or ten if the undo did not help. The script has no best-effort apps: they keep
//! their even share.
//!
//! Best-effort apps share one partition. There is no frequency, memory capacity, disk or
//! migration. Each difference with its reason: `docs/design/parties.md`.
//!
//! The policy refuses more apps than cores or ways. Without best-effort apps, surplus units
//! are idle; without latency-critical apps, best-effort work has everything. If no app
//! completes requests, nothing moves.
//!
//! Source: Chen, Delimitrou and Martinez, ASPLOS'19, section 4 and its released script; a
//! baseline of Ah-Q (Liu et al. 2024). Checked line by line in the tests.

use crate::config::{at_least_one, config, fraction, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, NaturalEpoch, PolicyKind};
use crate::toolkit::partition::{Partition, Party, best_effort_together};
use crate::toolkit::period::Period;
use crate::toolkit::regions::Kind;
use crate::toolkit::slack::{Slack, check_apps, slacks};
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppId, AppSpec, Assessor, Capability, Direction as Way, Expectation, Machine, Observation,
    Plan, Policy, PolicyError, Reason, Rng,
};
use lull_measure::Nanos;
use lull_measure::catalogue::SLACK;
use lull_measure::entropy::RelativeImportance;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use state::{Action, Client, Direction, Phase, Reading, Wheel, least, vote};
use std::collections::VecDeque;

mod state;
#[cfg(test)]
mod tests;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "parties",
    paper: "Chen et al., ASPLOS'19 (PARTIES), as used by Ah-Q (Liu et al. 2024)",
    summary: "Partitions everything and moves one unit at a time from who has slack to who has \
              none, trying one kind of resource after the other.",
    kind: PolicyKind {
        needs: &[Capability::Cores, Capability::TailLatency],
        uses: &[Capability::CacheWays, Capability::MemoryBandwidth],
        dip: Some(crate::Dip::DI),
        epoch: NaturalEpoch::Key("period"),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Parties::new(read(table)?, machine, apps)?)),
};

config! {
    /// The paper's and the script's numbers.
    struct Config checked by check {
        /// Loop: the `paper`'s or the released `script`'s.
        mode: Mode = Mode::Paper,
        /// Time between adjustments in paper mode (section 4: 500 ms).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_millis(500),
        /// Time between samples in script mode (the script: 100 ms).
        #[serde(serialize_with = "text")]
        sample: Nanos = Nanos::from_millis(100),
        /// Slack below which an app is given to (section 4: 0.05).
        upsize_below: f64 = 0.05,
        /// Slack above which an app is taken from (section 4: 0.2).
        downsize_above: f64 = 0.2,
        /// How long an app is not downsized after that was undone, in paper mode (section 4: 30 s).
        #[serde(serialize_with = "text")]
        rest: Nanos = Nanos::from_secs(30),
        /// The same in script mode (the script: 100 samples, 10 s).
        #[serde(serialize_with = "text")]
        script_rest: Nanos = Nanos::from_secs(10),
        /// Samples that vote on an action in script mode (the script: 5).
        votes: u32 = 5,
        /// Samples in the mean slack of script mode (the script: 1 s, 10).
        mean_of: u32 = 10,
    }
}

/// The source of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// The paper's.
    Paper,
    /// The released script's.
    Script,
}

fn check(config: &Config) -> Result<(), PolicyError> {
    for (key, span) in [("period", config.period), ("sample", config.sample)] {
        positive_time(key, span)?;
    }
    fraction("upsize_below", config.upsize_below)?;
    fraction("downsize_above", config.downsize_above)?;
    if config.upsize_below > config.downsize_above {
        let message = "`upsize_below` is above `downsize_above`: an app would give to itself";
        return Err(wrong("upsize_below", message.to_owned()));
    }
    at_least_one(&[("votes", config.votes as usize), ("mean_of", config.mean_of as usize)])
}

/// The policy.
struct Parties {
    config: Config,
    apps: Vec<AppSpec>,
    clients: Vec<Client>,
    /// The holder of all best-effort apps.
    best_effort: Option<usize>,
    kinds: Vec<Kind>,
    partition: Partition,
    /// The partition before the last action: an undo restores the same cores.
    previous: Partition,
    period: Period,
    assessor: Assessor,
    phase: Phase,
    plan: Plan,
}

impl Parties {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        check_apps(ENTRY.name, apps)?;
        let holders = best_effort_together(apps);
        let is_client = |holder: &&Vec<AppId>| apps[holder[0].index()].is_latency_critical();
        let client = |holder: &Vec<AppId>| Client {
            app: holder[0],
            wheel: None,
            rests_until: Nanos::ZERO,
            recent: VecDeque::new(),
        };
        let clients: Vec<_> = holders.iter().filter(is_client).map(client).collect();
        let best_effort = (clients.len() < holders.len()).then_some(clients.len());
        let partition = Partition::even(machine, holders).map_err(|few| few.refuse(ENTRY.name))?;
        let mut plan = Plan::keep();
        revise(&mut plan, partition.settings(), &Reason::Start);
        let period = match config.mode {
            Mode::Paper => config.period,
            Mode::Script => config.sample,
        };
        Ok(Self {
            period: Period::new(period),
            assessor: Assessor::new(apps, RelativeImportance::default()),
            apps: apps.to_vec(),
            kinds: partition.kinds().collect(),
            phase: Phase::Free,
            previous: partition.clone(),
            config,
            clients,
            best_effort,
            partition,
            plan,
        })
    }

    fn adjust(&mut self, seen: &Observation, rng: &mut Rng) {
        self.settle_exits(seen);
        let assessment = self.assessor.assess(seen);
        let readings = self.read(&slacks(&self.apps, seen, &assessment));
        if readings.is_empty() {
            return;
        }
        match self.phase {
            Phase::Free => self.choose_step(&readings, seen.time, rng),
            Phase::Watching(action) => {
                if self.has_passed(action, &readings, seen.time) {
                    self.choose_step(&readings, seen.time, rng);
                }
            }
            Phase::Settling { samples_left, votes, last } => {
                self.settle(samples_left - 1, votes + vote(self.all_well(&readings)), last);
            }
        }
    }

    /// Gives what exited apps held to best-effort work, or leaves it idle if there is none.
    fn settle_exits(&mut self, seen: &Observation) {
        let gone = |app: AppId| seen.app(app).is_none_or(|now| !now.alive);
        for holder in 0..self.partition.holders() {
            let apps = self.partition.apps(holder);
            let Some(first) = apps.first().copied().filter(|_| apps.iter().all(|app| gone(*app)))
            else {
                continue;
            };
            let heir =
                self.best_effort.filter(|be| *be != holder && !self.partition.is_retired(*be));
            if self.partition.retire(holder, heir) {
                self.phase = Phase::Free;
                revise(&mut self.plan, self.partition.settings(), &Reason::Exited { app: first });
            }
        }
    }

    /// The clients that can be read; notes their slacks for the mean.
    fn read(&mut self, slacks: &[Slack]) -> Vec<Reading> {
        let mean_of = self.config.mean_of as usize;
        let is_script = self.config.mode == Mode::Script;
        let each = self.clients.iter_mut().enumerate();
        let reading = |(holder, client): (usize, &mut Client)| {
            let now = slacks.iter().find(|slack| slack.app == client.app)?;
            client.recent.push_back(now.slack);
            while client.recent.len() > mean_of {
                client.recent.pop_front();
            }
            let mean = client.recent.iter().sum::<f64>() / client.recent.len() as f64;
            let mean = if is_script { mean } else { now.slack };
            Some(Reading { holder, tail: now.tail, slack: now.slack, mean, active: now.active })
        };
        each.filter_map(reading).collect()
    }

    fn all_well(&self, readings: &[Reading]) -> bool {
        readings.iter().all(|one| !one.active || one.slack >= self.config.upsize_below)
    }

    /// Counts a sample for or against the last action; returns whether the action's trial
    /// is over and the action is kept.
    fn has_passed(&mut self, mut action: Action, readings: &[Reading], now: Nanos) -> bool {
        let own = readings.iter().find(|one| one.holder == action.holder);
        let helped = match (action.direction, self.config.mode, own) {
            // Without a reading to judge by, the action is kept.
            (_, _, None) => true,
            (Direction::Up, Mode::Paper, Some(own)) => own.tail <= action.before,
            (Direction::Up, Mode::Script, Some(own)) => own.tail < action.before,
            (Direction::Down, Mode::Paper, Some(own)) => {
                !own.active || own.slack >= self.config.upsize_below
            }
            (Direction::Down, Mode::Script, _) => self.all_well(readings),
        };
        action.votes += vote(helped);
        action.samples_left -= 1;
        if action.samples_left > 0 {
            self.phase = Phase::Watching(action);
            return false;
        }
        self.phase = Phase::Free;
        if action.votes > 0 {
            return true;
        }
        self.turn_wheel(action.holder);
        if action.direction == Direction::Down {
            self.take_back(action, own, now);
        }
        action.direction == Direction::Up
    }

    /// Undoes a downsizing.
    fn take_back(&mut self, action: Action, own: Option<&Reading>, now: Nanos) {
        let rest = match self.config.mode {
            Mode::Paper => self.config.rest,
            Mode::Script => self.config.script_rest,
        };
        self.clients[action.holder].rests_until = now + rest;
        self.partition.clone_from(&self.previous);
        if self.config.mode == Mode::Script {
            self.phase = Phase::Settling { samples_left: self.config.votes, votes: 0, last: false };
        }
        let bound = self.apps[self.clients[action.holder].app.index()].tail();
        let slack = |tail: Nanos| {
            bound.map_or(0.0, |(_, bound)| 1.0 - tail.as_secs_f64() / bound.as_secs_f64())
        };
        let after = own.map_or(0.0, |own| own.slack);
        let reason = Reason::Undo { metric: SLACK, before: slack(action.before), after };
        revise(&mut self.plan, self.partition.settings(), &reason);
    }

    /// The script waits after taking back, and again if that did not help.
    fn settle(&mut self, samples_left: u32, votes: i32, last: bool) {
        self.phase = match (samples_left, last || votes > 0) {
            (0, true) => Phase::Free,
            (0, false) => Phase::Settling { samples_left: self.config.votes, votes: 0, last: true },
            _ => Phase::Settling { samples_left, votes, last },
        };
    }

    fn choose_step(&mut self, readings: &[Reading], now: Nanos, rng: &mut Rng) {
        let Config { upsize_below, downsize_above, .. } = self.config;
        let needy =
            |one: &&Reading| one.active && one.slack < upsize_below && one.mean < upsize_below;
        if let Some(poor) = least(readings.iter().filter(needy), |one| one.mean) {
            self.upsize(*poor, readings, rng);
            return;
        }
        // The paper looks at the richest only, the script at the richest that may be taken from.
        let rests = |one: &&Reading| now < self.clients[one.holder].rests_until;
        let is_rich = |one: &&Reading| one.slack > downsize_above && one.mean > downsize_above;
        let rich = match self.config.mode {
            Mode::Paper => least(readings.iter(), |one| -one.slack).filter(|one| !rests(one)),
            Mode::Script => least(readings.iter().filter(|one| !rests(one)), |one| -one.slack),
        };
        if let Some(rich) = rich.filter(is_rich) {
            self.downsize(*rich, rng);
        }
    }

    /// Gives a unit of the first kind, from the wheel's on, for which there is a giver.
    fn upsize(&mut self, poor: Reading, readings: &[Reading], rng: &mut Rng) {
        self.enter(poor.holder, Direction::Up, rng);
        self.previous.clone_from(&self.partition);
        for _ in 0..self.kinds.len() {
            let Some(kind) = self.kind_of(poor.holder) else { return };
            let Some(victim) = self.victim(kind, poor.holder, readings) else {
                self.turn_wheel(poor.holder);
                continue;
            };
            self.partition.shift(kind, victim, Some(poor.holder));
            if let Some(holder) = victim.filter(|holder| Some(*holder) != self.best_effort) {
                // As in the paper: the victim's wheel turns if it pointed at the kind that was
                // taken from it.
                if self.clients[holder].wheel == self.clients[poor.holder].wheel {
                    self.turn_wheel(holder);
                }
            }
            self.watch(poor, Direction::Up);
            return;
        }
    }

    /// Takes a unit of the first kind from the wheel's on that the app can spare.
    fn downsize(&mut self, rich: Reading, rng: &mut Rng) {
        self.enter(rich.holder, Direction::Down, rng);
        self.previous.clone_from(&self.partition);
        let heir = match self.config.mode {
            Mode::Paper => self.present_best_effort(),
            Mode::Script => None,
        };
        for _ in 0..self.kinds.len() {
            let Some(kind) = self.kind_of(rich.holder) else { return };
            if self.partition.shift(kind, Some(rich.holder), heir) {
                self.watch(rich, Direction::Down);
                return;
            }
            self.turn_wheel(rich.holder);
        }
    }

    fn present_best_effort(&self) -> Party {
        self.best_effort.filter(|holder| !self.partition.is_retired(*holder))
    }

    /// Returns which app gives a unit of a kind; `None` if no app can.
    fn victim(&self, kind: Kind, to: usize, readings: &[Reading]) -> Option<Party> {
        let can = |from: Party| self.partition.can_give(kind, from);
        if can(None) {
            return Some(None);
        }
        let best_effort = self.present_best_effort().filter(|_| self.config.mode == Mode::Paper);
        if let Some(holder) = best_effort.filter(|holder| can(Some(*holder))) {
            return Some(Some(holder));
        }
        let others = readings.iter().filter(|one| one.holder != to && can(Some(one.holder)));
        least(others, |one| -one.slack).map(|one| Some(one.holder))
    }

    /// A wheel that changes direction begins anywhere.
    fn enter(&mut self, holder: usize, direction: Direction, rng: &mut Rng) {
        let wheel = &mut self.clients[holder].wheel;
        if wheel.is_none_or(|wheel| wheel.direction != direction) && !self.kinds.is_empty() {
            *wheel = Some(Wheel { direction, at: rng.random_range(0..self.kinds.len()) });
        }
    }

    fn kind_of(&self, holder: usize) -> Option<Kind> {
        self.clients[holder].wheel.map(|wheel| self.kinds[wheel.at])
    }

    fn turn_wheel(&mut self, holder: usize) {
        if let Some(wheel) = &mut self.clients[holder].wheel {
            wheel.at = (wheel.at + 1) % self.kinds.len();
        }
    }

    /// Makes a move real, and remembers to judge it.
    fn watch(&mut self, who: Reading, direction: Direction) {
        let samples_left = match self.config.mode {
            Mode::Paper => 1,
            Mode::Script => self.config.votes,
        };
        let (holder, before) = (who.holder, who.tail);
        let action = Action { holder, direction, before, samples_left, votes: 0 };
        self.phase = Phase::Watching(action);
        let app = Some(self.clients[holder].app);
        let (threshold, way) = match direction {
            Direction::Up => (self.config.upsize_below, Way::Higher),
            Direction::Down => (self.config.downsize_above, Way::Lower),
        };
        let reason = Reason::Threshold { metric: SLACK, app, value: who.slack, threshold };
        revise(&mut self.plan, self.partition.settings(), &reason);
        self.plan.expected = Some(Expectation { metric: SLACK, app, direction: way, by: None });
    }
}

impl Policy for Parties {
    fn decide(&mut self, seen: &Observation, rng: &mut Rng) -> Plan {
        self.plan.expected = None;
        if let Some(whole) = self.period.add(seen) {
            self.adjust(&whole, rng);
        }
        for_present_apps(&self.plan, seen)
    }
}
