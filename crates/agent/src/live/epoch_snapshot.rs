//! One epoch as it is sent to viewers.

use super::regions::{self, Regions};
use crate::discovery::PodIdentity;
use crate::status;
use lull_control::journal::{Effect, Entry, Event};
use lull_control::{AppSpec, Controller, EnergySource, Epoch, Knob, Machine, Setting, Totals};
use lull_measure::catalogue::{ALL, Kind, Metric, Sample};
use lull_measure::{Missing, Nanos};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Names of the series that are not metrics: cores and cache ways by region.
pub(super) const CORES: &str = "region_cores";
pub(super) const WAYS: &str = "region_cache_ways";

/// A snapshot of one epoch: everything that viewers and collectors see of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct EpochSnapshot {
    /// The slowly changing part, and the journal.
    pub(super) head: Head,
    /// The metrics.
    #[serde(with = "by_number")]
    pub(super) samples: Vec<Sample>,
    /// Indexed by region.
    pub(super) cores: Regions,
    /// Indexed by region; empty where ways cannot be divided.
    pub(super) ways: Regions,
    /// The counters since the run began, which the agent keeps: they continue where the front end
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
    /// Length of the epoch that has begun, if nothing ends it early. An arrival has cut the last
    /// one short, or the policy has another length now.
    pub(super) next_epoch_s: f64,
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
    /// The owner of the setting: an app's name or the machine.
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
    /// The state of the gate as text.
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

/// The arguments of [`EpochSnapshot::new`].
pub struct Scene<'a> {
    /// Name of the policy that is followed.
    pub policy: &'a str,
    /// The machine.
    pub machine: &'a Machine,
    /// The apps, references measured.
    pub apps: &'a [AppSpec],
    /// The controller, which holds the settings in force.
    pub controller: &'a Controller,
    /// The epoch: its observation and its decisions.
    pub epoch: &'a Epoch,
    /// The length of the next epoch.
    pub next_epoch: Nanos,
    /// Name and decisions of the policy that decides beside the acting one.
    pub shadow: Option<(&'a str, &'a [Entry])>,
    /// The counters.
    pub totals: &'a Totals,
    /// The pods that are apps, by the app's name.
    pub pods: &'a BTreeMap<String, PodIdentity>,
    /// The gates of the apps' servers.
    pub gates: &'a [GateState],
}

impl EpochSnapshot {
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
                next_epoch_s: scene.next_epoch.as_secs_f64(),
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
                next_epoch_s: 1.0,
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
    static KEYS: LazyLock<Vec<String>> =
        LazyLock::new(|| ALL.iter().map(|metric| metric.json_key()).collect());
    KEYS.get(usize::from(metric.place)).map_or(metric.name, String::as_str)
}

/// Samples between two processes of one version: a metric is its place in the catalogue, and each
/// label and each reason is sent once.
mod by_number {
    use super::{ALL, BTreeMap, Deserialize, Deserializer, Kind, Missing, Sample};
    use super::{Serialize, Serializer};
    use lull_measure::SharedText;
    use serde::de::Error as _;

    /// The part of all samples that is sent.
    #[derive(Serialize, Deserialize)]
    struct Sent {
        /// Why values are missing.
        reasons: Vec<SharedText>,
        /// Indexed by label.
        values: Vec<(SharedText, OfLabel)>,
    }

    /// The places of metrics with their values, or with the places of the reasons.
    type OfLabel = Vec<(u16, Result<f64, u32>)>;

    /// Numbers the reasons, which most samples share.
    #[derive(Default)]
    struct Reasons {
        all: Vec<SharedText>,
        /// Indexed by the address of the text, so that no byte of it is compared.
        places: BTreeMap<(*const u8, usize), u32>,
    }

    impl Reasons {
        fn place_of(&mut self, reason: &SharedText) -> u32 {
            *self.places.entry((reason.as_ptr(), reason.len())).or_insert_with(|| {
                self.all.push(reason.clone());
                self.all.len() as u32 - 1
            })
        }
    }

    pub(super) fn serialize<S: Serializer>(samples: &[Sample], to: S) -> Result<S::Ok, S::Error> {
        let mut reasons = Reasons::default();
        let mut number = |Sample { metric, value, .. }: &Sample| {
            let value = value.as_ref().copied().map_err(|why| reasons.place_of(&why.reason));
            (metric.place, value)
        };
        let of_label = samples.chunk_by(|one, next| one.label == next.label);
        let values =
            of_label.map(|all| (all[0].label.clone(), all.iter().map(&mut number).collect()));
        let values = values.collect();
        Sent { reasons: reasons.all, values }.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Sample>, D::Error> {
        let Sent { reasons, values } = Sent::deserialize(from)?;
        let reasons: Vec<Missing> = reasons.into_iter().map(Missing::because).collect();
        let mut all = Vec::with_capacity(values.iter().map(|(_, of_label)| of_label.len()).sum());
        for (label, of_label) in values {
            for (place, value) in of_label {
                let metric = ALL.get(usize::from(place)).copied();
                let metric = metric.filter(|metric| metric.kind != Kind::Counter);
                let metric = metric.ok_or_else(|| D::Error::custom("a metric without a place"))?;
                let value = match value {
                    Ok(value) => Ok(value),
                    Err(why) => Err(reasons
                        .get(why as usize)
                        .cloned()
                        .ok_or_else(|| D::Error::custom("a reason without a place"))?),
                };
                all.push(Sample { metric, label: label.clone(), value });
            }
        }
        Ok(all)
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
        | Event::ReferenceCorrected { .. }
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
