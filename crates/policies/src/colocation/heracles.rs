//! `heracles`: protects one latency-critical app and lets best-effort work grow into its slack.
//!
//! The machine is divided in two: the latency-critical app, and all other apps. A top level
//! decides every 15 s whether best-effort work may run and grow, a second level every 2 s by
//! how much:
//!
//! ```text
//! top level    slack < 0         disable best-effort work for 5 minutes
//!              load > 85 %       disable it;  load < 80 %: enable it
//!              slack < 10 %      no growth;   slack < 5 %: leave it 2 cores
//! 2nd level    GROW_LLC          one way more; undone if the first app suffers; on to cores
//!                                if best-effort work does not gain
//!              GROW_CORES        one core more while slack > 10 %
//! ```
//!
//! The printed `elif` chain reaches its slack branches only while the load is between 80 and
//! 85 %, so that in most states best-effort work grows until the bound is missed. The prose
//! applies them at every decision. `mode = "prose"` is the default, `"literal"` is the print.
//!
//! Differences, each with its reason in `docs/design/heracles.md`:
//!
//! 1. Of several latency-critical apps the one with the tightest bound is protected; all
//!    others count as best-effort.
//! 2. Memory bandwidth is not read by app. Where it can be throttled, best-effort work has the
//!    share of bandwidth that it has of cores.
//! 3. Power and network are not steered.
//! 4. *Disabled* means one core, one way and `SCHED_IDLE` where the machine has it.
//! 5. The tail of a period is the mean of the epochs' tails, weighted by the requests due.
//! 6. The load rules need `max_load` of the app and are skipped without it.
//!
//! Without best-effort apps the app has everything, without latency-critical apps best-effort
//! work has. Fewer than two cores or ways are refused. While an app cannot be read, nothing
//! changes.
//!
//! Source: Lo et al., ISCA'15, section 4, algorithms 1 and 2. Checked branch by branch, in
//! both modes.

use crate::config::{config, fraction, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, PolicyKind};
use crate::toolkit::partition::Partition;
use crate::toolkit::regions::Kind;
use crate::toolkit::slack::{check_apps, slacks};
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppId, AppSpec, Assessor, Capability, Machine, Observation, Plan, Policy, PolicyError, Reason,
    Rng, Scheduling, Setting, numbered,
};
use lull_measure::Nanos;
use lull_measure::catalogue::{Metric, OFFERED, SLACK};
use lull_measure::entropy::RelativeImportance;
use serde::{Deserialize, Serialize};
use window::{EpochSeen, Summary, Window};

#[cfg(test)]
mod tests;
mod window;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "heracles",
    paper: "Lo et al., ISCA'15 (Heracles), section 4, algorithms 1 and 2",
    summary: "Lets best-effort work grow, way by way and core by core, while the strictest app \
              has slack, and shuts it down for five minutes when that is gone.",
    kind: PolicyKind {
        needs: &[Capability::Cores, Capability::TailLatency, Capability::Progress],
        uses: &[Capability::CacheWays, Capability::MemoryBandwidth, Capability::Scheduling],
        dip: Some(crate::Dip::DI),
        latency: LatencyDetail::EveryRequest,
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Heracles::new(read(table)?, machine, apps)?)),
};

config! {
    /// The paper's numbers.
    struct Config checked by check {
        /// Rule of the top level: the `prose`'s or the `literal` chain of algorithm 1.
        mode: Mode = Mode::Prose,
        /// Period of the top level (algorithm 1: 15 s).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_secs(15),
        /// Period of the second level (algorithm 2: 2 s).
        #[serde(serialize_with = "text")]
        growth_period: Nanos = Nanos::from_secs(2),
        /// How long best-effort work stays disabled after a violation (section 4.3: 5 min).
        #[serde(serialize_with = "text")]
        cooldown: Nanos = Nanos::from_secs(300),
        /// Load, as a share of `max_load`, above which best-effort work is disabled
        /// (algorithm 1: 0.85).
        load_high: f64 = 0.85,
        /// Load below which it is enabled (algorithm 1: 0.80).
        load_low: f64 = 0.80,
        /// Slack below which it may not grow (algorithm 1: 0.10).
        growth_slack: f64 = 0.10,
        /// Slack below which it is cut down (algorithm 1: 0.05).
        cut_slack: f64 = 0.05,
        /// Cores that a cut leaves it (algorithm 1: 2).
        cut_cores: u32 = 2,
        /// Share of the cache ways that it begins with (section 4.3: 0.1).
        start_ways: f64 = 0.1,
        /// Relative gain of progress that makes a way worth keeping (ours).
        benefit: f64 = 0.01,
        /// Loss of slack that takes a way back (ours, for the paper's bandwidth derivative).
        way_slack_loss: f64 = 0.05,
    }
}

