//! `demeter`: few hot cores for apps with objectives, few warm ones for best effort, the
//! others cold.
//!
//! Tang and others, Demeter: QoS-aware CPU scheduling to reduce power
//! consumption of multiple black-box workloads, SoCC'22, as REEF (Li et al., SoCC'25,
//! section 5.1) uses and compares with it, there called Demeter(SA): the cores
//! are divided into three zones. *Hot* cores run apps with a latency objective, at the
//! highest frequency. *Warm* cores run best effort, at the lowest
//! frequency with which it keeps its floor. *Cold* cores have no work and the lowest
//! frequency there is. The fewest hot and warm cores that meet the objectives
//! save the most.
//!
//! The paper classifies black boxes by the correlation of network traffic and CPU
//! use; here, as in REEF, the classes are known. Its controller is not
//! published, so the loop is ours, once a second:
//!
//! ```text
//! c = worst compliance of the promised       b = what best effort does over its floor
//! c > 1            a warm core becomes hot if b >= 1; a cold one if it cannot
//! c < 0.7 for 3 s  a hot core becomes warm
//! b < 1            warm one frequency up; at the highest, a cold core becomes warm, and without
//!                  cold ones a hot core if c <= 1
//! b > 1.05         warm one frequency down; at the lowest for 3 s, a warm core becomes cold
//! ```
//!
//! A promise may be missed for want of something else than cores, and a server
//! whose best effort crawls on one core keeps none at its gate: so hot takes
//! nothing from a warm zone that misses its own floor, and gives it cores while c allows. An
//! admission controller that serves promised connections no more often than they need keeps c
//! near 0.9, from where it scatters above 1 and never falls below 0.7: without the second rule
//! all cores become hot one by one.
//!
//! Promises are judged as in `qos-wc` ([`crate::toolkit::compliance`]), but over at
//! least 2000 answers, for c is compared with 0.7 and not only with 1. Best
//! effort without a floor has one: a share of what it did in the first second.
//! A frequency domain of several cores runs as fast as its fastest zone.
//!
//! What it trades is what REEF calls the dilemma of power management: to
//! save, it takes cores and frequency until promises are nearly missed, and when
//! they are tightened, it is late.
//!
//! Checked against: the loop by hand. `lull lab run reef-qoswc` reports its zones
//! beside those of Fig. 19, whose axis cannot be read.

use crate::config::{at_least_one, config, fraction, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, PolicyKind};
use crate::toolkit::compliance::ComplianceMonitor;
use crate::toolkit::domains::Table;
use crate::toolkit::period::Period;
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppId, AppSpec, Capability, CoreId, CoreSet, DomainId, Machine, Objective, Observation, Plan,
    Policy, PolicyError, Reason, Rng, Setting, numbered,
};
use lull_measure::Nanos;
use lull_measure::catalogue::{PROGRESS, TAIL_LATENCY};

#[cfg(test)]
mod tests;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "demeter",
    paper: "Demeter, SoCC'22, as used by REEF (Li et al., SoCC'25), section 5.1; controller ours",
    summary: "Divides cores into hot ones for promises, warm ones at the lowest frequency that \
              keeps best effort's floor, and cold ones without work.",
    kind: PolicyKind {
        needs: &[Capability::Cores, Capability::Frequency],
        uses: &[Capability::TailLatency, Capability::Progress],
        latency: LatencyDetail::EveryRequest,
        ..PolicyKind::new(Family::Frequency)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Demeter::new(read(table)?, machine, apps)?)),
};

config! {
    /// The loop's numbers, all ours.
    struct Config checked by check {
        /// Time between two looks.
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_secs(1),
        /// Compliance below which hot cores are too many.
        easy: f64 = 0.7,
        /// Throughput that best effort may have above its floor, as a share of it.
        above: f64 = 0.05,
        /// Looks in a row before a zone shrinks.
        patience: u32 = 3,
        /// Fewest answers over which a promise is judged.
        answers: u64 = 2000,
        /// Frequencies that the warm zone steps through.
        levels: usize = 11,
        /// Floor of best effort that has none, as a share of its first second.
        floor_share: f64 = 0.8,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    fraction("easy", config.easy)?;
    fraction("floor_share", config.floor_share)?;
    at_least_one(&[("patience", config.patience as usize), ("levels", config.levels)])?;
    if config.above >= 0.0 && config.above.is_finite() {
        return Ok(());
    }
    Err(wrong("above", format!("`above` is {}: write 0 or more", config.above)))
}

/// How many cores each zone has; the others are cold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Zones {
    hot: usize,
    warm: usize,
}

