//! Simulates a day in hours of constant mean load. Each hour begins with a search (section
//! 5.2.1) and holds the setting that the search chose for the rest of the hour.
//!
//! Each hour has a server of its own, whose connections stay on the cores that they were
//! hashed to. A trial is a stretch of its run at one pair, and the chosen pair is measured on a
//! later stretch; no stretch is measured twice. Co-PI takes the best pair of the nearest rate of
//! a profile that was measured before the day.

use super::system::Objective;
use super::trials::{Stretches, TRIALS, every_pair, grid, reading, rules_of_hold, search};
use crate::prelude::*;
use crate::server::{Cell, Run, ServerSetting, sweep};
use lull_control::Rng;
use lull_measure::Nanos;
use lull_policies::search::{Method, SearchPoint, Space};
use lull_sim::ModelError;
use lull_sim::netserver::NetServerModel;
use lull_sim::stats::Failure;
use lull_workload::arrivals::{Steps, parse_trace};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

/// Hourly rates, of which only the shape counts.
const DAY: &str = include_str!("../../../../../traces/synthetic-day.csv");
/// The paper's search runs for this objective only, the first.
const OBJECTIVE_OF_PAPER: usize = 0;
/// Requests of a trial in the busiest hour: .6 s of memcached, where the paper's trials take 20 s.
/// With a quarter of them the choice was late in 1.6 hours of 24 (p99 below 500 us, five seeds). A
/// held choice is judged on more.
const TRIAL_REQUESTS: f64 = 450_000.0;
const HELD_OVER_TRIAL: f64 = 2.7;
/// Seconds of an hour that thirty trials of 20 s and a second to settle take.
const SEARCH_S: f64 = 630.0;

/// The controller of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Arm {
    /// Linux by itself.
    Linux,
    /// Linux under our search.
    Ours,
    /// Linux under the paper's.
    Paper,
    /// Linux under Co-PI.
    CoPi,
    /// The specialised stack under our search.
    Ebbrt,
}

/// The comparison over a day.
pub(super) struct Plan {
    pub(super) linux: NetServerModel,
    pub(super) ebbrt: NetServerModel,
    pub(super) objectives: Vec<Objective>,
    /// Rates of Co-PI's profile, per second.
    pub(super) profiled: [f64; 3],
    /// Rate of the busiest hour.
    pub(super) peak_per_s: f64,
}

/// The measurements while an hour's choice was in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldChoice {
    pub(super) watts: f64,
    /// The tail at the objective's percentile.
    pub(super) tail_us: f64,
    pub(super) is_met: bool,
    /// Mean power of the trials before, and share of their requests that were late.
    search: Option<(f64, f64)>,
}

/// A day: by objective, the settings that each arm held, hour by hour.
pub(super) struct Day {
    objectives: Vec<Objective>,
    held: Vec<BTreeMap<(Arm, usize), HeldChoice>>,
}

/// A server at one rate. What a setting holds is measured once, when it is first needed, and so is
/// each trial.
struct Hour<'a> {
    space: &'a Space,
    rate_per_s: f64,
    trial: Nanos,
    hold: Nanos,
    servers: Stretches<'a>,
    holds: BTreeMap<Option<SearchPoint>, Cell>,
}

impl Arm {
    pub(super) const ALL: [Self; 5] =
        [Self::Linux, Self::Ours, Self::Paper, Self::CoPi, Self::Ebbrt];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Linux => "Linux",
            Self::Ours => "Linux, searched (ours)",
            Self::Paper => "Linux, searched (the paper's penalty)",
            Self::CoPi => "Co-PI",
            Self::Ebbrt => "EbbRT, searched (ours)",
        }
    }
}

impl Plan {
    /// Returns the choices of the day.
    pub(super) fn choices(&self) -> Vec<String> {
        vec![
            format!(
                "traces/synthetic-day.csv, scaled to {} K requests/s at most: the trace that was \
                 taken is not named",
                self.peak_per_s / 1e3
            ),
            format!(
                "each hour {TRIALS} trials over every pair that can be set (216 if quick), then \
                 the choice held; a trial has {TRIAL_REQUESTS} requests in the busiest hour, what \
                 is held is judged on {HELD_OVER_TRIAL} times as many that come then"
            ),
            "Co-PI: the best of 216 pairs at the nearest profiled rate, which fits the misses \
             reported"
                .to_owned(),
        ]
    }

