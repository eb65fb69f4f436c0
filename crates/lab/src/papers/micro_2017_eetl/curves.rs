//! What the figures of this paper share: a curve a dispatcher, over the load.

use super::system::Cell;
use crate::figure::{Axis, Figure, Look, Point};

/// One dispatcher on one machine over loads.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) cells: Vec<Cell>,
}

impl Curve {
    pub(super) fn new(name: impl Into<String>, cells: Vec<Cell>) -> Self {
        Self { name: name.into(), cells }
    }

    /// The cell at a load that was measured.
    pub(super) fn at(&self, rate_per_s: f64) -> &Cell {
        let off = |cell: &&Cell| (cell.rate_per_s - rate_per_s).abs();
        let nearest = self.cells.iter().min_by(|a, b| off(a).total_cmp(&off(b)));
        nearest.expect("a curve has cells, and rows ask for loads that were measured")
    }
}

/// Tail, mean latency and energy over the load, as Figs. 8 to 10.
pub(super) fn panels(title: &str, curves: &[Curve], target_ms: f64) -> [Figure; 3] {
    let panel = |what: &str, value: fn(&Cell) -> Point| {
        let load = Axis::linear("load (requests/s)");
        let figure = Figure::new(format!("{title}: {what}"), load, Axis::linear(what));
        curves.iter().fold(figure, |figure, curve| {
            figure.with(&*curve.name, Look::Line, curve.cells.iter().map(value))
        })
    };
    [
        panel("p99 (ms)", |cell| Point::of(cell.rate_per_s, &cell.tail()))
            .mark(target_ms, "target"),
        panel("mean latency (ms)", |cell| {
            Point::of(cell.rate_per_s, &crate::trial::of(&cell.mean_ms))
        }),
        panel("energy a request (mJ, slow core = 1 W)", |cell| {
            Point::of(cell.rate_per_s, &cell.energy())
        }),
    ]
}
