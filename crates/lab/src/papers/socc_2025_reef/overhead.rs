//! Fig. 11: the cost of a batch over the pause between rounds.

use super::SEED_FILE;
use super::system::{GateBench, GateCell, choices, in_c6, mongo, watts};
use crate::prelude::*;
use lull_measure::Nanos;
use lull_sim::oversubscribed::{Costs, GatedTotals, OversubscribedModel};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-overhead",
    paper: "Li et al. 2025, Fig. 11 and section 4",
    seed_file: SEED_FILE,
    summary: "What a batch of two queries costs with rests from 0.2 to 1000 ms between rounds",
    run,
};

/// Rests between rounds, in us.
const RESTS_US: [u64; 9] = [200, 500, 1_000, 2_000, 5_000, 10_000, 40_000, 200_000, 1_000_000];
/// Queries a batch, as in the paper.
const BATCH: u32 = 2;
/// Times a thread begins to run in a query: when it comes, and after its I/O.
const STARTS: f64 = 2.0;

fn sweep(bench: &GateBench<'_>, model: &OversubscribedModel) -> Result<Vec<GateCell>, LabError> {
    let cell = |rest_us: u64| {
        let config = format!(
            "cap = 23\nbatch = {BATCH}\nturns = \"cap\"\nload_per_s = 1e9\nleast_pause = \
             \"{rest_us}us\"\nmost_pause = \"{rest_us}us\""
        );
        bench.cell(model, "reef", &config)
    };
    RESTS_US.into_iter().map(cell).collect()
}

/// Time a query that is let in waits for a core or for one to wake up, with
/// the signal's share, in us.
fn cost_us(model: &OversubscribedModel) -> impl Fn(&GatedTotals) -> f64 {
    let Costs { wake, switch, .. } = model.costs;
    move |served| {
        let start_us = served.start_delay().as_micros_f64() + switch.as_micros_f64();
        STARTS * start_us + wake.as_micros_f64() / f64::from(BATCH)
    }
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, parameters) = mongo();
    let bench = GateBench::settled(setup);
    let cells = sweep(&bench, &model)?;
    let free = OversubscribedModel {
        costs: Costs { intercept: Nanos::ZERO, ..model.costs },
        ..model.clone()
    };
    let config = "cap = 23\nbatch = 2\nload_per_s = 16100.0";
    let (with, without) = (bench.cell(&model, "reef", config)?, bench.cell(&free, "reef", config)?);
    let mut report = EXPERIMENT.report("REEF, Fig. 11", setup);
    report.choices = choices(&parameters);
    report.choices.push(
        "the cost of a batch is a query's time between being let in and running: queue, switch, \
         wake-up of the core and its share of the signal; rounds are of C turns, so that the \
         rest is between batches"
            .to_owned(),
    );
    report.rows = rows(&model, &cells);
    report.rows.push(interception(&with, &without));
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&model, &cells))?];
    Ok(report)
}

fn rows(model: &OversubscribedModel, cells: &[GateCell]) -> Vec<Row> {
    let cost = cost_us(model);
    let switches = "a thread that starts on a busy core waits for a switch and a queue here, and \
                    with C turns at a time the queue is empty";
    let at = |rest_us: u64| {
        let index = RESTS_US.iter().position(|one| *one == rest_us).unwrap_or(0);
        cells[index].mean(&cost)
    };
    let share = |cell: &GateCell| {
        cell.mean(|served| {
            let mean_us = served.latency().mean().map_or(f64::NAN, Nanos::as_micros_f64);
            100.0 * cost(served) / mean_us
        })
    };
    let worst = cells.iter().map(share).max_by(|a, b| a.mean.total_cmp(&b.mean));
    let worst = worst.unwrap_or_else(|| estimate_of(&[]));
    let slept: Vec<f64> = cells.iter().map(|cell| cell.mean(in_c6).mean).collect();
    let rises = slept.windows(2).filter(|pair| pair[1] > pair[0]).count() as f64;
    vec![
        Row::compared("cost at rests of 0.2 ms", "us", 40.0, at(200), Relative(0.5))
            .because(switches),
        Row::held("cost at rests of 40 ms (calibrated)", "us", 16.0, at(40_000), Relative(0.5)),
        Row::held("the highest cost over the mean latency", "%", "negligible", worst, AtMost(5.0)),
        Row::held(
            "steps of longer rests with more C6 residency",
            "of 8",
            "deep residency increases",
            rises,
            AtLeast(7.0),
        ),
    ]
}

fn interception(with: &GateCell, without: &GateCell) -> Row {
    let why = "three calls of 100 ns a query are 5 ms of a core a second, which is all that \
               is modelled of them";
    let ours = with.minus(without, 1.0, watts);
    Row::change("power of interception", "W", 0.87, ours).because(why)
}

fn figures(model: &OversubscribedModel, cells: &[GateCell]) -> [Figure; 2] {
    let points = |value: &dyn Fn(&GatedTotals) -> f64| -> Vec<Point> {
        let each = RESTS_US.into_iter().zip(cells);
        each.map(|(us, cell)| Point::at(us as f64 / 1e3, cell.mean(value).mean)).collect()
    };
    let cost = cost_us(model);
    let axis = || Axis::log("rest between rounds (ms)");
    [
        Figure::new("What a batch costs", axis(), Axis::linear("us a query")).with_curve(
            "start and signal",
            CurveStyle::Line,
            points(&cost),
        ),
        Figure::new("Sleep", axis(), Axis::linear("share of core time in C6")).with_curve(
            "C6",
            CurveStyle::Line,
            points(&in_c6),
        ),
    ]
}
