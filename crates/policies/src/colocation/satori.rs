//! `satori`: throughput and fairness of co-located work, by Bayesian optimisation.
//!
//! Cores, cache ways and bandwidth are partitioned, at least one unit of each for every app,
//! and a Gaussian process searches for the division with the largest
//!
//! ```text
//! W_T T + W_F F     T = mean speed, F = Jain's index (sum s)^2/(n sum s^2) of slow-downs s
//! ```
//!
//! in steps of 100 ms, without end. A speed is instructions per second as a share of the
//! largest measured; SATORI has no objectives. The weights move: every second the goal that
//! lost more gets more weight, within [0.25, 0.75], and over every ten seconds the weights
//! average to one half, so that a division that is good for one goal now is compensated later.
//! A change of weights re-scores the stored measurements; nothing is measured again.
//!
//! The paper's body was not available. The goals, 100 ms, 1 s, 10 s and the range of the
//! weights come from its abstract and from other papers. Ours are:
//!
//! 1. *The weights*: `p = 0.25 + 0.5 lossT/(lossT + lossF)`, where a loss is the relative fall
//!    against the second before (0.5 if neither fell); `q = 0.5 + (0.5 k - sum of the last k
//!    W_T)` within the range; `W_T = (1 - t/10) p + t/10 q`, `t` seconds into the ten.
//! 2. *The kernel* and the hill climbing on integers are CLITE's ([`crate::toolkit::lattice`]);
//!    60 samples are stored; the search begins with the even division and each app with the
//!    most it can have.
//! 3. *If no division promises improvement*, the best one is used and measured again, which
//!    averages out noise.
//! 4. *Speed* is instructions where they can be counted, or else progress, or else requests
//!    completed; the first available one is used for the whole run. An app that cannot be read
//!    is left out; if none can be read, nothing moves.
//!
//! The policy refuses more apps than cores or ways. After an app exits, the search begins again
//! without it.
//!
//! Source: Roy, Patel and Tiwari, ISCA'21; a baseline of REEF (Li et al., SoCC'25, section 5.1).
//! Checked against the weights by hand, and a plant whose fair division is known.

use crate::config::{at_least_one, config, fraction, positive_time, read, text, wrong};
use crate::entry::{
    ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind, SettingSearch,
};
use crate::toolkit::lattice::{Lattice, Point, Search};
use crate::toolkit::partition::Partition;
use crate::toolkit::period::Period;
use crate::toolkit::surrogate::GaussianProcess;
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppId, AppObservation, AppSpec, Capability, Machine, Observation, Plan, Policy, PolicyError,
    Reason, Rng, numbered,
};
use lull_measure::Nanos;
use lull_measure::catalogue::INSTRUCTIONS;
use std::collections::VecDeque;
use weights::Weights;

#[cfg(test)]
mod tests;
mod weights;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "satori",
    paper: "Roy et al., ISCA'21 (SATORI), as used by REEF (Li et al., SoCC'25); weights ours",
    summary: "Divides everything for throughput and fairness by Bayesian optimisation, shifting \
              weight between the two; knows no objectives.",
    kind: PolicyKind {
        needs: &[Capability::Cores, Capability::Progress],
        uses: &[Capability::CacheWays, Capability::MemoryBandwidth, Capability::Instructions],
        dip: Some(crate::Dip::DI),
        latency: LatencyDetail::EveryRequest,
        epoch: NaturalEpoch::Key("sample"),
        search: SettingSearch::Internal,
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Satori::new(read(table)?, machine, apps)?)),
};

config! {
    /// The paper's periods and our choices.
    struct Config checked by check {
        /// Length of a trial (SATORI: 100 ms).
        #[serde(serialize_with = "text")]
        sample: Nanos = Nanos::from_millis(100),
        /// How often weights follow the goals (SATORI: 1 s).
        #[serde(serialize_with = "text")]
        prioritise: Nanos = Nanos::from_secs(1),
        /// Time over which weights even out (SATORI: 10 s).
        #[serde(serialize_with = "text")]
        equalise: Nanos = Nanos::from_secs(10),
        /// Lowest weight of a goal (SATORI: 0.25).
        weight_min: f64 = 0.25,
        /// Trials that are remembered (ours).
        memory: usize = 60,
        /// Expected gain that a division must have over the best (ours, CLITE's).
        margin: f64 = 0.01,
        /// Expected improvement below which the best division is used (ours).
        explore_above: f64 = 0.002,
        /// Random divisions from which the model is climbed (ours).
        starts: usize = 8,
        /// Divisions at most that the model evaluates in a trial (ours).
        asks_max: usize = 600,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("sample", config.sample)?;
    positive_time("prioritise", config.prioritise)?;
    if config.equalise < config.prioritise {
        let message = "`equalise` is shorter than `prioritise`: it spans several of them";
        return Err(wrong("equalise", message.to_owned()));
    }
    fraction("margin", config.margin)?;
    fraction("explore_above", config.explore_above)?;
    if !(0.0..=0.5).contains(&config.weight_min) {
        let message = format!("`weight_min` is {}: write 0 to 0.5", config.weight_min);
        return Err(wrong("weight_min", message));
    }
    at_least_one(&[
        ("memory", config.memory),
        ("starts", config.starts),
        ("asks_max", config.asks_max),
    ])
}

/// Where an app's speed is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Instructions,
    Progress,
    Answers,
}

