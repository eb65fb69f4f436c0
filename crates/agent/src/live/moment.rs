//! One epoch as it is sent to viewers.

use super::regions::{self, Regions};
use crate::discovery::PodIdentity;
use crate::status;
use lull_control::journal::{Effect, Entry, Event};
use lull_control::{AppSpec, Controller, EnergySource, Epoch, Knob, Machine, Setting, Totals};
use lull_measure::Missing;
use lull_measure::catalogue::{Metric, Sample, gauges};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Names of the series that are not metrics: cores and cache ways by region.
pub(super) const CORES: &str = "region_cores";
pub(super) const WAYS: &str = "region_cache_ways";

/// Everything that is shown of one epoch.
#[derive(Debug, Serialize, Deserialize)]
pub struct Moment {
    /// What changes slowly, and the journal.
    pub(super) head: Head,
    /// The metrics.
    #[serde(with = "by_number")]
    pub(super) samples: Vec<Sample>,
    /// By region.
    pub(super) cores: Regions,
    /// By region; empty where ways cannot be divided.
    pub(super) ways: Regions,
    /// The counters since the run began, which the agent keeps: they go on where the front end
    /// is started again.
    pub(super) totals: Totals,
    /// The pods that are apps, by the app's name.
    pub(super) pods: BTreeMap<String, PodIdentity>,
}

/// The parts of an epoch that are not series of numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) epoch: u64,
    /// Seconds since the run began.
    pub(super) time_s: f64,
    pub(super) epoch_s: f64,
    /// The policy's name.
    pub(super) policy: String,
    pub(super) safe: bool,
    pub(super) paused: bool,
    /// `measured` or `modelled`, and by what; empty where there is no figure.
    pub(super) energy_source: String,
    pub(super) energy_measured: bool,
    pub(super) journal: Vec<Line>,
    pub(super) knobs: Vec<KnobState>,
    pub(super) gates: Vec<GateState>,
    /// Apps that have no process now.
    pub(super) absent: Vec<String>,
}

/// A line of the journal in words.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) time_s: f64,
    pub(super) kind: LineKind,
    pub(super) text: String,
}

/// Chooses the style of a line.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LineKind {
    Decision,
    Held,
    Confirmed,
    Missed,
    Foreign,
    Safe,
    Operator,
    App,
    Shadow,
}

/// One knob.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KnobState {
    /// What it is set for: an app's name or the machine.
    pub(super) of: String,
    pub(super) setting: String,
    /// Whether another program set it, so that Lull leaves it alone.
    pub(super) foreign: bool,
    /// Whether areas of cores decide on it, so that the policy leaves it alone.
    pub(super) reserved: bool,
}

/// The gate of an app's server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateState {
    /// The app's name.
    pub app: String,
    /// What the gate does now, in words.
    pub limit: String,
    /// Connections that run a query or have a transaction open, and do not wait.
    pub under_way: usize,
    /// Connections that wait for a slot.
    pub waiting: usize,
    /// The admission controller with its last decision and the evidence; empty without one.
    pub decision: String,
    /// The cores of the classes of its clients and what decides on them; empty without areas.
    pub areas: String,
}

/// The arguments of [`Moment::new`].
pub struct Scene<'a> {
    /// Name of the policy that is followed.
    pub policy: &'a str,
    /// The machine.
    pub machine: &'a Machine,
    /// The apps, references measured.
    pub apps: &'a [AppSpec],
    /// What holds the settings that are in force.
    pub controller: &'a Controller,
    /// What was observed and decided.
    pub epoch: &'a Epoch,
    /// Name and decisions of the policy that decides beside the acting one.
    pub shadow: Option<(&'a str, &'a [Entry])>,
    /// The counters.
    pub totals: &'a Totals,
    /// The pods that are apps, by the app's name.
    pub pods: &'a BTreeMap<String, PodIdentity>,
    /// The gates of the apps' servers.
    pub gates: &'a [GateState],
}

