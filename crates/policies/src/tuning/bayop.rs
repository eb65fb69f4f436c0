//! `bayop`: searches on the running server for the settings that use least power within the
//! bound.
//!
//! Under a steady load each pair of interrupt delay and frequency has a tail latency and a
//! power. A few dozen trials of Bayesian optimisation find a pair that saves power and meets
//! the bound:
//!
//! ```text
//! a trial   apply a setting, let it settle, measure tail and power over a window
//! search    30 trials; then the best setting stays
//! again     every hour, when the load has changed, or when the bound is missed
//! ```
//!
//! The search is [`crate::search::Search`], which `lull tune` also runs. It covers the numeric
//! knobs that the plant offers: interrupt delay, frequencies of cores and uncore, the app's number
//! of cores, idle states and energy preference where they matter, and what `knobs` names, such as
//! the three numbers of the app's gate.
//!
//! Differences from the paper:
//!
//! 1. *Objective*: by default latency and power have a model each, and candidates are limited
//!    to settings whose tail is likely below, or close to, the bound: a Gaussian process models
//!    a scalar with a cliff badly. `method = "penalty"` is the paper's
//!    `R_p = energy max(latency - bound + 1, 1)`. With `prior = "response"` the paper's model
//!    of the server is the mean of both; eq. 3 in our form, because as printed delays cost power.
//! 2. *First points*: an additive recurrence instead of Ax's Sobol points; our method begins at
//!    the fastest setting and moves outwards.
//! 3. *When to search*: a change of load or missed bounds also begin a search. A load that was
//!    searched before gets its setting back immediately; stored settings (`known`) are used in
//!    the same way. A search at a new load tries the setting of the next higher load early, or
//!    else that of the next lower one. Results are reported as [`Policy::discoveries`].
//! 4. *Harm*: a trial far over the bound ends early, and once `harm_max` of a search's requests
//!    were late, only settings that almost certainly meet the bound are tried. With `safe`, no
//!    new setting is tried that is predicted to exceed twice the bound, and without a prediction
//!    only the fastest one and a step from it are.
//! 5. *Evidence*: a setting stays only if its trials show that it meets the bound
//!    ([`crate::search`]), and settings that they refute are not tried again at that load. A
//!    stored setting without evidence is where a search begins, and not what is in force. The
//!    windows of the setting that stays are evidence, too: if they refute it, a search begins.
//! 6. *Several latency-critical apps*: the search is for the first with a tail objective.
//!
//! A plant without an energy meter is refused, unless `allow_modelled` permits a model. A trial
//! ends without a reading if a setting of it is not in force. A knob whose levels are refused
//! leaves the search, which begins again with the rest; if one network card of several refuses,
//! only that card leaves (`refusals.rs`). If the meter fails or the app restarts in a trial, the
//! fastest setting is measured next, and the search continues. A load at which trials are too short
//! for the percentile is not searched.
//!
//! Source: Dong et al., CCDS 2026, section 5. Checked against the penalty's printed vectors, a
//! server by formulas whose best setting is known, and `lull lab`.

mod known;
mod refusals;
mod settings;
mod stages;

use crate::config::{read, wrong};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use crate::search::{
    CardRefusals, Choice, Gather, Gathered, Protocol, Rules, Search, SearchPoint, Space, Tuning,
    of_another_load,
};
use crate::toolkit::slack::check_apps;
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppSpec, Capability, Discovery, Machine, Observation, Plan, Policy, PolicyError, Reason, Rng,
    RosterChange, Setting,
};
use lull_measure::{Missing, Nanos};
use settings::Config;
use stages::{Holding, Stage, TrialInProgress};
use std::collections::VecDeque;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "bayop",
    paper: "Dong et al., CCDS 2026, section 5",
    summary: "Searches interrupt delay, frequency and other numeric knobs for the least power \
              within the bound, and again when the load changes.",
    kind: PolicyKind {
        family: Family::Tuning,
        needs: &[Capability::TailLatency],
        uses: &[
            Capability::Energy,
            Capability::Coalescing,
            Capability::Frequency,
            Capability::Cores,
            Capability::CacheWays,
            Capability::GateCap,
            Capability::GateBatch,
            Capability::GateDelay,
            Capability::UncoreFrequency,
            Capability::IdleLatency,
            Capability::EnergyPreference,
        ],
        dip: None,
        latency: LatencyDetail::EveryRequest,
        epoch: NaturalEpoch::USUAL,
        search: SettingSearch::Reusable(tuning),
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Bayop::new(read(table)?, machine, apps)?)),
};

