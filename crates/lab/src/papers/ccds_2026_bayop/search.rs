//! Section 5: a search of thirty trials, compared with all settings and with random search.

use super::SEED_FILE;
use super::system::{OBJECTIVES, Objective, scenario};
use super::trials::{grid, reading, rules, search};
use crate::prelude::*;
use crate::server::{Cell, ServerSetting};
use lull_control::Rng;
use lull_measure::{Latency, Nanos, Percentile};
use lull_policies::search::{Method, PriorMean, Reading, Rules, SearchPoint, Space};
use lull_sim::ModelError;
use lull_sim::netserver::NetServerModel;
use lull_sim::stats::Failure;
use rand::RngExt;
use rayon::prelude::*;
use std::convert::Infallible;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "bayop-search",
    paper: "Dong et al. 2026, section 5 (30 trials)",
    seed_file: SEED_FILE,
    summary: "what 30 trials find of the least power within a bound: ours, the paper's, random",
    run,
};

const LOADS: [f64; 4] = [200e3, 400e3, 600e3, 700e3];
/// Readings that a trial may be: replications that are simulated for every pair.
const READINGS: u64 = 4;

/// All pairs at one load.
struct Surface {
    space: Space,
    /// Indexed by the number of the point: each replication, and all together.
    points: Vec<Pair>,
}

struct Pair {
    readings: Vec<Reading>,
    truth: Reading,
}

/// The results of a method over all seeds.
struct SearchOutcome {
    gaps: Vec<f64>,
    missed: usize,
    /// Share of requests over the bound during the search.
    harm: Vec<f64>,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (scenario, choices) = scenario();
    let model = scenario.linux();
    let objective = OBJECTIVES[0];
    let mut report = EXPERIMENT.report("CCDS 2026, section 5: thirty trials", setup);
    report.choices = choices;
    report.choices.push(format!(
        "216 pairs, {READINGS} replications of each; a trial reads one of them at random, the \
         truth is all of them together; the oracle is the least true power of the pairs whose \
         true tail meets the bound"
    ));
    let seeds = setup.either(30, 3);
    let mut figure = Vec::new();
    for load in LOADS {
        let surface = surface(setup, &model, load, objective)?;
        let methods = [Method::Apart, Method::Penalty, Method::Random];
        let plain = methods.map(|method| rules(method, objective));
        let prior = PriorMean::Response;
        let modelled = Rules { prior, ..rules(Method::Apart, objective) };
        let outcomes = plain.map(|rules| surface.all(&rules, objective, seeds));
        report.rows.extend(judged(load, &outcomes));
        let outcome = surface.all(&modelled, objective, seeds);
        report.rows.extend(others(load, "ours with the response model", &outcome));
        figure.push(outcomes);
    }
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &[gaps(&figure)])?];
    Ok(report)
}

fn surface(
    setup: &Setup<'_>,
    model: &NetServerModel,
    load: f64,
    objective: Objective,
) -> Result<Surface, LabError> {
    let grid = grid(model)?;
    let (space, settings) = (grid.only(), grid.settings());
    setup.progress.expect(settings.len() as u64);
    let length = setup.either(Nanos::from_millis(250), Nanos::from_millis(20));
    let pair = |setting: &ServerSetting| -> Result<Pair, ModelError> {
        // Connections stay where they were hashed to: a reading is a stretch of one run.
        let mut server = model.at_rate(load).simulation(setup.seed, 0)?;
        setting.apply_to(model, &mut server);
        server.run_until(Nanos::from_millis(50));
        let readings = (0..READINGS).map(|_| {
            server.forget();
            server.run_until(server.now() + length);
            let totals = server.event_loop_totals();
            let cell = Cell::from_totals(
                load,
                *setting,
                &totals,
                (usize::from(model.cores), Percentile::P99),
            );
            (reading(&cell, &totals.latency, objective), totals.latency, cell)
        });
        let all: Vec<_> = readings.collect();
        setup.progress.step();
        Ok(Pair::from_readings(all, objective))
    };
    let points: Result<Vec<Pair>, ModelError> = settings.par_iter().map(pair).collect();
    Ok(Surface { space, points: points.map_err(Failure::from)? })
}

impl Pair {
    fn from_readings(all: Vec<(Reading, Latency, Cell)>, objective: Objective) -> Self {
        let mut together = Latency::default();
        all.iter().for_each(|(_, latency, _)| together.merge(latency));
        let count = all.len() as f64;
        let percentile = Percentile::new(objective.percentile).unwrap_or(Percentile::P99);
        let pooled = together.quantile(percentile).map_or(0.0, Nanos::as_micros_f64);
        let keeps_up = all.iter().all(|(_, _, cell)| cell.keeps_up());
        let readings: Vec<_> = all.into_iter().map(|(reading, ..)| reading).collect();
        let truth = Reading {
            tail_us: if keeps_up { pooled } else { pooled.max(5.0 * objective.bound_us) },
            watts: readings.iter().map(|it| it.watts).sum::<f64>() / count,
            requests: readings.iter().map(|it| it.requests).sum(),
            late: readings.iter().map(|it| it.late).sum(),
            progress_per_s: None,
        };
        Self { readings, truth }
    }
}

