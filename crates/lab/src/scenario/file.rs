//! The scenario file: its sections and keys. Unknown keys are refused by serde.

use super::InvalidKey;
use super::node_section::HostSection;
use crate::policy_source::PolicySource;
use lull_control::{AppSpec, Class, EpochRule, WrittenObjective};
use lull_measure::Nanos;
use lull_policies::USUAL_EPOCH;
use lull_sim::model::{
    App, Closed, Distribution, HardwareModel, Open, Phase, Pool, Schedule, Shape, Source, Step,
    Tier,
};
use lull_workload::arrivals::{Rate, Steps};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A scenario as it is written, before it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// Its title.
    pub(super) title: String,
    /// How long and how often.
    #[serde(default)]
    pub(super) run: RunSection,
    /// The policies to compare, each a table of its own keys and of the policy's.
    #[serde(default)]
    pub(super) policy: Vec<toml::Table>,
    #[serde(default)]
    pub(super) machine: BTreeMap<String, HardwareModel>,
    /// Machines with cores, of which tiers' servers may be.
    #[serde(default)]
    pub(super) host: BTreeMap<String, HostSection>,
    pub(super) tier: Vec<Tier>,
    #[serde(default)]
    pub(super) pool: Vec<Pool>,
    pub(super) app: Vec<AppSection>,
    #[serde(default)]
    pub(super) limits: LimitsSection,
}

/// Default warm-up of apps that share a machine: ours.
pub(super) const NODE_WARMUP: Nanos = Nanos::from_secs(20);

/// `[run]`: how long and how often a scenario is simulated.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunSection {
    /// Seed of all random numbers; the same seed gives the same figures.
    #[schemars(extend("x-unit" = "none"))]
    pub(super) seed: u64,
    /// Part at the start of each replication that is not counted: a time, or `"mser"`, which finds
    /// it for tiers and is 20 s for apps that share a machine.
    #[schemars(with = "String")]
    pub(super) warmup: WarmupRule,
    /// Counted time of a replication.
    pub(super) length: Nanos,
    /// Independent replications of each policy.
    #[schemars(extend("x-unit" = "replications"))]
    pub(super) replications: u64,
    /// Continues until a figure is known well enough under every policy.
    pub(super) precision: Option<PrecisionSection>,
}

impl RunSection {
    /// Simulated time of a replication of apps that share a machine.
    pub fn node_span(&self) -> Nanos {
        self.warmup.given().unwrap_or(NODE_WARMUP).saturating_add(self.length)
    }
}

impl Default for RunSection {
    /// Seed 1, warm-up by MSER-5, 60 s, five replications: ours.
    fn default() -> Self {
        Self {
            seed: 1,
            warmup: WarmupRule::Found(MserWord::Mser),
            length: Nanos::from_secs(60),
            replications: 5,
            precision: None,
        }
    }
}

/// The warm-up of each replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a time such as \"20s\", or \"mser\"")]
pub(super) enum WarmupRule {
    /// `"mser"`.
    Found(MserWord),
    /// A time.
    Given(Nanos),
}

/// The word `mser`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MserWord {
    /// The only one.
    Mser,
}

/// `run.precision`: replications until a figure is known well enough.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PrecisionSection {
    /// Its name as in the CSV; `[app]` may be left out where one app has it.
    #[schemars(example = &"p95[cache]")]
    pub(super) figure: String,
    /// Half a 95 % interval over the mean.
    #[schemars(example = 0.02, extend("x-unit" = "share"))]
    pub(super) relative: f64,
    /// Replications after which it gives up with an error.
    #[serde(default = "hundred")]
    #[schemars(extend("x-unit" = "replications"))]
    pub(super) most: u64,
}

const fn hundred() -> u64 {
    100
}

/// `[limits]`: bounds at which a replication ends with an error.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitsSection {
    pub(super) in_flight: Option<u32>,
    pub(super) events: Option<u64>,
}

/// `[[app]]`: its work in the simulator, and its description for policies.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AppSection {
    pub(super) name: String,
    pub(super) source: SourceSection,
    #[serde(default)]
    pub(super) priority: u8,
    pub(super) steps: Vec<Step>,
    pub(super) class: Option<Class>,
    #[serde(default)]
    pub(super) objectives: Vec<WrittenObjective>,
    pub(super) ideal: Option<Nanos>,
    pub(super) max_load: Option<f64>,
    pub(super) threads: Option<u32>,
    pub(super) solo: Option<f64>,
}

/// `app.source`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SourceSection {
    Closed(ClosedSection),
    Open(OpenSection),
}

/// `app.source.closed`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClosedSection {
    clients: u32,
    think: Distribution,
    schedule: Option<Schedule>,
    bursts: Option<Bursts>,
}

/// `app.source.open`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenSection {
    rate_per_s: Option<f64>,
    #[serde(default)]
    gaps: Shape,
    schedule: Option<Schedule>,
    bursts: Option<Bursts>,
    trace: Option<PathBuf>,
}

