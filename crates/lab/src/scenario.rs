//! Scenarios: a system, its load, and the policies to compare on it.
//!
//! A scenario is a TOML file. It has the keys of [`lull_sim::Model`] (tiers,
//! pools, machines, apps), `[run]` (seed, warm-up, length, replications or a
//! precision to reach) and a `[[policy]]` for each policy, the first being the
//! reference of paired differences. docs/scenario.md lists every key.
//!
//! [`ScenarioFile`] is what serde reads; [`Scenario::new`] checks it and says
//! what is wrong by key, so that the caller that read the file can add its name and line.
//! [`Scenario::run`] simulates and returns an [`Outcome`].

mod check;
mod choice;
mod colocated;
mod dispatch;
mod file;
mod frame;
mod gated;
mod hosted;
mod kind;
mod net_server;
mod node_section;
mod outcome;
mod picture;
mod quantity;
mod records;
mod replicate;
mod run;
mod stored;
mod worst;

pub use crate::colocation::{ConnectionGroup, GateKeeper, GateKeepers, LiveServer, Promised};
pub use choice::Choice;
pub use colocated::{Colocated, ColocatedFile, NodeScene};
pub use dispatch::{DispatchFile, DispatchScenario};
pub use file::{RunSection, ScenarioFile};
pub use gated::{Gated, GatedFile};
pub use hosted::HostedScenario;
pub use kind::{AnyFile, AnyScenario, Kind};
pub use net_server::{NetServerFile, NetServerScenario};
pub use outcome::{Comparison, Outcome, PolicyOutcome};
pub use quantity::Quantity;
pub(crate) use quantity::quantity as figure_of;
pub use records::RecordError;
pub use run::RunError;
pub use worst::{Search, Sweep, WorstCycles};

use crate::policy_source::PolicySource;
use crate::trial::{Control, Trial};
use choice::{Described, Labelled};
use file::{AppSection, PolicySection, epoch_of};
use lull_control::AppSpec;
use lull_measure::Nanos;
use lull_sim::model::{Limits, Model, ModelError};
use std::path::Path;

/// A key of a scenario that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct InvalidKey {
    /// The key, such as `tier[1].threads`; empty for the file as a whole.
    pub key: String,
    /// The error and the correction.
    pub message: String,
}

impl InvalidKey {
    pub(crate) fn at(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }

    /// The error of a model that is a section of the file.
    pub(crate) fn in_section(section: &str, error: &ModelError) -> Self {
        Self::at(format!("{section}.{}", error.key), error.problem.to_string())
    }
}

/// One policy of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Its label in tables; by default its name in the registry.
    pub label: String,
    /// The policy, its config, where and how often it acts.
    pub control: Control,
    /// Its key in the file; `--policy` if it is only on the command line.
    key: String,
}

/// A checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its title.
    pub title: String,
    /// The system.
    pub model: Model,
    /// The apps that policies watch.
    pub apps: Vec<AppSpec>,
    /// The policies, the reference first.
    pub variants: Vec<Variant>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Part at the start of each replication that is not counted; found by MSER-5 if `None`.
    pub warmup: Option<Nanos>,
    /// Counted time of a replication.
    pub length: Nanos,
    /// Replications, at least.
    pub replications: u64,
    /// When to stop replicating.
    pub precision: Option<TargetPrecision>,
    /// Notices about how far the figures are valid.
    pub notices: Vec<String>,
}

/// The precision that a figure of a scenario has to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TargetPrecision {
    /// Number of the figure in [`Scenario::quantities`].
    pub quantity: usize,
    /// Half width of its 95 % interval, relative to its mean.
    pub relative: f64,
    /// Replications after which to give up.
    pub most: u64,
}

impl Scenario {
    /// Checks a scenario; `base` is the directory of files that it names.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(file: ScenarioFile, base: &Path, choice: &Choice) -> Result<Self, InvalidKey> {
        let model = model(&file, base)?;
        let apps = specs(&file.app)?;
        let variants = variants(&file.policy, &model, choice)?;
        let mut scenario = Self {
            title: file.title,
            model,
            apps,
            variants,
            seed: choice.seed.unwrap_or(file.run.seed),
            warmup: file.run.warmup.given(),
            length: file.run.length,
            replications: choice.replications.unwrap_or(file.run.replications),
            precision: None,
            notices: Vec::new(),
        };
        if choice.replications.is_none()
            && let Some(written) = &file.run.precision
        {
            scenario.precision = Some(scenario.target_precision(written)?);
        }
        scenario.check(file.limits.in_flight.is_some())?;
        Ok(scenario)
    }

    /// The trial of one variant, without its warm-up if that is still to be found.
    pub fn trial(&self, variant: &Variant) -> Trial<'_> {
        Trial {
            model: &self.model,
            controls: vec![variant.control.clone()],
            apps: self.apps.clone(),
            seed: self.seed,
            warmup: self.warmup.unwrap_or_default(),
            length: self.length,
        }
    }

    /// Returns the measured quantities, in the order of tables.
    pub fn quantities(&self) -> Vec<Quantity> {
        self.measured().into_iter().map(|measured| measured.quantity).collect()
    }

    fn measured(&self) -> Vec<quantity::MeasuredQuantity> {
        quantity::tier_figures(&self.model, &self.apps)
    }
}

