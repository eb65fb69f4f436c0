//! Policies that divide the cores of one server among its connections: cores of each zone,
//! best-effort throughput with its floor, and compliance with objectives.

use super::{PortraitError, SEED};
use crate::figure::{Axis, CurveStyle, Figure, Point};
use crate::papers::socc_2025_reef::qoswc::{FLOOR_PER_S, PORTRAIT_CHANGE_S, portrait};
use crate::papers::socc_2025_reef::steered::ObservedSecond;

/// Whether the policy is one of them.
pub(super) fn has(policy: &str) -> Option<&'static str> {
    ["demeter", "qos-wc"].into_iter().find(|one| *one == policy)
}

pub(super) fn panels(policy: &'static str) -> Result<Vec<Figure>, PortraitError> {
    let seconds =
        portrait(policy, SEED).map_err(|error| PortraitError::Scene(error.to_string()))?;
    let points = |value: fn(&ObservedSecond) -> f64| {
        // Every other second: a picture of the book is small.
        seconds.iter().step_by(2).map(move |look| Point::at(look.second, value(look)))
    };
    let (from_s, to_s) = (seconds[0].second, seconds[seconds.len() - 1].second);
    let level = |y: f64| [Point::at(from_s, y), Point::at(to_s, y)];
    let figure = |title: String, y| Figure::new(title, Axis::linear("time (s)"), Axis::linear(y));
    let title = format!("{policy}: cores by zone, promises tightened at {PORTRAIT_CHANGE_S} s");
    Ok(vec![
        figure(title, "cores")
            .with_curve("promised connections (hot)", CurveStyle::Line, points(|look| look.hot))
            .with_curve("best effort alone (warm)", CurveStyle::Line, points(|look| look.warm)),
        figure("Best effort".to_owned(), "queries/s")
            .with_curve("answered", CurveStyle::Line, points(|look| look.best_effort))
            .with_curve("floor", CurveStyle::Line, level(FLOOR_PER_S)),
        figure("Late answers over those allowed, worst class".to_owned(), "1")
            .with_curve("late", CurveStyle::Line, points(|look| look.worst))
            .with_curve("allowed", CurveStyle::Line, level(1.0)),
    ])
}
