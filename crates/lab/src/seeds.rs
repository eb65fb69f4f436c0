//! Runs an experiment on one seed after another, and judges its rows by the claims that they
//! answer.

use crate::claims::{self, VALUES};
use crate::experiment::{Experiment, LabError, Setup};
use crate::report::Report;

/// Runs an experiment on one seed. A row that answers a claim is judged by the claim.
///
/// # Errors
/// As [`Experiment::run`].
pub fn run(experiment: &Experiment, setup: &Setup<'_>) -> Result<Report, LabError> {
    Ok(claims::judge_rows(experiment.run(setup)?))
}

/// Runs an experiment; `None` if one of its own parameters was found on the seed.
///
/// # Errors
/// As [`Experiment::run`].
pub fn run_unless_known(
    experiment: &Experiment,
    setup: &Setup<'_>,
) -> Result<Option<Report>, LabError> {
    match run(experiment, setup) {
        Ok(report) => Ok(Some(report)),
        Err(LabError::Known { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs an experiment on one seed after another, the first that of the setup, until each compared
/// row has [`VALUES`] independent values and a verdict that is not open, and on `most` seeds at
/// most. Seeds that a parameter was found on are passed over. To stop by the verdict widens the
/// chance of a wrong one; the budget of a recorded run is
/// [`SEED_BUDGET`](crate::claims::SEED_BUDGET).
///
/// # Errors
/// As [`Experiment::run`]; [`LabError::Known`] if the first seed is such a seed.
pub fn run_until_decided(
    experiment: &Experiment,
    mut setup: Setup<'_>,
    most: usize,
) -> Result<Report, LabError> {
    let first = setup.seed;
    let mut whole = run(experiment, &setup)?;
    run_further(&mut whole, most, |further| {
        setup.seed = first + further;
        run_unless_known(experiment, &setup)
    })?;
    Ok(whole)
}

/// Adds the reports of further seeds, counted from 1 behind the first, to that of the first by
/// the rule of [`run_until_decided`]. `report` returns `None` for a seed that is passed over.
///
/// # Errors
/// As `report`.
pub fn run_further<E>(
    whole: &mut Report,
    most: usize,
    mut report: impl FnMut(u64) -> Result<Option<Report>, E>,
) -> Result<(), E> {
    let mut further = 0;
    while whole.seeds.len() < most && !whole.is_decided_by(VALUES) {
        further += 1;
        if let Some(report) = report(further)? {
            whole.absorb(report);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Row, Tolerance, Verdict};
    use lull_sim::stats::Estimate;

    /// The report of a seed on which the row has eight values around this mean.
    fn of_seed(seed: u64, mean: f64) -> Report {
        let ours = Estimate { mean, half_width: 0.1, values: 8 };
        Report {
            experiment: "example",
            seed_file: "",
            title: String::new(),
            choices: Vec::new(),
            rows: vec![Row::compared("a", "1", "below 1", ours, Tolerance::AtMost(1.0))],
            figures: Vec::new(),
            commit: String::new(),
            seeds: vec![seed],
            found_on: Vec::new(),
            quick: false,
        }
    }

    #[test]
    fn seeds_are_added_while_a_row_is_open_and_the_budget_lasts() {
        let seeds_from = |mean: f64, most| {
            let mut whole = of_seed(1, mean);
            let next = |further| Ok::<_, LabError>(Some(of_seed(1 + further, mean)));
            run_further(&mut whole, most, next).unwrap();
            (whole.seeds.len(), whole.rows[0].verdict)
        };
        assert_eq!(seeds_from(0.5, 20), (1, Verdict::Pass), "eight values decide it");
        assert_eq!(seeds_from(0.95, 20), (3, Verdict::Pass), "an open row takes further seeds");
        assert_eq!(seeds_from(0.95, 2), (2, Verdict::Open), "no more seeds than requested");
    }
}
