//! A scenario's figures as a picture: one panel a kind of figure, the policies
//! side by side with their intervals.

use super::{Outcome, Quantity};
use crate::figure::{Axis, CurveStyle, Figure, Point};

/// The largest number of apps that have panels of their own.
const MOST_APPS: usize = 4;

/// Distance of the points of one policy, so that intervals do not overlap.
const SPACING: f64 = 0.09;

/// The panels beside those of response times: kind of figure and axis.
const PANELS: [(&str, &str); 9] = [
    ("over-objective", "over the objective (%)"),
    ("lost", "requests lost (%)"),
    ("progress", "progress (% of that alone)"),
    ("entropy", "system entropy"),
    ("violating", "half-seconds with a missed objective (%)"),
    ("power", "power (W)"),
    ("energy-per-request", "energy per request (mJ)"),
    ("switches", "P-state switches per second and server"),
    ("utilisation", "utilisation (%)"),
];

impl Outcome {
    /// The panels: response times of each app, then what else there is.
    pub fn panels(&self) -> Vec<Figure> {
        let mut apps: Vec<&str> = Vec::new();
        for app in self.quantities.iter().filter(|it| is_response(it)).filter_map(Quantity::app) {
            if !apps.contains(&app) {
                apps.push(app);
            }
        }
        let responses = apps.into_iter().take(MOST_APPS).filter_map(|app| {
            let of_app = |it: &Quantity| is_response(it) && it.app() == Some(app);
            self.panel(Axis::log("response time (ms)"), of_app)
        });
        let rest = PANELS
            .iter()
            .filter_map(|(kind, label)| self.panel(Axis::linear(*label), |it| it.kind() == *kind));
        responses.chain(rest).collect()
    }

    /// One panel with the figures of a kind; `None` if there are none.
    fn panel(&self, axis: Axis, wanted: impl Fn(&Quantity) -> bool) -> Option<Figure> {
        let chosen: Vec<(usize, &Quantity)> =
            self.quantities.iter().enumerate().filter(|(_, it)| wanted(it)).collect();
        let (_, first) = chosen.first()?;
        let title = if chosen.len() == 1 {
            format!("{}: {}", self.title, first.name)
        } else {
            self.title.clone()
        };
        let names = self.policies.iter().map(|policy| policy.label.clone());
        let mut figure = Figure::new(title, Axis::names("policy", names), axis);
        let middle = (chosen.len() as f64 - 1.0) / 2.0;
        for (place, (at, quantity)) in chosen.iter().enumerate() {
            let shift = SPACING * (place as f64 - middle);
            let point = |policy: usize| {
                Point::from_estimate(1.0 + policy as f64 + shift, &self.estimate(policy, *at))
            };
            let points = (0..self.policies.len()).map(point);
            figure = figure.with_curve(quantity.name.clone(), CurveStyle::Points, points);
        }
        Some(figure)
    }
}

/// Whether it is a mean or a percentile of response times.
fn is_response(quantity: &Quantity) -> bool {
    let percentile =
        |kind: &str| kind.strip_prefix('p').is_some_and(|of| of.parse::<f64>().is_ok());
    quantity.kind() == "mean" || percentile(quantity.kind())
}