/// The model of a file, checked.
fn model(file: &ScenarioFile, base: &Path) -> Result<Model, InvalidKey> {
    let apps = file.app.iter().enumerate();
    let apps = apps.map(|(at, app)| app.model(&format!("app[{at}]"), base));
    let limits = Limits {
        in_flight: file.limits.in_flight.unwrap_or(check::IN_FLIGHT),
        events: file.limits.events.unwrap_or(check::EVENTS),
    };
    let model = Model {
        machine: file.machine.clone(),
        tier: file.tier.clone(),
        pool: file.pool.clone(),
        app: apps.collect::<Result<_, _>>()?,
        limits,
    };
    model.check().map_err(|error| {
        let number = error.key.strip_prefix("app[").and_then(|rest| rest.split(']').next());
        let app = number.and_then(|number| file.app.get(number.parse::<usize>().ok()?));
        let key = app.map_or_else(|| error.key.clone(), |app| app.written_key(&error.key));
        InvalidKey::at(key, error.problem.to_string())
    })?;
    Ok(model)
}

/// The apps that policies watch.
fn specs(apps: &[AppSection]) -> Result<Vec<AppSpec>, InvalidKey> {
    let specs = apps.iter().enumerate().map(|(at, app)| app.spec(&format!("app[{at}]")));
    Ok(specs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// The policies to compare: those of the file, or those that the command line names.
fn variants(
    tables: &[toml::Table],
    model: &Model,
    choice: &Choice,
) -> Result<Vec<Variant>, InvalidKey> {
    let mut written: Vec<Variant> = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let key = format!("policy[{at}]");
        let section = PolicySection::read(table.clone(), &key)?;
        written.push(variant(section, model, key)?);
    }
    // A policy that only the command line names has the tiers of the file's first.
    let (tiers, first) = match written.first().map(|first| first.control.clone()) {
        Some(control) => (control.tiers, Some(control.epoch)),
        None => (steerable(model), None),
    };
    choice.choose(written, |name| {
        let (policy, config) = (choice.source(name)?, toml::Table::new());
        let epoch = epoch_of(None, &policy, &config, first.as_ref());
        let control = Control { policy, config, tiers: tiers.clone(), epoch };
        Ok(Variant { label: name.to_owned(), control, key: "--policy".to_owned() })
    })
}

impl Labelled for Variant {
    fn described(&self) -> Described<'_> {
        let name = self.control.policy.name();
        let epoch = Some(self.control.epoch.clone());
        Described { label: &self.label, name, key: &self.key, epoch }
    }
}

fn variant(section: PolicySection, model: &Model, key: String) -> Result<Variant, InvalidKey> {
    let PolicySection { name, label, tiers, epoch, config } = section;
    let policy = PolicySource::registered(&name)
        .map_err(|error| InvalidKey::at(format!("{key}.name"), error.to_string()))?;
    let tiers = match tiers {
        None => steerable(model),
        Some(tiers) => {
            check_tiers(&tiers, model, &key)?;
            tiers
        }
    };
    let label = label.unwrap_or(name);
    let epoch = epoch_of(epoch, &policy, &config, None);
    Ok(Variant { label, control: Control { policy, config, tiers, epoch }, key })
}

fn check_tiers(tiers: &[String], model: &Model, key: &str) -> Result<(), InvalidKey> {
    let known: Vec<_> = model.tier.iter().map(|tier| tier.name.as_str()).collect();
    if tiers.is_empty() {
        let message = format!(
            "is empty: name tiers to steer, or leave the key out; there are: {}",
            known.join(", ")
        );
        return Err(InvalidKey::at(format!("{key}.tiers"), message));
    }
    for (at, tier) in tiers.iter().enumerate() {
        if !known.contains(&tier.as_str()) {
            let message = format!("there is no tier `{tier}`; there are: {}", known.join(", "));
            return Err(InvalidKey::at(format!("{key}.tiers[{at}]"), message));
        }
        if tiers[..at].contains(tier) {
            return Err(InvalidKey::at(
                format!("{key}.tiers[{at}]"),
                format!("`{tier}` is named twice"),
            ));
        }
    }
    Ok(())
}

/// Tiers whose cores have P-states; all tiers if none has.
fn steerable(model: &Model) -> Vec<String> {
    let scales = |name: &&lull_sim::model::Tier| {
        model.machine_of(name).cores.iter().any(|group| !group.pstates.is_empty())
    };
    let names = |tiers: Vec<&lull_sim::model::Tier>| -> Vec<String> {
        tiers.into_iter().map(|tier| tier.name.clone()).collect()
    };
    let found: Vec<_> = model.tier.iter().filter(scales).collect();
    if found.is_empty() { names(model.tier.iter().collect()) } else { names(found) }
}
