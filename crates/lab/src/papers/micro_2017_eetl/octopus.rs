//! Fig. 13: EETL against Octopus-Man on two fast and two slow cores.

use super::SEED_FILE;
use super::amp::curve;
use super::curves::{DispatcherCurve, panels};
use super::system::{DispatchBench, judged, scenario};
use crate::prelude::*;
use lull_sim::dispatch::DispatchModel;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-octopus",
    paper: "Haque et al. 2017, Fig. 13",
    seed_file: SEED_FILE,
    summary: "EETL and Octopus-Man on two fast and two slow cores, 300 ms",
    run,
};

const LOADS: [f64; 10] = [4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 35.0];

/// Octopus-Man with its ideal table: the rung of each load, and its measurements.
struct Ideal {
    rungs: Vec<usize>,
    curve: DispatcherCurve,
}

fn ideal(bench: &DispatchBench<'_>, model: &DispatchModel) -> Result<Ideal, LabError> {
    let table = |rung: usize| format!("table = [{{ up_to_per_s = 1e9, rung = {rung} }}]");
    let configs: Vec<_> = (0..4).map(table).collect();
    let (mut rungs, mut cells) = (Vec::new(), Vec::new());
    for rate in LOADS {
        let (rung, cell) = bench.first_in_time(model, "octopus-man", &configs, rate)?;
        rungs.push(rung);
        cells.push(cell);
    }
    Ok(Ideal { rungs, curve: DispatcherCurve::new("Octopus-Man", cells) })
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let bench = DispatchBench::judging(setup, scenario.octopus_target)?;
    let model = scenario.amp(&[("slow", 2), ("fast", 2)]);
    let octopus = ideal(&bench, &model)?;
    let eetl = curve(&bench, &model, "eetl", "", "EETL", &LOADS)?;
    let steps = curve(&bench, &model, "octopus-man", "", "Octopus-Man, step rule", &LOADS)?;
    let title = format!("{}, Fig. 13: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    report.rows = rows(&octopus, &eetl);
    let curves = [octopus.curve, eetl, steps];
    let figure = panels("2F-2S, p99 below 300 ms", &curves, 300.0);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figure)?];
    Ok(report)
}

fn rows(octopus: &Ideal, eetl: &DispatcherCurve) -> Vec<Row> {
    // The first load that needs fast cores, and the last that does not.
    let step = octopus.rungs.iter().position(|rung| *rung >= 2).unwrap_or(LOADS.len() - 1);
    let cells = &octopus.curve.cells;
    let before = &cells[step.saturating_sub(1)];
    let jump = cells[step].energy_over(before);
    let both = octopus.rungs.iter().position(|rung| *rung == 3).unwrap_or(LOADS.len() - 1);
    let mut rows = vec![
        Row::held(
            "Octopus-Man's energy step from slow to fast cores",
            "1",
            3.0,
            jump,
            Between(2.7, 3.4),
        ),
        Row::compared("load of the step", "1/s", 20.0, LOADS[step], Relative(0.25))
            .because("how much two slow cores can take depends on the shape of the demand's tail"),
        Row::compared(
            "load from which both fast cores are used",
            "1/s",
            20.0,
            LOADS[both],
            Relative(0.25),
        )
        .because("how much one fast core can take depends on the shape of the demand's tail"),
    ];
    for rate in [15.0, 20.0, 25.0] {
        rows.push(Row::held(
            format!("EETL / Octopus-Man energy, {rate}/s"),
            "1",
            "below 1",
            eetl.at(rate).energy_over(octopus.curve.at(rate)),
            AtMost(0.95),
        ));
        rows.push(Row::held(
            format!("EETL p99, {rate}/s"),
            "ms",
            300.0,
            eetl.at(rate).tail(),
            AtMost(309.0),
        ));
    }
    rows
}
