//! Fig. 16: the savings that remain when other parts of the machine draw power.

use super::SEED_FILE;
use super::system::{DispatchBench, judged, scenario};
use crate::prelude::*;
use lull_sim::stats::Estimate;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-noncpu",
    paper: "Haque et al. 2017, Fig. 16",
    seed_file: SEED_FILE,
    summary: "TL over EETL when a third, half or two thirds of the power is not the processor's",
    run,
};

const SHARES: [f64; 5] = [0.0, 0.2, 0.33, 0.5, 0.67];
const LOADS: [f64; 3] = [10.0, 50.0, 80.0];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let bench = DispatchBench::judging(setup, scenario.lucene_target)?;
    let model = scenario.default_amp();
    let mut curves: Vec<(f64, Vec<Estimate>)> = Vec::new();
    for rate in LOADS {
        let tail = bench.cell(&model, "tl", "", rate)?;
        let eetl = bench.cell(&model, "eetl", "", rate)?;
        let ratio = |share: &f64| {
            let pairs = tail.energy_mj.iter().zip(&eetl.energy_mj);
            // The same power at any policy: that of TL's processor, by the share.
            let other = |tail: f64| tail * share / (1.0 - share);
            estimate_of(
                &pairs
                    .map(|(tl, ours)| (tl + other(*tl)) / (ours + other(*tl)))
                    .collect::<Vec<_>>(),
            )
        };
        curves.push((rate, SHARES.iter().map(ratio).collect()));
    }
    let title = format!("{}, Fig. 16: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    report.choices.push(
        "derived: non-CPU energy a request is share/(1 - share) of TL's under any dispatcher; with \
         TL/EETL = 2.45 that gives the printed 42 % and 24 % to the digit"
            .to_owned(),
    );
    let low = &curves[0].1;
    let held = |row: &str, printed, ours: &Estimate| {
        let near = Absolute(6.0);
        Row::held(row, "%", printed, change_percent(ours), near)
    };
    report.rows = vec![
        held("TL above EETL, non-CPU 50 %, 10/s", 42.0, &low[3]),
        held("TL above EETL, non-CPU 67 %, 10/s", 24.0, &low[4]),
        Row::reported(
            "TL above EETL, non-CPU 33 %, 10/s",
            "%",
            Printed::Nothing,
            change_percent(&low[2]),
            "section 5.3 takes 33 % for today's share; Fig. 16 has a point without a number",
        ),
    ];
    let axes = Figure::new(
        "Energy of TL over EETL",
        Axis::linear("non-CPU share of power"),
        Axis::linear("TL / EETL energy"),
    );
    let figure = curves.iter().fold(axes, |figure, (rate, ratios)| {
        let points =
            SHARES.iter().zip(ratios).map(|(share, ratio)| Point::from_estimate(*share, ratio));
        figure.with_curve(format!("{rate}/s"), CurveStyle::Line, points)
    });
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &[figure])?];
    Ok(report)
}
