//! Theorem 2 on every latency record of the lab.

use super::paper::paper;
use super::platform::{Platform, WAYS, steady};
use super::play::{ARQ, ARQ_PRIORITY, LC_FIRST, Strategy, UNMANAGED, start};
use super::{SEED_FILE, fluctuating};
use crate::papers::trios_2013_ntier as ntier;
use crate::prelude::*;
use lull_measure::tlt::{Bound, bound, bound_of};
use lull_measure::{Latency, Nanos, Percentile};
use lull_sim::plant::System;
use lull_sim::stats::Failure;
use lull_sim::theory::cases;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-tlt",
    paper: "Liu et al. 2024, Theorem 2",
    seed_file: SEED_FILE,
    summary: "The bound of a tail latency on throughput, on every latency record of the lab",
    run,
};

const PERCENTILES: [Percentile; 3] = [Percentile::P50, Percentile::P95, Percentile::P99];

/// One set of latencies with its bound at a percentile.
struct Record {
    /// The experiment that it belongs to.
    group: &'static str,
    bound: Bound,
    /// Throughput over the theorem's bound, where outstanding requests were counted.
    throughput: Option<f64>,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let mut records = constant();
    records.extend(theory(setup)?);
    for (_, totals) in ntier::latency_records(setup)? {
        records.extend(totals.apps.iter().flat_map(|app| of_histogram("n-tier", &app.latency)));
    }
    records.extend(node(setup)?);
    let mut report = EXPERIMENT.report(paper().titled("Theorem 2"), setup);
    report.choices = choices(&records);
    for group in groups(&records) {
        report.rows.extend(group_rows(group, &records));
    }
    report.rows.push(literal_row());
    report.rows.push(implication_row(&records));
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &[figure(&records)])?];
    Ok(report)
}

fn choices(records: &[Record]) -> Vec<String> {
    vec![
        format!(
            "{} bounds: every record at its 50th, 95th and 99th percentile, the tail being the \
             lower order statistic",
            records.len()
        ),
        "f counts latencies strictly below the tail, as the proof needs; the theorem's \"no more \
         than\" is false with ties"
            .to_owned(),
    ]
}

fn of_histogram(group: &'static str, latency: &Latency) -> Vec<Record> {
    let bounds = PERCENTILES.into_iter().filter_map(|at| bound_of(latency, at));
    bounds.map(|bound| Record { group, bound, throughput: None }).collect()
}

/// Latencies that are all the same.
fn constant() -> Vec<Record> {
    let bounds =
        PERCENTILES.into_iter().filter_map(|at| bound(&mut [Nanos::from_millis(5); 1000], at));
    // One request at a time: 200/s.
    let throughput = |bound: &Bound| Some(200.0 / bound.throughput_max(1.0));
    bounds
        .map(|bound| Record { group: "constant latency", throughput: throughput(&bound), bound })
        .collect()
}

fn theory(setup: &Setup<'_>) -> Result<Vec<Record>, LabError> {
    let mut records = Vec::new();
    for case in cases() {
        let mut system = System::new(&case.model, setup.seed, 0).map_err(Failure::from)?;
        let length = case.length(setup.either(50_000, 5_000));
        let stopped = |stop| Failure::Stopped { replication: 0, stop };
        system.run_until(length).map_err(stopped)?;
        let totals = system.engine().totals();
        records.extend(totals.apps.iter().flat_map(|app| of_histogram("theory", &app.latency)));
    }
    Ok(records)
}

/// Every latency-critical app of co-location scenes, with every single latency.
fn node(setup: &Setup<'_>) -> Result<Vec<Record>, LabError> {
    let platform = Platform::a();
    let mut records = Vec::new();
    let shares = [0.2, 0.6, 0.9];
    let strategies = [UNMANAGED, LC_FIRST, ARQ, ARQ_PRIORITY];
    setup.progress.expect((strategies.len() * (shares.len() + 1)) as u64);
    for strategy in strategies {
        let constant = shares.map(|share| (steady(share), "fluidanimate"));
        for (load, beside) in constant.into_iter().chain([(fluctuating::profile(), "stream")]) {
            let loads = [("xapian", load), ("moses", steady(0.2)), ("img-dnn", steady(0.2))];
            let scene = platform.scene(8, WAYS, &loads, &[beside])?;
            records.extend(of_scene(&scene, &strategy, setup)?);
            setup.progress.step();
        }
    }
    Ok(records)
}