/// Reads the search from the keys of `[policy]` without `name`.
///
/// # Errors
/// As for building the policy; also if no app has a tail objective.
fn tuning(table: &toml::Table, machine: &Machine, apps: &[AppSpec]) -> Result<Tuning, PolicyError> {
    let policy = Bayop::new(read(table)?, machine, apps)?;
    let Some(protocol) = policy.protocol else {
        let message = "no latency-critical app has a tail objective to search for".to_owned();
        return Err(PolicyError::Apps { policy: ENTRY.name, message });
    };
    let rules = policy.rules(protocol);
    Ok(Tuning { rules, protocol, load_change: policy.config.load_change, space: policy.space })
}

/// Searches in a row that may begin again because the load changed. Clients that wait for their
/// answers change their rate with every setting, and a search must end nevertheless.
const RESTARTS_MAX: u32 = 3;

/// The policy.
struct Bayop {
    config: Config,
    space: Space,
    /// The app, which tail and its bound.
    protocol: Option<Protocol>,
    stage: Stage,
    /// Settings that meet the bound, by load.
    known: Vec<(f64, SearchPoint)>,
    /// Settings to try early at a load, on no evidence.
    hints: Vec<(f64, SearchPoint)>,
    /// Settings that do not meet the bound, by load.
    refuted: Vec<(f64, SearchPoint)>,
    /// Rate in the last reading of a search.
    rate_per_s: f64,
    /// Searches in a row that began again because the load changed.
    restarts: u32,
    /// The delays that network cards have refused in the search.
    card_refusals: CardRefusals,
    plan: Plan,
    /// Discoveries that were not yet read.
    found: Vec<Discovery>,
}

impl Bayop {
    fn new(mut config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        check_apps(ENTRY.name, apps)?;
        if !config.allow_modelled
            && let Err(why) = machine.capabilities.get(Capability::Energy)
        {
            let why = format!("{why}; allow_modelled = true lets a model of power stand in");
            let (policy, why) = (ENTRY.name, Missing::because(why));
            return Err(PolicyError::Lacks { policy, capability: Capability::Energy, why });
        }
        let space = Space::from_machine(machine, apps, &config.knobs)
            .map_err(|error| wrong("knobs", error.to_string()))?;
        let space = if config.adaptive { space.with_adaptive(machine) } else { space };
        if !config.prior.fits(&space) {
            let message = "the response model is one of coalescing and frequency, and this search \
                           is not over both: write prior = \"constant\"";
            return Err(wrong("prior", message.to_owned()));
        }
        let protocol = config.protocol(apps);
        config.known.iter_mut().try_for_each(|one| one.name_knobs(&space))?;
        let mut policy = Self {
            known: Vec::new(),
            hints: Vec::new(),
            refuted: Vec::new(),
            protocol,
            config,
            space,
            stage: Stage::Waiting,
            rate_per_s: 0.0,
            restarts: 0,
            card_refusals: CardRefusals::default(),
            plan: Plan::keep(),
            found: Vec::new(),
        };
        policy.add_known();
        Ok(policy)
    }

