//! Table II: tolerance, interference and entropy from the printed latencies.
//!
//! Every figure of the table follows from three latencies an app by equations
//! 11 to 17, so the comparison is exact. Deviating figures are errors of the paper.

use super::paper::{Paper, TableIiBlock, TableIiRow, paper};
use super::platform::{Platform, WAYS, steady};
use super::play::{Played, Span, UNMANAGED, play};
use super::{SEED_FILE, sourced};
use crate::prelude::*;
use lull_measure::Nanos;
use lull_measure::entropy::{
    LcReading, RelativeImportance, combine, lc_entropy, tolerance_ability,
};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-table2",
    paper: "Liu et al. 2024, Table II",
    seed_file: SEED_FILE,
    summary: "Tolerance, interference and entropy of the printed latencies, figure by figure",
    run,
};

/// Half a unit of the printed second digit.
const ROUNDING: Tolerance = Absolute(0.005);
const SHIFTED: &str = "the print contradicts equation 12 on its own latencies: in the block of 7 \
                       cores the column R_i has slid down by one row, with the mean on 6 cores \
                       on top";
const TRUNCATED: &str = "the print is cut off after two digits, not rounded";

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let paper = paper();
    let mut report = EXPERIMENT.report(paper.titled("Table II"), setup);
    for block in &paper.table2 {
        report.rows.extend(block_rows(&paper, block));
    }
    let first: Vec<_> = readings(&paper, &paper.table2[0]);
    let ability = tolerance_ability(&first);
    let why = "equation 1 adds ratios; the text on figure 2 adds milliseconds and calls that TA";
    report.rows.push(Row::reported("TA of the three apps", "", Printed::Nothing, ability, why));
    let simulated = simulate(setup, &paper)?;
    report.rows.extend(simulated.iter().flat_map(|(block, played)| tail_rows(block, played)));
    report.choices = sourced::choices(&Platform::a().parameters);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&paper, &simulated))?];
    Ok(report)
}

fn readings(paper: &Paper, block: &TableIiBlock) -> Vec<LcReading> {
    block.app.iter().filter_map(|row| paper.reading(row)).collect()
}

fn block_rows(paper: &Paper, block: &TableIiBlock) -> Vec<Row> {
    let readings = readings(paper, block);
    let mut rows = Vec::new();
    for (row, reading) in block.app.iter().zip(&readings) {
        rows.extend(app_rows(block.cores, row, reading));
    }
    let mean = |value: fn(&LcReading) -> f64| {
        readings.iter().map(value).sum::<f64>() / readings.len() as f64
    };
    let lc = lc_entropy(&readings);
    let whole = combine(lc, Some(block.e_be), RelativeImportance::default());
    let columns = [
        ("A", block.system.a, mean(LcReading::tolerance)),
        ("R", block.system.r, mean(LcReading::interference)),
        ("ReT", block.system.ret, mean(LcReading::remaining_tolerance)),
        ("E_LC", block.e_lc, lc.unwrap_or(f64::NAN)),
        ("E_S with the printed E_BE", block.e_s, whole.system),
    ];
    rows.extend(
        columns.map(|(column, printed, ours)| row(block.cores, "system", column, printed, ours)),
    );
    rows
}

fn app_rows(cores: u16, printed: &TableIiRow, reading: &LcReading) -> [Row; 4] {
    let columns = [
        ("A", printed.a, reading.tolerance()),
        ("R", printed.r, reading.interference()),
        ("ReT", printed.ret, reading.remaining_tolerance()),
        ("Q", printed.q, reading.untolerated()),
    ];
    columns.map(|(column, paper, ours)| row(cores, &printed.name, column, paper, ours))
}

/// A figure of the table, with a remark where the paper has an error.
fn row(cores: u16, subject: &str, column: &str, printed: f64, ours: f64) -> Row {
    let name = format!("{cores} cores, {subject}, {column}");

    match (cores, column) {
        (7, "R") => Row::reported(name, "", printed, Formula(ours), SHIFTED),
        (7, "Q") if ours > 0.0 => Row::reported(name, "", printed, Formula(ours), TRUNCATED),
        _ => Row::held(name, "", printed, Formula(ours), ROUNDING),
    }
}

/// The table's scene in the simulator, with the block that prints it.
type Simulated<'p> = Vec<(&'p TableIiBlock, Played)>;

fn simulate<'p>(setup: &Setup<'_>, paper: &'p Paper) -> Result<Simulated<'p>, LabError> {
    let platform = Platform::a();
    let second = Nanos::from_secs(1);
    let span =
        Span { warmup: second * 5, length: second * setup.either(120, 20), seed: setup.seed };
    setup.progress.expect(paper.table2.len() as u64);
    let one = |block: &'p TableIiBlock| {
        let loads = ["xapian", "moses", "img-dnn"].map(|app| (app, steady(0.2)));
        let scene = platform.scene(block.cores, WAYS, &loads, &["fluidanimate"])?;
        let played = play(&scene, &UNMANAGED, span, 0)?;
        setup.progress.step();
        Ok((block, played))
    };
    paper.table2.iter().map(one).collect()
}

fn tail_rows<'r>(block: &'r TableIiBlock, played: &'r Played) -> impl Iterator<Item = Row> + 'r {
    let why = "the simulated node is fitted to the shape of this table over cores, not to its \
               latencies: a machine at its limit has no others than those of its queues";
    block.app.iter().zip(&played.tails_ms).map(move |(row, tail_ms)| {
        let name = format!("{} cores, {}, simulated tail", block.cores, row.name);
        Row::reported(name, "ms", row.tail_ms, *tail_ms, why)
    })
}

fn figures(paper: &Paper, simulated: &Simulated<'_>) -> Vec<Figure> {
    let names: Vec<&str> = paper.table2[0].app.iter().map(|row| row.name.as_str()).collect();
    let cores = || Axis::linear("cores").between(5.5, 8.5).ticks([6.0, 7.0, 8.0]);
    let tails = Figure::new("Unmanaged, 20 % load", cores(), Axis::log("95th percentile (ms)"));
    let mut tails = names.iter().enumerate().fold(tails, |figure, (app, name)| {
        let points = simulated
            .iter()
            .map(|(block, played)| Point::at(f64::from(block.cores), played.tails_ms[app]));
        figure.with_curve(format!("{name}, simulated"), CurveStyle::Line, points)
    });
    for (app, name) in names.iter().enumerate() {
        let points = paper
            .table2
            .iter()
            .map(|block| Point::at(f64::from(block.cores), block.app[app].tail_ms));
        tails = tails.printed(app, format!("{name}, printed"), points);
    }
    let entropy = Figure::new("System entropy", cores(), Axis::linear("E_S").between(0.0, 1.0));
    let ours = simulated
        .iter()
        .map(|(block, played)| Point::at(f64::from(block.cores), played.entropy.system));
    let printed = paper.table2.iter().map(|block| Point::at(f64::from(block.cores), block.e_s));
    vec![
        tails,
        entropy.with_curve("simulated", CurveStyle::Line, ours).printed(0, "printed", printed),
    ]
}