/// Two levels in turn, each for half of the cycle, beginning high.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bursts {
    high: f64,
    low: f64,
    cycle: Nanos,
}

impl Bursts {
    fn schedule(self) -> Schedule {
        Schedule::bursts(self.high, self.low, self.cycle)
    }
}

impl AppSection {
    /// The model of the app; paths of files are relative to `base`.
    pub(super) fn model(&self, key: &str, base: &Path) -> Result<App, InvalidKey> {
        let source = match &self.source {
            SourceSection::Closed(closed) => closed.model(&format!("{key}.source.closed"))?,
            SourceSection::Open(open) => open.model(&format!("{key}.source.open"), base)?,
        };
        let (name, steps) = (self.name.clone(), self.steps.clone());
        Ok(App { name, source, priority: self.priority, steps })
    }

    /// The description of the app for policies; `None` if the scenario gives it no class, so
    /// that policies do not observe it.
    pub(super) fn spec(&self, key: &str) -> Result<Option<AppSpec>, InvalidKey> {
        let Some(class) = self.class else {
            let idle = !self.objectives.is_empty();
            let message = "an app with objectives needs a class: write class = \
                           \"latency-critical\" or \"best-effort\"";
            return if idle {
                Err(InvalidKey::at(format!("{key}.class"), message))
            } else {
                Ok(None)
            };
        };
        let spec = AppSpec {
            name: self.name.clone(),
            class,
            objectives: self.objectives.iter().map(|written| written.0).collect(),
            threads: self.threads,
            ideal: self.ideal,
            max_load_per_s: self.max_load,
            solo_per_s: self.solo,
        };
        spec.check().map_err(|e| InvalidKey::at(format!("{key}.{}", e.key), e.message))?;
        Ok(Some(spec))
    }

    /// The key in the file for a key of the model: bursts and traces are schedules in the
    /// model.
    pub(super) fn written_key(&self, key: &str) -> String {
        let (bursts, trace) = match &self.source {
            SourceSection::Closed(closed) => (closed.bursts.is_some(), false),
            SourceSection::Open(open) => (open.bursts.is_some(), open.trace.is_some()),
        };
        let Some((head, rest)) = key.split_once(".schedule") else { return key.to_owned() };
        if trace {
            return format!("{head}.trace");
        }
        if !bursts {
            return key.to_owned();
        }
        let part = match rest {
            ".phases[0].level" => ".high",
            ".phases[1].level" => ".low",
            ".phases[0].span" | ".phases[1].span" => ".cycle",
            _ => "",
        };
        format!("{head}.bursts{part}")
    }
}

impl ClosedSection {
    fn model(&self, key: &str) -> Result<Source, InvalidKey> {
        if self.schedule.is_some() && self.bursts.is_some() {
            return Err(InvalidKey::at(
                format!("{key}.bursts"),
                "cannot be combined with `schedule`: keep one",
            ));
        }
        let schedule = self.schedule.clone().or(self.bursts.map(Bursts::schedule));
        Ok(Source::Closed(Closed { clients: self.clients, think: self.think, schedule }))
    }
}

impl OpenSection {
    fn model(&self, key: &str, base: &Path) -> Result<Source, InvalidKey> {
        let given = [
            ("rate_per_s", self.rate_per_s.is_some()),
            ("schedule", self.schedule.is_some()),
            ("bursts", self.bursts.is_some()),
            ("trace", self.trace.is_some()),
        ];
        let mut given = given.into_iter().filter(|(_, there)| *there).map(|(name, _)| name);
        let choice = "give the arrival rate by one of rate_per_s, schedule, bursts and trace";
        match (given.next(), given.next()) {
            (None, _) => return Err(InvalidKey::at(key, choice)),
            (Some(first), Some(second)) => {
                let message = format!("cannot be combined with `{first}`: {choice}");
                return Err(InvalidKey::at(format!("{key}.{second}"), message));
            }
            (Some(_), None) => {}
        }
        let traced = self.trace.as_ref().map(|file| read_trace(&base.join(file)));
        let traced = traced.transpose().map_err(|m| InvalidKey::at(format!("{key}.trace"), m))?;
        let schedule = self.schedule.clone().or(self.bursts.map(Bursts::schedule)).or(traced);
        let rate_per_s = match (&schedule, self.rate_per_s) {
            (_, Some(rate)) => rate,
            // The schedule gives the rate; this value has to be a valid rate and is not used.
            (Some(schedule), None) => {
                schedule.phases.iter().map(|phase| phase.level).fold(1e-9, f64::max)
            }
            (None, None) => return Err(InvalidKey::at(key, choice)),
        };
        // Checked here so that the error names the key of the level.
        let rate_per_s = if self.rate_per_s.is_none() { rate_per_s.min(1e9) } else { rate_per_s };
        Ok(Source::Open(Open { rate_per_s, gaps: self.gaps, schedule }))
    }
}

