//! The figures of a replay, and how far a replayed one is from a measured one.

use super::tally::Tally;
use crate::scenario::{Quantity, figure_of};
use lull_control::AppSpec;
use lull_measure::entropy::RelativeImportance;
use lull_measure::{Nanos, Percentile};
use serde::Serialize;

/// Answers of which at least this many lie beyond a percentile before that
/// percentile is judged.
const BEYOND: f64 = 10.0;

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) quantity: Quantity,
    what: FigureKind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum FigureKind {
    Tail(usize, Percentile),
    Throughput(usize),
    Cpu(usize),
    Progress(usize),
    System,
    Critical,
    BestEffort,
    Missed,
}

/// A figure of the recorded policy, measured and replayed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reproduced {
    /// The quantity.
    #[serde(flatten)]
    pub quantity: Quantity,
    /// The recorded value; absent where there is none.
    pub measured: Option<f64>,
    /// Mean over replications.
    pub replayed: Option<f64>,
    /// How far off: for latencies and throughput the larger over the smaller,
    /// less one; for CPU time the difference as a share of all cores. Absent
    /// for figures that follow from these, and for percentiles of too few answers.
    pub error: Option<f64>,
}

/// All figures of these apps: app by app, then of the whole.
pub(super) fn figures(specs: &[AppSpec]) -> Vec<Figure> {
    let mut all = Vec::new();
    let mut add = |kind: &str, of: Option<&str>, words: &str, unit, what| {
        all.push(Figure { quantity: figure_of(kind, of, words, unit), what });
    };
    for (at, spec) in specs.iter().enumerate() {
        let name = Some(spec.name.as_str());
        if spec.is_latency_critical() {
            for percentile in percentiles(spec) {
                let kind = format!("p{}", percentile.percent());
                add(
                    &kind,
                    name,
                    &format!("{kind} latency"),
                    "ms",
                    FigureKind::Tail(at, percentile),
                );
            }
            add("throughput", name, "throughput", "1/s", FigureKind::Throughput(at));
        } else {
            add("progress", name, "progress, of that alone", "%", FigureKind::Progress(at));
        }
        add("cpu", name, "CPU time", "cores", FigureKind::Cpu(at));
    }
    add("entropy", None, "E_S", "1", FigureKind::System);
    add("lc-entropy", None, "E_LC", "1", FigureKind::Critical);
    if !specs.iter().all(AppSpec::is_latency_critical) {
        add("be-entropy", None, "E_BE", "1", FigureKind::BestEffort);
    }
    add("violating", None, "epochs with a missed objective", "%", FigureKind::Missed);
    all
}

/// Percentiles that are judged, and that of the objective.
fn percentiles(spec: &AppSpec) -> Vec<Percentile> {
    let mut all = vec![Percentile::P50, Percentile::P95, Percentile::P99];
    all.extend(spec.tail().map(|(percentile, _)| percentile).filter(|it| !all.contains(it)));
    all
}

impl Figure {
    /// Its value; NaN where there is none.
    pub(super) fn value(
        &self,
        tally: &Tally,
        specs: &[AppSpec],
        importance: RelativeImportance,
    ) -> f64 {
        let part = |part: Option<f64>| part.unwrap_or(f64::NAN);
        let entropy = || tally.entropy(specs, importance);
        match self.what {
            FigureKind::Tail(app, percentile) => {
                let latency = &tally.apps[app].latency;
                part(latency.quantile(percentile).map(Nanos::as_millis_f64))
            }
            FigureKind::Throughput(app) => tally.apps[app].answered / tally.span_s,
            FigureKind::Cpu(app) => tally.apps[app].cpu_s / tally.span_s,
            FigureKind::Progress(app) => {
                let solo = part(specs[app].solo_per_s);
                100.0 * tally.apps[app].work / tally.span_s / solo
            }
            FigureKind::System => entropy().system,
            FigureKind::Critical => part(entropy().lc),
            FigureKind::BestEffort => part(entropy().be),
            FigureKind::Missed => 100.0 * tally.missed as f64 / tally.epochs as f64,
        }
    }

    /// How far a replayed value is from the measured one; see [`Reproduced::error`].
    pub(super) fn error(
        &self,
        measured: f64,
        replayed: f64,
        tally: &Tally,
        cores: usize,
    ) -> Option<f64> {
        let off = match self.what {
            FigureKind::Tail(app, percentile) => {
                let beyond = tally.apps[app].latency.count() as f64 * (1.0 - percentile.fraction());
                (beyond >= BEYOND).then(|| ratio(measured, replayed))
            }
            FigureKind::Throughput(_) => Some(ratio(measured, replayed)),
            FigureKind::Cpu(_) => Some((measured - replayed).abs() / cores as f64),
            FigureKind::Progress(_) | FigureKind::System | FigureKind::Critical => None,
            FigureKind::BestEffort | FigureKind::Missed => None,
        };
        // Whatever cannot be compared is as far off as can be.
        off.map(|off| if off.is_nan() { f64::INFINITY } else { off })
    }
}

fn ratio(measured: f64, replayed: f64) -> f64 {
    (measured / replayed).max(replayed / measured) - 1.0
}
