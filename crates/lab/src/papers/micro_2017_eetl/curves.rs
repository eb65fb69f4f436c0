//! Curves of dispatchers over the load, which most figures of this paper show.

use super::system::DispatchCell;
use crate::prelude::*;

/// One dispatcher on one machine over loads.
pub(super) struct DispatcherCurve {
    pub(super) name: String,
    pub(super) cells: Vec<DispatchCell>,
}

impl DispatcherCurve {
    pub(super) fn new(name: impl Into<String>, cells: Vec<DispatchCell>) -> Self {
        Self { name: name.into(), cells }
    }

    /// The cell at a load that was measured.
    pub(super) fn at(&self, rate_per_s: f64) -> &DispatchCell {
        let off = |cell: &&DispatchCell| (cell.rate_per_s - rate_per_s).abs();
        let nearest = self.cells.iter().min_by(|a, b| off(a).total_cmp(&off(b)));
        nearest.expect("a curve has cells, and rows ask for loads that were measured")
    }
}

/// Tail, mean latency and energy over the load, as Figs. 8 to 10.
pub(super) fn panels(title: &str, curves: &[DispatcherCurve], target_ms: f64) -> [Figure; 3] {
    let panel = |what: &str, value: fn(&DispatchCell) -> Point| {
        let load = Axis::linear("load (requests/s)");
        let figure = Figure::new(format!("{title}: {what}"), load, Axis::linear(what));
        curves.iter().fold(figure, |figure, curve| {
            figure.with_curve(&*curve.name, CurveStyle::Line, curve.cells.iter().map(value))
        })
    };
    [
        panel("p99 (ms)", |cell| Point::from_estimate(cell.rate_per_s, &cell.tail()))
            .mark(target_ms, "target"),
        panel("mean latency (ms)", |cell| {
            Point::from_estimate(cell.rate_per_s, &estimate_of(&cell.mean_ms))
        }),
        panel("energy a request (mJ, slow core = 1 W)", |cell| {
            Point::from_estimate(cell.rate_per_s, &cell.energy())
        }),
    ]
}
