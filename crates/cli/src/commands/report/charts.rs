//! The figures of a report, each one SVG.

use super::RecordedRun;
use super::summary::{PERCENTILES, Summary, Tails, power_of};
use lull_control::AppSpec;
use lull_lab::figure::{Axis, Curve, CurveStyle, Figure, Point, svg};
use lull_measure::catalogue::{
    APP_CORES, ENTROPY_BE, ENTROPY_LC, ENTROPY_SYSTEM, Metric, POWER, TAIL_LATENCY,
};

/// Most points of a curve: a reader cannot distinguish more.
const POINTS_MAX: usize = 600;
/// A curve is interrupted where the gap between points is this many times the usual one.
const GAP: f64 = 3.0;
/// Decades from which on an axis of latencies is logarithmic.
const DECADES: f64 = 30.0;

/// A figure, and its caption for readers who cannot see it.
pub(super) struct Chart {
    pub(super) caption: String,
    pub(super) svg: String,
}

/// Figures over the time of one run.
pub(super) fn of_run(recorded: &RecordedRun) -> anyhow::Result<Vec<Chart>> {
    let apps = &recorded.run.apps;
    let mut charts = Vec::new();
    for spec in apps.iter().filter(|spec| spec.is_latency_critical()) {
        charts.extend(tail(recorded, spec));
    }
    let one = |metric, name: &str| Source { metric, label: "", name: name.to_owned() };
    let entropy = [one(ENTROPY_SYSTEM, "E_S"), one(ENTROPY_LC, "E_LC"), one(ENTROPY_BE, "E_BE")];
    charts.extend(over_time(
        recorded,
        "Entropy: 0 best, 1 worst",
        "entropy",
        &entropy,
        CurveStyle::Trace,
    ));
    let cores: Vec<Source<'_>> = apps
        .iter()
        .map(|spec| Source { metric: APP_CORES, label: &spec.name, name: spec.name.clone() })
        .collect();
    charts.extend(over_time(
        recorded,
        "Cores that each app may use",
        "cores",
        &cores,
        CurveStyle::Steps,
    ));
    let title = format!("Power, {}", shortened(&power_of(recorded)));
    charts.extend(over_time(
        recorded,
        &title,
        "power (W)",
        &[one(POWER, "power")],
        CurveStyle::Trace,
    ));
    charts.into_iter().map(drawn).collect()
}

/// Latencies of runs and parts side by side.
pub(super) fn of_all(summary: &Summary) -> anyhow::Result<Vec<Chart>> {
    summary.tails.iter().filter_map(side_by_side).map(drawn).collect()
}

fn drawn(figure: Figure) -> anyhow::Result<Chart> {
    let svg = svg(std::slice::from_ref(&figure))?;
    Ok(Chart { caption: figure.title, svg })
}

/// Shortens a text to one line of a title.
fn shortened(text: &str) -> String {
    const LETTERS_MAX: usize = 90;
    match text.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The series of one curve.
struct Source<'a> {
    metric: &'static Metric,
    label: &'a str,
    name: String,
}

fn tail(recorded: &RecordedRun, spec: &AppSpec) -> Option<Figure> {
    let (percentile, bound) = spec.tail()?;
    let (every, points) = thinned(recorded, TAIL_LATENCY, &spec.name, Fold::Highest);
    let points: Vec<Point> = points.iter().map(|it| Point::at(it.x, it.y * 1e3)).collect();
    if points.is_empty() {
        return None;
    }
    let of = if every > 1 { format!(", highest of {every} epochs") } else { String::new() };
    let title = format!("{}: {percentile} latency{of}", spec.name);
    let heights = || points.iter().map(|point| point.y).filter(|y| *y > 0.0);
    let (low, high) = (heights().fold(f64::MAX, f64::min), heights().fold(0.0, f64::max));
    let label = "latency (ms)";
    let y = if high > DECADES * low { Axis::log(label) } else { Axis::linear(label) };
    let mut figure = Figure::new(title, Axis::linear("time (s)"), y);
    add(&mut figure, &spec.name, CurveStyle::Trace, &points);
    let bound_ms = bound.as_millis_f64();
    Some(figure.mark(bound_ms, format!("bound {bound:.2}")))
}

