//! The subjects of stored results, and the keys of searches.

use crate::sweep::describe_levels;
use lull_control::{Capabilities, Capability, Machine};
use lull_measure::{Nanos, Percentile};
use lull_policies::search::{Protocol, Search, Space};
use std::ops::RangeInclusive;

/// The width of a load bin: rates within 15 % share their results.
const BIN: f64 = 1.15;

/// The subject of stored results: an app's objective on a machine, over a set of knobs.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    pub(super) machine: String,
    pub(super) app: String,
    pub(super) objective: String,
    pub(super) knobs: String,
}

/// The key under which a search stores its trials.
pub struct Key {
    pub(super) subject: Subject,
    pub(super) bin: i64,
    /// Objective, method, space and length of trials. Only a search with an equal key reuses
    /// the trials.
    pub(super) search: String,
    pub(super) rate_per_s: f64,
}

impl Subject {
    /// Returns the subject for an app's objective on a machine and the knobs of a search space.
    pub fn new(
        machine: &Machine,
        app: &str,
        percentile: Percentile,
        bound: Nanos,
        space: &Space,
    ) -> Self {
        let knobs: Vec<_> = space.dimensions().iter().map(|it| it.knob).collect();
        let (machine, app) = (machine_class(machine), app.to_owned());
        let objective = format!("{percentile} < {bound}");
        Self { machine, app, objective, knobs: String::new() }.over(&knobs)
    }

    /// Returns the same subject over other knobs.
    #[must_use]
    pub fn over(&self, knobs: &[Capability]) -> Self {
        let knobs: Vec<_> = knobs.iter().map(|knob| knob.name()).collect();
        Self { knobs: knobs.join(","), ..self.clone() }
    }

    /// Returns the names of the knobs.
    pub fn knobs(&self) -> impl Iterator<Item = &str> {
        self.knobs.split(',')
    }

    /// Parses stored values, of which there is one for each knob.
    pub(super) fn values(&self, text: &str) -> anyhow::Result<Vec<f64>> {
        let values: Vec<f64> = serde_json::from_str(text)?;
        anyhow::ensure!(values.len() == self.knobs().count(), "a setting has {values:?}");
        Ok(values)
    }
}

impl Key {
    /// Returns the subject of the search's results.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Returns the load, in requests per second.
    pub fn rate_per_s(&self) -> f64 {
        self.rate_per_s
    }

    /// Returns the key of a search. `plant` names further conditions that must be equal for
    /// trials to be reused: for a simulated server, its exact load and seed.
    pub fn new(
        subject: Subject,
        search: &Search,
        protocol: &Protocol,
        plant: &str,
        rate_per_s: f64,
    ) -> Self {
        let what = format!(
            "{:?}; {}; {}; {} after {}; {plant}",
            search.rules().method,
            subject.objective,
            describe_levels(search.space()),
            protocol.window,
            protocol.settle
        );
        Self { bin: bin(rate_per_s), subject, search: what, rate_per_s }
    }
}

/// Returns the load bin of a rate.
pub fn bin(rate_per_s: f64) -> i64 {
    (rate_per_s.max(1e-3).ln() / BIN.ln()).round() as i64
}

/// Returns the rates that are of about the same load as this one: they differ by at most 15 %.
pub(crate) fn rates_near(rate_per_s: f64) -> RangeInclusive<f64> {
    rate_per_s / BIN..=rate_per_s * BIN
}

/// Returns the class of a machine: its name and a checksum of everything that a setting may
/// depend on. Of capabilities these are their names and not their texts, which are messages and
/// may have the numbers of an error. Gates are left out because they belong to apps; their
/// settings are stored under the knobs of the app.
pub fn machine_class(machine: &Machine) -> String {
    let has = |it: &Capability| machine.capabilities.has(*it) && !Capability::OF_GATES.contains(it);
    let found = Capability::ALL.into_iter().filter(has);
    let capabilities = found.fold(Capabilities::default(), |all, it| all.with_capability(it, ""));
    class_of(&Machine { gates: Vec::new(), capabilities, ..machine.clone() })
}

/// Returns the name of a machine and the checksum of all that it has.
pub(super) fn class_of(machine: &Machine) -> String {
    let all = serde_json::to_string(machine).unwrap_or_default();
    format!("{} {:08x}", machine.name, crc32fast::hash(all.as_bytes()))
}