impl Moment {
    /// Combines an epoch with its samples.
    pub fn new(scene: &Scene<'_>, samples: Vec<Sample>) -> Self {
        let Scene { policy, machine, apps, controller, epoch, shadow, .. } = *scene;
        let state = controller.state();
        let energy = epoch.seen.energy.as_ref().ok().map(|seen| &seen.source);
        let alive = apps.iter().zip(&epoch.seen.apps).filter(|(spec, _)| !spec.is_removed());
        Self {
            head: Head {
                epoch: epoch.number,
                time_s: epoch.seen.time.as_secs_f64(),
                epoch_s: epoch.seen.epoch.as_secs_f64(),
                policy: policy.to_owned(),
                safe: epoch.safe,
                paused: controller.is_paused(),
                energy_source: energy.map(ToString::to_string).unwrap_or_default(),
                energy_measured: matches!(energy, Some(EnergySource::Measured(_))),
                journal: journal(apps, &epoch.entries, shadow),
                knobs: knobs(apps, controller),
                gates: scene.gates.to_vec(),
                absent: alive
                    .filter(|(_, seen)| !seen.alive)
                    .map(|(spec, _)| spec.name.clone())
                    .collect(),
            },
            samples,
            cores: regions::cores(machine, apps, state),
            ways: regions::ways(machine, apps, state),
            totals: scene.totals.clone(),
            pods: scene.pods.clone(),
        }
    }

    /// An epoch of which nothing is known.
    #[cfg(test)]
    pub(super) fn empty() -> Self {
        Self {
            head: Head {
                epoch: 0,
                time_s: 0.0,
                epoch_s: 1.0,
                policy: String::new(),
                safe: false,
                paused: false,
                energy_source: String::new(),
                energy_measured: false,
                journal: Vec::new(),
                knobs: Vec::new(),
                gates: Vec::new(),
                absent: Vec::new(),
            },
            samples: Vec::new(),
            cores: Vec::new(),
            ways: Vec::new(),
            totals: Totals::default(),
            pods: BTreeMap::new(),
        }
    }

    /// Returns every number: series, label, value.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (&'static str, &str, f64)> {
        let metrics = self.samples.iter().filter_map(|sample| {
            let value = sample.value.as_ref().ok().copied().filter(|value| value.is_finite())?;
            Some((key_of(sample.metric), sample.label.as_str(), value))
        });
        let of = |series: &'static str, regions| {
            let regions: &Regions = regions;
            regions.iter().map(move |(label, value)| (series, label.as_str(), *value))
        };
        metrics.chain(of(CORES, &self.cores)).chain(of(WAYS, &self.ways))
    }

    /// Returns the JSON that is sent to viewers: head, and values by series and label.
    pub(super) fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Sent<'a> {
            #[serde(flatten)]
            head: &'a Head,
            values: BTreeMap<&'a str, BTreeMap<&'a str, f32>>,
        }
        let mut values: BTreeMap<&str, BTreeMap<&str, f32>> = BTreeMap::new();
        for (series, label, value) in self.numbers() {
            values.entry(series).or_default().insert(label, value as f32);
        }
        serde_json::to_string(&Sent { head: &self.head, values }).unwrap_or_default()
    }

    /// Returns the series that have no value: series, label, reason.
    pub(super) fn missing(&self) -> Vec<(String, &str, String)> {
        let of = |sample: &'_ Sample| {
            sample.value.as_ref().err().map(|why| (sample.metric.json_key(), why.to_string()))
        };
        let all = self.samples.iter();
        all.filter_map(|sample| of(sample).map(|(key, why)| (key, sample.label.as_str(), why)))
            .collect()
    }
}

/// The name of a metric's series, made once and not for each of thousands of samples an epoch.
fn key_of(metric: &Metric) -> &'static str {
    static KEYS: LazyLock<BTreeMap<&str, String>> =
        LazyLock::new(|| gauges().map(|metric| (metric.name, metric.json_key())).collect());
    KEYS.get(metric.name).map_or(metric.name, String::as_str)
}

