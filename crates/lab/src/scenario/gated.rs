//! Scenarios of one server with more threads than cores: `[gated]`, and in each
//! `[[scheme]]` an admission controller at its gate and, if there is one, a policy over its
//! cores and frequencies, each with its keys in a table of its own.

use super::choice::{Described, Labelled};
use super::colocated::check_amount;
use super::file::{RunSection, label_and_name};
use super::frame::{Contents, Frame};
use super::quantity::{Answers, Quantity, Response, percent, quantity, responses};
use super::run::RunError;
use super::{Choice, InvalidKey, Outcome};
use crate::cells::Sample;
use crate::progress::Progress;
use lull_control::{Objective, Plant, PlantError, Policy, Rng};
use lull_measure::Nanos;
use lull_policies::admission::Site;
use lull_policies::{ADMISSION_CONTROLLERS, POLICIES};
use lull_sim::oversubscribed::{GatedTotals, MachinePlant, OversubscribedModel};
use rand::SeedableRng;
use serde::Deserialize;

/// Default warm-up: ours. A search for a cap
/// takes some ten windows of 2 s.
const WARMUP: Nanos = Nanos::from_secs(30);
/// Time between two looks of a policy: REEF's (SoCC'25, section 4).
const EPOCH: Nanos = Nanos::from_millis(100);
/// The admission controller where the command line names only a policy.
const NO_GATE: &str = "open";

/// A scenario of a gated server as it is written, before it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedFile {
    title: String,
    #[serde(default)]
    run: RunSection,
    gated: OversubscribedModel,
    #[serde(default)]
    scheme: Vec<SchemeSection>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct SchemeSection {
    label: Option<String>,
    admission: toml::Table,
    policy: Option<toml::Table>,
}

/// A checked scenario of a gated server.
#[derive(Debug, Clone)]
pub struct Gated {
    pub(super) frame: Frame<GateScheme, GateFigure>,
    model: OversubscribedModel,
}

/// A name in a registry and its keys.
#[derive(Debug, Clone)]
struct Named {
    name: String,
    config: toml::Table,
}

/// One scheme of the comparison.
#[derive(Debug, Clone)]
pub(super) struct GateScheme {
    label: String,
    admission: Named,
    policy: Option<Named>,
    key: String,
}

/// A figure of a gated server.
#[derive(Debug, Clone, Copy)]
pub(super) enum GateFigure {
    /// Response of a class of connections.
    Response(usize, Response),
    Power,
    EnergyPerQuery,
    DeepSleep,
    Frequency,
    Utilisation,
}

