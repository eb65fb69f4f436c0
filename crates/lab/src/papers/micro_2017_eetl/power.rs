//! Fig. 11: slow cores that are less thrifty, at equal peak power.

use super::SEED_FILE;
use super::amp::curve;
use super::curves::{Curve, panels};
use super::system::{Bench, Scenario, judged, scenario};
use crate::experiment::{Experiment, LabError, Setup};
use crate::report::{Drawing, Printed, Report, Row, Tolerance};
use crate::trial::of;
use lull_measure::Watts;
use lull_sim::dispatch::DispatchModel;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-power",
    paper: "Haque et al. 2017, Fig. 11",
    seed_file: SEED_FILE,
    summary: "EETL where slow cores take 6.8, 5 and 4 times less than fast ones, and on DVFS",
    run,
};

const LOADS: [f64; 4] = [10.0, 25.0, 50.0, 66.0];

/// Two fast cores and so many slow ones that take a fifth or a quarter.
fn thrift(scenario: &Scenario, slow: u32, times: f64) -> DispatchModel {
    let mut model = scenario.amp(&[("slow", slow), ("fast", 2)]);
    model.types[0].watts = Watts(6.8 / times);
    model
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let bench = Bench::judging(setup, scenario.lucene_target)?;
    let machines = [
        ("EETL-AMP-6.8x (2F-13S)", scenario.default_amp()),
        ("EETL-AMP-5x (2F-10S)", thrift(&scenario, 10, 5.0)),
        ("EETL-AMP-4x (2F-8S)", thrift(&scenario, 8, 4.0)),
        ("EETL-DVFS", scenario.dvfs(4)),
    ];
    let mut curves = Vec::new();
    let mut most = Vec::new();
    for (name, model) in &machines {
        let loads = if model.types.len() > 2 { &LOADS[..3] } else { &LOADS[..] };
        curves.push(curve(&bench, model, ("eetl", ""), name, loads)?);
        most.push(bench.most_load(model, (30.0, 150.0))?);
    }
    let title = format!("{}, Fig. 11: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    report.choices.push(
        "the default is called 6.5x in section 6.3 and 6.8x in Table 4; the table is used".into(),
    );
    report.rows = rows(&curves, &most);
    report.figures =
        vec![Drawing::of(EXPERIMENT.name, &panels("thrift of slow cores", &curves, 200.0))?];
    Ok(report)
}

fn rows(curves: &[Curve], most: &[f64]) -> Vec<Row> {
    let drop = |index: usize| of(&[most[index] / most[0]]);
    let order = |row: &str, paper, ours, held| Row::held(row, "1", paper, &ours, held);
    let shape = "only the order is asked for: how load falls with slow cores hangs on the shape of \
                 the demand, which the paper shows as a histogram";
    let energy = |index: usize, rate| curves[index].at(rate).energy_over(curves[0].at(rate));
    vec![
        order(
            "largest load, 5x over 6.8x",
            Printed::Number(0.77),
            drop(1),
            Tolerance::AtMost(0.99),
        )
        .because(shape),
        order(
            "largest load, 4x over 6.8x",
            Printed::Number(0.66),
            drop(2),
            Tolerance::AtMost(0.95),
        )
        .because(shape),
        order(
            "largest load, 4x over 5x",
            Printed::Number(0.86),
            of(&[most[2] / most[1]]),
            Tolerance::AtMost(0.99),
        ),
        order(
            "largest load, 4 DVFS cores over 4x",
            Printed::Number(0.76),
            of(&[most[3] / most[2]]),
            Tolerance::AtMost(0.99),
        ),
        order(
            "energy, 5x over 6.8x, 10/s",
            Printed::Number(1.14),
            energy(1, 10.0),
            Tolerance::AtLeast(1.0),
        ),
        order(
            "energy, 4x over 5x, 10/s",
            Printed::Claim("above 1"),
            curves[2].at(10.0).energy_over(curves[1].at(10.0)),
            Tolerance::AtLeast(1.0),
        ),
        order(
            "energy, DVFS over 4x, 50/s",
            Printed::Claim("above 1"),
            curves[3].at(50.0).energy_over(curves[2].at(50.0)),
            Tolerance::AtLeast(1.0),
        ),
    ]
}
