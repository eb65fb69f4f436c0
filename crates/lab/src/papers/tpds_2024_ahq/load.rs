//! Fig. 16: constant loads, Xapian from 10 to 90 % beside Fluidanimate.

use super::paper::paper;
use super::platform::{Platform, Scene, WAYS, steady};
use super::play::{
    ARQ, ARQ_PRIORITY, CLITE, FRESH, HERACLES, LC_FIRST, PARTIES, Played, Runs, Span, Strategy,
    TIDE, UNMANAGED, freshness,
};
use super::{SEED_FILE, absent, sourced};
use crate::prelude::*;
use lull_measure::Nanos;
use lull_sim::stats::{Estimate, Failure};
use std::convert::identity;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-load",
    paper: "Liu et al. 2024, Fig. 16",
    seed_file: SEED_FILE,
    summary: "Entropy, tails and progress at constant loads, Xapian from 10 to 90 %",
    run,
};

const STRATEGIES: [Strategy; 8] =
    [UNMANAGED, LC_FIRST, HERACLES, PARTIES, CLITE, ARQ, ARQ_PRIORITY, TIDE];
/// Strategies that `tide` must not fall behind.
const BASELINES: [Strategy; 7] = [UNMANAGED, LC_FIRST, HERACLES, PARTIES, CLITE, ARQ, ARQ_PRIORITY];
const XAPIAN: [u32; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];
const OTHERS: [u32; 2] = [20, 40];
/// Xapian's load up to which section IX-A compares the progress of BE apps.
const LOW: u32 = 50;
/// Xapian's load up to which all loads are low, of which the text gives Unmanaged the lowest E_S.
const LOWEST: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoadCell {
    xapian: u32,
    others: u32,
}

/// Every strategy on every cell, seed by seed.
type Table = Runs<Played>;

fn cells() -> impl Iterator<Item = LoadCell> + Clone {
    OTHERS.into_iter().flat_map(|others| XAPIAN.map(|xapian| LoadCell { xapian, others }))
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let table = measure(setup)?;
    let paper = paper();
    let mut report = EXPERIMENT.report(paper.titled("Fig. 16"), setup);
    report.choices = choices();
    report.choices.push(freshness(seeds(setup)));
    report.choices.extend(absent(&STRATEGIES));
    report.choices.extend(sourced::choices(&Platform::a().parameters));
    report.rows = tail_rows(&table);
    report.rows.extend(progress_rows(&table));
    report.rows.extend(entropy_rows(&table));
    report.rows.extend(order_rows(&table));
    report.rows.extend(table.tide_row());
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&table))?];
    Ok(report)
}

fn choices() -> Vec<String> {
    [
        "10 cores, 20 ways; 120 s to settle, 60 s counted; entropy is the mean of the epochs of \
         500 ms",
        "reduction of tails: one minus the geometric mean, over apps and Xapian's loads with the \
         others at 40 %, of tail over Unmanaged's tail in the same cell and seed; the paper does \
         not state how it averages",
        "typical tails are those of the median epoch. Over the whole time, seconds of a search \
         that starves an app outweigh minutes: requests queue up and are all late",
        super::READINGS,
    ]
    .map(str::to_owned)
    .to_vec()
}

fn scene(platform: &Platform, cell: LoadCell) -> Result<Scene, Failure> {
    let share = |percent: u32| steady(f64::from(percent) / 100.0);
    let loads = [
        ("xapian", share(cell.xapian)),
        ("moses", share(cell.others)),
        ("img-dnn", share(cell.others)),
    ];
    platform.scene(10, WAYS, &loads, &["fluidanimate"])
}

fn seeds(setup: &Setup<'_>) -> u64 {
    setup.either(3, 1)
}

fn measure(setup: &Setup<'_>) -> Result<Table, LabError> {
    let second = Nanos::from_secs(1);
    let (warmup, length) = setup.either((120, 60), (30, 15));
    let span = Span { warmup: second * warmup, length: second * length, seed: setup.seed };
    let platform = Platform::a();
    let scenes: Vec<Scene> =
        cells().map(|cell| scene(&platform, cell)).collect::<Result<_, Failure>>()?;
    let replications = FRESH..FRESH + seeds(setup);
    Runs::play(&STRATEGIES, &scenes, replications, span, &setup.progress, identity)
}