    /// Runs all hours in parallel.
    pub(super) fn run(&self, setup: &Setup<'_>) -> Result<Day, LabError> {
        let rates_per_s = self.rates_per_s(setup);
        let spaces = [every_pair(setup, &self.linux)?, every_pair(setup, &self.ebbrt)?];
        let profile = self.profile(setup, &spaces[0])?;
        setup.progress.expect(rates_per_s.len() as u64);
        let run = trial(setup, self.peak_per_s);
        let hour = |(number, rate): (usize, &f64)| {
            let mut hours = [(&self.linux, &spaces[0]), (&self.ebbrt, &spaces[1])]
                .map(|(model, space)| Hour::new(run, model, space, *rate));
            let seed = setup.seed.wrapping_mul(1000).wrapping_add(number as u64);
            let held = self.hour(&mut hours, &profile, seed);
            setup.progress.step();
            held
        };
        let held: Result<Vec<_>, ModelError> =
            rates_per_s.par_iter().enumerate().map(hour).collect();
        let held = held.map_err(Failure::from)?;
        Ok(Day { objectives: self.objectives.clone(), held })
    }

    /// The least tail that any pair has at the idlest hour.
    pub(super) fn least_tail_us(
        &self,
        setup: &Setup<'_>,
        objective: Objective,
    ) -> Result<f64, LabError> {
        let settings = grid(&self.linux)?.settings();
        let idlest = self.rates_per_s(setup).into_iter().fold(f64::INFINITY, f64::min);
        let (model, run) = (&self.linux, trial(setup, self.peak_per_s));
        let cells = sweep(model, &[idlest], &settings, run, &setup.progress);
        let cells = cells.map_err(Failure::from)?;
        let tails = cells.iter().map(|cell| cell.tail_at(objective.percentile));
        Ok(tails.fold(f64::INFINITY, f64::min))
    }

    /// Returns the rates of every hour; of a few for a quick run.
    fn rates_per_s(&self, setup: &Setup<'_>) -> Vec<f64> {
        rates_of_day(self.peak_per_s).into_iter().step_by(setup.either(1, 8)).collect()
    }

    /// Returns, by objective, the pair of least power that meets it at each profiled rate. The
    /// pairs are those of the grid, as points of `space`.
    fn profile(
        &self,
        setup: &Setup<'_>,
        space: &Space,
    ) -> Result<Vec<Vec<(f64, SearchPoint)>>, LabError> {
        let grid = grid(&self.linux)?.only();
        let points: Vec<SearchPoint> =
            grid.points().map(|point| space.nearest(&grid.values(&point))).collect();
        let settings: Vec<_> =
            points.iter().map(|point| ServerSetting::from_point(space, point)).collect();
        let run = trial(setup, self.peak_per_s);
        let cells = sweep(&self.linux, &self.profiled, &settings, run, &setup.progress);
        let cells = cells.map_err(Failure::from)?;
        let best = |rate: f64, objective: &Objective| {
            let all = cells.iter().filter(|cell| cell.rate_per_s == rate).zip(&points);
            let good = all.filter(|(cell, _)| objective.met_by(cell));
            let least = good.min_by(|(a, _), (b, _)| a.watts.total_cmp(&b.watts));
            least.map_or_else(|| space.fastest(), |(_, point)| point.clone())
        };
        let of = |objective| self.profiled.map(|rate| (rate, best(rate, objective))).into();
        Ok(self.objectives.iter().map(of).collect())
    }

    /// Returns the setting of every arm in an hour.
    fn hour(
        &self,
        [linux, ebbrt]: &mut [Hour<'_>; 2],
        profile: &[Vec<(f64, SearchPoint)>],
        seed: u64,
    ) -> Result<BTreeMap<(Arm, usize), HeldChoice>, ModelError> {
        let mut held = BTreeMap::new();
        for (at, objective) in self.objectives.iter().enumerate() {
            held.insert((Arm::Linux, at), linux.hold(None, *objective)?);
            held.insert((Arm::Ours, at), linux.search(Method::Apart, *objective, seed)?);
            if at == OBJECTIVE_OF_PAPER {
                held.insert((Arm::Paper, at), linux.search(Method::Penalty, *objective, seed)?);
                held.insert((Arm::Ebbrt, at), ebbrt.search(Method::Apart, *objective, seed)?);
            }
            let off = |rate: f64| (rate - linux.rate_per_s).abs();
            let nearest = profile[at].iter().min_by(|a, b| off(a.0).total_cmp(&off(b.0)));
            let point = nearest.map(|(_, point)| point.clone());
            held.insert((Arm::CoPi, at), linux.hold(point, *objective)?);
        }
        Ok(held)
    }
}

/// The rates of the hours of the day, the busiest with this one.
pub(super) fn rates_of_day(peak_per_s: f64) -> Vec<f64> {
    let day = parse_trace(DAY, Path::new("traces/synthetic-day.csv"), Steps::Hold);
    let day = day.expect("a test reads the day");
    let rates: Vec<f64> = (0..24).map(|hour| day.rate_at(3600.0 * f64::from(hour))).collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    rates.iter().map(|rate| rate / most * peak_per_s).collect()
}

/// A trial that has this many requests in the busiest hour.
fn trial(setup: &Setup<'_>, peak_per_s: f64) -> Run {
    Run {
        warmup: Nanos::from_millis(30),
        length: Nanos::from_secs_f64(setup.either(1.0, 0.025) * TRIAL_REQUESTS / peak_per_s),
        seed: setup.seed,
        percentile: lull_measure::Percentile::P99,
        replication: 0,
    }
}

impl<'a> Hour<'a> {
    fn new(trial: Run, model: &'a NetServerModel, space: &'a Space, rate_per_s: f64) -> Self {
        let hold = trial.length.scale(HELD_OVER_TRIAL);
        let servers = Stretches::new(model, space, rate_per_s, trial);
        Self { space, rate_per_s, trial: trial.length, hold, servers, holds: BTreeMap::new() }
    }

