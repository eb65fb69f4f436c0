//! Comparison of a run's policy with the unmanaged machine.
//!
//! The run is divided into pairs of blocks, one with the policy and one unmanaged. The order
//! within each pair is random and balanced over the run. A figure is computed for each block
//! and a difference for each pair. A difference is claimed only if it is statistically
//! significant; `difference` describes the test.

mod block;
mod difference;
mod text;

pub use block::Block;
pub use difference::{Difference, PAIRS_MIN};

use lull_control::{AppSpec, Rng};
use lull_measure::{Nanos, Percentile};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// The policy that a proof compares with.
pub const AGAINST: &str = "unmanaged";

/// Two blocks next to each other in time.
#[derive(Debug, Clone, Default)]
pub struct Pair {
    /// Unmanaged.
    pub off: Block,
    /// With the policy.
    pub on: Block,
}

/// How a proof was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Design {
    /// The policy.
    pub policy: String,
    /// The policy of the other blocks.
    pub against: String,
    /// Length of a block.
    pub block_ns: Nanos,
    /// Pairs that were planned.
    pub planned_pairs: usize,
    /// Seed of the order and of the intervals.
    pub seed: u64,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// How it was made.
    pub design: Design,
    /// Whole pairs that there are.
    pub pairs: usize,
    /// One figure a line.
    pub figures: Vec<Figure>,
    /// The source of energy figures; `None` if energy was not measured throughout.
    pub energy_source: Option<String>,
    /// Why energy is not known, if so.
    pub energy_missing: Option<String>,
    /// Epochs that counted and in which the SLO-safe state was in force.
    pub safe_epochs: u64,
    /// The apps that arrived or departed, which changes the figures of all.
    #[serde(default)]
    pub disturbances: Vec<Disturbance>,
}

/// Epochs that counted and in which an app was absent or was restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disturbance {
    /// The app.
    pub app: String,
    /// Unmanaged epochs.
    pub off: u64,
    /// Epochs with the policy.
    pub on: u64,
}

/// One figure, off and on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The app; `None` for the machine.
    pub app: Option<String>,
    /// The compared quantity, such as `p95 latency`.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// Mean over unmanaged blocks.
    pub off: Option<f64>,
    /// Mean over blocks with the policy.
    pub on: Option<f64>,
    /// On minus off; `None` if no pair has both.
    pub difference: Option<Difference>,
}

/// Draws the order within each pair (`true`: the policy goes first). The order is random, and
/// each order is used equally often.
pub fn order(pairs: usize, rng: &mut Rng) -> Vec<bool> {
    let mut order: Vec<bool> = (0..pairs).map(|pair| pair % 2 == 0).collect();
    if pairs % 2 == 1 && rng.random_bool(0.5) {
        order[pairs - 1] = false;
    }
    for last in (1..pairs).rev() {
        order.swap(last, rng.random_range(0..=last));
    }
    order
}

/// A figure of a block, with its name and unit.
struct Quantity<'a> {
    app: Option<&'a AppSpec>,
    name: String,
    unit: String,
    of: Reading<'a>,
}

/// Reads one figure of a block.
type Reading<'a> = Box<dyn Fn(&Block) -> Option<f64> + 'a>;

impl Proof {
    /// Computes the figures and differences of these pairs.
    pub fn from_pairs(design: Design, apps: &[AppSpec], pairs: &[Pair], rng: &mut Rng) -> Self {
        let quantities = quantities(apps, pairs);
        let halves = |of: &Quantity<'_>| -> Vec<Option<[f64; 2]>> {
            let both = |pair: &Pair| Some([(of.of)(&pair.off)?, (of.of)(&pair.on)?]);
            pairs.iter().map(both).collect()
        };
        let values: Vec<_> = quantities.iter().map(halves).collect();
        let differences = |halves: &Vec<Option<[f64; 2]>>| -> Vec<Option<f64>> {
            halves.iter().map(|both| both.map(|[off, on]| less(on, off))).collect()
        };
        let paired: Vec<_> = values.iter().map(differences).collect();
        let found = difference::differences(&paired, rng);
        let figures = quantities.into_iter().zip(&values).zip(found);
        let figures = figures.map(|((quantity, halves), difference)| Figure {
            app: quantity.app.map(|spec| spec.name.clone()),
            quantity: quantity.name,
            unit: quantity.unit,
            off: mean(halves, 0),
            on: mean(halves, 1),
            difference,
        });
        let figures = figures.collect();
        let (energy_source, energy_missing) = energy(pairs);
        let safe = |pair: &Pair| pair.off.safe_epochs + pair.on.safe_epochs;
        let safe_epochs = pairs.iter().map(safe).sum();
        let disturbances = disturbances(apps, pairs);
        Self {
            design,
            pairs: pairs.len(),
            figures,
            energy_source,
            energy_missing,
            safe_epochs,
            disturbances,
        }
    }
}