impl Table {
    /// A value of each seed, made of the same seed's runs of two strategies on some cells.
    fn compare(
        &self,
        ours: Strategy,
        theirs: Strategy,
        of_cells: impl Fn(LoadCell) -> bool,
        value: impl Fn(&[(&Played, &Played)]) -> f64,
    ) -> Option<Estimate> {
        let (ours, theirs) = (self.under(ours)?, self.under(theirs)?);
        let wanted = cells().map(of_cells);
        let pairs: Vec<_> =
            ours.iter().zip(theirs).zip(wanted).filter(|(_, wanted)| *wanted).collect();
        let of_seed = |seed: usize| {
            let of_it: Vec<_> = pairs.iter().map(|((a, b), _)| (&a[seed], &b[seed])).collect();
            value(&of_it)
        };
        Some(estimate_of(&(0..ours[0].len()).map(of_seed).collect::<Vec<_>>()))
    }

    /// Cells on which `tide` has more entropy than the best baseline, beyond the interval.
    fn tide_row(&self) -> Option<Row> {
        let tide = self.under(TIDE)?;
        let worse = |at: usize| {
            let beside = BASELINES.iter().filter_map(|it| Some(&self.under(*it)?[at]));
            let system =
                |runs: &[Played]| -> Vec<f64> { runs.iter().map(Played::mean_system).collect() };
            let mean = |runs: &Vec<Played>| estimate_of(&system(runs)).mean;
            let best = beside.min_by(|a, b| mean(a).total_cmp(&mean(b)));
            best.is_some_and(|best| {
                let gaps: Vec<f64> =
                    system(&tide[at]).iter().zip(system(best)).map(|(a, b)| a - b).collect();
                let gap = estimate_of(&gaps);
                gap.mean > gap.half_width
            })
        };
        let count = (0..tide.len()).filter(|at| worse(*at)).count() as f64;
        let name = "tide, cells worse than the best baseline";
        let why = "our own goal, 0, for our own policy; no paper prints it";
        Some(Row::reported(name, "cells", Printed::Nothing, count, why))
    }
}

/// Returns by how many percent tails over the counted time are shorter, as a geometric mean.
fn reduction(pairs: &[(&Played, &Played)]) -> f64 {
    shorter(pairs, |played| &played.tails_ms)
}

/// The same of the tails of the median epoch.
fn typical_reduction(pairs: &[(&Played, &Played)]) -> f64 {
    shorter(pairs, |played| &played.typical_ms)
}