/// How the top level reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Slack rules hold whenever best-effort work runs.
    Prose,
    /// The `elif` chain as printed.
    Literal,
}

fn check(config: &Config) -> Result<(), PolicyError> {
    for (key, span) in [("period", config.period), ("growth_period", config.growth_period)] {
        positive_time(key, span)?;
    }
    let shares = [
        ("load_high", config.load_high),
        ("load_low", config.load_low),
        ("growth_slack", config.growth_slack),
        ("cut_slack", config.cut_slack),
        ("start_ways", config.start_ways),
        ("benefit", config.benefit),
        ("way_slack_loss", config.way_slack_loss),
    ];
    for (key, share) in shares {
        fraction(key, share)?;
    }
    if config.load_low > config.load_high {
        let message = "`load_low` is above `load_high`: best-effort work would flicker";
        return Err(wrong("load_low", message.to_owned()));
    }
    Ok(())
}

/// Holders' numbers: the app first, all others second.
const FIRST: usize = 0;
const REST: usize = 1;

/// Where the second level is (algorithm 2).
#[derive(Debug, Clone, Copy, PartialEq)]
enum Growth {
    /// A way is next.
    Ways,
    /// A way was given; slack and progress before it.
    JudgeWay { slack: f64, progress: f64 },
    /// A core is next.
    Cores,
}

/// The policy.
struct Heracles {
    config: Config,
    apps: Vec<AppSpec>,
    /// The strictest latency-critical app, if there are two sides at all.
    first: Option<AppId>,
    rest: Vec<AppId>,
    can_idle: bool,
    partition: Partition,
    top: Window,
    second: Window,
    assessor: Assessor,
    enabled: bool,
    may_grow: bool,
    disabled_until: Nanos,
    growth: Growth,
    plan: Plan,
}