/// The apps that were absent or restarted in some epochs. One that is absent in all changes
/// nothing.
fn disturbances(apps: &[AppSpec], pairs: &[Pair]) -> Vec<Disturbance> {
    let epochs: u64 = pairs.iter().map(|pair| pair.off.epochs + pair.on.epochs).sum();
    let of = |(app, spec): (usize, &AppSpec)| {
        let off: u64 = pairs.iter().map(|pair| pair.off.disturbed_epochs(app)).sum();
        let on: u64 = pairs.iter().map(|pair| pair.on.disturbed_epochs(app)).sum();
        let is_some = (1..epochs).contains(&(off + on));
        is_some.then(|| Disturbance { app: spec.name.clone(), off, on })
    };
    apps.iter().enumerate().filter_map(of).collect()
}

/// Returns `on - off`, or 0 if the two differ only by rounding, such as two sums of the same
/// watts.
fn less(on: f64, off: f64) -> f64 {
    const DIGITS: f64 = 1e-9;
    let difference = on - off;
    if difference.abs() <= DIGITS * on.abs().max(off.abs()) { 0.0 } else { difference }
}

fn mean(halves: &[Option<[f64; 2]>], which: usize) -> Option<f64> {
    let known: Vec<f64> = halves.iter().flatten().map(|both| both[which]).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

/// Returns the source of energy figures, or the reason why energy is unknown in some block.
fn energy(pairs: &[Pair]) -> (Option<String>, Option<String>) {
    let blocks = || pairs.iter().flat_map(|pair| [&pair.off, &pair.on]);
    let found = || blocks().filter_map(Block::energy_source);
    match found().find_map(Result::err) {
        Some(why) => (None, Some(why.to_string())),
        None => (found().find_map(Result::ok).map(str::to_owned), None),
    }
}

fn quantities<'a>(apps: &'a [AppSpec], pairs: &[Pair]) -> Vec<Quantity<'a>> {
    let mut all = Vec::new();
    let last = pairs.last();
    for (app, spec) in apps.iter().enumerate() {
        if !spec.is_latency_critical() {
            let unit = last.and_then(|pair| pair.on.unit(app)).unwrap_or("work");
            let of = Box::new(move |block: &Block| block.progress_per_s(app));
            let (name, unit) = ("progress".to_owned(), format!("{unit}/s"));
            all.push(Quantity { app: Some(spec), name, unit, of });
            continue;
        }
        all.extend(latencies(app, spec, pairs));
        all.push(Quantity {
            app: Some(spec),
            name: "requests answered".to_owned(),
            unit: "1/s".to_owned(),
            of: Box::new(move |block| block.answered_per_s(app)),
        });
    }
    let machine = |name: &str, unit: &str, of| {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Quantity { app: None, name, unit, of }
    };
    all.push(machine("power", "W", Box::new(Block::power_w)));
    if apps.iter().any(AppSpec::is_latency_critical) {
        let of = Box::new(|block: &Block| block.energy_per_request_j(apps));
        all.push(machine("energy per request", "J", of));
    }
    all
}

/// Percentiles of all requests, or the one tail that the app's source gives.
fn latencies<'a>(app: usize, spec: &'a AppSpec, pairs: &[Pair]) -> Vec<Quantity<'a>> {
    let named = |name: String, of| {
        let unit = "ms".to_owned();
        Quantity { app: Some(spec), name, unit, of }
    };
    let has_tail_only = |pair: &Pair| pair.on.mean_tail_ms(app).is_some();
    if let Some((percentile, _)) = spec.tail().filter(|_| pairs.iter().any(has_tail_only)) {
        let name = format!("{percentile} latency, mean of epochs");
        return vec![named(name, Box::new(move |block: &Block| block.mean_tail_ms(app)))];
    }
    let of = |percentile: Percentile| {
        let of = Box::new(move |block: &Block| block.latency_ms(app, percentile));
        named(format!("{percentile} latency"), of as Reading<'a>)
    };
    [Percentile::P50, Percentile::P95, Percentile::P99].map(of).into()
}

#[cfg(test)]
mod tests;
