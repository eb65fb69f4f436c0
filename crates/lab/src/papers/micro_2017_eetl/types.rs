//! Fig. 12: three core types against two, and how far EETL is from its bounds.

use super::SEED_FILE;
use super::amp::curve;
use super::curves::{Curve, panels};
use super::system::{Bench, judged, scenario};
use crate::experiment::{Experiment, LabError, Setup};
use crate::report::{Drawing, Printed, Report, Row, Tolerance};

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
    let bench = Bench::judging(setup, scenario.lucene_target)?;
    let two = scenario.default_amp();
    let three = scenario.amp(&[("slow", 7), ("medium", 2), ("fast", 2)]);
    let clairvoyant = KNOWN.iter().map(|rate| bench.best_clairvoyant(&two, *rate));
    let curves = [
        curve(&bench, &two, ("eetl", ""), "EETL-2F-13S", &LOADS)?,
        curve(&bench, &three, ("eetl", ""), "EETL-2F-2M-7S", &LOADS)?,
        curve(&bench, &two, ("ee", ""), "EE-2F-13S", &LOADS)?,
        curve(&bench, &two, ("tl", ""), "TL-2F-13S", &LOADS)?,
        curve(&bench, &three, ("tl", ""), "TL-2F-2M-7S", &LOADS)?,
        Curve::new("RC-2F-13S", clairvoyant.collect::<Result<_, _>>()?),
    ];
    let title = format!("{}, Fig. 12: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    report.rows = rows(&curves);
    report.figures = vec![Drawing::of(EXPERIMENT.name, &panels("core types", &curves, 200.0))?];
    Ok(report)
}

fn rows(curves: &[Curve; 6]) -> Vec<Row> {
    let [two, three, thrifty, _, _, known] = curves;
    let ratio = |row: &str, paper, ours, held| Row::held(row, "1", paper, &ours, held);
    let over = |ours: &Curve, theirs: &Curve, rate| ours.at(rate).energy_over(theirs.at(rate));
    let moves = crate::trial::of(&three.at(80.0).moves);
    vec![
        ratio(
            "EETL / EE energy, 10/s (calibrated)",
            Printed::Number(1.2),
            over(two, thrifty, 10.0),
            Tolerance::Between(1.15, 1.5),
        ),
        ratio(
            "EETL / EE energy, 50/s",
            Printed::Number(1.2),
            over(two, thrifty, 50.0),
            Tolerance::Between(1.15, 1.5),
        ),
        ratio(
            "RC / EETL energy, 10/s",
            Printed::Number(0.9),
            over(known, two, 10.0),
            Tolerance::Between(0.85, 1.0),
        ),
        ratio(
            "RC / EETL energy, 50/s",
            Printed::Number(0.9),
            over(known, two, 50.0),
            Tolerance::Between(0.85, 1.0),
        ),
        ratio(
            "EETL-2F-2M-7S / EETL-2F-13S energy, 10/s",
            Printed::Claim("below 1"),
            over(three, two, 10.0),
            Tolerance::AtMost(1.0),
        ),
        ratio(
            "EETL-2F-2M-7S / EETL-2F-13S energy, 100/s",
            Printed::Claim("above 1"),
            over(three, two, 100.0),
            Tolerance::AtLeast(1.0),
        ),
        Row::held(
            "EE-2F-13S p99, 10/s: misses",
            "ms",
            Printed::Claim("misses"),
            &thrifty.at(10.0).tail(),
            Tolerance::AtLeast(206.0),
        ),
        Row::held(
            "moves a request, three types, 80/s",
            "1",
            Printed::Claim("at most 2"),
            &moves,
            Tolerance::AtMost(2.0),
        ),
    ]
}
