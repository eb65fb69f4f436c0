//! Fig. 3 and section 6.8: why gains depend on the load, and the benefit of scheduling them.

use super::SEED_FILE;
use super::spikes::{late_percent, peak_ms, under_spikes};
use super::system::{DispatchBench, Scenario, fixed_threshold, judged, scenario};
use crate::prelude::*;
use lull_sim::dispatch::DispatchTotals;
use lull_sim::stats::Estimate;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-gains",
    paper: "Haque et al. 2017, Fig. 3 and section 6.8",
    seed_file: SEED_FILE,
    summary: "EETL with three bands of gains, with one, and without an own start",
    run,
};

const BANDS: [(&str, &str); 4] = [
    ("three bands (Table 2)", ""),
    ("first band only", "gains = [{ kp = 0.11, ki = 0.49, kd = 0.0 }]"),
    ("second band only", "gains = [{ kp = 0.15, ki = 0.25, kd = 0.0 }]"),
    ("third band only", "gains = [{ kp = 0.19, ki = 0.17, kd = 0.03 }]"),
];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let bench = DispatchBench::judging(setup, scenario.lucene_target)?;
    let title = format!("{}, section 6.8: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    let mut scheduled: Vec<f64> = Vec::new();
    for (number, (name, config)) in BANDS.into_iter().enumerate() {
        let runs = under_spikes(&bench, "eetl", config)?;
        let each = |value: &dyn Fn(&DispatchTotals) -> f64| {
            estimate_of(&runs.iter().map(value).collect::<Vec<_>>())
        };
        let all: Vec<f64> = runs.iter().map(|outcome| late_percent(outcome, 200.0)).collect();
        let late = estimate_of(&all);
        let row = format!("{name}: epochs with p99 above 1.05 targets");
        if number == 0 {
            report.rows.push(Row::held(row, "%", "target kept", late, AtMost(12.0)));
            scheduled = all;
        } else {
            let more = all.iter().zip(&scheduled).map(|(one, three)| one - three);
            let more = estimate_of(&more.collect::<Vec<_>>());
            let name = format!("{row}, less those of three bands");
            let claim = "overshoots above 70/s";
            report.rows.push(Row::compared(name, "points", claim, more, AtLeast(0.0)));
            report.rows.push(other(row, "%", &late));
        }
        report.rows.push(other(format!("{name}: largest p99 of an epoch"), "ms", &each(&peak_ms)));
    }
    report.rows.push(slope_row(&bench, &scenario)?);
    Ok(report)
}

/// Fig. 3: how much longer the tail is with a longer threshold, at a high load and at a low one.
fn slope_row(bench: &DispatchBench<'_>, scenario: &Scenario) -> Result<Row, LabError> {
    let model = scenario.default_amp();
    let rise = |rate_per_s: f64| -> Result<Vec<f64>, LabError> {
        let [low, high] = [50.0, 150.0].map(|threshold_ms| {
            bench.cell(&model, "eetl", &fixed_threshold(threshold_ms, bench.target), rate_per_s)
        });
        let (low, high) = (low?, high?);
        Ok(high.tail_ms.iter().zip(&low.tail_ms).map(|(high, low)| high - low).collect())
    };
    let (at_10, at_80) = (rise(10.0)?, rise(80.0)?);
    let steeper = at_80.iter().zip(&at_10).map(|(at_80, at_10)| at_80 - at_10);
    let steeper = estimate_of(&steeper.collect::<Vec<_>>());
    let name = "rise of p99 from a threshold of 50 ms to 150 ms, 80/s less 10/s";
    let claim = "steeper at a high load";
    Ok(Row::compared(name, "ms", claim, steeper, AtLeast(0.0)))
}

fn other(row: String, unit: &'static str, ours: &Estimate) -> Row {
    let why = "the paper states that one band overshoots above 70/s, without a number and without \
               saying which gains";
    Row::reported(row, unit, "overshoots", ours, why)
}