impl Heracles {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        check_apps(ENTRY.name, apps)?;
        let strictest = strictest(apps);
        let rest: Vec<_> =
            numbered(apps).map(|(app, _)| app).filter(|app| Some(*app) != strictest).collect();
        let first = strictest.filter(|_| !rest.is_empty());
        let holders = match first {
            Some(first) => vec![vec![first], rest.clone()],
            None => vec![strictest.into_iter().chain(rest.iter().copied()).collect()],
        };
        let holders: Vec<_> = holders.into_iter().filter(|holder| !holder.is_empty()).collect();
        let partition = Partition::even(machine, holders).map_err(|few| few.refuse(ENTRY.name))?;
        let mut heracles = Self {
            top: Window::new(config.period),
            second: Window::new(config.growth_period),
            assessor: Assessor::new(apps, RelativeImportance::default()),
            can_idle: machine.capabilities.has(Capability::Scheduling),
            apps: apps.to_vec(),
            enabled: false,
            may_grow: true,
            disabled_until: Nanos::ZERO,
            growth: Growth::Ways,
            plan: Plan::keep(),
            first,
            rest,
            config,
            partition,
        };
        if heracles.first.is_some() {
            heracles.enable();
        }
        heracles.write(&Reason::Start);
        Ok(heracles)
    }

    /// Algorithm 1.
    fn judge(&mut self, whole: Summary, now: Nanos) {
        let slack = whole.slack;
        let load = whole.load.unwrap_or(0.0);
        let Config { load_high, load_low, .. } = self.config;
        if slack < 0.0 {
            self.disabled_until = now + self.config.cooldown;
            self.disable(&self.reason(SLACK, slack, 0.0));
        } else if load > load_high {
            self.disable(&self.reason(OFFERED, load, load_high));
        } else {
            if load < load_low && !self.enabled && now >= self.disabled_until {
                self.enable();
                self.write(&self.reason(OFFERED, load, load_low));
            }
            // The printed chain ends here unless the load lies between the two.
            if self.enabled && (self.config.mode == Mode::Prose || load >= load_low) {
                self.judge_slack(slack);
            }
        }
    }

    fn judge_slack(&mut self, slack: f64) {
        self.may_grow = slack >= self.config.growth_slack;
        if slack < self.config.cut_slack {
            let reason = self.reason(SLACK, slack, self.config.cut_slack);
            self.shrink_to(self.config.cut_cores, &reason);
        }
    }

    /// Algorithm 2.
    fn grow(&mut self, whole: Summary) {
        let Summary { slack, progress, .. } = whole;
        if !(self.enabled && self.may_grow) {
            return;
        }
        let reason = self.reason(SLACK, slack, self.config.growth_slack);
        match self.growth {
            Growth::Ways => {
                let given = slack > self.config.growth_slack
                    && self.partition.shift(Kind::Ways, Some(FIRST), Some(REST));
                self.growth = match progress {
                    Some(progress) if given => Growth::JudgeWay { slack, progress },
                    _ => Growth::Cores,
                };
            }
            Growth::JudgeWay { slack: before, progress: had } => {
                let enough = had * (1.0 + self.config.benefit);
                let gained = progress.is_some_and(|now| now > enough);
                self.growth = self.judge_way(before, slack, gained);
            }
            Growth::Cores => {
                if slack > self.config.growth_slack {
                    self.partition.shift(Kind::Cores, Some(FIRST), Some(REST));
                }
                self.growth = Growth::Ways;
            }
        }
        self.write(&reason);
    }

    /// Keeps the last way and continues, keeps it and turns to cores, or gives it back.
    fn judge_way(&mut self, before: f64, slack: f64, gained: bool) -> Growth {
        let suffers =
            slack < self.config.growth_slack || before - slack > self.config.way_slack_loss;
        if suffers {
            self.partition.shift(Kind::Ways, Some(REST), Some(FIRST));
            return Growth::Cores;
        }
        if gained { Growth::Ways } else { Growth::Cores }
    }

    /// Best-effort work runs, on one core and a tenth of the cache.
    fn enable(&mut self) {
        (self.enabled, self.may_grow, self.growth) = (true, true, Growth::Ways);
        let ways = f64::from(self.partition.total(Kind::Ways)) * self.config.start_ways;
        self.give_rest(Kind::Cores, self.partition.floor(Kind::Cores));
        self.give_rest(Kind::Ways, (ways.round() as u32).max(self.partition.floor(Kind::Ways)));
    }

    fn disable(&mut self, reason: &Reason) {
        self.enabled = false;
        for kind in [Kind::Cores, Kind::Ways] {
            self.give_rest(kind, self.partition.floor(kind));
        }
        self.write(reason);
    }

    fn shrink_to(&mut self, cores: u32, reason: &Reason) {
        if self.partition.units_of(Kind::Cores, REST) > cores {
            self.give_rest(Kind::Cores, cores.max(self.partition.floor(Kind::Cores)));
            self.write(reason);
        }
    }

    fn give_rest(&mut self, kind: Kind, units: u32) {
        let (total, floor) = (self.partition.total(kind), self.partition.floor(kind));
        let units = units.min(total.saturating_sub(floor));
        self.partition.set(kind, &[total - units, units]);
    }

    /// Bandwidth follows cores; then everything goes into the plan.
    fn write(&mut self, reason: &Reason) {
        if self.first.is_some() && !self.partition.is_retired(FIRST) {
            let (steps, cores) =
                (self.partition.total(Kind::Bandwidth), self.partition.total(Kind::Cores));
            let share = (self.partition.units_of(Kind::Cores, REST) * steps).div_ceil(cores.max(1));
            self.give_rest(Kind::Bandwidth, share.max(self.partition.floor(Kind::Bandwidth)));
        }
        let mut settings = self.partition.settings();
        if self.can_idle && self.first.is_some() {
            let class =
                if self.enabled { Scheduling::Normal { nice: 0 } } else { Scheduling::Idle };
            settings.extend(self.rest.iter().map(|app| Setting::Scheduling(*app, class)));
        }
        revise(&mut self.plan, settings, reason);
    }

    /// Reads the observation of the first app and of the others in one epoch.
    fn look(&mut self, seen: &Observation) -> EpochSeen {
        let assessment = self.assessor.assess(seen);
        let first = self.first.and_then(|first| {
            slacks(&self.apps, seen, &assessment).into_iter().find(|one| one.app == first)
        });
        let due = self.first.and_then(|first| seen.app(first)?.latency.as_ref().ok());
        let due = due.map_or(0.0, |latency| latency.offered_per_s * seen.epoch.as_secs_f64());
        let idle = due <= 0.0 && first.is_none() && self.is_readable(seen);
        EpochSeen {
            length: seen.epoch,
            slack: first.map(|one| (one.slack, one.active)).or(idle.then_some((1.0, false))),
            weight: due.max(1.0),
            load: self.load(seen),
            progress: self.progress(seen),
        }
    }

    fn is_readable(&self, seen: &Observation) -> bool {
        let latency = |first| seen.app(first)?.latency.as_ref().ok();
        self.first.and_then(latency).is_some()
    }

    /// Its load as a share of the most it can serve, if that is known.
    fn load(&self, seen: &Observation) -> Option<f64> {
        let first = self.first?;
        let most = self.apps[first.index()].max_load_per_s?;
        let latency = seen.app(first)?.latency.as_ref().ok()?;
        Some(latency.offered_per_s / most)
    }

    /// The sum of what best-effort apps got done; `None` if one cannot be read.
    fn progress(&self, seen: &Observation) -> Option<f64> {
        let of = |app: &AppId| {
            let progress = seen.app(*app)?.progress.as_ref().ok()?.per_s;
            (progress.is_finite() && progress >= 0.0).then_some(progress)
        };
        let is_be = |app: &&AppId| !self.apps[app.index()].is_latency_critical();
        self.rest.iter().filter(is_be).map(of).sum()
    }

    fn reason(&self, metric: &'static Metric, value: f64, threshold: f64) -> Reason {
        Reason::Threshold { metric, app: self.first, value, threshold }
    }

    /// When one side has exited the other has everything.
    fn settle_exits(&mut self, seen: &Observation) {
        let Some(first) = self.first else { return };
        let gone = |app: &AppId| seen.app(*app).is_none_or(|now| !now.alive);
        if gone(&first) && self.partition.retire(FIRST, Some(REST)) {
            self.enabled = true;
            self.write(&Reason::Exited { app: first });
        } else if self.rest.iter().all(gone) && self.partition.retire(REST, Some(FIRST)) {
            self.write(&Reason::Exited { app: self.rest[0] });
        }
    }

    fn is_two_sided(&self) -> bool {
        let retired = |holder| self.partition.is_retired(holder);
        self.first.is_some() && !retired(FIRST) && !retired(REST)
    }
}

impl Policy for Heracles {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        self.settle_exits(seen);
        if self.is_two_sided() {
            let epoch = self.look(seen);
            if let Some(Some(whole)) = self.top.add(epoch) {
                self.judge(whole, seen.time);
            }
            if let Some(Some(whole)) = self.second.add(epoch) {
                self.grow(whole);
            }
        }
        for_present_apps(&self.plan, seen)
    }
}

/// The latency-critical app with the tightest bound, the first of equals.
fn strictest(apps: &[AppSpec]) -> Option<AppId> {
    let bound = |(app, spec): (AppId, &AppSpec)| {
        let (_, bound) = spec.tail().filter(|_| spec.is_latency_critical())?;
        Some((bound, app))
    };
    numbered(apps).filter_map(bound).min().map(|(_, app)| app)
}
