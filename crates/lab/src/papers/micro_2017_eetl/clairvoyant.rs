//! Section 6.4: how much energy dispatchers that do not know the work of a request need, over
//! one that does.

use super::SEED_FILE;
use super::amp::curve;
use super::blind;
use super::curves::{DispatcherCurve, panels};
use super::system::{DispatchBench, judged, scenario, unlimited};
use crate::prelude::*;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-clairvoyant",
    paper: "Haque et al. 2017, section 6.4; our own dispatcher",
    seed_file: SEED_FILE,
    summary: "EETL and our own dispatcher against Request Clairvoyant, with an ablation",
    run,
};

const LOADS: [f64; 7] = [10.0, 25.0, 40.0, 50.0, 66.0, 80.0, 90.0];

/// The aim of our own dispatcher, as a multiple of Request Clairvoyant's energy, or of the blind
/// bound where that is higher.
const AIM: f64 = 1.05;

const BOUND: &str = "ours: the blind bound is the least energy of any dispatcher that sees age and \
                     work done and not the work, with a free core of every type at any moment, at \
                     the mean pace: the dual of a dynamic programme over age and work done";

const OUT_OF_REACH: &str = "our aim is 1.05; the blind bound is above it at this load, so that no \
                            dispatcher can reach it without knowing the work; held is the \
                            distance to the bound";

/// Above this load requests wait for the two fast cores, which the bound leaves out.
const UNCROWDED_PER_S: f64 = 50.0;

const CROWDED: &str = "at this load requests wait for the two fast cores, while the bound has one \
                       for each request; the row with a fast core for everybody shows the rest";

/// Our dispatcher, whole and without each of its parts.
const OURS: [(&str, &str); 4] = [
    ("just-in-time", ""),
    ("just-in-time, never gives up", "gives_up = false"),
    ("just-in-time, own pace", "own_pace = true"),
    ("just-in-time, measures the tail", "counts_late = false"),
];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let bench = DispatchBench::judging(setup, scenario.lucene_target)?;
    let model = scenario.default_amp();
    let known = LOADS.iter().map(|rate| bench.best_clairvoyant(&model, *rate));
    let known = DispatcherCurve::new("Request Clairvoyant", known.collect::<Result<_, _>>()?);
    let eetl = curve(&bench, &model, "eetl", "", "EETL", &LOADS)?;
    let plenty = "just-in-time, a fast core for everybody";
    let plenty = curve(&bench, &unlimited(&scenario), "just-in-time", "", plenty, &LOADS)?;
    let ours =
        OURS.map(|(name, config)| curve(&bench, &model, "just-in-time", config, name, &LOADS));
    let ours = ours.into_iter().collect::<Result<Vec<_>, _>>()?;
    let title = format!("{}, section 6.4: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    report.choices.push(BOUND.to_owned());
    report.rows = known_rows(&known, &eetl);
    for rate in LOADS {
        let blind_mj = blind::least_mj(
            &model,
            scenario.lucene,
            scenario.lucene_target,
            bench.percentile,
            rate,
        );
        let blind_mj = blind_mj.expect("the scenario's demand is gamma (tested)");
        report.rows.extend(reach_rows(rate, &known, &plenty, blind_mj));
        report.rows.extend(our_rows(rate, &known, &ours[0], blind_mj));
        report.rows.extend(other_rows(rate, &known, &eetl, &ours));
    }
    let curves: Vec<_> = [known, eetl, plenty].into_iter().chain(ours).collect();
    let figure = panels("knowing the work or not", &curves, 200.0);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figure)?];
    Ok(report)
}

fn known_rows(known: &DispatcherCurve, eetl: &DispatcherCurve) -> Vec<Row> {
    let row = |rate: f64| {
        let ratio = known.at(rate).energy_over(eetl.at(rate));
        let name = format!("RC / EETL energy, {rate}/s");
        if rate == 10.0 || rate == 50.0 {
            let held = Between(0.85, 1.0);
            return Row::held(name, "1", 0.9, ratio, held);
        }
        let why = "section 6.4 states 10 % less without the loads";
        Row::reported(name, "1", 0.9, ratio, why)
    };
    LOADS.map(row).to_vec()
}

/// The least cost of not knowing the work, and how close a dispatcher is to that bound
/// that never waits for a fast core.
fn reach_rows(
    rate: f64,
    known: &DispatcherCurve,
    plenty: &DispatcherCurve,
    blind_mj: f64,
) -> [Row; 2] {
    let over = known.at(rate).energy_mj.iter().map(|mj| blind_mj / mj);
    let over = estimate_of(&over.collect::<Vec<_>>());
    let why =
        "the least that any dispatcher needs that does not know the work, by a dynamic programme";
    let name = format!("{} / blind bound energy, {rate}/s", plenty.name);
    let near = plenty.at(rate).over_mj(blind_mj);
    // The bound is of the demand, the cell of 100,000 drawn requests: 1 % either way.
    let tight = Between(0.985, 1.03);
    [
        Row::reported(
            format!("blind bound / RC energy, {rate}/s"),
            "1",
            Printed::Nothing,
            over,
            why,
        ),
        Row::held(name, "1", Printed::Nothing, near, tight),
    ]
}

/// Our aim is 5 % over Request Clairvoyant. The row is held where the blind bound leaves room for
/// that; elsewhere no dispatcher can reach it, and the row holds the distance to the bound.
fn our_rows(rate: f64, known: &DispatcherCurve, ours: &DispatcherCurve, blind_mj: f64) -> Vec<Row> {
    let cell = ours.at(rate);
    let over = cell.energy_over(known.at(rate));
    let name = format!("{} / RC energy, {rate}/s", ours.name);
    let least = blind_mj / known.at(rate).energy().mean;
    // A controller's noise and moves take a hundredth of what the bound leaves.
    let mut rows = vec![if least <= 0.99 * AIM {
        Row::held(name, "1", Printed::Nothing, over, AtMost(AIM))
    } else {
        Row::reported(name, "1", Printed::Nothing, over, OUT_OF_REACH)
    }];
    let name = format!("{} / blind bound energy, {rate}/s", ours.name);
    let near = cell.over_mj(blind_mj);
    rows.push(if rate <= UNCROWDED_PER_S {
        Row::held(name, "1", Printed::Nothing, near, AtMost(AIM))
    } else {
        Row::reported(name, "1", Printed::Nothing, near, CROWDED)
    });
    let (met, target) = (AtMost(202.0), 200.0);
    rows.push(Row::held(format!("{} p99, {rate}/s", ours.name), "ms", target, cell.tail(), met));
    rows
}

/// EETL and the ablation.
fn other_rows(
    rate: f64,
    known: &DispatcherCurve,
    eetl: &DispatcherCurve,
    ours: &[DispatcherCurve],
) -> Vec<Row> {
    let part = "a part changed, to show what it is worth";
    let beside = "p99 of EETL, for comparison: its controller settles a little above";
    let (name, target) = (format!("EETL p99, {rate}/s"), 200.0);
    let mut rows = vec![Row::reported(name, "ms", target, eetl.at(rate).tail(), beside)];
    for curve in ours[1..].iter().chain([eetl]) {
        let over = curve.at(rate).energy_over(known.at(rate));
        let name = format!("{} / RC energy, {rate}/s", curve.name);
        rows.push(Row::reported(name, "1", Printed::Nothing, over, part));
    }
    rows
}