impl Gated {
    /// Checks a scenario.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(file: GatedFile, choice: &Choice) -> Result<Self, InvalidKey> {
        file.gated.check().map_err(|error| InvalidKey::in_section("gated", &error))?;
        let contents = Contents {
            title: file.title,
            // Its clients wait for their answers, so that it cannot be flooded.
            notices: Vec::new(),
            variants: variants(&file.scheme, choice)?,
            figures: figures(&file.gated),
        };
        let mut frame = Frame::new(contents, &file.run, choice, WARMUP)?;
        frame.warmup = in_epochs(frame.warmup);
        frame.length = in_epochs(frame.length);
        let span = frame.warmup.saturating_add(frame.length);
        check_amount(&file.gated.machine(), span).map_err(|wrong| {
            InvalidKey::at(wrong.key.replace("node.gate", "gated"), wrong.message)
        })?;
        let scenario = Self { frame, model: file.gated };
        for variant in &scenario.frame.contents.variants {
            scenario.set_up(variant, 0)?;
        }
        Ok(scenario)
    }

    /// A replication that has not begun.
    fn set_up(&self, variant: &GateScheme, replication: u64) -> Result<Replication, InvalidKey> {
        let objectives = self.model.objectives();
        // One core is left to the system (REEF, section 3.3: C below the number of cores).
        let site = Site::new(&objectives, self.model.cores.max(2) - 1);
        let Named { name, config } = &variant.admission;
        let gate = ADMISSION_CONTROLLERS
            .build(name, config, &site)
            .map_err(|error| variant.policy_error(error.within("admission")))?;
        let plant = self
            .model
            .plant(gate, self.frame.seed, replication)
            .map_err(|error| InvalidKey::at("gated", error.to_string()))?;
        let build = |Named { name, config }: &Named| {
            POLICIES
                .build(name, config, plant.machine(), plant.apps())
                .map_err(|error| variant.policy_error(error.within("policy")))
        };
        let policy = variant.policy.as_ref().map(build).transpose()?;
        let rng = Rng::seed_from_u64(self.frame.seed ^ replication.rotate_left(32));
        Ok(Replication { plant, policy, rng })
    }

    /// Runs all schemes on the same replications. The result is the same to
    /// the last bit on any number of threads.
    ///
    /// # Errors
    /// The first simulation that fails.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        let classes = self.model.class.iter().map(|class| (class.name.as_str(), false));
        let classes: Vec<_> = classes.collect();
        self.frame.run(&classes, progress, |variant, replication| {
            self.replicate(variant, replication, progress)
        })
    }

    fn replicate(
        &self,
        variant: &GateScheme,
        replication: u64,
        progress: &Progress<'_>,
    ) -> Result<Sample, InvalidKey> {
        let mut run = self.set_up(variant, replication)?;
        let failed = |error: PlantError| InvalidKey::at("gated", error.to_string());
        run.pass(self.frame.warmup, progress).map_err(failed)?;
        run.plant.forget();
        run.pass(self.frame.length, progress).map_err(failed)?;
        let served = run.plant.gated_totals();
        let values = self.frame.figures().map(|what| self.value(what, &served));
        let answered = served.classes.iter().map(|class| (class.count(), 0));
        Ok(Sample { values: values.collect(), requests: answered.collect() })
    }

    fn value(&self, what: GateFigure, served: &GatedTotals) -> f64 {
        let cores_s = served.span.as_secs_f64() * f64::from(self.model.cores);
        match what {
            GateFigure::Response(class, response) => {
                let latency = &served.classes[class];
                response.value(Answers {
                    span: served.span,
                    count: latency.count(),
                    mean_ms: latency.mean().map_or(f64::NAN, Nanos::as_millis_f64),
                    latency,
                })
            }
            GateFigure::Power => served.power().0,
            GateFigure::EnergyPerQuery => 1e3 * served.power().0 / served.throughput_per_s(),
            GateFigure::DeepSleep => 100.0 * served.residency_share(self.model.idle.len() - 1),
            GateFigure::Frequency => served.mean_hertz / 1e9,
            GateFigure::Utilisation => percent(served.busy.as_secs_f64(), cores_s),
        }
    }
}

/// One replication under way.
struct Replication {
    plant: MachinePlant,
    policy: Option<Box<dyn Policy>>,
    rng: Rng,
}

impl Replication {
    /// Whole epochs pass, each with a decision at its end.
    fn pass(&mut self, time: Nanos, progress: &Progress<'_>) -> Result<(), PlantError> {
        for _ in 0..time.0 / EPOCH.0 {
            progress.check().map_err(|_| PlantError::Stopped)?;
            let seen = self.plant.observe(EPOCH)?;
            let Some(policy) = &mut self.policy else { continue };
            let plan = policy.decide(&seen, &mut self.rng);
            let wanted: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
            let _ = self.plant.apply(&wanted);
        }
        Ok(())
    }
}

/// Rounds a time up to whole epochs.
fn in_epochs(time: Nanos) -> Nanos {
    Nanos(time.0.div_ceil(EPOCH.0).saturating_mul(EPOCH.0))
}

impl Labelled for GateScheme {
    fn described(&self) -> Described<'_> {
        let name = self.policy.as_ref().map_or(&self.admission.name, |policy| &policy.name);
        let epoch = self.policy.as_ref().map(|_| EPOCH.into());
        Described { label: &self.label, name, key: &self.key, epoch }
    }
}

