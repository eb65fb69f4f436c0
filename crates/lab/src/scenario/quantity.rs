//! The measured quantities of a replication.

pub use crate::cells::Quantity;
use crate::trial::{power_w, response_ms, switches_per_s};
use lull_control::AppSpec;
use lull_measure::{Latency, Nanos, Percentile};
use lull_sim::Totals;
use lull_sim::model::{Model, Tier};

/// A figure of tiers and how it is read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MeasuredQuantity {
    pub(super) quantity: Quantity,
    what: TierFigure,
}

/// The figure, and its app or tier.
#[derive(Debug, Clone, PartialEq)]
enum TierFigure {
    Response(usize, Response),
    Lost(usize),
    Power(Vec<usize>),
    EnergyPerRequest(Vec<usize>),
    Switches(Vec<usize>),
    Utilisation(usize),
}

/// A figure of the answers of an app, of any kind of machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Response {
    Throughput,
    Mean,
    Tail(Percentile),
    Over(Nanos),
}

/// The answers of an app in one replication.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers<'a> {
    pub(super) span: Nanos,
    pub(super) count: u64,
    pub(super) mean_ms: f64,
    pub(super) latency: &'a Latency,
}

impl<'a> Answers<'a> {
    /// Answers with these latencies in this time.
    pub(super) fn new(latency: &'a Latency, span: Nanos) -> Self {
        let mean_ms = latency.mean().map_or(f64::NAN, Nanos::as_millis_f64);
        Self { span, count: latency.count(), mean_ms, latency }
    }
}

/// Percentiles that every app is measured at.
const PERCENTILES: [f64; 3] = [50.0, 95.0, 99.0];

/// All figures of a model: app by app, then power, then tier by tier.
pub(super) fn tier_figures(model: &Model, specs: &[AppSpec]) -> Vec<MeasuredQuantity> {
    let mut all = Vec::new();
    for (at, app) in model.app.iter().enumerate() {
        let spec = specs.iter().find(|spec| spec.name == app.name);
        let of_app = responses(&app.name, spec.and_then(AppSpec::tail)).into_iter();
        all.extend(of_app.map(|(quantity, response)| MeasuredQuantity {
            quantity,
            what: TierFigure::Response(at, response),
        }));
    }
    let mut add = |kind, of: Option<&str>, words, unit, what| {
        all.push(MeasuredQuantity { quantity: quantity(kind, of, words, unit), what });
    };
    if model.tier.iter().any(|tier| tier.backlog.is_some())
        || model.pool.iter().any(|pool| pool.backlog.is_some())
    {
        for (at, app) in model.app.iter().enumerate() {
            add("lost", Some(&app.name), "share lost", "%", TierFigure::Lost(at));
        }
    }
    let powered: Vec<usize> =
        (0..model.tier.len()).filter(|tier| has_power(model, &model.tier[*tier])).collect();
    if !powered.is_empty() {
        add("power", None, "power", "W", TierFigure::Power(powered.clone()));
        let energy = TierFigure::EnergyPerRequest(powered.clone());
        add("energy-per-request", None, "energy per request", "mJ", energy);
        let switches = TierFigure::Switches(powered);
        add("switches", None, "P-state switches per server", "1/s", switches);
    }
    for (at, tier) in model.tier.iter().enumerate() {
        add("utilisation", Some(&tier.name), "utilisation", "%", TierFigure::Utilisation(at));
    }
    all
}

/// The figures of an app's answers: throughput, mean, percentiles, and the
/// share beyond the objective if there is one.
pub(super) fn responses(
    name: &str,
    objective: Option<(Percentile, Nanos)>,
) -> Vec<(Quantity, Response)> {
    let mut all = Vec::new();
    let mut add = |kind: &str, words: &str, unit, response| {
        all.push((quantity(kind, Some(name), words, unit), response));
    };
    add("throughput", "throughput", "1/s", Response::Throughput);
    add("mean", "mean response", "ms", Response::Mean);
    let mut percentiles: Vec<Percentile> =
        PERCENTILES.iter().filter_map(|percent| Percentile::new(*percent).ok()).collect();
    if let Some((percentile, _)) = objective
        && !percentiles.contains(&percentile)
    {
        percentiles.push(percentile);
    }
    for percentile in percentiles {
        let kind = format!("p{}", percentile.percent());
        add(&kind, &format!("{kind} response"), "ms", Response::Tail(percentile));
    }
    if let Some((_, bound)) = objective {
        let words = format!("over the objective of {bound}");
        add("over-objective", &words, "%", Response::Over(bound));
    }
    all
}

/// A figure, of an app or tier or of the whole.
pub(crate) fn quantity(kind: &str, of: Option<&str>, words: &str, unit: &'static str) -> Quantity {
    let (id, name) = match of {
        Some(of) => (format!("{kind}[{of}]"), format!("{of}: {words}")),
        None => (kind.to_owned(), words.to_owned()),
    };
    Quantity { id, name, unit }
}

/// Whether all cores of a tier have P-states, and so power.
fn has_power(model: &Model, tier: &Tier) -> bool {
    model.machine_of(tier).cores.iter().all(|group| !group.pstates.is_empty())
}

impl Quantity {
    /// The kind of figure: `p95` of `p95[site]`.
    pub fn kind(&self) -> &str {
        self.id.split_once('[').map_or(&self.id, |(kind, _)| kind)
    }

    /// The app or tier that is measured: `site` of `p95[site]`; `None` for the whole.
    pub fn app(&self) -> Option<&str> {
        self.id.split_once('[').map(|(_, of)| of.trim_end_matches(']'))
    }
}

impl Response {
    /// Its value; NaN where there is none, such as the response time of no request.
    pub(super) fn value(self, answers: Answers<'_>) -> f64 {
        let Answers { span, count, mean_ms, latency } = answers;
        match self {
            Self::Throughput => count as f64 / span.as_secs_f64(),
            Self::Mean => mean_ms,
            Self::Tail(percentile) => {
                latency.quantile(percentile).map_or(f64::NAN, Nanos::as_millis_f64)
            }
            Self::Over(bound) => percent(latency.count_above(bound) as f64, latency.count() as f64),
        }
    }
}

impl MeasuredQuantity {
    /// Its value in one replication; NaN where there is none.
    pub(super) fn value(&self, totals: &Totals) -> f64 {
        match &self.what {
            TierFigure::Response(app, response) => response.value(Answers {
                span: totals.span,
                count: totals.apps[*app].answered,
                mean_ms: response_ms(*app)(totals),
                latency: &totals.apps[*app].latency,
            }),
            TierFigure::Lost(app) => {
                let app = &totals.apps[*app];
                percent(app.lost as f64, app.arrived as f64)
            }
            TierFigure::Power(tiers) => power_w(tiers)(totals),
            TierFigure::EnergyPerRequest(tiers) => {
                let answered: u64 = totals.apps.iter().map(|app| app.answered).sum();
                1e3 * power_w(tiers)(totals) * totals.span.as_secs_f64() / answered as f64
            }
            TierFigure::Switches(tiers) => switches_per_s(tiers)(totals),
            TierFigure::Utilisation(tier) => {
                let servers = totals.servers.iter().filter(|server| server.tier == *tier);
                let busy: Vec<f64> =
                    servers.map(|server| server.utilisation(totals.span)).collect();
                percent(busy.iter().sum(), busy.len() as f64)
            }
        }
    }
}

/// A share in percent.
pub(super) fn percent(part: f64, whole: f64) -> f64 {
    100.0 * part / whole
}