    fn rules(&self, protocol: Protocol) -> Rules {
        let (config, bound_us) = (&self.config, protocol.bound.as_micros_f64());
        Rules {
            floor: config.floor,
            final_floor: config.final_floor,
            confirm: config.confirm,
            prior: config.prior,
            stop_below: config.stop_below,
            harm_max: config.harm_max,
            safe: config.safe,
            ..Rules::new(config.method, bound_us, config.trials).at(protocol.percentile)
        }
    }

    fn begin(&mut self, protocol: Protocol, now: Nanos, rng: &mut Rng) {
        if let Some(cause) = self.too_short(protocol) {
            return self.hold_fastest(protocol, now, cause);
        }
        self.card_refusals = CardRefusals::default();
        let mut search = Search::new(self.space.clone(), self.rules(protocol));
        let hint = || self.nearest(&self.hints, self.rate_per_s);
        let other = || {
            let known = self.known.iter().map(|(rate, point)| (*rate, point));
            of_another_load(known, self.rate_per_s).cloned()
        };
        if let Some(point) = self.known_at(self.rate_per_s).or_else(hint).or_else(other) {
            search.begin_with(point);
        }
        let near = |rate: f64| is_near(rate, self.rate_per_s, self.config.load_change);
        let refuted = self.refuted.iter().filter(|(rate, _)| near(*rate));
        search.leave_out(refuted.map(|(_, point)| point.clone()));
        self.go_on(Box::new(search), None, (protocol, now), rng);
    }

    /// The next trial, or the end of the search.
    fn go_on(
        &mut self,
        mut search: Box<Search>,
        load: Option<f64>,
        (protocol, now): (Protocol, Nanos),
        rng: &mut Rng,
    ) {
        let Some(next) = search.ask(rng) else { return self.settle(&search, protocol, now) };
        let number = search.trials().len() as u32 + 1;
        let reason = Reason::Trial { number, expected_gain: next.expected_gain };
        revise(&mut self.plan, self.space.settings(&next.point), &reason);
        let gather = Gather::new(protocol);
        self.stage = Stage::Trying(TrialInProgress {
            search,
            point: next.point,
            gather,
            refused: None,
            load,
        });
    }

    /// The best point stays; without one that meets the bound, the fastest.
    fn settle(&mut self, search: &Search, protocol: Protocol, now: Nanos) {
        self.restarts = 0;
        let trials = search.trials().len() as u32;
        let choice = search.choice();
        let (point, meets, reason) = match &choice {
            Some(Choice { point, meets: true, watts, .. }) => {
                let found = Reason::Found { trials, score: *watts };
                let stayed = search.confinement().map(|cause| Reason::Safe { cause });
                (point.clone(), true, stayed.unwrap_or(found))
            }
            other => (self.space.fastest(), false, self.unmet(protocol, search, other.as_ref())),
        };
        let near = self.config.load_change;
        let is_here = |rate: f64| is_near(rate, self.rate_per_s, near);
        for list in [&mut self.known, &mut self.hints, &mut self.refuted] {
            list.retain(|(rate, _)| !is_here(*rate));
        }
        let refuted = search.refuted();
        self.refuted.extend(refuted.iter().map(|point| (self.rate_per_s, point.clone())));
        if meets {
            self.known.push((self.rate_per_s, point.clone()));
        }
        if let Some(figures) = figures_of(&point, choice.as_ref(), search) {
            self.note(&point, meets, figures, trials);
            if let Some(found) = self.found.last_mut() {
                found.evidence = search.evidence(&point);
                found.refuted = refuted.iter().map(|it| self.space.values(it)).collect();
            }
        }
        self.hold(&point, meets, (protocol, now), &reason);
    }