    /// Searches, then holds the choice.
    fn search(
        &mut self,
        method: Method,
        objective: Objective,
        seed: u64,
    ) -> Result<HeldChoice, ModelError> {
        let (servers, length) = (&mut self.servers, self.trial);
        let read = |point: &SearchPoint, _: &mut Rng| {
            let (cell, latency) = servers.next(Some(point), length)?;
            Ok(reading(&cell, &latency, objective))
        };
        let found = search(self.space, rules_of_hold(method, objective), seed, read)?;
        let held = self.hold(Some(found.point), objective)?;
        Ok(HeldChoice { search: Some((found.watts, found.harm)), ..held })
    }

    /// Holds a point, or leaves all to Linux.
    fn hold(
        &mut self,
        point: Option<SearchPoint>,
        objective: Objective,
    ) -> Result<HeldChoice, ModelError> {
        let cell = match self.holds.entry(point) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let (cell, _) = self.servers.next(free.key().as_ref(), self.hold)?;
                free.insert(cell)
            }
        };
        Ok(HeldChoice {
            watts: cell.watts,
            tail_us: cell.tail_at(objective.percentile),
            is_met: objective.met_by(cell),
            search: None,
        })
    }
}

impl Day {
    /// Number of hours.
    pub(super) fn hours(&self) -> usize {
        self.held.len()
    }

    /// Returns the setting of an arm, hour by hour; empty for an objective that the arm does not
    /// run.
    pub(super) fn held(&self, arm: Arm, objective: usize) -> impl Iterator<Item = &HeldChoice> {
        self.held.iter().filter_map(move |hour| hour.get(&(arm, objective)))
    }

    /// Hours in which an arm missed the objective.
    pub(super) fn missed(&self, arm: Arm, objective: usize) -> usize {
        self.held(arm, objective).filter(|held| !held.is_met).count()
    }

    /// The most that an arm saved of Linux's power in an hour in which it met
    /// the objective, in percent.
    pub(super) fn most_saved(&self, arm: Arm, objective: usize) -> f64 {
        let both = self.held(arm, objective).zip(self.held(Arm::Linux, objective));
        let met = both.filter(|(held, _)| held.is_met);
        met.map(|(held, linux)| 100.0 * (1.0 - held.watts / linux.watts)).fold(0.0, f64::max)
    }

    /// Power of all hours together over Linux's.
    fn power_over_linux(&self, arm: Arm, objective: usize) -> f64 {
        let sum = |arm| self.held(arm, objective).map(|held| held.watts).sum::<f64>();
        sum(arm) / sum(Arm::Linux)
    }

    /// Energy of a search and the rest of its hour over that of Linux.
    fn with_search_over_linux(&self, objective: usize) -> f64 {
        let share = SEARCH_S / 3600.0;
        let whole = |held: &HeldChoice| {
            let searching = held.search.map_or(held.watts, |(watts, _)| watts);
            share * searching + (1.0 - share) * held.watts
        };
        let ours = self.held(Arm::Ours, objective).map(whole).sum::<f64>();
        ours / self.held(Arm::Linux, objective).map(|held| held.watts).sum::<f64>()
    }

    /// Share of the searches' requests that were late, in percent.
    fn harm_percent(&self, objective: usize) -> f64 {
        let harms = self.held(Arm::Ours, objective).filter_map(|held| held.search);
        100.0 * harms.map(|(_, harm)| harm).sum::<f64>() / self.hours() as f64
    }