impl Surface {
    /// The least true power within the bound.
    fn oracle(&self, objective: Objective) -> Option<f64> {
        let good = self.points.iter().filter(|it| it.truth.tail_us <= objective.bound_us);
        good.map(|it| it.truth.watts).reduce(f64::min)
    }

    fn number(&self, point: &SearchPoint) -> usize {
        self.space.points().position(|it| it == *point).unwrap_or(0)
    }

    /// Searches with many seeds.
    fn all(&self, rules: &Rules, objective: Objective, seeds: u64) -> SearchOutcome {
        let one = |seed: u64| self.search(rules, seed);
        let ends: Vec<_> = (0..seeds).into_par_iter().map(one).collect();
        let best = self.oracle(objective).unwrap_or(f64::NAN);
        let met = |truth: &Reading| truth.tail_us <= objective.bound_us;
        SearchOutcome {
            gaps: ends.iter().map(|(truth, _)| 100.0 * (truth.watts / best - 1.0)).collect(),
            missed: ends.iter().filter(|(truth, _)| !met(truth)).count(),
            harm: ends.iter().map(|(_, harm)| 100.0 * harm).collect(),
        }
    }

    /// Runs one search; returns the true reading of its final choice, and the harm that it did.
    fn search(&self, rules: &Rules, seed: u64) -> (Reading, f64) {
        let read = |point: &SearchPoint, rng: &mut Rng| {
            let readings = &self.points[self.number(point)].readings;
            Ok::<_, Infallible>(readings[rng.random_range(0..readings.len())])
        };
        let Ok(found) = search(&self.space, rules.clone(), seed, read);
        (self.points[self.number(&found.point)].truth, found.harm)
    }
}

impl SearchOutcome {
    /// Median and largest gap, in percent.
    fn gap(&self) -> [f64; 2] {
        let mut sorted = self.gaps.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        [sorted[sorted.len() / 2], sorted[sorted.len() - 1]]
    }

    /// Share of the requests that the searches made late, in percent.
    fn mean_harm(&self) -> f64 {
        self.harm.iter().sum::<f64>() / self.harm.len() as f64
    }
}

const HARM: &str = "requests over the bound in the search";
/// The bound was ours, and kept until a setting had to show that it meets the objective.
const NOT_HELD: &str = "at most 2 % before a choice needed evidence; see docs/tuning.md";
const COMPARED: &str = "for comparison; no figure is printed";

fn judged(load: f64, [ours, paper, random]: &[SearchOutcome; 3]) -> Vec<Row> {
    let kilo = load / 1e3;
    let row = |what: &str, unit, value, most| {
        let name = format!("{kilo} K, ours: {what}");
        Row::held(name, unit, Printed::Nothing, value, AtMost(most))
    };
    let ([median, worst], [by_chance, _]) = (ours.gap(), random.gap());
    let name = format!("{kilo} K, ours: median gap to the oracle");
    let mut rows = vec![
        Row::reported(name, "%", Printed::Nothing, median, NOT_HELD),
        row("largest gap", "%", worst, 10.0),
        row("final choices that miss the bound", "1", ours.missed as f64, 0.0),
        row("median gap less that of random search", "%", median - by_chance, 0.0),
    ];
    let name = format!("{kilo} K, ours: {HARM}");
    rows.push(Row::reported(name, "%", Printed::Nothing, ours.mean_harm(), COMPARED));
    for (name, outcome) in [("the paper's penalty", paper), ("random", random)] {
        rows.extend(others(load, name, outcome));
    }
    rows
}

/// The rows of another method, for comparison.
fn others(load: f64, name: &str, outcome: &SearchOutcome) -> [Row; 4] {
    let [median, worst] = outcome.gap();
    let figures = [
        ("median gap", "%", median),
        ("largest gap", "%", worst),
        ("choices that miss", "1", outcome.missed as f64),
        (HARM, "%", outcome.mean_harm()),
    ];
    figures.map(|(what, unit, value)| {
        let name = format!("{} K, {name}: {what}", load / 1e3);
        Row::reported(name, unit, Printed::Nothing, value, COMPARED)
    })
}

fn gaps(all: &[[SearchOutcome; 3]]) -> Figure {
    let frame = Figure::new(
        "Power of the final choice above the oracle, median of all seeds",
        Axis::linear("requests/s (thousands)").between(100.0, 800.0),
        Axis::linear("gap (%)"),
    );
    let curve = |at: usize| {
        let points = LOADS
            .iter()
            .zip(all)
            .map(move |(load, outcomes)| Point::at(load / 1e3, outcomes[at].gap()[0].max(0.0)));
        points.collect::<Vec<_>>()
    };
    let names = ["modelled apart (ours)", "penalty (the paper's)", "random"];
    let curves = names.into_iter().enumerate();
    curves.fold(frame, |figure, (at, name)| figure.with_curve(name, CurveStyle::Line, curve(at)))
}
