//! Fig. 10: efficiency and tails over the size of a batch.

use super::SEED_FILE;
use super::system::{
    GateBench, GateCell, choices, ee_p99, ee_p999, hertz, in_c6, mongo, p99_over_mean,
    p999_over_mean, throughput, tpp, watts,
};
use crate::prelude::*;
use lull_sim::oversubscribed::GatedTotals;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-batch",
    paper: "Li et al. 2025, Fig. 10",
    seed_file: SEED_FILE,
    summary: "REEF with batches of 1 to 8 queries",
    run,
};

const BATCHES: [u32; 4] = [1, 2, 4, 8];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, parameters) = mongo();
    let bench = GateBench::settled(setup);
    let load_per_s = model.device.rate_per_s;
    let cell = |batch: u32| {
        let config = format!("cap = 23\nbatch = {batch}\nload_per_s = {load_per_s:?}");
        bench.cell(&model, "reef", &config)
    };
    let cells = BATCHES.into_iter().map(cell).collect::<Result<Vec<_>, _>>()?;
    let mut report = EXPERIMENT.report("REEF, Fig. 10", setup);
    report.choices = choices(&parameters);
    report.choices.push("C is 23, all cores but the system's; lambda 105 % of the device".into());
    report.rows = rows(&cells);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&cells))?];
    Ok(report)
}

fn rows(cells: &[GateCell]) -> Vec<Row> {
    let [one, two, _, eight] = cells else { return Vec::new() };
    let band = Between(3.4, 4.2);
    let mut rows = vec![
        Row::held("EE(P99) of N = 2 over N = 8", "1", 3.75, two.over(eight, ee_p99), band),
        Row::held("EE(P99.9) of N = 2 over N = 8", "1", 3.64, two.over(eight, ee_p999), band),
    ];
    for (batch, cell) in BATCHES.into_iter().zip(cells).skip(1) {
        let wanted = f64::from(batch);
        rows.push(Row::held(
            format!("p99 over mean, N = {batch}: N by the closed loop"),
            "1",
            Printed::Nothing,
            cell.mean(p99_over_mean),
            Between(0.9 * wanted, 1.1 * wanted),
        ));
    }
    rows.extend(others(one, two, eight));
    rows
}

fn others(one: &GateCell, two: &GateCell, eight: &GateCell) -> Vec<Row> {
    let locality = "batches keep nothing in caches here, and a C6 entry costs 0.93 mJ; the sign \
                    turns to the paper's only if it costs three times that";
    let silent = "no number is printed";
    vec![
        Row::change("EE(TPP) of N = 2 against N = 8", "%", -7.0, two.change_percent(eight, tpp))
            .because(locality),
        Row::change("power of N = 2 against N = 8", "%", 4.61, two.change_percent(eight, watts))
            .because(locality),
        Row::reported("power, N = 2", "W", Printed::Nothing, two.mean(watts), silent),
        Row::reported(
            "CPU frequency of N = 2 against N = 8",
            "%",
            Printed::Nothing,
            two.change_percent(eight, hertz),
            silent,
        ),
        Row::reported(
            "C6 residency of N = 2 against N = 8",
            "points",
            Printed::Nothing,
            two.minus(eight, 100.0, in_c6),
            silent,
        ),
        Row::reported(
            "C6 residency of N = 1 against N = 2",
            "points",
            Printed::Nothing,
            one.minus(two, 100.0, in_c6),
            silent,
        ),
        Row::reported(
            "throughput of N = 1 against N = 2",
            "%",
            Printed::Nothing,
            one.change_percent(two, throughput),
            silent,
        ),
    ]
}

fn figures(cells: &[GateCell]) -> [Figure; 2] {
    let points = |value: fn(&GatedTotals) -> f64| -> Vec<Point> {
        let each = BATCHES.into_iter().zip(cells);
        each.map(|(batch, cell)| Point::at(f64::from(batch), cell.mean(value).mean)).collect()
    };
    let axis = || Axis::linear("queries a batch");
    [
        Figure::new("Energy efficiency by batch", axis(), Axis::linear("queries/J"))
            .with_curve("EE(TPP)", CurveStyle::Line, points(tpp))
            .with_curve("EE(P99)", CurveStyle::Line, points(ee_p99))
            .with_curve("EE(P99.9)", CurveStyle::Line, points(ee_p999)),
        Figure::new("Tails by batch", axis(), Axis::linear("over the mean"))
            .with_curve("p99", CurveStyle::Line, points(p99_over_mean))
            .with_curve("p99.9", CurveStyle::Line, points(p999_over_mean)),
    ]
}
