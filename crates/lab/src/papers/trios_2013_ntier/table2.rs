//! Table 2: throughput of 1/2/1/2 with DVFS off and on.

use super::paper::{Table2Row, paper};
use super::system::{Clock, DVFS_TIERS, NTier, trial};
use super::{SEED_FILE, alternation};
use crate::prelude::*;
use crate::trial::{estimate, throughput};
use lull_sim::stats::{Estimate, Runs};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ntier-table2",
    paper: "Wang et al. 2013, Table 2 and Fig. 6",
    seed_file: SEED_FILE,
    summary: "Throughput of an n-tier system with DVFS off and on, 1,000 to 16,000 clients",
    run,
};

/// Choices that the paper leaves open, fitted so that its losses result.
pub(super) const CHOICES: [&str; 4] = [
    "hidden choice: a step down goes from P0 to P8 in one move (as in section 3.1; eq. 4 does \
     not); with eq. 4 to the letter there is next to no loss, see the rows `literal eq. 4`",
    "hidden choice: each Tomcat has 75 threads (the paper gives 50 database connections only); \
     without a bound near the pool the loss is two thirds of the printed one",
    "derived: demands MySQL 1.06, Tomcat 0.96 (half before and half after the database), Apache \
     0.30, C-JDBC 0.20 ms, exponential, one database call per request, think time 7 s",
    "derived: P4 is 1.729 GHz and 1.05 V, halfway between the printed P0 and P8",
];

const ROUTING: &str = "hidden choice: round-robin routing; random routing gives 2 to 7 % less with \
                       DVFS on";

const LITERAL: &str = "one P-state down at a time, as eq. 4 is printed, loses next to nothing: the \
                       printed losses cannot come from the printed parameters alone";

/// One load under the three controllers.
struct LoadRuns {
    printed: Table2Row,
    full: Runs,
    dvfs: Runs,
    literal: Runs,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let paper = paper();
    let (long, short) = setup.either(((300, 16), (200, 4)), ((40, 2), (20, 2)));
    let measured = paper.table2.len() as u64 * (long.1 + 2 * short.1);
    setup.progress.expect(measured + alternation::replications(setup));
    let mut loads = Vec::new();
    for printed in &paper.table2 {
        let model = NTier::table2(printed.clients).model();
        let measure = |clock, (seconds, replications)| {
            let trial = trial(&model, clock, &DVFS_TIERS, setup.seed, seconds);
            trial.run(0..replications, &setup.progress)
        };
        loads.push(LoadRuns {
            printed: printed.clone(),
            full: measure(Clock::FullSpeed, short)?,
            dvfs: measure(Clock::FITTED, long)?,
            literal: measure(Clock::LITERAL, short)?,
        });
    }
    let title = format!("{}, Table 2: {}, configuration 1/2/1/2", paper.venue, paper.title);
    let mut report = EXPERIMENT.report(title, setup);
    report.choices = CHOICES.iter().chain([&ROUTING]).map(ToString::to_string).collect();
    report.rows = loads.iter().flat_map(rows).collect();
    report.rows.extend(alternation::rows(setup)?);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &[figure(&loads)])?];
    Ok(report)
}

/// Throughput lost against the full-speed mean, in percent.
pub(super) fn loss_percent(full: &Runs, dvfs: &Runs) -> Estimate {
    // Full speed varies by a tenth of what DVFS does, and has fewer replications.
    let top = estimate(full, throughput(0)).mean;
    let loss = |value: f64| 100.0 * (1.0 - value / top);
    estimate_of(&dvfs.values(throughput(0)).into_iter().map(loss).collect::<Vec<_>>())
}

fn rows(load: &LoadRuns) -> Vec<Row> {
    let printed = &load.printed;
    let name = |what: &str| format!("{} clients, {what}", thousands(printed.clients));
    let ours = |runs| estimate(runs, throughput(0));
    let mut rows = vec![
        Row::held(
            name("full speed"),
            "req/s",
            printed.simulated.full_speed,
            ours(&load.full),
            Relative(0.03),
        ),
        Row::held(
            name("DVFS on"),
            "req/s",
            printed.simulated.dvfs_on,
            ours(&load.dvfs),
            Relative(0.05),
        ),
        Row::held(
            name("loss"),
            "%",
            round(printed.simulated.loss_percent()),
            loss_percent(&load.full, &load.dvfs),
            Absolute(3.0),
        ),
        Row::reported(
            name("literal eq. 4"),
            "req/s",
            printed.simulated.dvfs_on,
            ours(&load.literal),
            LITERAL,
        ),
        Row::compared(
            name("measured, DVFS on"),
            "req/s",
            printed.measured.dvfs_on,
            ours(&load.dvfs),
            Relative(0.1),
        ),
    ];
    if let Some(note) = &printed.note {
        rows[0].why = Some(note.clone());
    }
    rows
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// `14K` for 14000.
pub(super) fn thousands(clients: u32) -> String {
    format!("{}K", clients / 1000)
}

fn figure(loads: &[LoadRuns]) -> Figure {
    let across = |load: &LoadRuns| f64::from(load.printed.clients);
    let ours = |runs: fn(&LoadRuns) -> &Runs| {
        loads.iter().map(move |load| {
            Point::from_estimate(across(load), &estimate(runs(load), throughput(0)))
        })
    };
    let printed = |value: fn(&Table2Row) -> f64| {
        loads.iter().map(move |load| Point::at(across(load), value(&load.printed)))
    };
    Figure::new(
        "Throughput with DVFS off and on, configuration 1/2/1/2",
        Axis::linear("clients"),
        Axis::linear("throughput (requests/s)"),
    )
    .with_curve("full speed", CurveStyle::Line, ours(|load| &load.full))
    .with_curve("DVFS on", CurveStyle::Line, ours(|load| &load.dvfs))
    .with_curve("literal eq. 4", CurveStyle::Line, ours(|load| &load.literal))
    .printed(0, "paper, full speed", printed(|row| row.simulated.full_speed))
    .printed(1, "paper, DVFS on", printed(|row| row.simulated.dvfs_on))
}