/// One trial: a division and how fast each app was in it, in its own unit.
#[derive(Debug, Clone)]
struct Sample {
    point: Point,
    rates: Vec<Option<f64>>,
}

/// Both goals, each in [0, 1].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goals {
    /// T.
    throughput: f64,
    /// F.
    fairness: f64,
}

/// The policy.
struct Satori {
    config: Config,
    /// The apps that take part: those that run.
    living: Vec<AppId>,
    sources: Vec<Option<Source>>,
    /// The most seen, by app.
    most: Vec<f64>,
    machine: Machine,
    lattice: Lattice,
    partition: Partition,
    period: Period,
    weights: Weights,
    samples: VecDeque<Sample>,
    /// Divisions that begin a search.
    bootstrap: VecDeque<Point>,
    /// The division in force; `None` before the first.
    current: Option<Point>,
    trials: u32,
    plan: Plan,
}

impl Satori {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        let living: Vec<_> = numbered(apps).map(|(app, _)| app).collect();
        let (partition, lattice) = divide(machine, &living)?;
        let mut plan = Plan::keep();
        revise(&mut plan, partition.settings(), &Reason::Start);
        Ok(Self {
            period: Period::new(config.sample),
            weights: Weights::new(config.prioritise, config.equalise, config.weight_min),
            sources: vec![None; apps.len()],
            most: vec![0.0; apps.len()],
            machine: machine.clone(),
            samples: VecDeque::new(),
            bootstrap: VecDeque::new(),
            current: None,
            trials: 0,
            config,
            living,
            lattice,
            partition,
            plan,
        })
    }

    fn begin(&mut self) {
        self.samples.clear();
        self.period = Period::new(self.config.sample);
        if self.living.is_empty() {
            return;
        }
        let corners = (0..self.living.len()).filter(|_| self.living.len() > 1);
        self.bootstrap = corners.map(|place| self.lattice.most_for(place)).collect();
        let even = self.lattice.even();
        self.try_out(even, None);
    }

    /// Concludes one trial.
    fn conclude(&mut self, seen: &Observation, rng: &mut Rng) {
        let Some(point) = self.current.clone() else { return };
        let rates: Vec<_> =
            self.living.clone().into_iter().map(|app| self.rate(app, seen)).collect();
        if rates.iter().all(Option::is_none) {
            return;
        }
        self.samples.push_back(Sample { point, rates });
        while self.samples.len() > self.config.memory {
            self.samples.pop_front();
        }
        let last = self.samples.back().map(|sample| self.goals(&sample.rates));
        if let Some(goals) = last {
            self.weights.note(goals, seen.time);
        }
        match self.bootstrap.pop_front() {
            Some(point) => self.try_out(point, None),
            None => self.explore(rng),
        }
    }

    /// Where the model promises improvement, else the best so far.
    fn explore(&mut self, rng: &mut Rng) {
        let score = |sample: &Sample| self.weights.join(self.goals(&sample.rates));
        let scores: Vec<_> = self.samples.iter().map(score).collect();
        let Some(best) = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])) else {
            return;
        };
        let found = self.propose(&scores, scores[best], rng);
        match found.filter(|(_, gain)| *gain >= self.config.explore_above) {
            Some((point, gain)) => self.try_out(point, Some(gain)),
            None => self.use_best(self.samples[best].point.clone(), scores[best]),
        }
    }

    fn propose(&self, scores: &[f64], best: f64, rng: &mut Rng) -> Option<(Point, f64)> {
        let tried: Vec<_> = self.samples.iter().map(|sample| sample.point.clone()).collect();
        let inputs: Vec<_> = tried.iter().map(|point| self.lattice.shares(point)).collect();
        let model = GaussianProcess::fit(&inputs, scores)?;
        let search = Search {
            model: &model,
            best,
            margin: self.config.margin,
            frozen: None,
            tried: &tried,
            starts: self.config.starts,
            budget: self.config.asks_max,
        };
        self.lattice.best(&search, rng)
    }

    fn try_out(&mut self, point: Point, gain: Option<f64>) {
        self.trials += 1;
        let reason = Reason::Trial { number: self.trials, expected_gain: gain };
        self.apply_point(point, &reason);
    }

    fn use_best(&mut self, point: Point, score: f64) {
        let reason = Reason::Found { trials: self.trials, score };
        self.apply_point(point, &reason);
    }

    fn apply_point(&mut self, point: Point, reason: &Reason) {
        for (kind, units) in self.lattice.by_kind(&point) {
            self.partition.set(kind, units);
        }
        revise(&mut self.plan, self.partition.settings(), reason);
        self.current = Some(point);
    }

    /// An app's speed in its own unit; the first source that has one stays.
    fn rate(&mut self, app: AppId, seen: &Observation) -> Option<f64> {
        let now = seen.app(app)?;
        let source = &mut self.sources[app.index()];
        if source.is_none() {
            let all = [Source::Instructions, Source::Progress, Source::Answers];
            *source = all.into_iter().find(|source| rate_from(*source, now).is_some());
        }
        let rate = rate_from((*source)?, now)?;
        self.most[app.index()] = self.most[app.index()].max(rate);
        Some(rate)
    }

    fn goals(&self, rates: &[Option<f64>]) -> Goals {
        let speed = |(app, rate): (&AppId, &Option<f64>)| {
            let most = self.most[app.index()];
            // A hundredth of the maximum counts as nothing, and still has a slow-down.
            rate.filter(|_| most > 0.0).map(|rate| (rate / most).max(0.01))
        };
        let speeds: Vec<f64> = self.living.iter().zip(rates).filter_map(speed).collect();
        let count = speeds.len().max(1) as f64;
        let slowdowns = || speeds.iter().map(|speed| 1.0 / speed);
        let (sum, squares) = (slowdowns().sum::<f64>(), slowdowns().map(|s| s * s).sum::<f64>());
        let fairness = if squares > 0.0 { sum * sum / (count * squares) } else { 1.0 };
        Goals { throughput: speeds.iter().sum::<f64>() / count, fairness }
    }

    /// Starts a new search without the apps that have exited; returns whether there were any.
    fn settle_exits(&mut self, seen: &Observation) -> bool {
        let lives = |app: &AppId| seen.app(*app).is_some_and(|now| now.alive);
        let Some(gone) = self.living.iter().copied().find(|app| !lives(app)) else { return false };
        self.living.retain(lives);
        if let Ok((partition, lattice)) = divide(&self.machine, &self.living) {
            (self.partition, self.lattice) = (partition, lattice);
        }
        self.plan = Plan::keep();
        revise(&mut self.plan, self.partition.settings(), &Reason::Exited { app: gone });
        self.begin();
        true
    }
}

