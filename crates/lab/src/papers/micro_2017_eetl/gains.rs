//! Section 6.8: the benefit of gain scheduling.

use super::SEED_FILE;
use super::spikes::{late_percent, peak_ms, under_spikes};
use super::system::{DispatchBench, judged, scenario};
use crate::prelude::*;
use lull_sim::dispatch::DispatchTotals;
use lull_sim::stats::Estimate;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-gains",
    paper: "Haque et al. 2017, section 6.8",
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
    Ok(report)
}

fn other(row: String, unit: &'static str, ours: &Estimate) -> Row {
    let why = "the paper states that one band overshoots above 70/s, without a number and without \
               saying which gains";
    Row::reported(row, unit, "overshoots", ours, why)
}