/// The rates of a CSV trace as phases; the last one lasts.
fn read_trace(file: &Path) -> Result<Schedule, String> {
    let rate = Rate::Trace { file: file.to_owned(), steps: Steps::Hold };
    let read = rate.schedule().map_err(|error| error.to_string())?;
    let some_time = |(length_s, _): &(f64, [f64; 2])| *length_s > 0.0;
    let phases = read.stretches().filter(some_time).map(|(length_s, [rate_per_s, _])| {
        // The last phase has no end, whatever length the trace states.
        let span = if length_s.is_finite() { Nanos::from_secs_f64(length_s) } else { LAST };
        Phase { span: span.max(Nanos(1)), level: rate_per_s }
    });
    let phases = phases.collect();
    Ok(Schedule { phases, cycle: false, spans: lull_sim::model::Spans::Fixed })
}

/// Nominal length of a phase that lasts.
const LAST: Nanos = Nanos::from_secs(1);

/// A `[[policy]]` with its own keys apart from those of the policy.
#[derive(Debug, Clone)]
pub(super) struct PolicySection {
    pub(super) name: String,
    pub(super) label: Option<String>,
    pub(super) tiers: Option<Vec<String>>,
    /// The epoch that the file gives it.
    pub(super) epoch: Option<EpochRule>,
    pub(super) config: toml::Table,
}

/// The epoch of a policy: the given one, else the policy's own. A policy of the caller that has
/// none takes that of `first`, the first policy of the file.
pub(super) fn epoch_of(
    given: Option<EpochRule>,
    policy: &PolicySource,
    config: &toml::Table,
    first: Option<&EpochRule>,
) -> EpochRule {
    let natural = || policy.natural_epoch(config).map(EpochRule::from);
    given.or_else(natural).or_else(|| first.cloned()).unwrap_or_else(|| USUAL_EPOCH.into())
}

impl PolicySection {
    pub(super) fn read(mut config: toml::Table, key: &str) -> Result<Self, InvalidKey> {
        let missing = "has no name: write name = \"step-dvfs\"";
        let (label, name) = label_and_name(&mut config, key, missing)?;
        let tiers = take(&mut config, "tiers", key)?;
        let fixed: Option<Nanos> = take(&mut config, "epoch", key)?;
        let adaptive = take(&mut config, "adaptive_epoch", key)?;
        let (epoch, at) = match (fixed, adaptive) {
            (Some(_), Some(_)) => {
                let message = "cannot be combined with `epoch`: keep one";
                return Err(InvalidKey::at(format!("{key}.adaptive_epoch"), message));
            }
            (_, Some(rule)) => (Some(EpochRule::Adaptive(rule)), "adaptive_epoch"),
            (fixed, None) => (fixed.map(EpochRule::Fixed), "epoch"),
        };
        if let Some(epoch) = &epoch {
            epoch
                .check()
                .map_err(|error| InvalidKey::at(format!("{key}.{at}"), error.to_string()))?;
        }
        Ok(Self { name, label, tiers, epoch, config })
    }
}

/// Takes the label and the name out of the table of a policy or dispatcher.
pub(super) fn label_and_name(
    config: &mut toml::Table,
    key: &str,
    missing: &str,
) -> Result<(Option<String>, String), InvalidKey> {
    let name = take(config, "name", key)?.ok_or_else(|| InvalidKey::at(key, missing))?;
    Ok((take(config, "label", key)?, name))
}

/// Takes a key out of a table.
fn take<T: DeserializeOwned>(
    table: &mut toml::Table,
    name: &str,
    key: &str,
) -> Result<Option<T>, InvalidKey> {
    let Some(value) = table.remove(name) else { return Ok(None) };
    let read = T::deserialize(value);
    read.map(Some).map_err(|error| {
        let message = error.message().trim_end().replace('\n', ", ");
        InvalidKey::at(format!("{key}.{name}"), message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_policies::POLICIES;

    /// The keys of `[[policy]]` that are not the policy's.
    const OWN_KEYS: [&str; 6] = ["name", "label", "tiers", "epoch", "adaptive_epoch", "hosts"];

    #[test]
    fn no_policy_has_a_key_that_a_scenario_takes_for_itself() {
        for entry in POLICIES.iter() {
            for key in entry.keys() {
                assert!(!OWN_KEYS.contains(&key.name), "{}: {}", entry.name, key.name);
            }
        }
    }

    #[test]
    fn a_trace_becomes_phases_of_which_the_last_lasts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rates.csv");
        std::fs::write(&file, "time_s,rate_per_s\n0,100\n10,300\n10,200\n15,50\n").unwrap();
        let schedule = read_trace(&file).unwrap();
        let phases: Vec<_> =
            schedule.phases.iter().map(|phase| (phase.span.as_secs_f64(), phase.level)).collect();
        assert_eq!(phases, [(10.0, 100.0), (5.0, 200.0), (1.0, 50.0)]);
        assert!(!schedule.cycle);
        assert_eq!(schedule.level_seconds(Nanos::from_secs(20)), 2250.0);
    }
}
