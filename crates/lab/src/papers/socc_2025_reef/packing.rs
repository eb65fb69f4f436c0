//! Figs. 4 and 5: self-serving threads packed onto few cores.

use super::SEED_FILE;
use super::system::{
    GateBench, GateCell, choices, mongo, p99_over_mean, p999_over_mean, throughput, watts,
};
use crate::prelude::*;
use lull_measure::Watts;
use lull_sim::oversubscribed::{GatedTotals, OversubscribedModel};
use lull_sim::stats::Estimate;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-thread-packing",
    paper: "Li et al. 2025, Figs. 4 and 5",
    seed_file: SEED_FILE,
    summary: "512 self-serving threads, and REEF, on 2 to 24 cores",
    run,
};

/// The paper continues to 40 hardware threads; the model has the 24 cores.
const CORES: [u32; 8] = [2, 4, 5, 6, 8, 12, 16, 24];
const AT_2: usize = 0;
const AT_4: usize = 1;
const AT_6: usize = 3;
const AT_8: usize = 4;
const AT_24: usize = 7;

/// The server on this many cores; the others sleep in C6.
fn packed(model: &OversubscribedModel, cores: u32) -> OversubscribedModel {
    let asleep = f64::from(model.cores - cores) * model.idle[super::system::C6].watts.0;
    let mut packed = OversubscribedModel { cores, ..model.clone() };
    packed.power.fixed = Watts(packed.power.fixed.0 + asleep);
    packed
}

fn sweep(
    bench: &GateBench<'_>,
    model: &OversubscribedModel,
    gate: impl Fn(u32) -> (&'static str, String),
) -> Result<Vec<GateCell>, LabError> {
    let cell = |cores: u32| {
        let (name, config) = gate(cores);
        bench.cell(&packed(model, cores), name, &config)
    };
    CORES.into_iter().map(cell).collect()
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, parameters) = mongo();
    let bench = GateBench::settled(setup);
    let open = sweep(&bench, &model, |_| ("open", String::new()))?;
    let load_per_s = model.device.rate_per_s;
    let reef = sweep(&bench, &model, |cores| {
        let cap = cores.max(2) - 1;
        ("reef", format!("cap = {cap}\nbatch = 2\nload_per_s = {load_per_s:?}"))
    })?;
    let mut report = EXPERIMENT.report("REEF, Figs. 4 and 5", setup);
    report.choices = choices(&parameters);
    report.rows = rows(&open);
    report.rows.extend(states(&open, &reef));
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&open, &reef))?];
    Ok(report)
}

/// The fewest cores with 95 % of the best throughput, in each replication.
fn knee(cells: &[GateCell]) -> Estimate {
    let of_one = |replication: usize| {
        let rates = cells.iter().map(|cell| throughput(&cell.runs[replication]));
        let rates: Vec<f64> = rates.collect();
        let best = rates.iter().copied().fold(0.0, f64::max);
        let first = rates.iter().position(|rate| *rate >= 0.95 * best);
        first.map_or(f64::NAN, |index| f64::from(CORES[index]))
    };
    estimate_of(&(0..cells[0].runs.len()).map(of_one).collect::<Vec<_>>())
}

/// Reads one value of a simulated run.
type Value = fn(&GatedTotals) -> f64;
/// A claim on the ratio of a value at two numbers of cores: text, claim, both cores as indices
/// of [`CORES`], value, tolerance.
type Claim = (&'static str, &'static str, usize, usize, Value, Tolerance);

fn ratio_rows(cells: &[GateCell], claims: &[Claim]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (text, claim, more, fewer, value, tolerance) in claims {
        let ratio = cells[*more].over(&cells[*fewer], value);
        rows.push(Row::held(*text, "1", *claim, ratio, *tolerance));
    }
    rows
}