/// Samples between two processes of one version: a metric is its place among the gauges.
mod by_number {
    use super::{
        BTreeMap, Deserialize, Deserializer, Missing, Sample, Serialize, Serializer, gauges,
    };
    use serde::de::Error as _;
    use std::sync::LazyLock;

    type Sent = (u16, String, Result<f64, String>);
    /// What is sent, before it is: hundreds of apps have thousands of samples.
    type Borrowed<'a> = (u16, &'a str, Result<f64, &'a str>);

    /// The places of metrics in the catalogue, by name.
    static PLACES: LazyLock<BTreeMap<&str, u16>> =
        LazyLock::new(|| (0..).zip(gauges()).map(|(place, metric)| (metric.name, place)).collect());

    fn number<E: serde::ser::Error>(sample: &Sample) -> Result<Borrowed<'_>, E> {
        let place = PLACES.get(sample.metric.name).copied();
        let place = place.ok_or_else(|| E::custom("a metric outside the catalogue"))?;
        let value = sample.value.as_ref().copied().map_err(|missing| missing.reason.as_ref());
        Ok((place, sample.label.as_str(), value))
    }

    pub(super) fn serialize<S: Serializer>(samples: &[Sample], to: S) -> Result<S::Ok, S::Error> {
        let numbers = samples.iter().map(number::<S::Error>);
        numbers.collect::<Result<Vec<Borrowed<'_>>, _>>()?.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Sample>, D::Error> {
        let sample = |(place, label, value): Sent| {
            let metric = gauges().nth(usize::from(place));
            let metric = metric.ok_or_else(|| D::Error::custom("a metric without a place"))?;
            Ok(Sample { metric, label, value: value.map_err(Missing::because) })
        };
        Vec::<Sent>::deserialize(from)?.into_iter().map(sample).collect()
    }
}

fn journal(apps: &[AppSpec], entries: &[Entry], shadow: Option<(&str, &[Entry])>) -> Vec<Line> {
    let decision = |name: &str, entry: &Entry| Line {
        time_s: entry.time.as_secs_f64(),
        kind: LineKind::Shadow,
        text: format!("{name} would: {}", status::describe_event(apps, &entry.event)),
    };
    let decisions = shadow.into_iter().flat_map(|(name, all)| all.iter().map(move |it| (name, it)));
    let done = entries.iter().map(|entry| line(apps, entry));
    done.chain(decisions.map(|(name, entry)| decision(name, entry))).collect()
}

fn line(apps: &[AppSpec], entry: &Entry) -> Line {
    let kind = match &entry.event {
        Event::Decision(_) => LineKind::Decision,
        Event::Held { .. } => LineKind::Held,
        Event::Effect(effect) if Effect::as_expected(effect) => LineKind::Confirmed,
        Event::Effect(_) => LineKind::Missed,
        Event::Foreign { .. } => LineKind::Foreign,
        Event::SafeBegins { .. } | Event::SafeEnds => LineKind::Safe,
        Event::AppExited { .. }
        | Event::AppWaiting { .. }
        | Event::AppArrived { .. }
        | Event::AppRestarted { .. }
        | Event::PolicyRebuilt { .. }
        | Event::Discovery { .. } => LineKind::App,
        Event::GateChanged { .. }
        | Event::AreasChanged { .. }
        | Event::SurveyBegins
        | Event::SurveyEnds => LineKind::Decision,
        Event::Operator(_) => LineKind::Operator,
    };
    Line {
        time_s: entry.time.as_secs_f64(),
        kind,
        text: status::describe_event(apps, &entry.event),
    }
}

fn knobs(apps: &[AppSpec], controller: &Controller) -> Vec<KnobState> {
    let reserved = controller.reserved();
    let of = |(knob, setting): (&Knob, &Setting)| {
        let app = knob.app().and_then(|app| apps.get(app.index()));
        KnobState {
            of: app.map_or("machine", |app| &app.name).to_owned(),
            setting: setting.to_string(),
            foreign: controller.yielded().contains(knob) && !reserved.contains(knob),
            reserved: reserved.contains(knob),
        }
    };
    controller.state().iter().map(of).collect()
}
