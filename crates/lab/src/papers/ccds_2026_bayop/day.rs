//! Figs. 9 and 10: a day of changing load on memcached.

use super::SEED_FILE;
use super::hourly::{Arm, Day, Plan, judge};
use super::system::{LOADS, OBJECTIVES, scenario};
use crate::prelude::*;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "bayop-day",
    paper: "Dong et al. 2026, Figs. 9 and 10",
    seed_file: SEED_FILE,
    summary: "24 hours of memcached under three objectives: Linux, the search, Co-PI, EbbRT",
    run,
};

/// Largest saving of the paper's search in an hour, by objective, in percent.
const SAVED: [f64; 3] = [50.0, 60.0, 30.0];

/// The objective under which the slowest settings do, by number.
const LOOSEST: usize = 1;

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (scenario, choices) = scenario();
    let plan = Plan {
        linux: scenario.linux(),
        ebbrt: scenario.ebbrt(),
        objectives: OBJECTIVES.to_vec(),
        profiled: LOADS,
        peak_per_s: 750e3,
    };
    let day = plan.run(setup)?;
    let mut report = EXPERIMENT.report("CCDS 2026, Figs. 9 and 10: memcached over a day", setup);
    report.choices = choices;
    report.choices.extend(plan.choices());
    for (at, paper) in SAVED.into_iter().enumerate() {
        report.rows.push(saved(&day, at, paper));
    }
    report.rows.extend(in_order(&day));
    for at in 0..OBJECTIVES.len() {
        report.rows.extend(judge(&day, at));
    }
    report.rows.push(misses_of_co_pi(&day));
    report.figures = vec![
        Drawing::from_figures("bayop-day-power", &day.power())?,
        Drawing::from_figures("bayop-day-tail", &[tails(&day)])?,
    ];
    Ok(report)
}

fn saved(day: &Day, at: usize, paper: f64) -> Row {
    let name = format!("{}: most that the search saves in an hour", OBJECTIVES[at]);
    let most = day.most_saved(Arm::Ours, at);
    if at == LOOSEST {
        let why = "more than 60 % is printed; voltages from 0.65 V on and an uncore of 10 W give \
                   it, and neither is printed";
        return Row::compared(name, "%", paper, most, Absolute(10.0)).because(why);
    }
    let tolerance = Between(paper - 10.0, paper + 10.0);
    Row::held(name, "%", paper, most, tolerance)
}

/// A looser bound never saves less.
fn in_order(day: &Day) -> Vec<Row> {
    let most = |at| day.most_saved(Arm::Ours, at);
    let pairs = [(1, 0), (0, 2)];
    let row = |(loose, strict): (usize, usize)| {
        Row::held(
            format!("saved with {} less that with {}", OBJECTIVES[loose], OBJECTIVES[strict]),
            "%",
            "more",
            most(loose) - most(strict),
            AtLeast(0.0),
        )
    };
    pairs.map(row).into()
}

/// Fig. 10: what a coarse profile does to a strict objective.
fn misses_of_co_pi(day: &Day) -> Row {
    Row::held(
        format!("{}: hours in which Co-PI misses it and the search does not", OBJECTIVES[2]),
        "1",
        "often",
        day.missed(Arm::CoPi, 2) as f64 - day.missed(Arm::Ours, 2) as f64,
        AtLeast(day.hours() as f64 / 8.0),
    )
}

fn tails(day: &Day) -> Figure {
    let frame = Figure::new(
        format!("{}: its tail by the hour", OBJECTIVES[2]),
        Axis::linear("hour"),
        Axis::linear("p99 (us)"),
    );
    let arms = [Arm::Linux, Arm::Ours, Arm::CoPi];
    let curve = |arm| -> Vec<Point> {
        let tails = day.held(arm, 2).map(|held| held.tail_us.min(600.0));
        tails.enumerate().map(|(hour, tail_us)| Point::at(hour as f64, tail_us)).collect()
    };
    let frame = arms
        .into_iter()
        .fold(frame, |figure, arm| figure.with_curve(arm.name(), CurveStyle::Line, curve(arm)));
    let bound = [0.0, 23.0].map(|hour| Point::at(hour, OBJECTIVES[2].bound_us));
    frame.with_curve("bound", CurveStyle::Line, bound)
}