    /// Power by the hour, a panel an objective.
    pub(super) fn power(&self) -> Vec<Figure> {
        let panel = |(at, objective): (usize, &Objective)| {
            let frame = Figure::new(
                format!("{objective}: power over a day"),
                Axis::linear("hour"),
                Axis::linear("power (W)"),
            );
            let arms = Arm::ALL.into_iter().filter(|arm| self.held(*arm, at).next().is_some());
            arms.fold(frame, |figure, arm| {
                let watts = self.held(arm, at).map(|held| held.watts).enumerate();
                let points: Vec<_> =
                    watts.map(|(hour, watts)| Point::at(hour as f64, watts)).collect();
                figure.with_curve(arm.name(), CurveStyle::Line, points)
            })
        };
        self.objectives.iter().enumerate().map(panel).collect()
    }
}

/// The rows that every objective of a day has.
pub(super) fn judge(day: &Day, at: usize) -> Vec<Row> {
    let objective = day.objectives[at];
    let name = |what: &str| format!("{objective}: {what}");
    let linux_misses = day.missed(Arm::Linux, at) as f64;
    let mut rows = vec![Row::held(
        name("hours in which the search's choice misses it"),
        "1",
        "none",
        day.missed(Arm::Ours, at) as f64,
        AtMost(linux_misses.max(1.0)),
    )];
    rows.extend(against_co_pi(day, at));
    let why = "for comparison; no figure is printed";
    let harm = day.harm_percent(at);
    for (what, unit, value) in [
        ("hours in which Linux misses it", "1", linux_misses),
        ("hours in which Co-PI misses it", "1", day.missed(Arm::CoPi, at) as f64),
        ("power of the day, search's over Linux's", "1", day.power_over_linux(Arm::Ours, at)),
        ("the same with the searches' own energy", "1", day.with_search_over_linux(at)),
        ("requests over the bound in the searches", "%", harm),
    ] {
        rows.push(Row::reported(name(what), unit, Printed::Nothing, value, why));
    }
    if at == OBJECTIVE_OF_PAPER {
        let paper = day.power_over_linux(Arm::Paper, at);
        let what = name("power of the day, the paper's penalty over Linux's");
        rows.push(Row::reported(what, "1", Printed::Nothing, paper, why));
        let ebbrt = 1.0 / day.power_over_linux(Arm::Ebbrt, at);
        let why = "as in bayop-sweep: energies of entries into idle states were chosen after the \
                   first ones gave the wrong sign, so that the row tests nothing";
        let what = name("power of Linux over EbbRT under the search (calibrated)");
        rows.push(Row::ratio(what, 2.0, ebbrt).because(why));
    }
    rows
}

/// Co-PI typically draws more power than the search. Under the strictest objective it draws less
/// over all hours, of which it misses many.
fn against_co_pi(day: &Day, at: usize) -> Vec<Row> {
    let objective = day.objectives[at];
    let name = |hours| format!("{objective}: power of Co-PI over the search's, {hours}");
    let both = co_pi_over_ours(day, at, |theirs, ours| theirs.is_met && ours.is_met);
    let both_meet = name("hours that both meet");
    if objective.bound_us >= 500.0 {
        return vec![Row::held(both_meet, "1", "typically worse", both, AtLeast(1.0))];
    }
    let all = co_pi_over_ours(day, at, |_, _| true);
    let why = "the paper's is of all hours, with those in which Co-PI misses the objective";
    vec![
        Row::compared(name("all hours"), "1", "below 1", all, AtMost(1.0)),
        Row::reported(both_meet, "1", Printed::Nothing, both, why),
    ]
}

/// Mean ratio over the hours whose choices, Co-PI's and the search's, are counted.
fn co_pi_over_ours(day: &Day, at: usize, counts: impl Fn(&HeldChoice, &HeldChoice) -> bool) -> f64 {
    let both = day.held(Arm::CoPi, at).zip(day.held(Arm::Ours, at));
    let counted = both.filter(|(theirs, ours)| counts(theirs, ours));
    let ratios: Vec<f64> = counted.map(|(theirs, ours)| theirs.watts / ours.watts).collect();
    ratios.iter().sum::<f64>() / ratios.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_has_24_hours_and_its_peak_is_the_busiest() {
        let (scenario, _) = super::super::system::scenario();
        let plan = Plan {
            linux: scenario.linux(),
            ebbrt: scenario.ebbrt(),
            objectives: Vec::new(),
            profiled: [1.0; 3],
            peak_per_s: 250e3,
        };
        let rates = plan.rates_per_s(&Setup::new("test"));
        let most = rates.iter().copied().fold(0.0, f64::max);
        assert_eq!((rates.len(), most), (24, 250e3));
        assert!(rates.iter().all(|rate| *rate >= 0.2 * most), "{rates:?}");
    }
}