fn over_time(
    recorded: &RecordedRun,
    title: &str,
    unit: &str,
    sources: &[Source<'_>],
    look: CurveStyle,
) -> Option<Figure> {
    let mut figure = Figure::new(title, Axis::linear("time (s)"), Axis::linear(unit));
    // The mean of two numbers of cores may not be a whole number.
    let fold = if look == CurveStyle::Steps { Fold::First } else { Fold::Mean };
    for source in sources {
        let (_, points) = thinned(recorded, source.metric, source.label, fold);
        add(&mut figure, &source.name, look, &points);
    }
    if look == CurveStyle::Steps {
        let most = figure.curves.iter().flat_map(|curve| &curve.points);
        let most = most.fold(1.0, |most: f64, point| most.max(point.y));
        // The ticks are whole numbers of cores.
        let every = (most / 8.0).ceil() as usize;
        let ticks = (0..=most as usize).step_by(every).map(|tick| tick as f64);
        figure.y = Axis::linear(unit).ticks(ticks).between(0.0, most * 1.05);
    }
    (!figure.curves.is_empty()).then_some(figure)
}

/// How the values of several epochs become one point.
#[derive(Debug, Clone, Copy)]
enum Fold {
    Highest,
    Mean,
    First,
}

impl Fold {
    fn apply(self, bucket: &[(f64, f64)]) -> f64 {
        let values = || bucket.iter().map(|(_, value)| *value);
        match self {
            Self::Highest => values().fold(f64::MIN, f64::max),
            Self::Mean => values().sum::<f64>() / bucket.len() as f64,
            Self::First => bucket[0].1,
        }
    }
}

/// Returns a metric over time in at most [`POINTS_MAX`] points, and the number of epochs
/// that one point covers.
fn thinned(
    recorded: &RecordedRun,
    metric: &Metric,
    label: &str,
    fold: Fold,
) -> (usize, Vec<Point>) {
    let known: Vec<(f64, f64)> = recorded
        .series
        .times_s
        .iter()
        .filter_map(|(epoch, time)| Some((*time, recorded.series.value(metric, label, *epoch)?)))
        .collect();
    let every = known.len().div_ceil(POINTS_MAX).max(1);
    let point = |bucket: &[(f64, f64)]| Point::at(bucket[0].0, fold.apply(bucket));
    (every, known.chunks(every).map(point).collect())
}

/// Adds a curve, in pieces where there was nothing for a while.
fn add(figure: &mut Figure, name: &str, look: CurveStyle, points: &[Point]) {
    let mut gaps: Vec<f64> = points.windows(2).map(|pair| pair[1].x - pair[0].x).collect();
    gaps.sort_by(f64::total_cmp);
    let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(1.0);
    let style = figure.curves.iter().filter(|curve| !curve.name.is_empty()).count();
    let pieces = points.chunk_by(|one, next| next.x - one.x <= GAP * usual);
    for (index, piece) in pieces.enumerate() {
        let name = if index == 0 { name.to_owned() } else { String::new() };
        figure.curves.push(Curve { name, look, style, points: piece.to_vec() });
    }
}

fn side_by_side(tails: &Tails) -> Option<Figure> {
    if tails.parts.len() < 2 {
        return None;
    }
    let names = PERCENTILES.map(|at| at.to_string());
    let title = format!("{}: latency by percentile", tails.app);
    let mut figure = Figure::new(title, Axis::names("", names), Axis::log("latency (ms)"));
    for (name, latencies) in &tails.parts {
        let points = (1..).zip(latencies).filter_map(|(number, latency)| {
            Some(Point::at(f64::from(number), latency.filter(|latency| *latency > 0.0)?))
        });
        figure = figure.with_curve(name, CurveStyle::Line, points);
    }
    if let Some((at, bound)) = &tails.bound {
        figure = figure.mark(*bound, format!("bound of {at}"));
    }
    Some(figure)
}
