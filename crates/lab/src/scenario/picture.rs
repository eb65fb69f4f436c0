//! A scenario's figures as a picture: one panel a kind of figure, the policies
//! side by side with their intervals.

use super::quantity::What;
use super::{Outcome, Quantity};
use crate::figure::{Axis, Figure, Look, Point};

/// Apps with panels of their own; more would make no picture.
const MOST_APPS: usize = 4;

/// How far the points of one policy stand apart, so that intervals do not cover each other.
const APART: f64 = 0.09;

/// Which figures a panel shows.
type Chosen = fn(&What) -> bool;

impl Outcome {
    /// The panels: response times of each app, power, P-state switches, utilisation.
    pub fn panels(&self) -> Vec<Figure> {
        let mut panels = Vec::new();
        for app in 0..MOST_APPS {
            let of_app = |what: &What| match what {
                What::Mean(at) | What::Tail(at, _) => *at == app,
                _ => false,
            };
            panels.extend(self.panel(Axis::log("response time (ms)"), of_app));
        }
        let rest: [(&str, Chosen); 5] = [
            ("over the objective (%)", |what| matches!(what, What::Over(..))),
            ("requests lost (%)", |what| matches!(what, What::Lost(_))),
            ("power (W)", |what| matches!(what, What::Power(_))),
            ("P-state switches per second and server", |what| matches!(what, What::Switches(_))),
            ("utilisation (%)", |what| matches!(what, What::Utilisation(_))),
        ];
        let rest = rest.into_iter().filter_map(|(label, of)| self.panel(Axis::linear(label), of));
        panels.extend(rest);
        panels
    }

    /// One panel with the figures of a kind; `None` if there are none.
    fn panel(&self, axis: Axis, wanted: impl Fn(&What) -> bool) -> Option<Figure> {
        let chosen: Vec<(usize, &Quantity)> =
            self.quantities.iter().enumerate().filter(|(_, it)| wanted(&it.what)).collect();
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
            let shift = APART * (place as f64 - middle);
            let point =
                |policy: usize| Point::of(1.0 + policy as f64 + shift, &self.estimate(policy, *at));
            let points = (0..self.policies.len()).map(point);
            figure = figure.with(quantity.name.clone(), Look::Points, points);
        }
        Some(figure)
    }
}
