//! Figures: curves with intervals, drawn as SVG.
//!
//! One look for all: no box, light grid, colours that colour-blind readers
//! can tell apart (Okabe and Ito, 2008), and a marker a curve, so that a
//! figure survives a black-and-white printer.

mod draw;
mod scale;

pub use draw::{DrawError, svg};

use lull_sim::stats::Estimate;

/// One set of axes with its curves.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The title.
    pub title: String,
    /// The axis across.
    pub x: Axis,
    /// The axis up.
    pub y: Axis,
    /// The curves, in the order of the legend.
    pub curves: Vec<Curve>,
    /// Values that are marked by a line.
    pub marks: Vec<Mark>,
}

/// One axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Quantity and unit, such as `response time (ms)`.
    pub label: String,
    /// Whether the axis is logarithmic.
    pub log: bool,
    /// Where to write numbers; chosen by the range if absent.
    pub ticks: Option<Vec<f64>>,
    /// Names of the values 1, 2, ... instead of numbers.
    pub names: Vec<String>,
    /// Ends; those of the data (and 0 for linear axes) if absent.
    pub bounds: Option<[f64; 2]>,
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name in the legend; empty for one that continues another.
    pub name: String,
    /// How it is drawn.
    pub look: CurveStyle,
    /// Number of its colour and marker.
    pub style: usize,
    /// Its points, ascending in x.
    pub points: Vec<Point>,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurveStyle {
    /// A line through marked points, with their intervals.
    Line,
    /// Marked points with their intervals, not joined.
    Points,
    /// Hollow markers without a line: values that a paper prints.
    Dots,
    /// A thin line without markers, for long series.
    Trace,
    /// A thin line that keeps each value until the next point.
    Steps,
}

/// One point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Across.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// Ends of the 95 % interval of `y`, if known.
    pub interval: Option<[f64; 2]>,
}

/// A labelled horizontal line.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Where it crosses the y axis.
    pub y: f64,
    /// The label with the meaning of the axis.
    pub label: String,
}

impl Figure {
    /// Axes without curves.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, curves: Vec::new(), marks: Vec::new() }
    }

    /// Adds a curve.
    #[must_use]
    pub fn with_curve(
        mut self,
        name: impl Into<String>,
        look: CurveStyle,
        points: impl IntoIterator<Item = Point>,
    ) -> Self {
        let (style, points) = (self.curves.len(), points.into_iter().collect());
        self.curves.push(Curve { name: name.into(), look, style, points });
        self
    }

    /// Adds hollow markers in the colour of curve number `curve`: the values that a paper
    /// prints for it.
    #[must_use]
    pub fn printed(
        self,
        curve: usize,
        name: impl Into<String>,
        points: impl IntoIterator<Item = Point>,
    ) -> Self {
        let mut figure = self.with_curve(name, CurveStyle::Dots, points);
        if let Some(added) = figure.curves.last_mut() {
            added.style = curve;
        }
        figure
    }

    /// Adds a horizontal line.
    #[must_use]
    pub fn mark(mut self, y: f64, label: impl Into<String>) -> Self {
        self.marks.push(Mark { y, label: label.into() });
        self
    }
}

impl Axis {
    /// A linear axis from 0.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), log: false, ticks: None, names: Vec::new(), bounds: None }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Self {
        Self { log: true, ..Self::linear(label) }
    }

    /// An axis of named values: the first is 1.
    pub fn names(
        label: impl Into<String>,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let count = names.len();
        let axis = Self::linear(label).between(0.5, count as f64 + 0.5);
        Self { names, ..axis.ticks((1..=count).map(|number| number as f64)) }
    }

    /// Sets the numbers written on the axis.
    #[must_use]
    pub fn ticks(self, ticks: impl IntoIterator<Item = f64>) -> Self {
        Self { ticks: Some(ticks.into_iter().collect()), ..self }
    }

    /// The axis between these ends.
    #[must_use]
    pub fn between(self, low: f64, high: f64) -> Self {
        Self { bounds: Some([low, high]), ..self }
    }
}

impl Point {
    /// A point without interval.
    pub const fn at(x: f64, y: f64) -> Self {
        Self { x, y, interval: None }
    }

    /// A point at an estimate, with its interval if there is one.
    pub fn from_estimate(x: f64, estimate: &Estimate) -> Self {
        let Estimate { mean, half_width, .. } = *estimate;
        let interval = half_width.is_finite().then_some([mean - half_width, mean + half_width]);
        Self { x, y: mean, interval }
    }
}