    /// Why the fastest setting is in force: no setting was shown to meet the bound.
    fn unmet(&self, protocol: Protocol, search: &Search, fastest: Option<&Choice>) -> Reason {
        let trials = search.trials().len();
        let Protocol { percentile, bound, .. } = protocol;
        let refusal = search.trials().last().and_then(|it| it.outcome.as_ref().err());
        let unread = || refusal.map_or(String::new(), |it| format!("; none was read: {}", it.why));
        let best = fastest.map_or_else(unread, |it| {
            format!("; the best tail was {:.0} us, with {}", it.tail_us, it.evidence)
        });
        let stayed = search.confinement().map_or(String::new(), |why| format!("; {why}"));
        let cause =
            format!("no setting of {trials} trials meets {percentile} < {bound}{best}{stayed}");
        Reason::Safe { cause }
    }

    /// Records the setting that was found, or measured again, at the current load. It replaces an
    /// earlier discovery at this load that has not been collected yet.
    fn note(&mut self, point: &SearchPoint, meets: bool, figures: (f64, f64), trials: u32) {
        let Some(Protocol { app, .. }) = self.protocol else { return };
        let (rate_per_s, near) = (self.rate_per_s, self.config.load_change);
        self.found.retain(|one| one.trials > trials || !is_near(one.rate_per_s, rate_per_s, near));
        let (tail_us, watts) = figures;
        self.found.push(Discovery {
            app,
            rate_per_s,
            settings: self.space.settings(point),
            values: self.space.values(point),
            knobs: self.space.dimensions().iter().map(|it| it.knob).collect(),
            meets,
            tail_us,
            watts,
            trials,
            evidence: None,
            refuted: Vec::new(),
        });
    }

    fn hold(&mut self, point: &SearchPoint, meets: bool, at: (Protocol, Nanos), reason: &Reason) {
        let (protocol, since) = at;
        // A setting that was in force already is now in force for this reason.
        for setting in self.space.settings(point) {
            self.plan.set(setting, reason.clone());
        }
        self.stage = Stage::Holding(Holding {
            point: point.clone(),
            since,
            rate_per_s: self.rate_per_s,
            over: 0,
            meets,
            gather: Gather::new(protocol.patient()),
            readings: VecDeque::new(),
        });
    }

    /// The point that is known for about this load: that of the nearest.
    fn known_at(&self, rate_per_s: f64) -> Option<SearchPoint> {
        self.nearest(&self.known, rate_per_s)
    }

    fn nearest(&self, all: &[(f64, SearchPoint)], rate_per_s: f64) -> Option<SearchPoint> {
        let near = |known: f64| is_near(known, rate_per_s, self.config.load_change);
        let all = all.iter().filter(|(known, _)| near(*known));
        let apart = all.map(|(known, point)| ((known - rate_per_s).abs(), point));
        let nearest = apart.min_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map(|(_, point)| point.clone())
    }

    /// The load is seen for the first time: is a point known for it?
    fn look(&mut self, protocol: Protocol, end: &Gathered, now: Nanos, rng: &mut Rng) {
        self.stage = Stage::Looking { gather: Gather::new(protocol.patient()) };
        let Gathered::Reading(reading, rate_per_s) = end else { return };
        self.rate_per_s = *rate_per_s;
        match self.known_at(*rate_per_s) {
            Some(point) => {
                let reason = Reason::Found { trials: 0, score: reading.watts };
                self.hold(&point, true, (protocol, now), &reason);
            }
            None => self.begin(protocol, now, rng),
        }
    }

    /// A trial has ended.
    fn conclude(&mut self, protocol: Protocol, end: &Gathered, now: Nanos, rng: &mut Rng) {
        let Stage::Trying(mut trial) = std::mem::replace(&mut self.stage, Stage::Waiting) else {
            return;
        };
        let Gathered::Reading(reading, rate_per_s) = end else {
            return self.go_on_unread(trial, end, protocol);
        };
        self.rate_per_s = *rate_per_s;
        if trial.load.is_none()
            && let Some(cause) = self.too_short(protocol)
        {
            return self.hold_fastest(protocol, now, cause);
        }
        let load = trial.load.unwrap_or(*rate_per_s);
        let changed = !is_near(load, *rate_per_s, self.config.load_change);
        if changed && self.restarts < RESTARTS_MAX {
            self.restarts += 1;
            return self.begin(protocol, now, rng);
        }
        trial.search.tell(trial.point, Ok(*reading));
        self.go_on(trial.search, Some(load), (protocol, now), rng);
    }

