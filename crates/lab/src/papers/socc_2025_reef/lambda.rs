//! Fig. 9: efficiency and tails over the load limit lambda.

use super::SEED_FILE;
use super::system::{GateBench, GateCell, choices, ee_p99, ee_p999, mongo, p99_over_mean, tpp};
use crate::prelude::*;
use lull_sim::oversubscribed::{GatedTotals, OversubscribedModel};
use lull_sim::stats::Estimate;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-lambda",
    paper: "Li et al. 2025, Fig. 9",
    seed_file: SEED_FILE,
    summary: "REEF at load limits from 100 to 150 % of a busy device's throughput",
    run,
};

/// Load limits, in percent of the mean at a busy device.
const LIMITS: [f64; 8] = [95.0, 100.0, 102.5, 105.0, 107.5, 110.0, 125.0, 150.0];
/// Indices of 100 and 105 % in the list.
const AT_100: usize = 1;
const AT_105: usize = 3;
const AT_110: usize = 5;

/// REEF whose rounds follow lambda alone, and REEF with its cap.
fn sweep(
    bench: &GateBench<'_>,
    model: &OversubscribedModel,
    overlap: bool,
) -> Result<Vec<GateCell>, LabError> {
    // A device counts as busy from 95 % on (section 3.1).
    let busy_per_s = 0.95 * model.device.rate_per_s;
    let cell = |limit: f64| {
        let turns = if overlap { "cap" } else { "all" };
        let config = format!(
            "cap = 23\nbatch = 2\nload_per_s = {busy_per_s:?}\nload_percent = {limit:?}\nturns = \
             \"{turns}\"\noverlap = {overlap}"
        );
        bench.cell(model, "reef", &config)
    };
    LIMITS.into_iter().map(cell).collect()
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, parameters) = mongo();
    let bench = GateBench::settled(setup);
    let loose = sweep(&bench, &model, true)?;
    let capped = sweep(&bench, &model, false)?;
    let mut report = EXPERIMENT.report("REEF, Fig. 9", setup);
    report.choices = choices(&parameters);
    report.choices.push(
        "mean lambda is 95 % of what the device can do, where it begins to count as busy; the \
         knee exists only where outstanding work may exceed C, so rounds of C turns follow each \
         other by lambda alone; the last row has the cap, as REEF does"
            .to_owned(),
    );
    report.rows = rows(&loose, &capped);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&loose, &capped))?];
    Ok(report)
}

/// The last limit before tails grow by a quarter, in each replication.
fn knee(cells: &[GateCell]) -> Estimate {
    let of_one = |replication: usize| {
        let tail = |cell: &GateCell| p99_over_mean(&cell.runs[replication]);
        let grown = |cell: &GateCell| tail(cell) > 1.25 * tail(&cells[AT_100]);
        let first = cells.iter().position(grown).unwrap_or(LIMITS.len());
        LIMITS[first.saturating_sub(1)]
    };
    estimate_of(&(0..cells[AT_100].runs.len()).map(of_one).collect::<Vec<_>>())
}

fn rows(loose: &[GateCell], capped: &[GateCell]) -> Vec<Row> {
    let over = |one: usize, other: usize, value: fn(&GatedTotals) -> f64| {
        loose[one].over(&loose[other], value)
    };
    let held = |text: &str, claim, ours, tolerance| Row::held(text, "1", claim, ours, tolerance);
    let last = LIMITS.len() - 1;
    vec![
        Row::held("limit beyond which tails grow", "%", 105.0, knee(loose), Between(100.0, 110.0)),
        held("EE(TPP), 105 % over 100 %", "above 1", over(AT_105, AT_100, tpp), AtLeast(1.0)),
        held(
            "EE(TPP), 110 % over 105 %: no more to gain",
            "flat",
            over(AT_110, AT_105, tpp),
            AtMost(1.02),
        ),
        held("EE(P99), 110 % over 105 %", "below 1", over(AT_110, AT_105, ee_p99), AtMost(0.9)),
        held("EE(P99.9), 110 % over 105 %", "below 1", over(AT_110, AT_105, ee_p999), AtMost(0.9)),
        Row::reported(
            "threads in I/O at 100 %",
            "threads",
            Printed::Nothing,
            loose[AT_100].mean(|served| served.threads.disk),
            "not printed for this figure",
        ),
        Row::reported(
            "threads in I/O at 110 %",
            "threads",
            Printed::Nothing,
            loose[AT_110].mean(|served| served.threads.disk),
            "not printed for this figure",
        ),
        Row::compared(
            "with the cap: EE(P99), 150 % over 105 %",
            "1",
            "below 1",
            capped[last].over(&capped[AT_105], ee_p99),
            AtMost(1.0),
        )
        .because(
            "with no more than C workers at a time, a limit too high only means no rest beyond \
             the shortest",
        ),
    ]
}

fn figures(loose: &[GateCell], capped: &[GateCell]) -> [Figure; 2] {
    let points = |cells: &[GateCell], value: fn(&GatedTotals) -> f64| -> Vec<Point> {
        let each = LIMITS.into_iter().zip(cells);
        each.map(|(limit, cell)| Point::at(limit, cell.mean(value).mean)).collect()
    };
    let axis = || Axis {
        bounds: Some([95.0, 150.0]),
        ..Axis::linear("load limit (% of the mean at a busy device)")
    };
    [
        Figure::new("Energy efficiency by load limit", axis(), Axis::linear("queries/J"))
            .with_curve("EE(TPP)", CurveStyle::Line, points(loose, tpp))
            .with_curve("EE(P99)", CurveStyle::Line, points(loose, ee_p99))
            .with_curve("EE(P99.9)", CurveStyle::Line, points(loose, ee_p999)),
        Figure::new("Tail by load limit", axis(), Axis::linear("p99 over mean"))
            .with_curve("rounds by lambda alone", CurveStyle::Line, points(loose, p99_over_mean))
            .with_curve("with the cap", CurveStyle::Line, points(capped, p99_over_mean)),
    ]
}
