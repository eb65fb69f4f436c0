//! A picture of open blocks beside those of `auto`, second by second.

use super::client::{Transaction, latencies, quantile};
use super::series::Block;
use super::setting::{Kind, Setting};
use anyhow::Result;
use lull_lab::figure::{Axis, CurveStyle, Figure, Point, svg};

/// Throughput and p99 of every second, in one colour for each of the two settings.
///
/// # Errors
/// If the picture cannot be drawn.
pub(super) fn draw(
    title: &str,
    settings: &[Setting],
    rounds: &[Vec<Block>],
    transactions: &[Transaction],
) -> Result<String> {
    let start_s = rounds.iter().flatten().map(|block| block.begin_s).fold(f64::INFINITY, f64::min);
    let points = |kind: Kind, value: fn(&[f64]) -> f64| {
        let blocks = rounds.iter().flatten().filter(|block| settings[block.setting].kind == kind);
        let mut seconds: Vec<f64> = blocks
            .flat_map(|block| {
                let length_s = (block.counted_s[1] - block.begin_s) as u32;
                (0..length_s).map(|second| block.begin_s + f64::from(second))
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        let points = seconds.into_iter().filter_map(|at_s| {
            let latencies = latencies(transactions, [at_s, at_s + 1.0]);
            (!latencies.is_empty()).then(|| Point::at(at_s - start_s, value(&latencies)))
        });
        points.collect::<Vec<Point>>()
    };
    let drawn = |title: String, y: Axis, value: fn(&[f64]) -> f64| {
        Figure::new(title, Axis::linear("time (s)"), y)
            .with_curve("gate open", CurveStyle::Points, points(Kind::Open, value))
            .with_curve("concurrency auto", CurveStyle::Points, points(Kind::Auto, value))
    };
    let title = format!("{title}: p99 of each second");
    let p99 = drawn(title, Axis::log("p99 latency (ms)"), |sorted| quantile(sorted, 0.99));
    let title = "Transactions in each second".to_owned();
    let rate = drawn(title, Axis::linear("transactions/s"), |sorted| sorted.len() as f64);
    svg(&[p99, rate]).map_err(|error| anyhow::anyhow!("cannot draw: {error}"))
}