    /// A window has passed at the point that stays: does it still do?
    fn watch(&mut self, protocol: Protocol, end: &Gathered, now: Nanos, rng: &mut Rng) {
        let rules = self.rules(protocol);
        let Stage::Holding(held) = &mut self.stage else { return };
        held.gather = Gather::new(protocol.patient());
        let Gathered::Reading(reading, rate) = end else { return };
        let changed = !is_near(held.rate_per_s, *rate, self.config.load_change);
        let seen = held.add(reading, changed, &rules);
        // A bound that no point meets is not searched for repeatedly.
        let missed = held.meets && (held.over >= self.config.patience || seen.is_refuted);
        let due = now >= held.since + self.config.every;
        let still = (held.meets && held.over == 0 && !changed).then(|| held.point.clone());
        self.rate_per_s = *rate;
        if let Some(point) = still {
            self.note(&point, true, (reading.tail_us, reading.watts), 0);
            if let Some(found) = self.found.last_mut() {
                found.evidence = Some(seen.evidence).filter(|it| rules.is_enough(it));
            }
        }
        if changed
            && !missed
            && let Some(point) = self.known_at(*rate)
        {
            let reason = Reason::Found { trials: 0, score: reading.watts };
            return self.hold(&point, true, (protocol, now), &reason);
        }
        if changed || missed || due {
            self.begin(protocol, now, rng);
        }
    }
}

impl Policy for Bayop {
    /// The search continues where it was once its app is back.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, seen: &Observation, rng: &mut Rng) -> Plan {
        let Some(protocol) = self.protocol else { return Plan::keep() };
        let lives = seen.app(protocol.app).is_some_and(|app| app.alive);
        let now = seen.time;
        match &mut self.stage {
            _ if !lives || seen.restarted.contains(&protocol.app) => self.note_restart(protocol),
            Stage::Waiting if self.config.known.is_empty() => self.begin(protocol, now, rng),
            Stage::Waiting => {
                self.stage = Stage::Looking { gather: Gather::new(protocol.patient()) };
            }
            Stage::Looking { gather } => match gather.add(seen) {
                Gathered::More => {}
                end => self.look(protocol, &end, now, rng),
            },
            Stage::Trying(TrialInProgress { refused: Some(_), .. }) => {
                self.give_up(protocol, now, rng);
            }
            Stage::Trying(TrialInProgress { gather, .. }) => match gather.add(seen) {
                Gathered::More => {}
                end => self.conclude(protocol, &end, now, rng),
            },
            Stage::Holding(Holding { gather, .. }) => match gather.add(seen) {
                Gathered::More => {}
                end => self.watch(protocol, &end, now, rng),
            },
        }
        for_present_apps(&self.plan, seen)
    }

    fn refused(&mut self, settings: &[(Setting, String)]) {
        self.note_refused(settings);
    }

    fn discoveries(&mut self) -> Vec<Discovery> {
        std::mem::take(&mut self.found)
    }
}

/// Tail and power of the setting that stays. Those of a choice are of the choice's own setting,
/// and those of one that was not chosen are predictions.
fn figures_of(point: &SearchPoint, choice: Option<&Choice>, search: &Search) -> Option<(f64, f64)> {
    let chosen = choice.filter(|it| it.point == *point).map(|it| (it.tail_us, it.watts));
    let predicted = || {
        let all = search.predict(std::slice::from_ref(point))?;
        all.first().map(|it| (it.tail_us, it.watts))
    };
    chosen.or_else(predicted)
}

/// Whether two rates differ by no more than this share.
fn is_near(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * a.max(b)
}

#[cfg(test)]
mod tests;
