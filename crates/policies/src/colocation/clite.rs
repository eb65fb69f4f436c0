//! `clite`: Bayesian optimisation of how cores, cache ways and bandwidth are divided.
//!
//! Everything is partitioned, every app has at least one unit of each kind and nothing is
//! idle. A Gaussian process learns the score of a division from trials of two seconds each:
//!
//! ```text
//! score   some bound missed   1/2 of the geometric mean of min(1, bound/tail)
//!         all bounds met      1/2 + 1/2 of the geometric mean of progress/largest progress
//! begin   the even division, then each app in turn with all it can have
//! next    the division with the largest expected improvement over 0.01, with one app fixed
//!         at the division that was best for it (dropout-copy)
//! stop    expected improvement below 1 % over the number of apps, or 100 trials
//! ```
//!
//! Then the best division stays until its score falls or the load changes, and the search
//! begins again. If an app misses its bound even with all it can have, the bounds cannot be
//! met: the best division so far stays until the load changes.
//!
//! The paper leaves open, and `docs/design/clite.md` gives the reasons for:
//!
//! 1. the kernel: Matérn 5/2 over shares of each kind, length and noise by marginal likelihood
//!    in every trial ([`crate::toolkit::surrogate`]);
//! 2. the maximum of the acquisition: hill climbing on integers from 20 random divisions;
//! 3. which app is fixed, and one last evaluation with no app fixed;
//! 4. the upper half of the score without best-effort apps: largest tail over tail;
//! 5. when a search begins again: the score is below 95 % of the best in two windows running,
//!    or a load changed by 10 % and by more than three standard deviations of a Poisson count;
//! 6. an idle app meets its bound; a trial is extended until every app can be read;
//! 7. an app that exits ends the search, and a new one begins without it.
//!
//! Every trial is two real seconds that may miss bounds; a search of n apps has at least
//! n + 1 trials.
//!
//! Source: Patel and Tiwari, HPCA'20, section 4. Checked against the score by hand, the
//! bootstrap, the constraints, and a plant whose optimum is known by trying all divisions.

use crate::config::{at_least_one, config, fraction, positive_time, read, text};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, PolicyKind, SettingSearch};
use crate::toolkit::lattice::{Lattice, Point, Search};
use crate::toolkit::partition::Partition;
use crate::toolkit::period::Period;
use crate::toolkit::slack::check_apps;
use crate::toolkit::surrogate::GaussianProcess;
use crate::toolkit::{for_present_apps, revise};
use lull_control::{
    AppId, AppSpec, Assessor, Capability, Machine, Observation, Plan, Policy, PolicyError, Reason,
    Rng, numbered,
};
use lull_measure::Nanos;
use lull_measure::entropy::RelativeImportance;
use rand::RngExt;
use score::{Reading, Scale, is_met, performance, score};
use std::collections::VecDeque;

mod score;
#[cfg(test)]
mod tests;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "clite",
    paper: "Patel and Tiwari, HPCA'20 (CLITE), section 4, as used by Ah-Q (Liu et al. 2024)",
    summary: "Searches for the best division of everything by Bayesian optimisation, two seconds \
              a trial, and searches again when the load changes.",
    kind: PolicyKind {
        needs: &[Capability::Cores, Capability::TailLatency, Capability::Progress],
        uses: &[Capability::CacheWays, Capability::MemoryBandwidth],
        dip: Some(crate::Dip::DI),
        latency: LatencyDetail::EveryRequest,
        search: SettingSearch::Internal,
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Clite::new(read(table)?, machine, apps)?)),
};

