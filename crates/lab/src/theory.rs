//! Compares the simulator with exact results of queueing theory.
//!
//! The cases and their exact values are those of the simulator crate. Here each runs until
//! its confidence interval is narrower than the tolerance.

use crate::prelude::*;
use lull_measure::Nanos;
use lull_sim::Totals;
use lull_sim::plant::System;
use lull_sim::stats::{Estimate, Experiment as Replications, Failure, Precision, Runs, Warmup};
use lull_sim::theory::{Case, Quantity, cases};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "theory",
    paper: "Kleinrock 1975, 1976; Reiser and Lavenberg 1980",
    seed_file: "",
    summary: "M/M/1, M/M/c, M/G/1, M/M/c/K, processor sharing, priorities, Erlang loss, exact MVA, \
              the utilisation law, Little's law on every station",
    run,
};

/// Customers of one replication, and replications at least: 4 million in all.
const CUSTOMERS: u64 = 500_000;
const REPLICATIONS: u64 = 8;
/// Replications at most; queues near saturation mix slowly and need many.
const MOST: u64 = 600;
/// Half width that is aimed at, relative to the mean: three fifths of the deviation
/// allowed, which is 3.3 standard errors then. Half of it would take half as long again.
const PRECISION: f64 = 0.003;
/// Largest relative deviation from the exact value.
const FRACTION: f64 = 0.005;
/// Of some sixty 95 % intervals about three miss by chance. Widened by this factor (3.3 standard
/// errors), all of them hold together in 95 of 100 runs.
const FACTOR: f64 = 1.7;

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let cases = cases();
    setup.progress.expect(cases.len() as u64);
    let mut report = EXPERIMENT.report("The simulator against exact theory", setup);
    let mut worst_little = Vec::new();
    let mut points = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let runs = simulate(case, setup)?;
        setup.progress.step();
        let ours = estimate_of(&runs.values(|totals| case.quantity.value(totals)));
        points.push(deviation(number, case, &ours));
        worst_little.push(little_gap_percent(&runs));
        report.rows.push(row(case, &ours, &runs));
    }
    report.rows.push(little_row(&worst_little));
    report.choices = vec![
        format!(
            "each case: at least {} customers, and more until the 95 % interval is ±{} % wide",
            CUSTOMERS * REPLICATIONS,
            PRECISION * 100.0
        ),
        format!(
            "a row passes within ±{} % and within {FACTOR} times its 95 % interval: of {} rows \
             each alone would miss one time in twenty",
            FRACTION * 100.0,
            report.rows.len()
        ),
    ];
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &[figure(points)])?];
    Ok(report)
}

fn simulate(case: &Case, setup: &Setup<'_>) -> Result<Runs, Failure> {
    let length = case.length(setup.either(CUSTOMERS, CUSTOMERS / 50));
    let experiment = Replications {
        // All start empty; ten think times, or a tenth of the run, forget that.
        warmup: Warmup::Fixed(length.scale(0.1).max(Nanos::from_secs(1))),
        length,
        first: 0,
        replications: REPLICATIONS,
    };
    let precision = Precision { relative: PRECISION, most: setup.either(MOST, REPLICATIONS) };
    let value = |totals: &Totals| case.quantity.value(totals);
    experiment.run_until_precise(precision, value, |replication| {
        Ok(System::new(&case.model, setup.seed, replication)?)
    })
}

fn row(case: &Case, ours: &Estimate, runs: &Runs) -> Row {
    let unit = match case.quantity {
        Quantity::ResponseSeconds { .. } => "s",
        Quantity::ThroughputPerSecond { .. } => "1/s",
        Quantity::Lost { .. } | Quantity::Utilisation { .. } => "1",
    };
    let tolerance = Tolerance::Exact { fraction: FRACTION, factor: FACTOR };
    let row = Row::held(&case.name, unit, case.expected, ours, tolerance);
    if runs.totals.len() as u64 <= REPLICATIONS {
        return row;
    }
    let millions = runs.totals.len() as f64 * CUSTOMERS as f64 / 1e6;
    row.because(format!("{millions:.0} million customers: it mixes slowly"))
}

/// The largest gap between the two sides of Little's law over all stations of
/// a run that saw work, in percent.
fn little_gap_percent(runs: &Runs) -> f64 {
    let stations = runs.totals.iter().flat_map(|totals| {
        totals.servers.iter().map(|server| (server.departures, server.little(totals.span)))
    });
    stations
        .filter(|(departures, _)| *departures > 0)
        .map(|(_, (present, rate_times_response))| {
            100.0 * (rate_times_response / present - 1.0).abs()
        })
        .fold(0.0, f64::max)
}

fn little_row(gaps: &[f64]) -> Row {
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    let name = "Little's law, largest gap of any station in any replication";
    let tolerance = AtMost(100.0 * FRACTION);
    Row::held(name, "%", 0.0, worst, tolerance)
        .because("not exactly 0: some requests are present at the ends of the counted time")
}

/// The deviation from theory in percent, with its interval.
fn deviation(number: usize, case: &Case, ours: &Estimate) -> Point {
    let percent = |value: f64| 100.0 * (value / case.expected - 1.0);
    let half = 100.0 * ours.half_width / case.expected.abs();
    let y = percent(ours.mean);
    Point { x: number as f64 + 1.0, y, interval: Some([y - half, y + half]) }
}

fn figure(points: Vec<Point>) -> Figure {
    let most = 100.0 * FRACTION;
    Figure::new(
        "Deviation from exact theory, with 95 % intervals",
        Axis::linear("case (row of the table)"),
        Axis::linear("deviation (%)").between(-1.6 * most, 1.6 * most),
    )
    .mark(most, "tolerance")
    .mark(-most, "tolerance")
    .mark(0.0, "")
    .with_curve("cases", CurveStyle::Points, points)
}