impl Policy for Satori {
    fn decide(&mut self, seen: &Observation, rng: &mut Rng) -> Plan {
        // Observations before an exit or the beginning belong to other settings.
        if self.settle_exits(seen) {
            return for_present_apps(&self.plan, seen);
        }
        if self.current.is_none() {
            self.begin();
        } else if let Some(whole) = self.period.add(seen) {
            self.conclude(&whole, rng);
        }
        for_present_apps(&self.plan, seen)
    }
}

fn rate_from(source: Source, seen: &AppObservation) -> Option<f64> {
    let rate = match source {
        Source::Instructions => seen.readings.value(INSTRUCTIONS),
        Source::Progress => seen.progress.as_ref().ok().map(|progress| progress.per_s),
        Source::Answers => seen.latency.as_ref().ok().map(|latency| latency.completed_per_s),
    };
    rate.filter(|rate| rate.is_finite() && *rate >= 0.0)
}

/// Every app for itself.
fn divide(machine: &Machine, living: &[AppId]) -> Result<(Partition, Lattice), PolicyError> {
    let holders = living.iter().map(|app| vec![*app]).collect();
    let partition = Partition::even(machine, holders).map_err(|few| few.refuse(ENTRY.name))?;
    let lattice = Lattice::new(&partition, living.len());
    Ok((partition, lattice))
}
