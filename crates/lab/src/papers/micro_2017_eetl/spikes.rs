//! Fig. 14: load between 10 and 90 requests per second, and the tail kept.

use super::SEED_FILE;
use super::system::{DispatchBench, judged, scenario};
use crate::prelude::*;
use lull_measure::Nanos;
use lull_sim::RunLength;
use lull_sim::dispatch::{DispatchModel, DispatchTotals, MeasurementRecord, RateStep};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "eetl-spikes",
    paper: "Haque et al. 2017, Fig. 14",
    seed_file: SEED_FILE,
    summary: "Tail and threshold while the load jumps between 10 and 90 requests per second",
    run,
};

/// Rates of 160,000 requests, read off the figure's steps: their order and
/// lengths are not printed.
const RATES: [f64; 8] = [10.0, 30.0, 60.0, 90.0, 60.0, 30.0, 10.0, 90.0];
const EACH: u64 = 20_000;

/// The 2F-13S node under the spikes.
pub(super) fn spiky(requests_each: u64) -> DispatchModel {
    let load =
        RATES.iter().map(|rate| RateStep { rate_per_s: *rate, requests: Some(requests_each) });
    DispatchModel { load: load.collect(), ..scenario().default_amp() }
}

/// Share of epochs whose tail exceeds 1.05 targets, in percent.
pub(super) fn late_percent(outcome: &DispatchTotals, target_ms: f64) -> f64 {
    let late = |record: &&MeasurementRecord| {
        record.tail.is_some_and(|tail| tail.as_millis_f64() > 1.05 * target_ms)
    };
    100.0 * outcome.measurements.iter().filter(late).count() as f64
        / outcome.measurements.len() as f64
}

/// The largest tail of any epoch, in ms.
pub(super) fn peak_ms(outcome: &DispatchTotals) -> f64 {
    let tails = outcome.measurements.iter().filter_map(|record| record.tail);
    tails.max().map_or(f64::NAN, Nanos::as_millis_f64)
}

/// Runs a dispatcher under the spikes, from the first request on.
pub(super) fn under_spikes(
    bench: &DispatchBench<'_>,
    dispatcher: &str,
    config: &str,
) -> Result<Vec<DispatchTotals>, LabError> {
    let each = bench.setup.either(EACH, 2000);
    let requests = each * RATES.len() as u64;
    bench.outcomes(
        bench.setup.seed,
        &spiky(each),
        dispatcher,
        config,
        RunLength { warmup: 0, counted: requests },
    )
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let scenario = scenario();
    let target_ms = scenario.lucene_target.as_millis_f64();
    let bench = DispatchBench::judging(setup, scenario.lucene_target)?;
    let eetl = under_spikes(&bench, "eetl", "")?;
    let tail = under_spikes(&bench, "tl", "")?;
    let values = |of_one: &dyn Fn(&DispatchTotals) -> f64| {
        estimate_of(&eetl.iter().map(of_one).collect::<Vec<_>>())
    };
    let energy = eetl.iter().zip(&tail).map(|(ours, theirs)| ours.energy.0 / theirs.energy.0);
    let title = format!("{}, Fig. 14: {}", scenario.venue, scenario.title);
    let mut report = judged(&EXPERIMENT, title, setup);
    report.choices.push(
        "load: 10, 30, 60, 90, 60, 30, 10, 90 requests/s for 20,000 requests each; the figure's \
         steps without printed lengths; the start-up is counted"
            .to_owned(),
    );
    report.rows = vec![
        Row::held(
            "epochs of 500 answers with p99 above 1.05 targets",
            "%",
            "target kept",
            values(&|outcome| late_percent(outcome, target_ms)),
            AtMost(12.0),
        ),
        Row::reported(
            "largest p99 of an epoch",
            "ms",
            Printed::Nothing,
            values(&peak_ms),
            "the figure has no number; the window of 2000 spans the jump",
        ),
        Row::held(
            "EETL / TL energy over the run",
            "1",
            "below 1",
            estimate_of(&energy.collect::<Vec<_>>()),
            AtMost(0.85),
        ),
    ];
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&eetl[0]))?];
    Ok(report)
}

fn figures(outcome: &DispatchTotals) -> [Figure; 2] {
    let across = |record: &MeasurementRecord| record.answered as f64 / 1e3;
    let points = |value: fn(&MeasurementRecord) -> Option<f64>| -> Vec<Point> {
        let measurements = outcome.measurements.iter();
        measurements.filter_map(|record| Some(Point::at(across(record), value(record)?))).collect()
    };
    let tail = points(|record| record.tail.map(Nanos::as_millis_f64));
    let threshold = points(|record| record.thresholds.last().map(|age| age.as_millis_f64()));
    let rate = points(|record| record.rate_per_s);
    let axis = || Axis::linear("requests answered (thousands)");
    [
        Figure::new("Tail and threshold under spikes", axis(), Axis::linear("ms"))
            .with_curve("p99 of the last 2000", CurveStyle::Trace, tail)
            .with_curve("threshold", CurveStyle::Steps, threshold)
            .mark(200.0, "target"),
        Figure::new("Load", axis(), Axis::linear("requests/s")).with_curve(
            "measured load",
            CurveStyle::Trace,
            rate,
        ),
    ]
}
