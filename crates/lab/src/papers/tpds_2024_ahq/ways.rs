//! Fig. 12(b): cores that ARQ saves over other strategies with few cache ways and with many.

use super::cores::{CORES, Grid, GridCell, ISENTROPIC, LENGTHS_S};
use super::paper::paper;
use super::platform::Platform;
use super::play::{ARQ_PRIORITY, CLITE, PARTIES, Span, Strategy, UNMANAGED, is_here};
use super::{SEED_FILE, absent, sourced};
use crate::prelude::*;
use lull_measure::Nanos;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-ways",
    paper: "Liu et al. 2024, Fig. 12(b)",
    seed_file: SEED_FILE,
    summary: "Cores that ARQ saves for the same entropy with 8 cache ways and with 14",
    run,
};

const STRATEGIES: [Strategy; 4] = [UNMANAGED, PARTIES, CLITE, ARQ_PRIORITY];
/// Ways at which the paper prints the savings, and replications of each cell.
const FEW: (u32, u64) = (8, 20);
/// A point in the middle of the more than ten ways at which the lines are close to each other.
const MANY: (u32, u64) = (14, 5);
/// The strategies whose lines are close to each other there.
const CLOSE: [Strategy; 2] = [PARTIES, CLITE];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let grid = measure(setup)?;
    let mut report = EXPERIMENT.report(paper().titled("Fig. 12(b)"), setup);
    report.choices = choices();
    report.choices.extend(absent(&STRATEGIES));
    report.choices.extend(sourced::choices(&Platform::a().parameters));
    report.rows = few_rows(&grid);
    report.rows.extend(many_row(&grid));
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &[figure(&grid)])?];
    Ok(report)
}

fn choices() -> Vec<String> {
    vec![
        format!(
            "as ahq-cores, {} replications of each cell with {} ways and {} with {}",
            FEW.1, FEW.0, MANY.1, MANY.0
        ),
        "cores needed: linear between whole numbers, after a running minimum, replication by \
         replication; a strategy that needs less than 4 cores counts as 4, and one that needs \
         more than 10 as 10"
            .to_owned(),
        super::READINGS.to_owned(),
    ]
}

fn measure(setup: &Setup<'_>) -> Result<Grid, LabError> {
    let strategies: Vec<_> = STRATEGIES.into_iter().filter(is_here).collect();
    let second = Nanos::from_secs(1);
    let (warmup, length) = setup.either(LENGTHS_S, (10, 10));
    let span = Span { warmup: second * warmup, length: second * length, seed: setup.seed };
    let mut cells = Vec::new();
    for (ways, replications) in [FEW, MANY] {
        let replications = setup.either(replications, 1);
        for strategy in 0..strategies.len() {
            for cores in CORES {
                let cell = |replication| GridCell { strategy, cores, ways, replication };
                cells.extend((0..replications).map(cell));
            }
        }
    }
    Grid::play(strategies, cells, span, setup)
}

/// Returns, by replication, the cores that ARQ saves over another strategy.
fn saved(grid: &Grid, ways: u32, theirs: Strategy) -> Option<Vec<f64>> {
    let needed = |strategy| Some(grid.needed_at(grid.number(strategy)?, ways, ISENTROPIC));
    let both = needed(theirs)?.into_iter().zip(needed(ARQ_PRIORITY)?);
    Some(both.map(|(theirs, ours)| theirs - ours).collect())
}

fn few_rows(grid: &Grid) -> Vec<Row> {
    let printed = [(UNMANAGED, 2.0), (PARTIES, 1.0), (CLITE, 1.0)];
    let rows = printed.into_iter().filter_map(|(theirs, printed)| {
        let ours = estimate_of(&saved(grid, FEW.0, theirs)?);
        let name =
            format!("{} ways, E_S = {ISENTROPIC}: ARQ, LC first saves over {}", FEW.0, theirs.name);
        let why = "read off isentropic lines whose miss-ratio curves the paper does not print; \
                   ours are a choice";
        Some(Row::change(name, "cores", printed, ours).because(why))
    });
    rows.collect()
}

/// Returns the row for: with more than ten ways "the isentropic lines of ARQ, CLITE, and PARTIES
/// are close to each other".
fn many_row(grid: &Grid) -> Option<Row> {
    let all: Vec<Vec<f64>> =
        CLOSE.into_iter().map(|theirs| saved(grid, MANY.0, theirs)).collect::<Option<_>>()?;
    let most: Vec<f64> = all[0].iter().zip(&all[1]).map(|(a, b)| a.max(*b)).collect();
    let name = format!(
        "{} ways, E_S = {ISENTROPIC}: most that ARQ, LC first saves over PARTIES or CLITE",
        MANY.0
    );
    let half = Absolute(0.5);
    let why = "half of the core that is saved with 8 ways; the paper prints \"close to 0\"";
    Some(Row::compared(name, "cores", 0.0, estimate_of(&most), half).because(why))
}

fn figure(grid: &Grid) -> Figure {
    let (x, y) = (Axis::linear("cache ways"), Axis::linear("cores").between(3.5, 10.5));
    let title = format!("Cores for an E_S of {ISENTROPIC}");
    let there = STRATEGIES.into_iter().filter_map(|it| Some((it, grid.number(it)?)));
    there.fold(Figure::new(title, x, y), |figure, (strategy, number)| {
        let points = [FEW.0, MANY.0].map(|ways| {
            let needed = grid.needed_at(number, ways, ISENTROPIC);
            Point::from_estimate(f64::from(ways), &estimate_of(&needed))
        });
        figure.with_curve(strategy.name, CurveStyle::Line, points)
    })
}