config! {
    /// The paper's numbers, and the choices it leaves open.
    struct Config checked by check {
        /// Length of a trial (section 4: 2 s).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_secs(2),
        /// Expected gain that a division must have over the best, ζ (section 4: 0.01).
        margin: f64 = 0.01,
        /// Expected improvement, times the number of apps, below which the search ends
        /// (section 4: 1 %).
        stop_below: f64 = 0.01,
        /// Trials of a search at most (ours).
        trials_max: usize = 100,
        /// Random divisions from which the model is climbed (ours).
        starts: usize = 20,
        /// Divisions at most that the model evaluates in a trial (ours: 3,000, which
        /// bounds the time of a decision).
        asks_max: usize = 3_000,
        /// Share of the best score below which the search begins again (ours).
        restart_below: f64 = 0.95,
        /// Windows in a row below it that begin the search again (ours).
        patience: u32 = 2,
        /// Relative change of an app's load that begins the search again (ours).
        load_change: f64 = 0.1,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("window", config.window)?;
    for (key, share) in [
        ("margin", config.margin),
        ("stop_below", config.stop_below),
        ("restart_below", config.restart_below),
        ("load_change", config.load_change),
    ] {
        fraction(key, share)?;
    }
    at_least_one(&[
        ("trials_max", config.trials_max),
        ("starts", config.starts),
        ("asks_max", config.asks_max),
        ("patience", config.patience as usize),
    ])
}

/// One trial: a division and its result.
#[derive(Debug, Clone)]
struct Sample {
    point: Point,
    readings: Vec<Reading>,
}

/// The stage of the search.
#[derive(Debug, Clone)]
enum Stage {
    /// The first division is not in force yet, or no app is left.
    Waiting,
    /// A division is being tried.
    Trying { point: Point, bootstrap: VecDeque<Point> },
    /// The search is over.
    Settled(Settled),
}

/// The chosen division, which stays in force.
#[derive(Debug, Clone)]
struct Settled {
    score: f64,
    /// Requests offered per second by app when the division was chosen.
    offered: Vec<Option<f64>>,
    /// Whether some app cannot meet its bound even with all it can have.
    infeasible: bool,
    bad_windows: u32,
}

/// The policy.
struct Clite {
    config: Config,
    apps: Vec<AppSpec>,
    /// The apps that take part: those that run.
    living: Vec<AppId>,
    machine: Machine,
    lattice: Lattice,
    partition: Partition,
    window: Period,
    assessor: Assessor,
    stage: Stage,
    samples: Vec<Sample>,
    plan: Plan,
}

impl Clite {
    fn new(config: Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        check_apps(ENTRY.name, apps)?;
        let living: Vec<_> = numbered(apps).map(|(app, _)| app).collect();
        let (partition, lattice) = divide(machine, &living)?;
        let mut plan = Plan::keep();
        revise(&mut plan, partition.settings(), &Reason::Start);
        Ok(Self {
            window: Period::new(config.window),
            assessor: Assessor::new(apps, RelativeImportance::default()),
            apps: apps.to_vec(),
            machine: machine.clone(),
            stage: Stage::Waiting,
            samples: Vec::new(),
            config,
            living,
            lattice,
            partition,
            plan,
        })
    }

    /// Concludes one window.
    fn conclude(&mut self, seen: &Observation, rng: &mut Rng) {
        let assessment = self.assessor.assess(seen);
        let read = |app: &AppId| {
            let spec = &self.apps[app.index()];
            score::read(spec, seen.app(*app)?, &assessment.apps[app.index()])
        };
        let readings: Option<Vec<_>> = self.living.iter().map(read).collect();
        let Some(readings) = readings else { return };
        match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Waiting => {}
            Stage::Trying { point, bootstrap } => {
                self.samples.push(Sample { point, readings });
                self.continue_search(bootstrap, seen, rng);
            }
            Stage::Settled(settled) => self.watch_over(settled, &readings, seen),
        }
    }

    /// The next division: of the bootstrap, of the model, or the best for good.
    fn continue_search(
        &mut self,
        mut bootstrap: VecDeque<Point>,
        seen: &Observation,
        rng: &mut Rng,
    ) {
        if let Some(point) = bootstrap.pop_front() {
            self.try_out(point, bootstrap, None);
            return;
        }
        let infeasible = self.is_infeasible();
        let next = if infeasible { None } else { self.propose(rng) };
        match next {
            Some((point, gain)) => self.try_out(point, bootstrap, Some(gain)),
            None => self.settle(infeasible, seen),
        }
    }

    fn try_out(&mut self, point: Point, bootstrap: VecDeque<Point>, gain: Option<f64>) {
        let number = self.samples.len() as u32 + 1;
        self.apply_point(&point, &Reason::Trial { number, expected_gain: gain });
        self.stage = Stage::Trying { point, bootstrap };
    }

    fn apply_point(&mut self, point: &Point, reason: &Reason) {
        for (kind, units) in self.lattice.by_kind(point) {
            self.partition.set(kind, units);
        }
        revise(&mut self.plan, self.partition.settings(), reason);
    }

    /// The even division, then each app with all it can have.
    fn begin(&mut self) {
        self.samples.clear();
        if self.living.is_empty() {
            self.stage = Stage::Waiting;
            return;
        }
        let corners = (0..self.living.len()).filter(|_| self.living.len() > 1);
        let bootstrap = corners.map(|place| self.lattice.most_for(place)).collect();
        self.try_out(self.lattice.even(), bootstrap, None);
    }

    /// Returns the reference of each app: its result with all that it can have.
    fn scale(&self) -> Scale {
        let with_most = |place| {
            let corner = self.lattice.most_for(place);
            let sample = self.samples.iter().find(|sample| sample.point == corner)?;
            Some(sample.readings[place])
        };
        Scale::from_trials((0..self.living.len()).map(with_most).collect(), self.specs())
    }

    fn specs(&self) -> impl Iterator<Item = &AppSpec> {
        self.living.iter().map(|app| &self.apps[app.index()])
    }

    fn scores(&self) -> Vec<f64> {
        let scale = self.scale();
        self.samples.iter().map(|sample| score(&sample.readings, &scale)).collect()
    }

    fn is_infeasible(&self) -> bool {
        let misses = |place: usize| {
            let corner = self.lattice.most_for(place);
            let with_most = self.samples.iter().find(|sample| sample.point == corner);
            with_most.is_some_and(|sample| !is_met(sample.readings[place]))
        };
        (0..self.living.len()).any(misses)
    }

    /// Where the model expects enough improvement, and how much.
    fn propose(&self, rng: &mut Rng) -> Option<(Point, f64)> {
        if self.samples.len() >= self.config.trials_max || self.living.len() < 2 {
            return None;
        }
        let scores = self.scores();
        let inputs: Vec<_> =
            self.samples.iter().map(|sample| self.lattice.shares(&sample.point)).collect();
        let tried: Vec<_> = self.samples.iter().map(|sample| sample.point.clone()).collect();
        let model = GaussianProcess::fit(&inputs, &scores)?;
        let mut search = Search {
            model: &model,
            best: scores.iter().copied().fold(f64::MIN, f64::max),
            margin: self.config.margin,
            frozen: self.drop_out(&scores, rng),
            tried: &tried,
            starts: self.config.starts,
            budget: self.config.asks_max / 2,
        };
        let enough = self.config.stop_below / self.living.len() as f64;
        let with_one_kept = self.lattice.best(&search, rng).filter(|(_, gain)| *gain >= enough);
        search.frozen = None;
        with_one_kept
            .or_else(|| self.lattice.best(&search, rng).filter(|(_, gain)| *gain >= enough))
    }

    /// Dropout-copy: the best performing app and the division where it was that.
    fn drop_out(&self, scores: &[f64], rng: &mut Rng) -> Option<(usize, &Point)> {
        if self.living.len() < 3 {
            return None;
        }
        let scale = self.scale();
        let best_of = |place: usize| {
            let value = |at: usize| performance(self.samples[at].readings[place], &scale, place);
            let by_value_then_score = |a: &usize, b: &usize| {
                value(*a).total_cmp(&value(*b)).then(scores[*a].total_cmp(&scores[*b]))
            };
            let at = (0..self.samples.len()).max_by(by_value_then_score)?;
            Some((value(at), place, at))
        };
        let is_lc = |place: &usize| self.apps[self.living[*place].index()].is_latency_critical();
        let all: Vec<_> = (0..self.living.len()).filter(is_lc).filter_map(best_of).collect();
        let top = all.iter().map(|(value, ..)| *value).fold(f64::MIN, f64::max);
        let equals: Vec<_> = all.into_iter().filter(|(value, ..)| *value >= top).collect();
        let (_, place, at) = *equals.get(rng.random_range(0..equals.len().max(1)))?;
        Some((place, &self.samples[at].point))
    }

    /// The best division stays.
    fn settle(&mut self, infeasible: bool, seen: &Observation) {
        let scores = self.scores();
        let best = (0..scores.len()).rev().max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        let Some(best) = best else { return };
        let (point, score) = (self.samples[best].point.clone(), scores[best]);
        self.apply_point(&point, &Reason::Found { trials: scores.len() as u32, score });
        let offered = offered(&self.living, seen);
        self.stage = Stage::Settled(Settled { score, offered, infeasible, bad_windows: 0 });
    }

    /// Whether the division still does.
    fn watch_over(&mut self, mut settled: Settled, readings: &[Reading], seen: &Observation) {
        let now = score(readings, &self.scale());
        let is_bad = now < self.config.restart_below * settled.score && !settled.infeasible;
        settled.bad_windows = if is_bad { settled.bad_windows + 1 } else { 0 };
        let loads = settled.offered.iter().zip(offered(&self.living, seen));
        let changed = loads.into_iter().any(|(then, now)| self.has_changed(*then, now, seen.epoch));
        if changed || settled.bad_windows >= self.config.patience {
            self.begin();
        } else {
            self.stage = Stage::Settled(settled);
        }
    }

    /// Whether the change exceeds the config's threshold and chance.
    fn has_changed(&self, then: Option<f64>, now: Option<f64>, window: Nanos) -> bool {
        let (Some(then), Some(now)) = (then, now) else { return then.is_some() != now.is_some() };
        let seconds = window.as_secs_f64().max(f64::MIN_POSITIVE);
        let chance = 3.0 * (then.max(now) / seconds).sqrt();
        (now - then).abs() > (self.config.load_change * then).max(chance)
    }

    /// A new search without the apps that have exited; whether there were any.
    fn settle_exits(&mut self, seen: &Observation) -> bool {
        let lives = |app: &AppId| seen.app(*app).is_some_and(|now| now.alive);
        let Some(gone) = self.living.iter().copied().find(|app| !lives(app)) else { return false };
        self.living.retain(lives);
        // Fewer apps than before have room where those had.
        if let Ok((partition, lattice)) = divide(&self.machine, &self.living) {
            (self.partition, self.lattice) = (partition, lattice);
        }
        self.plan = Plan::keep();
        revise(&mut self.plan, self.partition.settings(), &Reason::Exited { app: gone });
        self.begin();
        self.window = Period::new(self.config.window);
        true
    }
}

impl Policy for Clite {
    fn decide(&mut self, seen: &Observation, rng: &mut Rng) -> Plan {
        // Observations before an exit or the beginning belong to other settings.
        if self.settle_exits(seen) {
            return for_present_apps(&self.plan, seen);
        }
        if matches!(self.stage, Stage::Waiting) {
            self.begin();
        } else if let Some(whole) = self.window.add(seen) {
            self.conclude(&whole, rng);
        }
        for_present_apps(&self.plan, seen)
    }
}

/// Every app for itself.
fn divide(machine: &Machine, living: &[AppId]) -> Result<(Partition, Lattice), PolicyError> {
    let holders = living.iter().map(|app| vec![*app]).collect();
    let partition = Partition::even(machine, holders).map_err(|few| few.refuse(ENTRY.name))?;
    let lattice = Lattice::new(&partition, living.len());
    Ok((partition, lattice))
}

fn offered(living: &[AppId], seen: &Observation) -> Vec<Option<f64>> {
    let of = |app: &AppId| Some(seen.app(*app)?.latency.as_ref().ok()?.offered_per_s);
    living.iter().map(of).collect()
}