fn shorter(pairs: &[(&Played, &Played)], tails: impl Fn(&Played) -> &Vec<f64>) -> f64 {
    let logs: Vec<f64> = pairs
        .iter()
        .flat_map(|(ours, theirs)| tails(ours).iter().zip(tails(theirs)))
        .map(|(ours, theirs)| (ours / theirs).ln())
        .collect();
    100.0 * (1.0 - (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Mean progress of best-effort apps over theirs.
fn progress_ratio(pairs: &[(&Played, &Played)]) -> f64 {
    let sum = |of: &dyn Fn(&(&Played, &Played)) -> f64| pairs.iter().map(of).sum::<f64>();
    sum(&|pair| pair.0.progress[0]) / sum(&|pair| pair.1.progress[0])
}

/// Why CLITE is not better than PARTIES.
const BACKLOG: &str = "CLITE's bootstrap gives every app \
                       one core in turn; what queues up meanwhile outlasts the two seconds of the \
                       next trial, so that an app looks late even with the most it can have and \
                       many searches end, infeasible, with the even division. Waiting up to 10 s \
                       for what queued up was tried and is no cure: other apps queue up for as \
                       long, and E_S of this row's cells rose (two seeds, Xapian at 70 %: .32 to \
                       .86)";

/// A value of pairs of runs, and its name.
type Comparison = (&'static str, fn(&[(&Played, &Played)]) -> f64);

/// Tails over the whole time, and those of the median epoch.
const TAILS: [Comparison; 2] = [("tails", reduction), ("typical tails", typical_reduction)];

fn in_40(cell: LoadCell) -> bool {
    cell.others == 40
}

fn tail_rows(table: &Table) -> Vec<Row> {
    let mut rows = Vec::new();
    let printed = [(ARQ, 66.5), (ARQ_PRIORITY, 66.5), (CLITE, 43.6), (PARTIES, 37.2)];
    let size = "how the paper averages ratios over apps and loads is not printed, and tails of an \
                overloaded Unmanaged grow with the run";
    for (strategy, paper) in printed {
        for (of_what, value) in TAILS {
            let Some(ours) = table.compare(strategy, UNMANAGED, in_40, value) else { continue };
            let name = format!("{}, {of_what} shorter than Unmanaged's", strategy.name);
            rows.push(Row::change(name, "%", paper, ours).because(size));
        }
    }
    let ahead = |ours: Strategy, theirs: Strategy, paper: f64| {
        let estimate = table.compare(ours, theirs, in_40, typical_reduction)?;
        let name = format!("{}, typical tails shorter than {}'s", ours.name, theirs.name);
        Some(Row::held(name, "%", paper, estimate, AtLeast(0.0)))
    };
    let less = |ours: f64, theirs: f64| 100.0 * (1.0 - (100.0 - ours) / (100.0 - theirs));
    rows.extend(ahead(ARQ, CLITE, less(66.5, 43.6)));
    rows.extend(ahead(ARQ_PRIORITY, CLITE, less(66.5, 43.6)));
    rows.extend(
        ahead(CLITE, PARTIES, less(43.6, 37.2))
            .map(|row| Row { held: false, ..row.because(BACKLOG) }),
    );
    rows
}

fn progress_rows(table: &Table) -> Vec<Row> {
    let low = |cell: LoadCell| in_40(cell) && cell.xapian <= LOW;
    let more = |ours: Strategy, theirs: Strategy, paper: f64| {
        let estimate = table.compare(ours, theirs, low, progress_ratio)?;
        let (ours_name, theirs_name) = (ours.name, theirs.name);
        let name =
            format!("Fluidanimate's progress, {ours_name} over {theirs_name}, Xapian to {LOW} %");
        let printed = paper;
        Some(if ours == ARQ_PRIORITY {
            Row::held(name, "times", printed, estimate, AtLeast(1.0))
        } else {
            let why = "Algorithm 1 without the priority of section IX-A";
            Row::compared(name, "times", printed, estimate, AtLeast(1.0)).because(why)
        })
    };
    let both = [ARQ_PRIORITY, ARQ].into_iter();
    both.flat_map(|ours| [more(ours, PARTIES, 1.638), more(ours, CLITE, 1.371)]).flatten().collect()
}

fn entropy_rows(table: &Table) -> Vec<Row> {
    let mean =
        |strategy: Strategy, part: fn(&Played) -> f64, of_cells: &dyn Fn(LoadCell) -> bool| {
            let value = |pairs: &[(&Played, &Played)]| {
                pairs.iter().map(|(ours, _)| part(ours)).sum::<f64>() / pairs.len() as f64
            };
            table.compare(strategy, strategy, of_cells, value)
        };
    let system = Played::mean_system;
    let not_printed = "the figure survives without its numbers";
    let mut rows = Vec::new();
    for strategy in &table.strategies {
        for others in OTHERS {
            let Some(ours) = mean(*strategy, system, &|cell| cell.others == others) else {
                continue;
            };
            let name = format!("{}, mean E_S, others at {others} %", strategy.name);
            rows.push(Row::reported(name, "", Printed::Nothing, ours, not_printed));
        }
    }
    let difference = |part: fn(&Played) -> f64| {
        table.compare(
            LC_FIRST,
            UNMANAGED,
            |_| true,
            |pairs| {
                pairs.iter().map(|(ours, theirs)| part(ours) - part(theirs)).sum::<f64>()
                    / pairs.len() as f64
            },
        )
    };
    let lc = |played: &Played| played.mean_of(|entropy| entropy.lc);
    let be = |played: &Played| played.mean_of(|entropy| entropy.be);
    if let (Some(lc), Some(be)) = (difference(lc), difference(be)) {
        let claims = ["much lower", "higher"];
        let [lower, higher] = claims;
        let (most, least) = (AtMost(0.0), AtLeast(0.0));
        rows.push(Row::held("LC-first, E_LC less Unmanaged's", "", lower, lc, most));
        rows.push(Row::held("LC-first, E_BE less Unmanaged's", "", higher, be, least));
    }
    rows
}

/// Section IX-A: ARQ has the lowest E_S of all strategies of the figure, and at low load Unmanaged
/// has.
fn order_rows(table: &Table) -> Vec<Row> {
    let row = |ours: Strategy, others: u32| {
        let estimate = above_lowest(table, ours, &|cell| cell.others == others)?;
        let name = format!(
            "{}, mean E_S less the lowest of the paper's other strategies, others at {others} %",
            ours.name
        );
        Some(Row::compared(name, "", "the lowest of all", estimate, AtMost(0.0)))
    };
    let each = [ARQ_PRIORITY, ARQ].into_iter().flat_map(|ours| OTHERS.map(|at| row(ours, at)));
    let mut rows: Vec<Row> = each.flatten().collect();
    let is_low = |cell: LoadCell| cell.others == OTHERS[0] && cell.xapian <= LOWEST;
    if let Some(estimate) = above_lowest(table, UNMANAGED, &is_low) {
        let name = format!(
            "Unmanaged, mean E_S less the lowest of the paper's other strategies, Xapian to \
             {LOWEST} %, others at {} %",
            OTHERS[0]
        );
        rows.push(Row::compared(name, "", "the lowest of all", estimate, AtMost(0.0)));
    }
    rows
}

/// Returns by seed the mean E_S of a strategy on some cells less the lowest of the others of the
/// figure.
fn above_lowest(
    table: &Table,
    ours: Strategy,
    of_cells: &dyn Fn(LoadCell) -> bool,
) -> Option<Estimate> {
    let mean = |runs: &[Vec<Played>], seed: usize| {
        let cells = cells().zip(runs).filter(|(cell, _)| of_cells(*cell));
        let all: Vec<f64> = cells.map(|(_, runs)| runs[seed].mean_system()).collect();
        all.iter().sum::<f64>() / all.len() as f64
    };
    let runs = table.under(ours)?;
    let others = [UNMANAGED, LC_FIRST, PARTIES, CLITE, ARQ_PRIORITY].into_iter();
    let is_reading = |it: Strategy| it == ARQ_PRIORITY && ours == ARQ;
    let others = others.filter(|it| *it != ours && !is_reading(*it));
    let beside: Vec<_> = others.filter_map(|it| table.under(it)).collect();
    let gap = |seed: usize| {
        let lowest = beside.iter().map(|runs| mean(runs, seed));
        mean(runs, seed) - lowest.fold(f64::INFINITY, f64::min)
    };
    Some(estimate_of(&(0..runs[0].len()).map(gap).collect::<Vec<_>>()))
}

/// A part of a run's entropy.
type Part = fn(&Played) -> f64;

fn figures(table: &Table) -> Vec<Figure> {
    let parts: [(&str, Part); 3] = [
        ("E_LC", |played| played.mean_of(|entropy| entropy.lc)),
        ("E_BE", |played| played.mean_of(|entropy| entropy.be)),
        ("E_S", Played::mean_system),
    ];
    let mut all = Vec::new();
    for others in OTHERS {
        for (name, part) in parts {
            all.push(figure(table, others, name, part));
        }
    }
    all
}

fn figure(table: &Table, others: u32, name: &str, part: Part) -> Figure {
    let x = Axis::linear("Xapian's load (% of max)").between(5.0, 95.0);
    let title = format!("{name}, Moses and Img-dnn at {others} %");
    let empty = Figure::new(title, x, Axis::linear(name).between(0.0, 1.0));
    table.strategies.iter().zip(&table.runs).fold(empty, |figure, (strategy, runs)| {
        let points = cells().zip(runs).filter(|(cell, _)| cell.others == others);
        let points = points.map(|(cell, runs)| {
            let values: Vec<f64> = runs.iter().map(part).collect();
            Point::from_estimate(f64::from(cell.xapian), &estimate_of(&values))
        });
        figure.with_curve(strategy.name, CurveStyle::Line, points)
    })
}
