//! What is measured in each replication.

use crate::trial::{power_w, response_ms, switches_per_s, throughput};
use lull_control::AppSpec;
use lull_measure::{Nanos, Percentile};
use lull_sim::Totals;
use lull_sim::model::{Model, Tier};
use serde::Serialize;

/// One figure of every replication.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantity {
    /// Its name in files and JSON, such as `p95[site]`.
    #[serde(rename = "figure")]
    pub id: String,
    /// Its name in tables.
    #[serde(skip)]
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    #[serde(skip)]
    pub(super) what: What,
}

/// Which figure, of which app or tier.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum What {
    Throughput(usize),
    Mean(usize),
    Tail(usize, Percentile),
    Over(usize, Nanos),
    Lost(usize),
    Power(Vec<usize>),
    EnergyPerRequest(Vec<usize>),
    Switches(Vec<usize>),
    Utilisation(usize),
}

/// Percentiles that every app is measured at.
const PERCENTILES: [f64; 3] = [50.0, 95.0, 99.0];

/// All figures of a model: app by app, then power, then tier by tier.
pub(super) fn of(model: &Model, specs: &[AppSpec]) -> Vec<Quantity> {
    let mut all = Vec::new();
    for (at, app) in model.app.iter().enumerate() {
        let spec = specs.iter().find(|spec| spec.name == app.name);
        of_app(at, &app.name, spec, &mut all);
    }
    if model.tier.iter().any(|tier| tier.backlog.is_some())
        || model.pool.iter().any(|pool| pool.backlog.is_some())
    {
        let lost = |(at, app): (usize, &lull_sim::model::App)| {
            quantity("lost", Some(&app.name), "share lost", "%", What::Lost(at))
        };
        all.extend(model.app.iter().enumerate().map(lost));
    }
    let powered: Vec<usize> =
        (0..model.tier.len()).filter(|tier| has_power(model, &model.tier[*tier])).collect();
    if !powered.is_empty() {
        let of = |kind, name, unit, what| quantity(kind, None, name, unit, what);
        all.push(of("power", "power", "W", What::Power(powered.clone())));
        let energy = What::EnergyPerRequest(powered.clone());
        all.push(of("energy-per-request", "energy per request", "mJ", energy));
        let switches = What::Switches(powered);
        all.push(of("switches", "P-state switches per server", "1/s", switches));
    }
    all.extend(model.tier.iter().enumerate().map(|(at, tier)| {
        quantity("utilisation", Some(&tier.name), "utilisation", "%", What::Utilisation(at))
    }));
    all
}

fn of_app(at: usize, name: &str, spec: Option<&AppSpec>, all: &mut Vec<Quantity>) {
    let of = |kind: &str, words: &str, unit, what| quantity(kind, Some(name), words, unit, what);
    all.push(of("throughput", "throughput", "1/s", What::Throughput(at)));
    all.push(of("mean", "mean response", "ms", What::Mean(at)));
    let objective = spec.and_then(AppSpec::tail);
    let mut percentiles: Vec<Percentile> =
        PERCENTILES.iter().filter_map(|percent| Percentile::new(*percent).ok()).collect();
    if let Some((percentile, _)) = objective
        && !percentiles.contains(&percentile)
    {
        percentiles.push(percentile);
    }
    for percentile in percentiles {
        let kind = format!("p{}", percentile.percent());
        all.push(of(&kind, &format!("{kind} response"), "ms", What::Tail(at, percentile)));
    }
    if let Some((_, bound)) = objective {
        let words = format!("over the objective of {bound}");
        all.push(of("over-objective", &words, "%", What::Over(at, bound)));
    }
}

fn quantity(kind: &str, of: Option<&str>, words: &str, unit: &'static str, what: What) -> Quantity {
    let (id, name) = match of {
        Some(of) => (format!("{kind}[{of}]"), format!("{of}: {words}")),
        None => (kind.to_owned(), words.to_owned()),
    };
    Quantity { id, name, unit, what }
}

/// Whether all cores of a tier have P-states, and so power.
fn has_power(model: &Model, tier: &Tier) -> bool {
    model.machine_of(tier).cores.iter().all(|group| !group.pstates.is_empty())
}

impl Quantity {
    /// What is measured, without of what: `p95` of `p95[site]`.
    pub fn kind(&self) -> &str {
        self.id.split_once('[').map_or(&self.id, |(kind, _)| kind)
    }

    /// Its value in one replication; NaN where there is none, such as the
    /// response time of no request.
    pub fn value(&self, totals: &Totals) -> f64 {
        match &self.what {
            What::Throughput(app) => throughput(*app)(totals),
            What::Mean(app) => response_ms(*app)(totals),
            What::Tail(app, percentile) => {
                let tail = totals.apps[*app].latency.quantile(*percentile);
                tail.map_or(f64::NAN, Nanos::as_millis_f64)
            }
            What::Over(app, bound) => {
                let latency = &totals.apps[*app].latency;
                percent(latency.count_above(*bound) as f64, latency.count() as f64)
            }
            What::Lost(app) => {
                let app = &totals.apps[*app];
                percent(app.lost as f64, app.arrived as f64)
            }
            What::Power(tiers) => power_w(tiers)(totals),
            What::EnergyPerRequest(tiers) => {
                let answered: u64 = totals.apps.iter().map(|app| app.answered).sum();
                1e3 * power_w(tiers)(totals) * totals.span.as_secs_f64() / answered as f64
            }
            What::Switches(tiers) => switches_per_s(tiers)(totals),
            What::Utilisation(tier) => {
                let servers = totals.servers.iter().filter(|server| server.tier == *tier);
                let busy: Vec<f64> =
                    servers.map(|server| server.utilisation(totals.span)).collect();
                percent(busy.iter().sum(), busy.len() as f64)
            }
        }
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    100.0 * part / whole
}