impl Named {
    fn read(table: &toml::Table, key: &str) -> Result<Self, InvalidKey> {
        let (mut config, missing) = (table.clone(), "has no name: write name = \"reef\"");
        let (_, name) = label_and_name(&mut config, key, missing)?;
        Ok(Self { name, config })
    }
}

impl SchemeSection {
    fn variant(&self, key: String) -> Result<GateScheme, InvalidKey> {
        let admission = Named::read(&self.admission, &format!("{key}.admission"))?;
        let of_policy = |table| Named::read(table, &format!("{key}.policy"));
        let policy = self.policy.as_ref().map(of_policy).transpose()?;
        let usual = || match &policy {
            Some(policy) => format!("{}, {}", admission.name, policy.name),
            None => admission.name.clone(),
        };
        let label = self.label.clone().unwrap_or_else(usual);
        Ok(GateScheme { label, admission, policy, key })
    }
}

/// The schemes of the file, or those that the command line names: an admission controller,
/// or a policy with an open gate.
fn variants(sections: &[SchemeSection], choice: &Choice) -> Result<Vec<GateScheme>, InvalidKey> {
    let each = sections.iter().enumerate();
    let written = each.map(|(at, section)| section.variant(format!("scheme[{at}]")));
    let written = written.collect::<Result<Vec<_>, _>>()?;
    if written.is_empty() && choice.policies.is_empty() {
        let message = "there is none: write [[scheme]] with admission = { name = \"reef\" }, or \
                       give --policy";
        return Err(InvalidKey::at("scheme", message));
    }
    choice.choose(written, |name| {
        let named = |name: &str| Named { name: name.to_owned(), config: toml::Table::new() };
        let is_admission = ADMISSION_CONTROLLERS.find(name);
        let (admission, policy) = match (&is_admission, POLICIES.find(name)) {
            (Ok(_), _) => (named(name), None),
            (_, Ok(_)) => (named(NO_GATE), Some(named(name))),
            (_, Err(error)) => return Err(error.to_string()),
        };
        Ok(GateScheme { label: name.to_owned(), admission, policy, key: "--policy".to_owned() })
    })
}

/// All figures: class by class, then energy and cores.
fn figures(model: &OversubscribedModel) -> Vec<(Quantity, GateFigure)> {
    let mut all = Vec::new();
    for (at, class) in model.class.iter().enumerate() {
        let tail = class.objective.and_then(|objective| match objective {
            Objective::Tail { percentile, bound } => Some((percentile, bound)),
            Objective::Throughput { .. } | Objective::Disengagement { .. } => None,
        });
        let of_class = responses(&class.name, tail).into_iter();
        all.extend(of_class.map(|(quantity, it)| (quantity, GateFigure::Response(at, it))));
    }
    let mut add = |kind, words, unit, what| all.push((quantity(kind, None, words, unit), what));
    add("power", "power", "W", GateFigure::Power);
    add("energy-per-request", "energy per query", "mJ", GateFigure::EnergyPerQuery);
    add("deep-sleep", "core time in the deepest idle state", "%", GateFigure::DeepSleep);
    add("frequency", "mean frequency", "GHz", GateFigure::Frequency);
    add("utilisation", "utilisation of the cores", "%", GateFigure::Utilisation);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_replication_under_way_ends_when_it_is_stopped() {
        let text = include_str!("../../../../examples/sim/gate-search.toml");
        let file = toml::from_str(text).unwrap();
        let scenario = Gated::new(file, &Choice::default()).unwrap();
        let variant = &scenario.frame.contents.variants[0];
        let stop = AtomicBool::new(true);
        let stopped = Progress::silent().until(&stop);
        let error = scenario.replicate(variant, 0, &stopped).unwrap_err().to_string();
        assert!(error.contains("stopped"), "{error}");
    }
}