fn of_scene(
    scene: &super::platform::Scene,
    strategy: &Strategy,
    setup: &Setup<'_>,
) -> Result<Vec<Record>, LabError> {
    let mut control = start(scene, strategy, setup.seed, 0, true)?;
    for _ in 0..setup.either(500, 60) {
        control.turn().map_err(|error| Failure::Setup(error.to_string()))?;
    }
    let node = control.plant().simulation();
    let totals = node.totals();
    let mut records = Vec::new();
    for (number, app) in totals.apps.iter().enumerate() {
        let rate_per_s = app.answered as f64 / totals.span.as_secs_f64();
        for at in PERCENTILES {
            let mut latencies = node.log(number).to_vec();
            let Some(bound) = bound(&mut latencies, at) else { continue };
            let throughput = Some(rate_per_s / bound.throughput_max(app.outstanding));
            records.push(Record { group: "co-location", bound, throughput });
        }
    }
    Ok(records)
}

fn groups(records: &[Record]) -> Vec<&'static str> {
    let mut groups: Vec<_> = records.iter().map(|record| record.group).collect();
    groups.dedup();
    groups
}

fn group_rows(group: &'static str, records: &[Record]) -> Vec<Row> {
    let mine: Vec<_> = records.iter().filter(|record| record.group == group).collect();
    let worst =
        |values: &[f64]| estimate_of(&[values.iter().copied().fold(f64::NEG_INFINITY, f64::max)]);
    let claim = "<= 1";
    let most = AtMost(1.0 + 1e-9);
    let used: Vec<f64> =
        mine.iter().map(|record| record.bound.ratio / record.bound.ratio_max).collect();
    let name = format!("{group}, largest (TL/AL) over its bound");
    let mut rows = vec![Row::held(name, "", claim, worst(&used), most)];
    let throughput: Vec<f64> = mine.iter().filter_map(|record| record.throughput).collect();
    if !throughput.is_empty() {
        let name = format!("{group}, largest throughput over its bound");
        // Requests still unanswered at the end count as outstanding, not as answered.
        rows.push(Row::held(name, "", claim, worst(&throughput), most));
    }
    rows
}

/// The bound of the theorem's wording for constant latency.
fn literal_row() -> Row {
    let why = "with \"no more than\" a constant latency has f = 1 and the bound is 0, below any \
               throughput; the proof needs \"less than\"";
    Row::reported("constant latency, bound as stated", "", ">= 1", Formula(0.0), why)
}

/// How often, of two records of an experiment, the shorter tail has the higher bound.
fn implication_row(records: &[Record]) -> Row {
    let mine: Vec<_> = records.iter().filter(|record| record.group == "co-location").collect();
    let (mut pairs, mut agree) = (0u32, 0u32);
    for (at, a) in mine.iter().enumerate() {
        for b in mine[at + 1..].iter().filter(|b| b.bound.tail != a.bound.tail) {
            let (shorter, longer) = if a.bound.tail < b.bound.tail { (a, b) } else { (b, a) };
            let used = |record: &Record| record.throughput.unwrap_or(f64::NAN);
            pairs += 1;
            agree += u32::from(used(shorter) < used(longer));
        }
    }
    let why = "an upper bound that rises as the tail falls does not imply that throughput rises: \
               \"therefore\" in Theorem 2 is not an implication. Ours: share of pairs of records \
               in which the shorter tail leaves more room below its bound";
    let share = 100.0 * f64::from(agree) / f64::from(pairs);
    Row::reported("shorter tail, more room", "%", "always", share, why)
}

fn figure(records: &[Record]) -> Figure {
    let axes = Figure::new("TL/AL and its bound", Axis::log("(1 - f)/(1 - θ)"), Axis::log("TL/AL"));
    let drawn = groups(records).into_iter().fold(axes, |figure, group| {
        let mine = records.iter().filter(|record| record.group == group);
        let points = mine.map(|record| Point::at(record.bound.ratio_max, record.bound.ratio));
        let mut points: Vec<_> = points.collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        figure.with_curve(group, CurveStyle::Points, points)
    });
    drawn.with_curve("equal", CurveStyle::Trace, [Point::at(1.0, 1.0), Point::at(100.0, 100.0)])
}
