//! Fig. 12: three core types against two, and how far EETL is from its bounds.

use super::SEED_FILE;
use super::amp::curve;
use super::curves::{DispatcherCurve, panels};
use super::system::{DispatchBench, judged, scenario};
use crate::prelude::*;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-types",
    paper: "Haque et al. 2017, Fig. 12",
    seed_file: SEED_FILE,
    summary: "EETL on two and three core types, against Energy Efficient and Request Clairvoyant",
    run,
};

const LOADS: [f64; 5] = [10.0, 25.0, 50.0, 80.0, 100.0];
/// Loads at which the clairvoyant is searched for.
const KNOWN: [f64; 3] = [10.0, 25.0, 50.0];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let bench = DispatchBench::judging(setup, scenario.lucene_target)?;
    let two = scenario.default_amp();
    let three = scenario.amp(&[("slow", 7), ("medium", 2), ("fast", 2)]);
    let clairvoyant = KNOWN.iter().map(|rate| bench.best_clairvoyant(&two, *rate));
    let curves = [
        curve(&bench, &two, "eetl", "", "EETL-2F-13S", &LOADS)?,
        curve(&bench, &three, "eetl", "", "EETL-2F-2M-7S", &LOADS)?,
        curve(&bench, &two, "ee", "", "EE-2F-13S", &LOADS)?,
        curve(&bench, &two, "tl", "", "TL-2F-13S", &LOADS)?,
        curve(&bench, &three, "tl", "", "TL-2F-2M-7S", &LOADS)?,
        DispatcherCurve::new("RC-2F-13S", clairvoyant.collect::<Result<_, _>>()?),
    ];
    let title = format!("{}, Fig. 12: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    report.rows = rows(&curves);
    report.figures =
        vec![Drawing::from_figures(EXPERIMENT.name, &panels("core types", &curves, 200.0))?];
    Ok(report)
}

fn rows(curves: &[DispatcherCurve; 6]) -> Vec<Row> {
    let [two, three, ee, _, _, known] = curves;
    let over = |ours: &DispatcherCurve, theirs: &DispatcherCurve, rate| {
        ours.at(rate).energy_over(theirs.at(rate))
    };
    let moves = estimate_of(&three.at(80.0).moves);
    vec![
        Row::held(
            "EETL / EE energy, 10/s (calibrated)",
            "1",
            1.2,
            over(two, ee, 10.0),
            Between(1.15, 1.5),
        ),
        Row::held("EETL / EE energy, 50/s", "1", 1.2, over(two, ee, 50.0), Between(1.15, 1.5)),
        Row::held("RC / EETL energy, 10/s", "1", 0.9, over(known, two, 10.0), Between(0.85, 1.0)),
        Row::held("RC / EETL energy, 50/s", "1", 0.9, over(known, two, 50.0), Between(0.85, 1.0)),
        Row::held(
            "EETL-2F-2M-7S / EETL-2F-13S energy, 10/s",
            "1",
            "below 1",
            over(three, two, 10.0),
            AtMost(1.0),
        ),
        Row::held(
            "EETL-2F-2M-7S / EETL-2F-13S energy, 100/s",
            "1",
            "above 1",
            over(three, two, 100.0),
            AtLeast(1.0),
        ),
        Row::held(
            "EE-2F-13S p99, 10/s: misses",
            "ms",
            "misses",
            ee.at(10.0).tail(),
            AtLeast(206.0),
        ),
        Row::held("moves a request, three types, 80/s", "1", "at most 2", moves, AtMost(2.0)),
    ]
}