/// A frequency domain: its cores by place, and the frequencies of the zones.
struct Domain {
    id: DomainId,
    places: Vec<usize>,
    /// The frequencies from the lowest to the highest.
    levels: Vec<lull_measure::Hertz>,
}

/// The policy.
struct Demeter {
    config: Config,
    cores: Vec<CoreId>,
    domains: Vec<Domain>,
    apps: Vec<AppSpec>,
    monitor: ComplianceMonitor,
    period: Period,
    zones: Zones,
    /// Steps of the warm zone's frequency below the highest.
    below: usize,
    /// Looks in a row with an easy hot zone, and with a warm one at its lowest.
    easy: u32,
    slow: u32,
    floor_per_s: Option<f64>,
    plan: Plan,
}

impl Demeter {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        let cores: Vec<_> = machine.cores.iter().map(|core| core.id).collect();
        let promised = apps.iter().filter(|app| app.is_latency_critical()).count();
        let least = Zones { hot: promised.min(1), warm: (apps.len() - promised).min(1) };
        if cores.len() < least.hot + least.warm {
            let message = "1 core cannot be both hot and warm: it needs 2 or more".to_owned();
            return Err(PolicyError::Apps { policy: ENTRY.name, message });
        }
        let half = if least.warm == 0 { cores.len() } else { cores.len() / 2 * least.hot };
        let place = |core: CoreId| cores.iter().position(|one| *one == core);
        let domains = machine.domains.iter().filter_map(|domain| {
            let levels = Table::new(domain)?.spread(config.levels);
            let places = domain.cores.iter().filter_map(place).collect();
            Some(Domain { id: domain.id, places, levels })
        });
        Ok(Self {
            monitor: ComplianceMonitor::new(apps, config.period, config.answers),
            period: Period::new(config.period),
            domains: domains.collect(),
            apps: apps.to_vec(),
            zones: Zones { hot: half, warm: cores.len() - half },
            below: 0,
            easy: 0,
            slow: 0,
            floor_per_s: None,
            plan: Plan::keep(),
            cores,
            config,
        })
    }

    /// The lowest step of the warm zone, counted from the highest.
    fn lowest(&self) -> usize {
        self.domains.iter().map(|domain| domain.levels.len() - 1).max().unwrap_or(0)
    }

    fn cold(&self) -> usize {
        self.cores.len() - self.zones.hot - self.zones.warm
    }

    /// Whether an app is to run in the warm zone.
    fn has_best_effort(&self) -> bool {
        self.apps.iter().any(|app| !app.is_latency_critical())
    }

    fn look(&mut self, seen: &Observation) {
        let hot = self.look_at_hot(seen);
        let warm = self.look_at_warm();
        if let Some(reason) = hot.or(warm) {
            self.place(&reason);
        }
    }

    /// The worst compliance of the promised, and whose it is.
    fn worst(&self) -> Option<(AppId, f64)> {
        let promised = numbered(&self.apps).filter(|(_, spec)| spec.is_latency_critical());
        let each = promised.filter_map(|(app, _)| Some((app, self.monitor.compliance(app)?)));
        each.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn look_at_hot(&mut self, seen: &Observation) -> Option<Reason> {
        let (app, worst) = self.worst()?;
        let least_warm = usize::from(self.has_best_effort());
        let before = self.zones;
        let may_give = self.best_effort().is_none_or(|(rate, floor)| rate >= floor);
        self.easy = if worst < self.config.easy { self.easy + 1 } else { 0 };
        if worst > 1.0 {
            if self.zones.warm > least_warm && may_give {
                self.zones = Zones { hot: before.hot + 1, warm: before.warm - 1 };
            } else if self.cold() > 0 {
                self.zones.hot += 1;
            }
        } else if self.easy >= self.config.patience && before.hot > 1 {
            self.easy = 0;
            self.zones.hot -= 1;
            // Without best-effort work no warm core is needed.
            self.zones.warm += least_warm;
        }
        let (at, bound) = self.apps[app.index()].tail()?;
        let tail = seen.app(app)?.latency.as_ref().ok()?.tail(at)?;
        let (value, threshold) = (tail.as_secs_f64(), bound.as_secs_f64());
        let reason = Reason::Threshold { metric: TAIL_LATENCY, app: Some(app), value, threshold };
        (self.zones != before).then_some(reason)
    }

    /// Returns the throughput of best effort, and its floors.
    fn best_effort(&mut self) -> Option<(f64, f64)> {
        let all = || numbered(&self.apps).filter(|(_, spec)| !spec.is_latency_critical());
        let floor = |spec: &AppSpec| {
            spec.objectives.iter().find_map(|objective| match objective {
                Objective::Throughput { floor_per_s } => Some(*floor_per_s),
                Objective::Tail { .. } | Objective::Disengagement { .. } => None,
            })
        };
        let floors: f64 = all().filter_map(|(_, spec)| floor(spec)).sum();
        // Where some have a floor, the others have nothing to keep.
        let counts = |spec: &AppSpec| floors == 0.0 || floor(spec).is_some();
        let those = all().filter(|(_, spec)| counts(spec));
        let rates: Option<Vec<f64>> = those.map(|(app, _)| self.monitor.per_s(app)).collect();
        let rate: f64 = rates.filter(|rates| !rates.is_empty())?.iter().sum();
        let given = if floors > 0.0 { floors } else { self.config.floor_share * rate };
        let floor = *self.floor_per_s.get_or_insert(given);
        (floor > 0.0).then_some((rate, floor))
    }

    fn look_at_warm(&mut self) -> Option<Reason> {
        let (rate, floor) = self.best_effort()?;
        let before = (self.zones, self.below);
        let lowest = self.lowest();
        self.slow = if self.below == lowest && rate > floor * (1.0 + self.config.above) {
            self.slow + 1
        } else {
            0
        };
        if rate < floor {
            if self.below > 0 {
                self.below -= 1;
            } else if self.cold() > 0 {
                self.zones.warm += 1;
            } else if self.zones.hot > 1 && self.worst().is_none_or(|(_, worst)| worst <= 1.0) {
                self.zones = Zones { hot: self.zones.hot - 1, warm: self.zones.warm + 1 };
            }
        } else if rate > floor * (1.0 + self.config.above) {
            if self.below < lowest {
                self.below += 1;
            } else if self.slow >= self.config.patience && self.zones.warm > 1 {
                self.slow = 0;
                self.zones.warm -= 1;
            }
        }
        let reason =
            Reason::Threshold { metric: PROGRESS, app: None, value: rate, threshold: floor };
        ((self.zones, self.below) != before).then_some(reason)
    }

    /// Sets cores and frequencies: hot cores first, cold ones last.
    fn place(&mut self, reason: &Reason) {
        let Zones { hot, warm } = self.zones;
        let set = |places: std::ops::Range<usize>| -> CoreSet {
            self.cores[places].iter().copied().collect()
        };
        let (for_promised, for_others) = (set(0..hot), set(hot..hot + warm));
        let cores = numbered(&self.apps).map(|(app, spec)| {
            let cores = if spec.is_latency_critical() { &for_promised } else { &for_others };
            Setting::Cores(app, cores.clone())
        });
        let frequencies = self.domains.iter().map(|domain| {
            let highest = domain.levels.len() - 1;
            let level = |place: &usize| match *place {
                place if place < hot => highest,
                place if place < hot + warm => highest.saturating_sub(self.below),
                _ => 0,
            };
            let level = domain.places.iter().map(level).max().unwrap_or(0);
            Setting::Frequency(domain.id, domain.levels[level])
        });
        let settings = cores.chain(frequencies).collect();
        revise(&mut self.plan, settings, reason);
    }
}

impl Policy for Demeter {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        if self.plan.is_empty() {
            self.place(&Reason::Start);
        }
        self.monitor.note(seen);
        if let Some(whole) = self.period.add(seen) {
            self.look(&whole);
        }
        for_present_apps(&self.plan, seen)
    }

    fn retarget(&mut self, apps: &[AppSpec]) -> bool {
        let classes = |apps: &[AppSpec]| apps.iter().map(|app| app.class).collect::<Vec<_>>();
        if classes(apps) != classes(&self.apps) {
            return false;
        }
        self.apps = apps.to_vec();
        self.monitor.retarget(apps);
        self.floor_per_s = None;
        true
    }
}
