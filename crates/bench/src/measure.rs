//! The cost of `lull_measure::Latency` over the histogram that it wraps.

use super::stats::{Summary, interleave, ns_each};
use super::{Bench, Context, report::Report};
use anyhow::Result;
use hdrhistogram::Histogram;
use lull_measure::{Latency, Nanos, Percentile};
use std::hint::black_box;

pub(super) const BENCH: Bench = Bench {
    name: "measure",
    about: "Recording a latency and reading p99: lull_measure::Latency beside raw hdrhistogram",
    run,
};

const ROUNDS: usize = 21;
const LATENCIES: usize = 1_000_000;
const QUANTILES: usize = 1_000;
/// Our units and clamping may cost this much over the raw histogram.
const OVERHEAD_MAX: f64 = 1.25;

fn run(_: &Context) -> Result<Report> {
    let latencies = latencies();
    let mut ours = Latency::default();
    // The same bounds as ours, so that both have buckets of the same size.
    let mut raw = Histogram::<u64>::new_with_bounds(100, 1_000_000_000_000, 3)?;
    let mut report = Report::default();
    let recorded = interleave(
        ROUNDS,
        &mut [&mut || Ok(ns_each(LATENCIES, || record_ours(&mut ours, &latencies))), &mut || {
            Ok(ns_each(LATENCIES, || record_raw(&mut raw, &latencies)))
        }],
    )?;
    compare(&mut report, "record", &recorded);
    let read = interleave(
        ROUNDS,
        &mut [&mut || Ok(ns_each(QUANTILES, || quantiles_ours(&ours))), &mut || {
            Ok(ns_each(QUANTILES, || quantiles_raw(&raw)))
        }],
    )?;
    compare(&mut report, "p99", &read);
    report.note(format!(
        "{ROUNDS} rounds in turn; a round records {LATENCIES} latencies from 1 us to 1 s, \
         even in their logarithm, or reads p99 {QUANTILES} times."
    ));
    Ok(report)
}

/// Both costs, and their ratio round by round.
fn compare(report: &mut Report, what: &str, [ours, raw]: &[Vec<f64>; 2]) {
    let ratios = ours.iter().zip(raw).map(|(ours, raw)| ours / raw);
    report.reported(&format!("{what}: Latency"), Summary::new(ours.iter().copied()), "ns");
    report.reported(&format!("{what}: hdrhistogram"), Summary::new(raw.iter().copied()), "ns");
    let ratio = Summary::new(ratios);
    report.bounded(&format!("{what}: Latency / hdrhistogram"), ratio, "ratio", 0.0..=OVERHEAD_MAX);
}

fn record_ours(histogram: &mut Latency, latencies: &[u64]) {
    for latency in latencies {
        histogram.record(Nanos(black_box(*latency)));
    }
}

fn record_raw(histogram: &mut Histogram<u64>, latencies: &[u64]) {
    for latency in latencies {
        histogram.saturating_record(black_box(*latency));
    }
}

fn quantiles_ours(histogram: &Latency) {
    for _ in 0..QUANTILES {
        black_box(black_box(histogram).quantile(Percentile::P99));
    }
}

fn quantiles_raw(histogram: &Histogram<u64>) {
    for _ in 0..QUANTILES {
        black_box(black_box(histogram).value_at_quantile(0.99));
    }
}

/// The same latencies in every run, in an order that no branch predictor learns.
fn latencies() -> Vec<u64> {
    // Steps of the golden ratio fill the unit interval evenly (Weyl).
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let parts = (0..LATENCIES).map(|step| (step as f64 * golden).fract());
    parts.map(|part| (1e3 * 1e6_f64.powf(part)) as u64).collect()
}