/// Throughput and tails by cores.
fn rows(open: &[GateCell]) -> Vec<Row> {
    let mut rows = ratio_rows(
        open,
        &[
            ("throughput, 4 cores over 2", "linear: 2", AT_4, AT_2, throughput, Between(1.9, 2.1)),
            ("throughput, 6 cores over 2", "linear: 3", AT_6, AT_2, throughput, Between(2.7, 3.2)),
            (
                "throughput, 24 cores over 8",
                "flat: 1",
                AT_24,
                AT_8,
                throughput,
                Between(0.97, 1.03),
            ),
        ],
    );
    let (name, flat) = ("cores from which throughput is flat", Between(5.0, 7.0));
    rows.push(Row::held(name, "cores", 6.0, knee(open), flat));
    let (name, steeply) = ("p99.9 over mean, 8 cores over 2", "rises steeply");
    rows.extend(ratio_rows(
        open,
        &[
            (name, steeply, AT_8, AT_2, p999_over_mean, AtLeast(2.5)),
            ("p99 over mean, 8 cores over 2", "rises", AT_8, AT_2, p99_over_mean, AtLeast(2.5)),
        ],
    ));
    let (name, ours) = ("p99 over mean, 24 cores", open[AT_24].mean(p99_over_mean));
    let why = "random service has a p99 of ln 100 = 4.6 means; the figure shows about 4";
    rows.push(Row::held(name, "1", Printed::Nothing, ours, Between(3.5, 5.0)).because(why));
    rows
}

/// Power and thread states by cores, and the effect of REEF.
fn states(open: &[GateCell], reef: &[GateCell]) -> Vec<Row> {
    let disk = |served: &GatedTotals| served.threads.disk;
    let running = |served: &GatedTotals| served.threads.running;
    let r_name = "threads that run or want to (R), 8 cores over 2";
    let mut rows = ratio_rows(
        open,
        &[
            ("power, 24 cores over 8: goes on rising", "above 1", AT_24, AT_8, watts, AtLeast(1.0)),
            ("threads in I/O (D), 8 cores over 2", "rises", AT_8, AT_2, disk, AtLeast(10.0)),
            (r_name, "falls", AT_8, AT_2, running, AtMost(0.5)),
        ],
    );
    let (name, stable) = ("REEF: p99.9 over mean, 24 cores over 8", Between(0.8, 1.25));
    rows.extend(ratio_rows(reef, &[(name, "stable", AT_24, AT_8, p999_over_mean, stable)]));
    let silent = "the figure has no printed values";
    for (name, unit, ours) in [
        ("REEF: p99 over mean, 24 cores", "1", reef[AT_24].mean(p99_over_mean)),
        ("REEF: threads in I/O (D), 24 cores", "threads", reef[AT_24].mean(disk)),
    ] {
        rows.push(Row::reported(name, unit, Printed::Nothing, ours, silent));
    }
    rows
}

fn figures(open: &[GateCell], reef: &[GateCell]) -> [Figure; 3] {
    let points = |cells: &[GateCell], value: fn(&GatedTotals) -> f64| -> Vec<Point> {
        let each = CORES.into_iter().zip(cells);
        each.map(|(cores, cell)| Point::at(f64::from(cores), cell.mean(value).mean)).collect()
    };
    let axis = || Axis::linear("cores");
    let both = |title: &str, label: &str, value: fn(&GatedTotals) -> f64| {
        Figure::new(title, axis(), Axis::linear(label))
            .with_curve("self-serving", CurveStyle::Line, points(open, value))
            .with_curve("REEF", CurveStyle::Line, points(reef, value))
    };
    [
        both("Throughput by cores", "queries/s", throughput),
        both("Tail by cores", "p99.9 over mean", p999_over_mean),
        Figure::new("Threads of 512 by state, self-serving", axis(), Axis::linear("threads"))
            .with_curve("R", CurveStyle::Line, points(open, |served| served.threads.running))
            .with_curve("D", CurveStyle::Line, points(open, |served| served.threads.disk))
            .with_curve("S", CurveStyle::Line, points(open, |served| served.threads.sleeping)),
    ]
}
