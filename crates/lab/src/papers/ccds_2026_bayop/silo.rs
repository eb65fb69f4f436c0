//! Fig. 11: a day of changing load on Silo, whose requests are transactions.

use super::SEED_FILE;
use super::hourly::{Arm, Day, Plan, judge};
use super::system::{OBJECTIVES, scenario};
use crate::prelude::*;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "bayop-silo",
    paper: "Dong et al. 2026, Fig. 11",
    seed_file: SEED_FILE,
    summary: "24 hours of Silo under two objectives, and the third that nothing meets",
    run,
};

/// Rates that Co-PI's profile has (Table 1).
const PROFILED: [f64; 3] = [50e3, 100e3, 200e3];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (scenario, choices) = scenario();
    let plan = Plan {
        linux: scenario.silo(),
        ebbrt: scenario.silo_on_ebbrt(),
        objectives: OBJECTIVES[..2].to_vec(),
        profiled: PROFILED,
        peak_per_s: 250e3,
    };
    let day = plan.run(setup)?;
    let mut report = EXPERIMENT.report("CCDS 2026, Fig. 11: Silo over a day", setup);
    report.choices = choices;
    report.choices.extend(plan.choices());
    report.rows.extend(saved(&day));
    for at in 0..plan.objectives.len() {
        report.rows.extend(judge(&day, at));
    }
    let least_us = plan.least_tail_us(setup, OBJECTIVES[2])?;
    report.rows.push(Row::held(
        "least p99 of any pair at the idlest hour",
        "us",
        "above 200",
        least_us,
        AtLeast(OBJECTIVES[2].bound_us),
    ));
    report.figures = vec![Drawing::from_figures("bayop-silo-power", &day.power())?];
    Ok(report)
}

fn saved(day: &Day) -> [Row; 2] {
    let most = [0, 1].map(|at| day.most_saved(Arm::Ours, at));
    [
        Row::compared(
            format!("{}: most that the search saves in an hour", OBJECTIVES[0]),
            "%",
            30.0,
            most[0],
            Between(20.0, 40.0),
        ),
        Row::held(
            format!("saved with {} less that with {}", OBJECTIVES[1], OBJECTIVES[0]),
            "%",
            "more",
            most[1] - most[0],
            AtLeast(0.0),
        ),
    ]
}
